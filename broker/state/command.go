package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Types of the records of a frame. A number is never used again for something else.
const (
	RecordMessage        uint8 = 1
	RecordTopicPut       uint8 = 2
	RecordTopicDelete    uint8 = 3
	RecordGroupPut       uint8 = 4
	RecordGroupDelete    uint8 = 5
	RecordOffsets        uint8 = 6
	RecordLock           uint8 = 7
	RecordUnlock         uint8 = 8
	RecordCutFront       uint8 = 9
	RecordLeaseExtension uint8 = 10

	RecordHalf              uint8 = 16
	RecordTransactionEnd    uint8 = 17
	RecordTransactionChecks uint8 = 18
	RecordHalfAgain         uint8 = 19
	RecordReset             uint8 = 20
	RecordResetTaken        uint8 = 21
	RecordSettings          uint8 = 24
	RecordFreeze            uint8 = 25
	RecordTimer             uint8 = 11
	RecordTimerFire         uint8 = 12
	RecordTimerRecall       uint8 = 13
	RecordTimerRoll         uint8 = 14
)

// RecordVersion is the version in which every type is written at present.
const RecordVersion uint8 = 1

// knownRecord tells whether this program knows records of the type.
func knownRecord(t uint8) bool {
	return RecordMessage <= t && t <= RecordTimerRoll || RecordHalf <= t && t <= RecordHalfAgain || t == RecordReset || t == RecordResetTaken || t == RecordSettings || t == RecordFreeze
}

// MessagePrefixSize is the number of bytes before the RocketMQ record in the body of a message. The physical offset of the
// RocketMQ record is the offset of the body plus this.
const MessagePrefixSize = 24

// MessagePrefix is what the state machine and the index need of a message, so that they need not parse it.
type MessagePrefix struct {
	Key         index.Key
	TagsCode    int64
	QueueOffset ids.QueueOffset
}

// Put writes the prefix to the first MessagePrefixSize bytes of body.
func (p MessagePrefix) Put(body []byte) {
	_ = body[MessagePrefixSize-1]
	binary.BigEndian.PutUint32(body, uint32(p.Key.Topic))
	binary.BigEndian.PutUint32(body[4:], uint32(p.Key.Queue))
	binary.BigEndian.PutUint64(body[8:], uint64(p.TagsCode))
	binary.BigEndian.PutUint64(body[16:], uint64(p.QueueOffset))
}

// ParseMessagePrefix reads the prefix of a message's body. It returns an error when the body is shorter than that or a
// number is negative.
func ParseMessagePrefix(body []byte) (MessagePrefix, error) {
	if len(body) < MessagePrefixSize {
		return MessagePrefix{}, fmt.Errorf("a message of %d bytes has no whole prefix", len(body))
	}
	p := MessagePrefix{
		Key: index.Key{
			Topic: ids.TopicID(binary.BigEndian.Uint32(body)),
			Queue: ids.QueueID(int32(binary.BigEndian.Uint32(body[4:]))),
		},
		TagsCode:    int64(binary.BigEndian.Uint64(body[8:])),
		QueueOffset: ids.QueueOffset(binary.BigEndian.Uint64(body[16:])),
	}
	if p.Key.Queue < 0 || p.Key.Queue == maxQueueID || p.QueueOffset < 0 {
		return p, fmt.Errorf("queue %d, queue offset %d: out of range", p.Key.Queue, p.QueueOffset)
	}
	return p, nil
}

// maxQueueID is kept out so that the bound above every queue id of a topic fits its type.
const maxQueueID = ids.QueueID(1<<31 - 1)

// The decoded commands.
type (
	topicPut struct {
		mode  PutMode
		topic Topic // without id
	}
	topicDelete struct{ name string }
	groupPut    struct {
		mode  PutMode
		group SubscriptionGroup
	}
	groupDelete struct {
		name         string
		cleanOffsets bool
	}
	offsetsCommand struct{ offsets []ConsumerOffset }
	lockCommand    struct {
		unlock        bool
		group, client string
		keys          []index.Key
	}
	cutFront struct {
		base ids.PhysicalOffset
		mins []QueueMin
	}
	leaseExtension struct{}
)

// QueueMin is the first queue offset of a queue that a cut of the front leaves.
type QueueMin struct {
	Key index.Key
	Min ids.QueueOffset
}

// MaxCutMins is how many queues one cut command should name, so that applying it stays short. A longer list is split over
// commands with the same base.
const MaxCutMins = 8192

// AppendTopicPut appends the body of a RecordTopicPut to dst. The id of t does not matter: Apply gives it.
func AppendTopicPut(dst []byte, mode PutMode, t Topic) []byte {
	return appendTopic(append(dst, byte(mode)), &t)
}

