package broker

import (
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// A broker group is removed like this:
//
//	write-protected, drained ──FREEZE_GROUP──▶ freeze in the log: nothing is stored behind it, no name server hears of the group
//	     ──heartbeat──▶ the controllers forget the group, and remember that they did ──▶ each node closes its replica and moves its folder away
//
// The freeze decides, see state.Freeze; what follows happens by itself, as soon as a controller leads.

// routesKnownAfter is how old the routes of a group must be that is frozen: stock clients look at theirs every 30 s, and send to it until they
// know that it is write-protected.
const routesKnownAfter = 35 * time.Second

// leftShown bounds how many consumer groups an answer names that are behind.
const leftShown = 10

// freezeView is the answer to FREEZE_GROUP.
type freezeView struct {
	Frozen       bool     `json:"frozen"`
	Refused      string   `json:"refused,omitempty"` // why it cannot be frozen now whatever is given up
	Left         []string `json:"left"`              // what is left and has to be given up, a line each
	Messages     int64    `json:"messages"`          // of that, in queues
	Timers       uint64   `json:"timers"`
	Transactions int      `json:"transactions"`
}

// freezeGroup takes FREEZE_GROUP (31024), our own: with `execute` the group is frozen, else it only tells what is in the way. `brokerName` must be
// the group's name.
func (r *Replica) freezeGroup(req *remoting.Command, pend *remoting.Pending) {
	v, err := r.freeze(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	resp, err := jsonAnswer(v)
	if err != nil {
		answerError(pend, err)
		return
	}
	pend.Answer(resp)
}

func (r *Replica) freeze(req *remoting.Command) (v freezeView, err error) {
	name, err := req.MustString("brokerName")
	if err != nil {
		return v, err
	}
	if name != r.group {
		return v, refuse(remoting.InvalidParameter, "this is broker group %s, not %q", r.group, name)
	}
	giveUp, err := req.BoolOr("giveUp", false)
	if err != nil {
		return v, err
	}
	execute, err := req.BoolOr("execute", false)
	if err != nil {
		return v, err
	}
	ctx, cancel := r.requestContext()
	defer cancel()
	if err := r.confirm(ctx); err != nil {
		return v, err
	}
	if v = r.freezePlan(); v.Frozen || !execute {
		return v, nil
	}
	if v.Refused != "" {
		return v, refuse(remoting.SystemError, "%s", v.Refused)
	}
	if len(v.Left) > 0 && !giveUp {
		return v, refuse(remoting.SystemError, "group %s is not drained: %s", r.group, firstOf(v.Left))
	}
	if ref := r.door(); ref != nil {
		return v, ref
	}
	e, o := r.awaitFreeze(giveUp)
	switch {
	case o == outcomeNotStored:
		return v, o.refusal()
	case o != outcomeOK:
		return v, refuse(remoting.ServiceNotAvailable, "[UNKNOWN] the master changed, or too few replicas answered, before the group was known to be frozen: ask again")
	case e.Kind != state.EffectFrozen:
		v = r.freezePlan()
		return v, refuse(remoting.SystemError, "group %s is not drained: %s", r.group, firstOf(v.Left))
	}
	r.log.Warn().Bool("giveUp", giveUp).Int64("messages", v.Messages).Uint64("timers", v.Timers).Int("transactions", v.Transactions).
		Msg("an operator removes this group: it takes no message any more")
	r.node.publish(r)
	signal(r.node.beat)
	v.Frozen = true
	return v, nil
}

func firstOf(lines []string) string {
	switch len(lines) {
	case 0:
		return "something came meanwhile"
	case 1:
		return lines[0]
	}
	return fmt.Sprintf("%s, and %d more", lines[0], len(lines)-1)
}

// freezePlan tells what is in the way of a freeze.
func (r *Replica) freezePlan() freezeView {
	left := r.st.Left()
	v := freezeView{Frozen: r.st.Frozen() != state.NotFrozen, Left: []string{}, Messages: left.Messages, Timers: left.Timers, Transactions: left.Transactions}
	age := time.Duration(r.now().UnixMilli()-r.st.TopicVersion().Time) * time.Millisecond
	switch low := r.needLevel(remoting.SystemError, "the removal of a group needs"); {
	case v.Frozen:
	case low != nil:
		_, v.Refused = errorAnswer(low)
	case r.permission()&permWrite != 0:
		v.Refused = fmt.Sprintf("group %s is not write-protected: clients would go on sending to it; run `ledgermq admin group write-protect %s` first", r.group, r.group)
	case age < routesKnownAfter:
		v.Refused = fmt.Sprintf("the routes of group %s changed %v ago, and clients look at theirs every 30s: try again in %v", r.group, age.Round(time.Second), (routesKnownAfter - age).Round(time.Second))
	}
	type pair struct{ topic, group string }
	behind := map[pair]int64{}
	var order []pair
	for _, b := range left.Behind {
		p := pair{b.Topic, b.Group}
		if behind[p] == 0 {
			order = append(order, p)
		}
		behind[p] += b.Messages
	}
	for i, p := range order {
		if i == leftShown {
			v.Left = append(v.Left, fmt.Sprintf("%d more pairs of consumer group and topic", len(order)-i))
			break
		}
		v.Left = append(v.Left, fmt.Sprintf("consumer group %s has not consumed %d of topic %s", p.group, behind[p], p.topic))
	}
	if left.Timers > 0 {
		v.Left = append(v.Left, fmt.Sprintf("%d delayed messages wait for their time", left.Timers))
	}
	if left.Transactions > 0 {
		v.Left = append(v.Left, fmt.Sprintf("%d transactions are pending", left.Transactions))
	}
	return v
}

// freezing is the proposal of a freeze. Nothing is formed behind it before it is applied: what is stored is before the freeze, or there is none.
type freezing struct{ command }

func (s *freezing) form(r *Replica, b *commitlog.Builder) {
	s.command.form(r, b)
	r.freezeAt = b.Index()
}

func (s *freezing) unform(r *Replica) { r.frozenTo(r.freezeAt) }

// frozenTo goes on with what was held back behind a freeze in flight.
func (r *Replica) frozenTo(applied ids.Index) {
	if r.freezeAt != 0 && applied >= r.freezeAt {
		r.freezeAt, r.heldBack = 0, true
	}
}

func (r *Replica) awaitFreeze(giveUp bool) (state.Effect, outcome) {
	type result struct {
		e state.Effect
		o outcome
	}
	ch := make(chan result, 1)
	s := &freezing{command{kind: state.RecordFreeze, body: state.AppendFreeze(nil, giveUp), at: r.now(), done: func(o outcome, e state.Effect) { ch <- result{e, o} }}}
	if !r.propose(s) {
		s.finish(r, outcomeNotStored)
	}
	res := <-ch
	return res.e, res.o
}

// barred tells whether a frozen group does not take the proposal any more: all but commands of the state, of which none stores a message.
func barred(p proposal) bool {
	switch p.(type) {
	case *command, *freezing:
		return false
	}
	return true
}

// frozenRemark is the answer to who wants to store something in a frozen group.
const frozenRemark = "[NOT_STORED] group %s is being removed: use another one"
