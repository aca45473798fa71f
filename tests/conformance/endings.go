package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// half is a half message as its producer knows it.
type half struct{ number, origin, unique string }

// half sends a half message of a producer group.
func (d *door) half(topic, group, body string) (h half, err error) {
	h.unique = uniqueKey()
	resp, err := d.call(310, d.sendFields(topic, "a", group, "f", "4", "i", properties("UNIQ_KEY", h.unique, "TRAN_MSG", "true", "PGROUP", group, "KEYS", "k")), body)
	if err != nil {
		return h, err
	}
	h.number = resp.GetOr("queueOffset", "")
	h.origin, err = place(resp)
	return h, err
}

func (h half) end(group, how string, other ...string) fields {
	f := fields{"producerGroup", group, "tranStateTableOffset", h.number, "commitLogOffset", h.origin, "commitOrRollback", how,
		"fromTransactionCheck", "false", "msgId", h.unique, "transactionId", h.unique}
	for i := 0; i+1 < len(other); i += 2 {
		f[slices.Index(f, other[i])+1] = other[i+1]
	}
	return f
}

// transactionEnds ends transactions rightly, twice, the other way, and such that are not there or are somebody else's.
func transactionEnds(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t, g := e.Topic(), e.Group("producers")
	d.code("half message", 310, d.sendFields(t, "a", g, "f", "4", "i", properties("UNIQ_KEY", uniqueKey(), "TRAN_MSG", "true", "PGROUP", g)), "never ended")
	halves := make(map[string]half)
	for _, name := range []string{"committed", "rolled back", "foreign", "moved", "neither", "other", "bare", "go", "late"} {
		if halves[name], err = d.half(t, g, name); err != nil {
			return err
		}
	}
	ordinary, err := d.call(310, d.sendFields(t, "a", g, "i", properties("UNIQ_KEY", uniqueKey(), "PGROUP", g)), "ordinary")
	if err != nil {
		return err
	}
	at, err := place(ordinary)
	if err != nil {
		return err
	}
	if d, err = afterPause(d); err != nil {
		return err
	}
	end := func(key string, f fields) { d.show(key, 37, f, "") }
	end("committed", halves["committed"].end(g, "8"))
	end("committed again", halves["committed"].end(g, "8"))
	end("rolled back after the commit", halves["committed"].end(g, "12"))
	end("rolled back", halves["rolled back"].end(g, "12"))
	end("rolled back again", halves["rolled back"].end(g, "12"))
	end("committed after it was rolled back", halves["rolled back"].end(g, "8"))
	end("of another group", halves["foreign"].end(e.Group("others"), "8"))
	end("rolled back by another group", halves["foreign"].end(e.Group("others"), "12"))
	end("of another number", halves["moved"].end(g, "8", "tranStateTableOffset", "999999"))
	end("of another place", halves["moved"].end(g, "8", "commitLogOffset", "999999999999"))
	end("of a place below 0", halves["moved"].end(g, "8", "commitLogOffset", "-1"))
	end("of another one's place", halves["moved"].end(g, "8", "commitLogOffset", halves["neither"].origin))
	end("of an ordinary message", half{number: "0", origin: at, unique: uniqueKey()}.end(g, "8"))
	end("of nothing", half{number: "888888", origin: "888888888888", unique: uniqueKey()}.end(g, "8"))
	end("a number that is none", halves["moved"].end(g, "8", "tranStateTableOffset", "x"))
	end("how is no number", halves["moved"].end(g, "x"))
	// As the Go client does it: without a topic and without ids of the message.
	d.show("without the ids", 37, halves["bare"].end(g, "8")[:10], "")
	d.show("by a check's answer", 37, halves["late"].end(g, "8", "fromTransactionCheck", "true"), "")
	list, err := d.await(t, 4)
	if err != nil {
		return err
	}
	var bodies []string
	for i := range list {
		body := string(list[i].Body)
		if !slices.Contains(bodies, body) {
			d.record(body, &list[i])
		}
		bodies = append(bodies, body)
	}
	slices.Sort(bodies)
	e.Print("in the queue", strings.Join(bodies, ", "))
	e.Print("in the queue, each once", strings.Join(slices.Compact(bodies), ", "))
	for _, how := range []string{"0", "99"} {
		e.Print("ended with "+how, d.within(time.Second, 37, halves["neither"].end(g, how)))
	}
	return nil
}

// within is the code of an answer, or that there is none in that time.
func (d *door) within(limit time.Duration, code int32, f fields) string {
	req := remoting.NewRequest(code)
	for i := 0; i+1 < len(f); i += 2 {
		req.Set(f[i], f[i+1])
	}
	ctx, cancel := context.WithTimeout(d.e, limit)
	defer cancel()
	resp, err := d.c.Call(ctx, req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("code %d", resp.Code)
}

// halfMessages are half messages that cannot be meant.
func halfMessages(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t, g := e.Topic(), e.Group("producers")
	if _, err := d.call(200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`, g)); err != nil {
		return err
	}
	send := func(key, topic, flag string, pairs ...string) {
		d.code(key, 310, d.sendFields(topic, "a", g, "f", flag, "i", properties(append(pairs, "TRAN_MSG", "true", "PGROUP", g, "UNIQ_KEY", uniqueKey())...)), "half")
	}
	send("plain", t, "4")
	send("with a level", t, "4", "DELAY", "1")
	send("with a time", t, "4", "TIMER_DELAY_MS", "60000")
	send("without the bit in its flag", t, "0")
	send("with the bits of a commit", t, "8")
	send("to no topic", t+"-none", "4")
	send("to a retry topic", message.RetryTopic(g), "4")
	send("to the half topic", "RMQ_SYS_TRANS_HALF_TOPIC", "4")
	d.code("without a producer group", 310, d.sendFields(t, "f", "4", "i", properties("TRAN_MSG", "true", "UNIQ_KEY", uniqueKey())), "half")
	d.code("TRAN_MSG is false", 310, d.sendFields(t, "i", properties("TRAN_MSG", "false", "UNIQ_KEY", uniqueKey())), "no half")
	d.code("TRAN_MSG is x", 310, d.sendFields(t, "i", properties("TRAN_MSG", "x", "UNIQ_KEY", uniqueKey())), "no half")
	list, err := d.await(t, 1)
	if err != nil {
		return err
	}
	e.Print("in the queue", strconv.Itoa(len(list)))
	return nil
}