// AppendTopicDelete appends the body of a RecordTopicDelete to dst.
func AppendTopicDelete(dst []byte, name string) []byte { return putString(dst, name) }

// AppendGroupPut appends the body of a RecordGroupPut to dst.
func AppendGroupPut(dst []byte, mode PutMode, g SubscriptionGroup) []byte {
	return appendGroup(append(dst, byte(mode)), &g)
}

// AppendGroupDelete appends the body of a RecordGroupDelete to dst.
func AppendGroupDelete(dst []byte, name string, cleanOffsets bool) []byte {
	return putBool(putString(dst, name), cleanOffsets)
}

// AppendOffsets appends the body of a RecordOffsets to dst. Neighbours of one group share its name. When a queue is named
// twice the later offset counts.
func AppendOffsets(dst []byte, offsets []ConsumerOffset) []byte {
	groups := len(dst)
	dst = put32(dst, uint32(0))
	n := uint32(0)
	for i := 0; i < len(offsets); {
		j := i + 1
		for j < len(offsets) && offsets[j].Group == offsets[i].Group {
			j++
		}
		dst = putString(dst, offsets[i].Group)
		dst = put32(dst, uint32(j-i))
		for _, o := range offsets[i:j] {
			dst = put64(put32(put32(dst, o.Topic), o.Queue), o.Offset)
		}
		i = j
		n++
	}
	binary.BigEndian.PutUint32(dst[groups:], n)
	return dst
}

// AppendLock appends the body of a RecordLock or a RecordUnlock to dst.
func AppendLock(dst []byte, group, client string, queues []index.Key) []byte {
	dst = putString(putString(dst, group), client)
	dst = put32(dst, uint32(len(queues)))
	for _, k := range queues {
		dst = put32(put32(dst, k.Topic), k.Queue)
	}
	return dst
}

// AppendCutFront appends the body of a RecordCutFront to dst. base is a segment's; mins must be in ascending order of keys
// and needs only the queues that have messages below base.
func AppendCutFront(dst []byte, base ids.PhysicalOffset, mins []QueueMin) []byte {
	dst = put64(dst, base)
	dst = put32(dst, uint32(len(mins)))
	for _, m := range mins {
		dst = put64(put32(put32(dst, m.Key.Topic), m.Key.Queue), m.Min)
	}
	return dst
}

func appendTopic(dst []byte, t *Topic) []byte {
	dst = putString(dst, t.Name)
	dst = put32(put32(put32(dst, t.ReadQueues), t.WriteQueues), t.Perm)
	dst = put32(putBool(dst, t.Order), t.SysFlag)
	return appendAttributes(dst, t.Attributes)
}

func appendGroup(dst []byte, g *SubscriptionGroup) []byte {
	dst = putString(dst, g.Name)
	for _, v := range []bool{g.ConsumeEnable, g.ConsumeFromMinEnable, g.BroadcastEnable, g.Orderly, g.NotifyIDsChanged} {
		dst = putBool(dst, v)
	}
	dst = put32(put32(dst, g.RetryQueues), g.RetryMax)
	dst = put64(put64(dst, g.BrokerID), g.WhenSlowBrokerID)
	dst = put32(put32(dst, g.SysFlag), g.TimeoutMinutes)
	p := &g.RetryPolicy
	dst = append(dst, byte(p.Kind))
	dst = put64(put64(put64(dst, p.Initial), p.Max), p.Multiplier)
	dst = put32(dst, uint32(len(p.Next)))
	for _, ms := range p.Next {
		dst = put64(dst, ms)
	}
	dst = put32(dst, uint32(len(g.Subscriptions)))
	for _, s := range g.Subscriptions {
		dst = putString(putString(putString(dst, s.Topic), s.Expression), s.ExpressionType)
		dst = put64(dst, s.Version)
	}
	return appendAttributes(dst, g.Attributes)
}

func appendAttributes(dst []byte, a map[string]string) []byte {
	dst = put32(dst, uint32(len(a)))
	for _, k := range slices.Sorted(maps.Keys(a)) {
		dst = putString(putString(dst, k), a[k])
	}
	return dst
}

func (d *decoder) mode() PutMode {
	m := PutMode(d.u8())
	if m > Create {
		d.fail(fmt.Errorf("mode %d of a put", m))
	}
	return m
}

func (d *decoder) name() string {
	s := d.str()
	if s == "" {
		d.fail(errors.New("a name is empty"))
	}
	return s
}

func (d *decoder) queues() int32 {
	n := int32(d.u32())
	if n < 0 {
		d.fail(fmt.Errorf("%d queues", n))
	}
	return n
}

func (d *decoder) topic() Topic {
	t := Topic{Name: d.name(), ReadQueues: d.queues(), WriteQueues: d.queues(), Perm: int32(d.u32())}
	t.Order = d.flag()
	t.SysFlag = int32(d.u32())
	t.Attributes = d.attributes()
	return t
}

