package broker

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// setting is one line of the configuration that admin tools see, under RocketMQ's name for it. One with a check can be changed while the
// group runs: for all its replicas, by a command in its log, so that the change survives a failover and a restart. Until then, and again
// when it is set to "default", each node has it as it was started.
//
// No setting names a file, an address or a program, and none does by being changed.
type setting struct {
	name  string
	value func(*Replica) string
	check func(value string) (normal string, err error)
	how   string // to change one without a check
}

// settingDefault takes a setting back.
const settingDefault = "default"

// Settings that can be changed.
const (
	settingPermission  = "brokerPermission"
	settingCreateTopic = "autoCreateTopicEnable"
	settingCreateGroup = "autoCreateSubscriptionGroup"
	settingRetention   = "fileReservedTime"
)

func checkTruth(v string) (string, error) {
	switch strings.ToLower(v) {
	case "true", "false":
		return strings.ToLower(v), nil
	}
	return "", errors.New("use true or false")
}

func checkPermission(v string) (string, error) {
	if v == "2" || v == "4" || v == "6" {
		return v, nil
	}
	return "", errors.New("use 6 for reading and writing, 4 for reading, 2 for writing")
}

// maxRetentionHours is ten years.
const maxRetentionHours = 87600

func checkRetention(v string) (string, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n != -1 && (n < 1 || n > maxRetentionHours) {
		return "", fmt.Errorf("use 1 to %d hours, or -1 to keep messages for ever", maxRetentionHours)
	}
	return strconv.Itoa(n), nil
}

// createsTopics tells whether a send creates its topic.
func (r *Replica) createsTopics() bool {
	return r.isSet(settingCreateTopic, !r.node.o.NoAutoCreateTopic)
}

// createsGroups tells whether a heartbeat creates its consumer group.
func (r *Replica) createsGroups() bool {
	return r.isSet(settingCreateGroup, !r.node.o.NoAutoCreateGroup)
}

func (r *Replica) isSet(name string, other bool) bool {
	if v, changed := r.st.Setting(name); changed {
		return v == "true"
	}
	return other
}

// permission is what of the topics' permissions this group has in routes. What comes with an old route is taken all the same: clients look
// at their routes every 30 seconds only, and no send shall fail.
func (r *Replica) permission() int32 {
	if v, changed := r.st.Setting(settingPermission); changed {
		n, _ := strconv.Atoi(v)
		return int32(n)
	}
	return permRead | permWrite
}

// retentionAge is how long a message is kept at least; negative: for ever.
func (r *Replica) retentionAge() time.Duration {
	if v, changed := r.st.Setting(settingRetention); changed {
		n, _ := strconv.Atoi(v)
		return time.Duration(n) * time.Hour
	}
	return r.node.o.RetentionAge
}

func fixed(v string) func(*Replica) string { return func(*Replica) string { return v } }

func truth(of func(*Replica) bool) func(*Replica) string {
	return func(r *Replica) string { return strconv.FormatBool(of(r)) }
}

func figure[N ~int | ~int32 | ~int64](of func(*Replica) N) func(*Replica) string {
	return func(r *Replica) string { return strconv.FormatInt(int64(of(r)), 10) }
}

// settings are those of this replica and its group, sorted by name. What is not here has no counterpart in this broker.
var settings = []setting{
	{name: "aclEnable", value: fixed("false"), how: "access control is not there yet"},
	{name: settingCreateGroup, value: truth((*Replica).createsGroups), check: checkTruth},
	{name: settingCreateTopic, value: truth((*Replica).createsTopics), check: checkTruth},
	{name: "brokerClusterName", how: "--cluster-name of the node, when it starts", value: func(r *Replica) string { return r.node.o.ClusterName }},
	{name: "brokerIP1", how: "--advertise of the node, when it starts", value: func(r *Replica) string { host, _, _ := net.SplitHostPort(r.advertise); return host }},
	{name: "brokerId", how: "the controllers give it", value: figure(func(r *Replica) ids.BrokerID { return r.brokerID() })},
	{name: "brokerName", how: "it is the name of the group for ever", value: func(r *Replica) string { return r.group }},
	{name: settingPermission, value: figure((*Replica).permission), check: checkPermission},
	{name: "brokerRole", how: "who is master is the controllers' and the group's: electMaster", value: func(r *Replica) string {
		if r.role.Load().Kind == raftlog.RoleMaster {
			return "SYNC_MASTER"
		}
		return "SLAVE"
	}},
	{name: "controllerAddr", how: "`ledgermq admin controller add` and `remove`", value: func(r *Replica) string { return strings.Join(r.node.ctl.Addresses(), ";") }},
	{name: "defaultTopicQueueNums", how: "it is fixed: a send can ask for fewer, a topic that is created beforehand has as many as it is given", value: fixed(strconv.Itoa(templateQueues))},
	{name: "enableControllerMode", how: "there is no other mode", value: fixed("true")},
	{name: settingRetention, value: func(r *Replica) string {
		if age := r.retentionAge(); age >= 0 {
			return strconv.Itoa(int(age / time.Hour))
		}
		return "-1"
	}, check: checkRetention},
	{name: "flushDiskType", how: "it is chosen when the group is made", value: func(r *Replica) string {
		if r.clog.Async() {
			return "ASYNC_FLUSH"
		}
		return "SYNC_FLUSH"
	}},
	{name: "inSyncReplicas", how: "`ledgermq admin group set-mode`", value: figure(func(r *Replica) int { return r.raft.Status().K })},
	{name: "listenPort", how: "--listen of the node, when it starts", value: func(r *Replica) string { _, port, _ := net.SplitHostPort(r.advertise); return port }},
	{name: "mappedFileSizeCommitLog", how: "it is chosen when the group is made", value: figure(func(r *Replica) int64 { return r.clog.SegmentSize() })},
	{name: "maxMessageSize", how: "it is fixed", value: fixed(strconv.Itoa(message.MaxBody))},
	{name: "minInSyncReplicas", how: "`ledgermq admin group set-mode --min-isr`", value: figure(func(r *Replica) int { return r.raft.Status().MinISR })},
	{name: "namesrvAddr", how: "`ledgermq admin namesrv`", value: func(r *Replica) string { return strings.Join(r.node.namesrvs(), ";") }},
	{name: "rejectTransactionMessage", how: "it is fixed", value: fixed("false")},
	{name: "retentionBytes", how: "--retention-bytes of the node, when it starts", value: figure(func(r *Replica) int64 { return r.node.o.RetentionBytes })},
	{name: "slaveReadEnable", how: "it is fixed", value: fixed("true")},
	{name: "storePathRootDir", how: "--data of the node, when it starts; no request can name a folder", value: func(r *Replica) string { return r.dir }},
	{name: "totalReplicas", how: "`ledgermq admin group add-replica` and `remove-replica`", value: figure(func(r *Replica) int { return len(*r.others.Load()) + 1 })},
}

