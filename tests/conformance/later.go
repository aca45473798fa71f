package conformance

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Cases of what comes later than it was sent, or never: tries, delays, recalls.

// pull returns what is in a queue of a topic.
func (d *door) pull(topic string) ([]message.Record, error) {
	resp, err := d.call(remoting.PullMessage, fields{"consumerGroup", d.e.Group("reader"), "topic", topic, "queueId", "0", "queueOffset", "0",
		"maxMsgNums", "32", "sysFlag", "4", "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0",
		"expressionType", "TAG"}, "")
	if err != nil || resp.Code != remoting.Success {
		return nil, err
	}
	var list []message.Record
	for rest := resp.Body; len(rest) > 0; {
		rec, n, err := message.Decode(rest)
		if err != nil {
			return nil, err
		}
		list, rest = append(list, rec), rest[n:]
	}
	return list, nil
}

// await returns what is in a queue when so many messages are.
func (d *door) await(topic string, count int) (list []message.Record, err error) {
	err = jepsen.Await(d.e, fmt.Sprintf("%d messages of %s", count, topic), func() (bool, error) {
		list, err = d.pull(topic)
		return len(list) >= count, err
	})
	return list, err
}

// record prints all that a consumer can see of a message.
func (d *door) record(key string, rec *message.Record) {
	d.e.Print(key+".topic", rec.Topic)
	d.e.Print(key+".queue", fmt.Sprintf("%d @%d", rec.QueueID, rec.QueueOffset))
	d.e.Print(key+".sysFlag", rec.SysFlag)
	d.e.Print(key+".reconsumeTimes", rec.ReconsumeTimes)
	d.e.Print(key+".preparedOffset", rec.PreparedOffset > 0)
	d.e.Print(key+".body", string(rec.Body))
	properties := maps.Collect(message.Properties(rec.Properties))
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		d.e.Print(key+".property."+name, plain(properties[name]))
	}
}

// place is where a message lies that a send was answered with.
func place(resp *remoting.Command) (offset string, err error) {
	if resp.Code != remoting.Success {
		return "", fmt.Errorf("code %d: %s", resp.Code, resp.Remark)
	}
	_, at, err := message.ParseOffsetMessageID(resp.GetOr("msgId", ""))
	return strconv.FormatInt(int64(at), 10), err
}

// properties encodes names and values in turn.
func properties(pairs ...string) string {
	text := ""
	for i := 0; i+1 < len(pairs); i += 2 {
		text = message.AppendProperty(text, pairs[i], pairs[i+1])
	}
	return text
}

// uniqueKey is one that no other message of the run has.
func uniqueKey() string { return message.NewUniqueKey() }