func (d *decoder) group() SubscriptionGroup {
	g := SubscriptionGroup{Name: d.name()}
	for _, v := range []*bool{&g.ConsumeEnable, &g.ConsumeFromMinEnable, &g.BroadcastEnable, &g.Orderly, &g.NotifyIDsChanged} {
		*v = d.flag()
	}
	g.RetryQueues, g.RetryMax = int32(d.u32()), int32(d.u32())
	g.BrokerID, g.WhenSlowBrokerID = int64(d.u64()), int64(d.u64())
	g.SysFlag, g.TimeoutMinutes = int32(d.u32()), int32(d.u32())
	p := &g.RetryPolicy
	if p.Kind = RetryKind(d.u8()); p.Kind > RetryExponential {
		d.fail(fmt.Errorf("retry policy %d", p.Kind))
	}
	p.Initial, p.Max, p.Multiplier = int64(d.u64()), int64(d.u64()), int64(d.u64())
	for range d.count(8) {
		p.Next = append(p.Next, int64(d.u64()))
	}
	for range d.count(20) {
		g.Subscriptions = append(g.Subscriptions, Subscription{
			Topic: d.str(), Expression: d.str(), ExpressionType: d.str(), Version: int64(d.u64()),
		})
	}
	g.Attributes = d.attributes()
	return g
}

func (d *decoder) attributes() map[string]string {
	n := d.count(8)
	if n == 0 {
		return nil
	}
	a, last := make(map[string]string, n), ""
	for i := range n {
		k, v := d.str(), d.str()
		if d.err == nil && i > 0 && k <= last {
			d.fail(errOrder)
		}
		a[k], last = v, k
	}
	return a
}

func (d *decoder) key() index.Key {
	k := index.Key{Topic: ids.TopicID(d.u32()), Queue: ids.QueueID(int32(d.u32()))}
	if k.Queue < 0 {
		d.fail(fmt.Errorf("queue %d", k.Queue))
	}
	return k
}

// decodeCommand reads the body of a record of the given type, which is a command's.
func decodeCommand(recordType uint8, body []byte) (any, error) {
	d := &decoder{b: body}
	var c any
	switch recordType {
	case RecordTopicPut:
		c = topicPut{d.mode(), d.topic()}
	case RecordTopicDelete:
		c = topicDelete{d.name()}
	case RecordGroupPut:
		c = groupPut{d.mode(), d.group()}
	case RecordGroupDelete:
		c = groupDelete{d.name(), d.flag()}
	case RecordOffsets:
		c = offsetsCommand{d.offsets()}
	case RecordLock, RecordUnlock:
		l := lockCommand{unlock: recordType == RecordUnlock, group: d.name(), client: d.name()}
		for range d.count(8) {
			l.keys = append(l.keys, d.key())
		}
		c = l
	case RecordCutFront:
		c = d.cut()
	case RecordLeaseExtension:
		c = leaseExtension{}
	case RecordTransactionEnd:
		c = d.transactionEnd()
	case RecordTransactionChecks:
		c = d.transactionChecks()
	case RecordReset:
		c = d.reset()
	case RecordResetTaken:
		c = d.resetTaken()
	case RecordSettings:
		c = settingsPut{d.settings()}
	case RecordFreeze:
		c = freezeCommand{d.flag()}
	case RecordTimerFire:
		c = d.timerFire()
	case RecordTimerRecall:
		c = TimerRecall{d.timer(), d.u32()}
	case RecordTimerRoll:
		c = d.timerRoll()
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return c, nil
}

func (d *decoder) offsets() []ConsumerOffset {
	var all []ConsumerOffset
	for range d.count(8) {
		group := d.name()
		for range d.count(16) {
			// Queue and offset may be anything: Apply leaves out what makes no sense, a client's mistake stops no replica.
			all = append(all, ConsumerOffset{
				Group: group, Topic: ids.TopicID(d.u32()), Queue: ids.QueueID(int32(d.u32())), Offset: ids.QueueOffset(d.u64()),
			})
		}
	}
	return all
}

func (d *decoder) cut() cutFront {
	c := cutFront{base: ids.PhysicalOffset(d.u64())}
	if c.base < 0 {
		d.fail(fmt.Errorf("a front at %d", c.base))
	}
	for i := range d.count(16) {
		m := QueueMin{Key: d.key(), Min: ids.QueueOffset(d.u64())}
		if m.Min < 0 {
			d.fail(fmt.Errorf("a first queue offset of %d", m.Min))
		}
		if i > 0 && c.mins[i-1].Key.Compare(m.Key) >= 0 {
			d.fail(errOrder)
		}
		c.mins = append(c.mins, m)
	}
	return c
}
