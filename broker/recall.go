package broker

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/timer"
)

const handleVersion = "v1"

var handleEncoding = base64.URLEncoding

// handle is what a recall handle says.
type handle struct {
	topic, group, unique string
	due                  int64
}

// parseHandle reads a recall handle. Words behind the fifth are left to later versions, as RocketMQ does.
func parseHandle(text string) (h handle, err error) {
	bad := func(why string) error {
		return refuse(remoting.IllegalOperation, "the recall handle is invalid: %s", why)
	}
	b, e := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if e != nil {
		return h, bad("it is no base64")
	}
	words := strings.Split(string(b), " ")
	if len(words) < 5 || words[0] != handleVersion {
		return h, bad("it is not \"v1 topic broker time key\"")
	}
	at, e := strconv.ParseInt(words[3], 10, 64)
	if e != nil || at <= 1 {
		return h, bad("its time is no number")
	}
	return handle{topic: words[1], group: words[2], unique: words[4], due: at - 1}, nil
}

// recallMessage takes RECALL_MESSAGE (370): a producer takes back a message with a time that is still pending. Of the recall and the
// delivery exactly one happens.
func (r *Replica) recallMessage(req *remoting.Command, pend *remoting.Pending) {
	unique, err := r.recall(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Set("msgId", unique)
	resp.Set(message.KeyMsgRegion, defaultRegion)
	pend.Answer(resp)
}

func (r *Replica) recall(req *remoting.Command) (unique string, err error) {
	topic, err := req.MustString("topic")
	if err != nil {
		return "", err
	}
	text, err := req.MustString("recallHandle")
	if err != nil {
		return "", err
	}
	if _, ref := r.topic(topic); ref != nil {
		return "", ref
	}
	h, err := parseHandle(text)
	switch {
	case err != nil:
		return "", err
	case h.topic != topic:
		return "", refuse(remoting.IllegalOperation, "the recall handle is of topic %q, not of %q", h.topic, topic)
	case h.group != r.group:
		return "", refuse(remoting.IllegalOperation, "the recall handle is of broker group %q, this is %s", h.group, r.group)
	}
	if ref := r.door(); ref != nil {
		return "", ref
	}
	if err := r.needLevel(remoting.MessageIllegal, "[NOT_STORED] recalls need"); err != nil {
		return "", err
	}
	// A roll may take the timer to another place in between: then it is looked for again.
	for range recallTries {
		again, err := r.tryRecall(h)
		if err != nil {
			return "", err
		}
		if !again {
			return h.unique, nil
		}
	}
	return "", refuse(remoting.SystemBusy, "the message is being moved, try later")
}

const recallTries = 5

// errTooLate is for a message that is not there to be recalled any more, or never was.
func errTooLate(h handle) error {
	return refuse(remoting.IllegalOperation, "no message %q of topic %q waits for its time any more: it was delivered, is about to be, or the handle is another one's", h.unique, h.topic)
}

func (r *Replica) tryRecall(h handle) (again bool, err error) {
	e, found, err := r.findTimer(h)
	switch {
	case err != nil:
		return false, err
	case !found:
		return false, errTooLate(h)
	case r.st.TimerRecalled(e.Pos):
		return false, nil // by an earlier request, whose answer may have been lost
	}
	p := &recall{TimerRecall: state.TimerRecall{Pos: e.Pos, Size: e.Size}, at: r.now(), done: make(chan outcome, 1)}
	if !r.propose(p) {
		return false, outcomeNotStored.refusal()
	}
	o := <-p.done
	switch {
	case p.full:
		return false, refuse(remoting.SystemBusy, "%d recalled messages wait for their time already: no more can be recalled now", state.MaxRecalled)
	case o != outcomeOK:
		return false, o.refusal()
	case p.effect.Kind == state.EffectTimerRecalled || r.st.TimerRecalled(e.Pos):
		return false, nil
	case e.Offset < r.st.TimerBounds().Low:
		return true, nil
	}
	return false, errTooLate(h)
}

// findTimer finds the pending or recalled timer of a handle.
func (r *Replica) findTimer(h handle) (timer.Entry, bool, error) {
	var list []timer.Entry
	err := r.readTimers(func(x *timer.Index) (err error) {
		list, err = x.Find(r.st.TimerBounds(), h.due, state.TimerKey(h.unique))
		return err
	})
	if err != nil {
		return timer.Entry{}, false, refuse(remoting.SystemBusy, "the timer index is being rebuilt, try later")
	}
	var buf []byte
	for _, e := range list {
		if buf, err = r.readTimer(e, buf); err != nil {
			return e, false, fmt.Errorf("read the message: %w", err)
		}
		rec, _, err := message.Decode(buf[state.TimerPrefixSize:])
		if err != nil {
			return e, false, err
		}
		if propertyOr(rec.Properties, message.KeyUniqueKey, "") == h.unique && propertyOr(rec.Properties, message.KeyRealTopic, "") == h.topic {
			return e, true, nil
		}
	}
	return timer.Entry{}, false, nil
}

// recall is the proposal of a recall.
//
// Invariant: one that was formed is carried out, unless the timer has fired, was rolled or was recalled before it in the log: a batch that is
// formed behind it leaves the timer out.
type recall struct {
	state.TimerRecall
	at     time.Time
	noted  bool // it is the one that is noted beside the state
	full   bool
	effect state.Effect
	done   chan outcome // capacity 1
}

const recallSize = 20

func (p *recall) space() int       { return recordSpace(recallSize) }
func (p *recall) since() time.Time { return p.at }

func (p *recall) records() int {
	if p.full {
		return 0
	}
	return 1
}

func (p *recall) form(r *Replica, b *commitlog.Builder) {
	if _, _, recalled := r.st.TimersPending(); recalled+len(r.timers.recalled) >= state.MaxRecalled {
		p.full = true
		return
	}
	body, _, ok := b.Reserve(state.RecordTimerRecall, state.RecordVersion, 0, recallSize)
	if !ok {
		panic("broker: the frame that admitted a recall has no room for it")
	}
	p.Append(body[:0])
	if _, already := r.timers.recalled[p.Pos]; !already {
		r.timers.recalled[p.Pos] = struct{}{}
		p.noted = true
	}
}

func (p *recall) unform(r *Replica) {
	if p.noted {
		delete(r.timers.recalled, p.Pos)
	}
}

func (p *recall) apply(_ int, e state.Effect)  { p.effect = e }
func (p *recall) finish(_ *Replica, o outcome) { p.done <- o }