// sendBacks hands back messages that were tried as often as their maximum allows, and once less: the maximum is the request's or the group's.
func sendBacks(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t := e.Topic()
	back := func(key, group, tries string, f ...string) error {
		resp, err := d.call(310, d.sendFields(t, "j", tries, "i", properties("UNIQ_KEY", uniqueKey(), "KEYS", "k", "colour", "red")), "body of "+tries)
		if err != nil {
			return err
		}
		at, err := place(resp)
		if err != nil {
			return err
		}
		d.show(key, 36, append(fields{"offset", at, "group", group, "originMsgId", "M", "originTopic", t, "unitMode", "false"}, f...), "")
		return nil
	}
	make := func(name, maximum string) error {
		_, err := d.call(200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":%s}`, name, maximum))
		return err
	}
	maxima := []int{0, 1, 3, 16}
	for _, n := range maxima {
		own, asked := e.Group(fmt.Sprint("own", n)), e.Group(fmt.Sprint("asked", n))
		for group, maximum := range map[string]int{own: n, asked: 7} {
			if err := make(group, strconv.Itoa(maximum)); err != nil {
				return err
			}
		}
		for _, tries := range []int{n - 1, n} {
			if tries < 0 {
				continue
			}
			key := fmt.Sprintf("%d tries of %d", tries, n)
			if err := back("the group's maximum: "+key, own, strconv.Itoa(tries), "delayLevel", "1"); err != nil {
				return err
			}
			if err := back("the request's maximum: "+key, asked, strconv.Itoa(tries), "delayLevel", "1", "maxReconsumeTimes", strconv.Itoa(n)); err != nil {
				return err
			}
		}
	}
	given := e.Group("given")
	if err := make(given, "16"); err != nil {
		return err
	}
	for _, one := range [][]string{{"given up", "delayLevel", "-1"}, {"level 99", "delayLevel", "99"},
		{"the broker's level", "delayLevel", "0"}} {
		if err := back(one[0], given, "2", one[1:]...); err != nil {
			return err
		}
	}
	if err := make(e.Group("below"), "16"); err != nil {
		return err
	}
	if err := back("a maximum below 0", e.Group("below"), "2", "delayLevel", "1", "maxReconsumeTimes", "-1"); err != nil {
		return err
	}
	if err := back("no group", e.Group("nobody"), "0", "delayLevel", "0"); err != nil {
		return err
	}
	d.show("nothing there", 36, fields{"offset", "999999999999", "group", given, "delayLevel", "0", "originMsgId", "M", "originTopic", t}, "")
	d.show("below the log", 36, fields{"offset", "-1", "group", given, "delayLevel", "0", "originMsgId", "M", "originTopic", t}, "")
	// What a client does that 36 failed for: it sends to the group's retry topic itself.
	retry := message.RetryTopic(e.Group("own3"))
	for _, tries := range []string{"3", "4"} {
		d.code("own send of "+tries+" tries of 3", 310, d.sendFields(retry, "j", tries, "l", "3",
			"i", properties("UNIQ_KEY", uniqueKey(), "RETRY_TOPIC", t, "RECONSUME_TIME", tries, "MAX_RECONSUME_TIMES", "3", "ORIGIN_MESSAGE_ID", "M")), "own")
	}
	if d, err = afterPause(d); err != nil {
		return err
	}
	show := func(key, topic string, count int) error {
		list, err := d.await(topic, count)
		if err != nil {
			return err
		}
		slices.SortFunc(list, func(a, b message.Record) int { return strings.Compare(string(a.Body), string(b.Body)) })
		for i := range list {
			if count > 1 {
				list[i].QueueOffset = 0 // which of them came first is chance
			}
			d.record(fmt.Sprintf("%s %s", key, list[i].Body), &list[i])
		}
		return nil
	}
	for _, n := range maxima {
		for _, kind := range []string{"own", "asked"} {
			group := e.Group(fmt.Sprint(kind, n))
			more := 0
			if kind == "own" && n == 3 {
				more = 1
			}
			if err := show(fmt.Sprintf("dead letter of %s %d:", kind, n), message.DLQTopic(group), 1+more); err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			if err := show(fmt.Sprintf("try of %s %d:", kind, n), message.RetryTopic(group), 1+more); err != nil {
				return err
			}
		}
	}
	dead, err := d.pull(message.DLQTopic(e.Group("below")))
	if err != nil {
		return err
	}
	e.Print("a maximum below 0: dead letters", len(dead))
	return show("dead letter of given:", message.DLQTopic(given), 1)
}

// retryPolicies hands messages back and leaves it to the broker when they come again: 10 seconds later, or as the group's policy says.
func retryPolicies(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	const policy = 25 * time.Second
	policies := map[string]string{
		"none":        `{}`,
		"customized":  fmt.Sprintf(`{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[%d]}}`, policy.Milliseconds()),
		"exponential": fmt.Sprintf(`{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":%d,"max":60000,"multiplier":2}}`, policy.Milliseconds()),
	}
	names := slices.Sorted(maps.Keys(policies))
	since := make(map[string]int64)
	for _, name := range names {
		g := e.Group(name)
		d.code(name+": group", 200, nil, fmt.Sprintf(`{"groupName":%q,"consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16,"groupRetryPolicy":%s}`, g, policies[name]))
		d.show(name+": shown", 352, fields{"group", g}, "")
		resp, err := d.call(310, d.sendFields(e.Topic(), "i", properties("UNIQ_KEY", uniqueKey())), name)
		if err != nil {
			return err
		}
		at, err := place(resp)
		if err != nil {
			return err
		}
		since[name] = time.Now().UnixMilli()
		d.code(name+": back", 36, fields{"offset", at, "group", g, "originMsgId", "M", "originTopic", e.Topic(), "delayLevel", "0", "unitMode", "false"}, "")
	}
	if d, err = afterPause(d); err != nil {
		return err
	}
	for _, name := range names {
		list, err := d.await(message.RetryTopic(e.Group(name)), 1)
		if err != nil {
			return err
		}
		e.Print(name+": tries", list[0].ReconsumeTimes)
		late := list[0].StoreTime - since[name]
		e.Print(name+": as the levels say", late >= 9_000 && late < policy.Milliseconds()) // RocketMQ rounds down to seconds
		e.Print(name+": as the policy says", late >= policy.Milliseconds())
	}
	return nil
}

// delays sends with each kind of delay and tells which messages are in their queue at once: before one that is sent last.
func delays(e *Env) error {
	d, err := masterWithTopic(e, "1")
	if err != nil {
		return err
	}
	t := e.Topic()
	var sent []string
	send := func(key string, pairs ...string) {
		d.code(key, 310, d.sendFields(t, "i", properties(append(pairs, "UNIQ_KEY", uniqueKey())...)), key)
		sent = append(sent, key)
	}
	// Whether now is past is chance with RocketMQ.
	d.code("milliseconds 0", 310, d.sendFields(t, "i", properties("TIMER_DELAY_MS", "0", "UNIQ_KEY", uniqueKey())), "now")
	d.code("seconds 0", 310, d.sendFields(t, "i", properties("TIMER_DELAY_SEC", "0", "UNIQ_KEY", uniqueKey())), "now")
	if _, err := d.await(t, 2); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	day := int64(24 * time.Hour / time.Millisecond)
	for _, level := range []string{"0", "3", "18", "19", "2147483647", "-1", "x", "1.5", "9999999999"} {
		send("level "+level, "DELAY", level)
	}
	for _, ms := range []string{"60000", "259100000", "259300000", "-1", "x", "9223372036854775807", "9223372036854775808"} {
		send("milliseconds "+ms, "TIMER_DELAY_MS", ms)
	}
	for _, s := range []string{"60", "259100", "259300", "-1", "x", "9223372036854775807"} {
		send("seconds "+s, "TIMER_DELAY_SEC", s)
	}
	for name, at := range map[string]int64{"at 0": 0, "at -1": -1, "at the last number": 1<<63 - 1, "at yesterday": now - day, "at tomorrow": now + day, "in 4 days": now + 4*day} {
		send(name, "TIMER_DELIVER_MS", strconv.FormatInt(at, 10))
	}
	send("at x", "TIMER_DELIVER_MS", "x")
	send("a level and a time", "DELAY", "5", "TIMER_DELAY_MS", "60000")
	send("two times", "TIMER_DELAY_SEC", "60", "TIMER_DELAY_MS", "999999999999")
	// RocketMQ puts messages into their queues in their order, and after it has answered.
	const last = "no delay"
	if _, err := d.call(310, d.sendFields(t, "i", properties("UNIQ_KEY", uniqueKey())), last); err != nil {
		return err
	}
	here := make(map[string]bool)
	if err := jepsen.Await(e, "the last message", func() (bool, error) {
		list, err := d.pull(t)
		for _, m := range list {
			if here[string(m.Body)] = true; string(m.Body) == last {
				return true, err
			}
		}
		return false, err
	}); err != nil {
		return err
	}
	for _, key := range sent {
		e.Print(key+": at once", here[key])
	}
	return nil
}

// recalls takes messages back that wait, with right handles and others.
func recalls(e *Env) error {
	d, err := master(e)
	if err != nil {
		return err
	}
	t := e.Topic()
	for _, name := range []string{t, t + "-other"} {
		if err := d.topic(name, "1"); err != nil {
			return err
		}
	}
	send := func(body string, pairs ...string) (string, error) {
		resp, err := d.call(310, d.sendFields(t, "i", properties(append(pairs, "UNIQ_KEY", uniqueKey())...)), body)
		if err != nil {
			return "", err
		}
		if resp.Code != remoting.Success {
			return "", fmt.Errorf("%s: code %d: %s", body, resp.Code, resp.Remark)
		}
		return resp.GetOr("recallHandle", ""), nil
	}
	open := func(handle string) []string {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(handle, "="))
		if err != nil {
			return []string{err.Error()}
		}
		return strings.Split(string(b), " ")
	}
	due := time.Now().Add(4 * time.Second).Truncate(time.Second).UnixMilli() // RocketMQ rounds to seconds
	at := func(ms int64) []string { return []string{"TIMER_DELIVER_MS", strconv.FormatInt(ms, 10)} }
	back, err := send("taken back", at(due)...)
	if err != nil {
		return err
	}
	stays, err := send("stays", at(due+1000)...)
	if err != nil {
		return err
	}
	last, err := send("last", at(due+2000)...)
	if err != nil {
		return err
	}
	level, err := send("a level", "DELAY", "5")
	if err != nil {
		return err
	}
	plainly, err := send("at once")
	if err != nil {
		return err
	}
	words := open(back)
	e.Print("handle", plain(strings.Join(words, " ")))
	if len(words) == 5 {
		ms, err := strconv.ParseInt(words[3], 10, 64)
		e.Print("handle: its time", fmt.Sprint(ms-due, " ms after the due one, ", err))
	}
	e.Print("handle of a level", plain(strings.Join(open(level), " ")))
	e.Print("handle of a message without a delay", plainly)
	recall := func(key, topic, handle string) {
		d.show(key, 370, fields{"producerGroup", "producers", "topic", topic, "recallHandle", handle}, "")
	}
	seal := func(words ...string) string {
		return base64.URLEncoding.EncodeToString([]byte(strings.Join(words, " ")))
	}
	w := func(at int, value string) string {
		c := slices.Clone(open(stays))
		c[at] = value
		return seal(c...)
	}
	recall("the topic of another one", t+"-other", stays)
	recall("no such topic", t+"-none", stays)
	recall("an empty handle", t, "")
	recall("no base64", t, "!!")
	recall("too few words", t, seal("v1", t, group))
	recall("another version", t, w(0, "v2"))
	recall("altered topic", t, w(1, t+"-other"))
	recall("altered group", t, w(2, "g9"))
	recall("a time that is no number", t, w(3, "x"))
	recall("a time below 0", t, w(3, "-5"))
	recall("a time that is past", t, w(3, "1000"))
	recall("altered key", t, w(4, uniqueKey()))
	recall("altered time", t, w(3, strconv.FormatInt(due+3_600_000, 10)))
	recall("a time that is far", t, w(3, "9223372036854775807"))
	d.code("without a handle", 370, fields{"topic", t}, "")
	d.code("without a topic", 370, fields{"recallHandle", stays}, "")
	recall("right", t, back)
	recall("right again", t, back)
	if d, err = afterPause(d); err != nil {
		return err
	}
	list, err := d.await(t, 3) // at once, stays, last
	if err != nil {
		return err
	}
	var bodies []string
	for _, rec := range list {
		bodies = append(bodies, string(rec.Body))
	}
	e.Print("delivered", strings.Join(bodies, ", "))
	recall("delivered already", t, stays)
	recall("delivered last", t, last)
	recall("right, after its time", t, back)
	return nil
}