// brokerID is the id under which name servers and clients know this replica now.
func (r *Replica) brokerID() ids.BrokerID {
	if r.role.Load().Kind == raftlog.RoleMaster {
		return ids.MasterBrokerID
	}
	return ids.BrokerID(r.slot)
}

// namesrvs are the name servers that this node registers with.
func (n *Node) namesrvs() (addrs []string) {
	for _, g := range n.registrarList() {
		addrs = append(addrs, g.addr)
	}
	return addrs
}

// brokerConfig takes GET_BROKER_CONFIG (26): Java's properties text.
func (r *Replica) brokerConfig(*remoting.Command) (*remoting.Command, error) {
	var body []byte
	for _, s := range settings {
		body = fmt.Appendf(body, "%s=%s\n", s.name, property(s.value(r)))
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = body
	v := r.st.TopicVersion()
	resp.Set("version", fmt.Sprintf(`{"counter":%d,"stateVersion":%d,"timestamp":%d}`, v.Counter, r.term(), v.Time))
	return resp, nil
}

// changeConfig takes UPDATE_BROKER_CONFIG (25): Java's properties text. All of it is checked before any of it is done.
func (r *Replica) changeConfig(req *remoting.Command, pend *remoting.Pending) {
	changes, err := parseConfig(req.Body)
	if err == nil {
		err = r.needLevel(remoting.SystemError, "a change of settings needs")
	}
	if err == nil && r.frozen.Load() {
		err = refuse(remoting.NoPermission, "group %s is being removed: that cannot be taken back", r.group)
	}
	if err == nil {
		_, err = r.commitCommand(state.RecordSettings, state.AppendSettings(nil, changes))
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	for _, c := range changes {
		r.log.Info().Str("setting", c.Name).Str("value", c.Value).Msg("an operator changed a setting of the group")
	}
	r.node.publish(r)
	ok(pend)
}

// maxConfig bounds the text of a change.
const maxConfig = 64 << 10

func parseConfig(body []byte) ([]state.Setting, error) {
	if len(body) > maxConfig {
		return nil, refuse(remoting.InvalidParameter, "a text of %d bytes: at most %d are taken", len(body), maxConfig)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !found || name == "" {
			return nil, refuse(remoting.InvalidParameter, "line %.80q: want key=value", line)
		}
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		switch {
		case i < 0:
			return nil, refuse(remoting.InvalidParameter, "no such setting: %.80q", name)
		case settings[i].check == nil:
			return nil, refuse(remoting.NoPermission, "%s cannot be changed by a request: %s", name, settings[i].how)
		}
		if value == settingDefault {
			values[name] = ""
			continue
		}
		normal, err := settings[i].check(value)
		if err != nil {
			return nil, refuse(remoting.InvalidParameter, "%s=%.80q: %v", name, value, err)
		}
		values[name] = normal
	}
	if len(values) == 0 {
		return nil, refuse(remoting.InvalidParameter, "the body names no setting: want lines of key=value")
	}
	var changes []state.Setting
	for _, name := range slices.Sorted(maps.Keys(values)) {
		changes = append(changes, state.Setting{Name: name, Value: values[name]})
	}
	return changes, nil
}

// property escapes a value for Java's properties text.
func property(v string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`).Replace(v)
}

func init() {
	if !slices.IsSortedFunc(settings, func(a, b setting) int { return strings.Compare(a.name, b.name) }) {
		panic("broker: settings are not sorted by name")
	}
}
