package broker

import (
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// A consumer group may be forbidden to read one topic (353). That is a setting of the broker group, so it survives failovers: its name is
// made of the two, which have no slash.
const forbidPrefix = "forbid/"

// maxForbidden bounds how many there are: each change of a setting copies them all.
const maxForbidden = 10_000

// appendForbidden appends the name of the setting that forbids a group to read a topic.
func appendForbidden(dst []byte, group, topic string) []byte {
	return append(append(append(append(dst, forbidPrefix...), group...), '/'), topic...)
}

// mayRead tells whether a group may read a topic. It makes no garbage.
func (r *Replica) mayRead(group, topic string) bool {
	var name [len(forbidPrefix) + message.MaxGroup + 1 + message.MaxInternalTopic]byte
	return !r.st.HasSetting(appendForbidden(name[:0], group, topic))
}

// forbidden takes UPDATE_AND_GET_GROUP_FORBIDDEN (353): with readable it lets a group read a topic, or forbids it, and tells in any case how that
// is. What the group has of the topic stays as it is.
func (r *Replica) forbidden(req *remoting.Command) (*remoting.Command, error) {
	group, err := req.MustString("group")
	if err == nil {
		group, err = checkedName(group, message.ValidGroup)
	}
	if err != nil {
		return nil, err
	}
	topic, err := req.MustString("topic")
	if err == nil {
		topic, err = checkedName(topic, message.ValidTopic)
	}
	if err != nil {
		return nil, err
	}
	readable, err := req.BoolOr("readable", true)
	if err != nil {
		return nil, err
	}
	if _, change := req.Get("readable"); change && readable != r.mayRead(group, topic) {
		if err := r.forbid(group, topic, !readable); err != nil {
			return nil, err
		}
	}
	return jsonAnswer(struct {
		Group    string `json:"group"`
		Readable bool   `json:"readable"`
		Topic    string `json:"topic"`
	}{group, r.mayRead(group, topic), topic})
}

func (r *Replica) forbid(group, topic string, forbid bool) error {
	if err := r.needLevel(remoting.SystemError, "to forbid a group to read a topic needs"); err != nil {
		return err
	}
	change := state.Setting{Name: string(appendForbidden(nil, group, topic))}
	if forbid {
		if n := len(r.forbids("")); n >= maxForbidden {
			return refuse(remoting.SystemBusy, "%d times a group is forbidden to read a topic in group %s, and there cannot be more", n, r.group)
		}
		change.Value = "true"
	}
	_, err := r.commitCommand(state.RecordSettings, state.AppendSettings(nil, []state.Setting{change}))
	if err == nil {
		r.log.Info().Str("consumerGroup", group).Str("topic", topic).Bool("readable", !forbid).Msg("an operator changed what a consumer group may read")
	}
	return err
}

// forbids are the settings that forbid a group something, or any group.
func (r *Replica) forbids(group string) (all []state.Setting) {
	prefix := forbidPrefix
	if group != "" {
		prefix += group + "/"
	}
	for _, s := range r.st.Settings() {
		if strings.HasPrefix(s.Name, prefix) {
			all = append(all, s)
		}
	}
	return all
}

// allowAll forgets what a group was forbidden: it is deleted.
func (r *Replica) allowAll(group string) error {
	all := r.forbids(group)
	if len(all) == 0 {
		return nil
	}
	for i := range all {
		all[i].Value = ""
	}
	if _, err := r.commitCommand(state.RecordSettings, state.AppendSettings(nil, all)); err != nil {
		return fmt.Errorf("forget what group %q may not read: %w", group, err)
	}
	return nil
}

// forbiddenTable is RocketMQ's: by group and topic the bit of the permission that is taken, which is that to read.
func (r *Replica) forbiddenTable() map[string]map[string]int {
	table := map[string]map[string]int{}
	for _, s := range r.forbids("") {
		group, topic, _ := strings.Cut(strings.TrimPrefix(s.Name, forbidPrefix), "/")
		if table[group] == nil {
			table[group] = map[string]int{}
		}
		table[group][topic] = int(permRead)
	}
	return table
}
