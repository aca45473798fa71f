package broker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Permission bits of a topic.
const (
	permRead    int32 = 4
	permWrite   int32 = 2
	permInherit int32 = 1
)

// sendRequest is the header of SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320). Version 2 has the same
// fields under single letters. Its strings lie in the request.
type sendRequest struct {
	group         string // producer group
	topic         string
	defaultTopic  string
	defaultQueues int32
	queue         int32
	sysFlag       int32
	bornTime      int64
	flag          int32
	properties    string
	reconsume     int32
	maxReconsume  int32
	hasMax        bool
	batch         bool
}

// sendLetter returns the letter that version 2 has for a field of version 1, 0 for one that does not matter here.
func sendLetter(name string) byte {
	switch name {
	case "producerGroup":
		return 'a'
	case "topic":
		return 'b'
	case "defaultTopic":
		return 'c'
	case "defaultTopicQueueNums":
		return 'd'
	case "queueId":
		return 'e'
	case "sysFlag":
		return 'f'
	case "bornTimestamp":
		return 'g'
	case "flag":
		return 'h'
	case "properties":
		return 'i'
	case "reconsumeTimes":
		return 'j'
	case "maxReconsumeTimes":
		return 'l'
	case "batch":
		return 'm'
	}
	return 0
}

// sendNeeds are the fields that a send must have, by letter; the bit of a letter is its place in sendNeeds.
var sendNeeds = [...]struct {
	letter byte
	name   string // in version 1
}{{'b', "topic"}, {'e', "queueId"}, {'f', "sysFlag"}, {'g', "bornTimestamp"}, {'h', "flag"}}

// parseSend reads the header in one pass over its fields: it is on the path of every message.
func parseSend(req *remoting.Command) (s sendRequest, err error) {
	v1 := req.Code == remoting.SendMessage
	s.batch = req.Code == remoting.SendBatchMessage
	var have uint
	number := func(key, v string, bits int) int64 {
		n, e := strconv.ParseInt(v, 10, bits)
		if e != nil && err == nil {
			err = &remoting.FieldError{Field: strings.Clone(key), Value: strings.Clone(v), Reason: fmt.Sprintf("is no integer of %d bits", bits)}
		}
		return n
	}
	for k, v := range req.Fields() {
		var letter byte
		if v1 {
			letter = sendLetter(k)
		} else if len(k) == 1 {
			letter = k[0]
		}
		switch letter {
		case 'a':
			s.group = v
		case 'b':
			s.topic = v
			have |= 1
		case 'c':
			s.defaultTopic = v
		case 'd':
			s.defaultQueues = int32(number(k, v, 32))
		case 'e':
			s.queue = int32(number(k, v, 32))
			have |= 2
		case 'f':
			s.sysFlag = int32(number(k, v, 32))
			have |= 4
		case 'g':
			s.bornTime = number(k, v, 64)
			have |= 8
		case 'h':
			s.flag = int32(number(k, v, 32))
			have |= 16
		case 'i':
			s.properties = v
		case 'j':
			s.reconsume = int32(number(k, v, 32))
		case 'l':
			s.maxReconsume = int32(number(k, v, 32))
			s.hasMax = true
		case 'm':
			s.batch = s.batch || v == "true"
		}
	}
	if err != nil {
		return s, err
	}
	for i, need := range sendNeeds {
		if have&(1<<i) == 0 {
			name := need.name
			if !v1 {
				name = string(rune(need.letter))
			}
			return s, &remoting.FieldError{Field: name, Reason: "is missing"}
		}
	}
	return s, nil
}

// handleSend takes codes 10, 310 and 320. A slave forwards them. On the master the record is encoded here, on the reader of
// the connection, so that the loop only patches offsets into it.
func (r *Replica) handleSend(c *remoting.Conn, req *remoting.Command) {
	if !r.isMaster() {
		r.forward(c, req)
		return
	}
	s, err := parseSend(req)
	if err != nil {
		replyError(c, req, notStored(err))
		return
	}
	if ref := r.door(); ref != nil {
		c.ReplyError(req, ref.code, ref.remark)
		return
	}
	t, found := r.st.Topic(s.topic)
	if !found || message.IsRetryTopic(s.topic) {
		c.Async(req, r.sendSlowly)
		return
	}
	p, err := r.prepare(c, req, &s, &t, false)
	if err != nil {
		replyError(c, req, notStored(err))
		return
	}
	p.reply.pending = c.Pending(req)
	if !r.propose(p) {
		pend := p.reply.pending
		p.release()
		r.passOn(req, pend)
	}
}

// sendSlowly takes a send that may have to wait for another command first: its topic must be created, or it is a retry that
// may belong to the dead letters.
func (r *Replica) sendSlowly(req *remoting.Command, pend *remoting.Pending) {
	p, err := r.prepareSlowly(req, pend.Conn())
	if err != nil {
		answerError(pend, notStored(err))
		return
	}
	p.reply.pending = *pend
	if !r.propose(p) {
		p.release()
		r.forwardPending(req, pend)
	}
}

func (r *Replica) prepareSlowly(req *remoting.Command, c *remoting.Conn) (*send, error) {
	s, err := parseSend(req)
	if err != nil {
		return nil, err
	}
	if ref := r.door(); ref != nil { // one that met the new master here did not pass it yet
		return nil, ref
	}
	name, retry := message.GroupOfRetryTopic(s.topic)
	var g state.SubscriptionGroup
	if retry {
		if g, err = r.groupForRetry(name); err != nil {
			return nil, err
		}
	}
	t, found := r.st.Topic(s.topic)
	if !found {
		template, err := r.templateOf(&s)
		if err != nil {
			return nil, err
		}
		if t, err = r.ensureTopic(template); err != nil {
			return nil, err
		}
	}
	if retry {
		if t, err = r.retryTarget(&g, t, &s); err != nil {
			return nil, err
		}
	}
	return r.prepare(c, req, &s, &t, retry)
}

// templateOf is the topic that a send to an unknown one creates: a retry topic of its group, or a copy of the template topic.
func (r *Replica) templateOf(s *sendRequest) (state.Topic, error) {
	if err := message.ValidTopic(s.topic); err != nil {
		return state.Topic{}, err
	}
	if message.IsRetryTopic(s.topic) || message.IsDLQTopic(s.topic) {
		return state.Topic{Name: strings.Clone(s.topic), ReadQueues: 1, WriteQueues: 1, Perm: permRead | permWrite}, nil
	}
	if !message.IsWritable(s.topic) {
		return state.Topic{}, refuse(remoting.NoPermission, "[NOT_STORED] topic %q is reserved: clients may not send to it", s.topic)
	}
	template, found := r.st.Topic(s.defaultTopic)
	if !r.createsTopics() || !found || template.Perm&permInherit == 0 {
		return state.Topic{}, refuse(remoting.TopicNotExist, "[NOT_STORED] topic %q does not exist in group %s and is not created by a send: create it with admin topic create", s.topic, r.group)
	}
	n := template.WriteQueues
	if s.defaultQueues > 0 {
		n = min(n, s.defaultQueues)
	}
	return state.Topic{Name: strings.Clone(s.topic), ReadQueues: n, WriteQueues: n, Perm: template.Perm &^ permInherit}, nil
}

// prepare checks a send and encodes its records.
func (r *Replica) prepare(c *remoting.Conn, req *remoting.Command, s *sendRequest, t *state.Topic, retry bool) (*send, error) {
	if !message.IsWritable(t.Name) {
		return nil, refuse(remoting.NoPermission, "[NOT_STORED] topic %q is reserved: clients may not send to it", t.Name)
	}
	if t.Perm&permWrite == 0 {
		return nil, refuse(remoting.NoPermission, "[NOT_STORED] topic %q of group %s is not writable", t.Name, r.group)
	}
	if len(req.Body) > message.MaxBody {
		return nil, refuse(remoting.MessageIllegal, "[NOT_STORED] a body of %d bytes is over the limit of %d", len(req.Body), message.MaxBody)
	}
	queue, err := pickQueue(t, s.queue)
	if err != nil {
		return nil, err
	}
	rec := message.Record{QueueID: queue, Flag: s.flag, SysFlag: s.sysFlag &^ message.SysTransaction, BornTime: s.bornTime,
		BornHost: r.bornHost(c, req), StoreHost: r.storeHost, ReconsumeTimes: s.reconsume, Topic: t.Name}
	p := newSend(r.now())
	p.key = index.Key{Topic: t.ID, Queue: queue}
	p.reply.queue = queue
	if s.batch {
		err = r.encodeBatch(p, &rec, req.Body, retry)
	} else {
		rec.Body, rec.Properties = req.Body, s.properties
		if retry && message.IsDLQTopic(t.Name) {
			rec.Properties = markDead(rec.Properties, s.topic)
		}
		if strings.Contains(s.properties, message.KeyTransactionPrepared) {
			err = r.makeHalf(p, &rec, s, retry)
		}
		if err == nil {
			var unique string
			unique, err = r.encodeOne(p, &rec, retry, true)
			p.reply.unique = append(p.reply.unique, unique...)
		}
	}
	if bits := s.sysFlag & message.SysTransaction; err == nil && bits != 0 && (bits != message.SysPrepared || p.half == nil && !retry) {
		err = refuse(remoting.MessageIllegal, "[NOT_STORED] the transaction bits of sysFlag are %d without property %s=true: a transactional message has 4 and the property", bits, message.KeyTransactionPrepared)
	}
	if err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

// pickQueue checks the queue that the client chose; below 0 the broker chooses.
func pickQueue(t *state.Topic, q int32) (ids.QueueID, error) {
	if q < 0 && t.WriteQueues > 0 {
		return ids.QueueID(rand.Int32N(t.WriteQueues)), nil
	}
	if n := max(t.ReadQueues, t.WriteQueues); q < 0 || q >= n {
		return 0, refuse(remoting.InvalidParameter, "[NOT_STORED] queue %d of topic %s does not exist: it has %d", q, t.Name, n)
	}
	return ids.QueueID(q), nil
}

// roomForCopies is how much of a message's properties its region leaves free: what the copies of a message add that waits, comes again,
// is dead or part of a transaction. So none of them lacks anything for the region's sake.
const roomForCopies = 512

// encodeOne checks a message's properties, adds a unique key where there is none and the region where there is room, and appends the
// record to p. The key that it returns may lie in the request.
//
// Java's consumers of 5.x drop the traces of what has no region. That traces are on (TRACE_ON) is what all clients take a message
// for that does not say otherwise; so that is not stored.
func (r *Replica) encodeOne(p *send, rec *message.Record, retry, needUnique bool) (unique string, err error) {
	c, err := checkProperties(rec.Properties)
	if err != nil {
		return "", err
	}
	rec.Properties = c.properties
	if c.half != (p.half != nil) {
		return "", refuse(remoting.MessageIllegal, "[NOT_STORED] a batch cannot have a transactional message: send it by itself (property %s)", message.KeyTransactionPrepared)
	}
	unique = c.unique
	if unique == "" && needUnique {
		unique = message.NewUniqueKey()
		rec.Properties = message.AppendProperty(rec.Properties, message.KeyUniqueKey, unique)
	}
	if p.later, err = r.delayed(p.later, &c, retry); err != nil {
		return "", err
	}
	if p.later.due != 0 {
		p.timerKey = state.TimerKey(unique)
		p.reply.recall = r.recallHandle(p.reply.recall, rec.Topic, unique, p.later)
		park(rec, p.later)
	}
	if len(rec.Properties) > message.MaxProperties {
		return "", refuse(remoting.MessageIllegal, "[NOT_STORED] properties of %d bytes are over the limit of %d", len(rec.Properties), message.MaxProperties)
	}
	more := message.PropertySize(rec.Properties, message.KeyMsgRegion, defaultRegion)
	if len(p.recs) == 0 {
		p.buf = slices.Grow(p.buf, rec.Size()+more)
	}
	if p.bare || c.region || len(rec.Properties)+more > message.MaxProperties-roomForCopies {
		p.buf = rec.AppendTo(p.buf)
	} else {
		p.buf = rec.AppendWith(p.buf, message.KeyMsgRegion, defaultRegion)
	}
	p.recs = append(p.recs, sendRecord{end: len(p.buf), tags: message.TagsCode(c.tags)})
	return unique, nil
}

// encodeBatch unrolls the body of a batch into records with consecutive queue offsets. When it is their regions that are too much for a
// frame, none gets one.
func (r *Replica) encodeBatch(p *send, rec *message.Record, body []byte, retry bool) error {
	if retry {
		return refuse(remoting.MessageIllegal, "[NOT_STORED] a batch cannot go to a retry topic")
	}
	if err := r.encodeItems(p, rec, body); err != nil {
		return err
	}
	if p.space() > maxSendSpace {
		p.buf, p.recs, p.bare = p.buf[:0], p.recs[:0], true
		if err := r.encodeItems(p, rec, body); err != nil {
			return err
		}
	}
	if p.space() > maxSendSpace {
		return refuse(remoting.MessageIllegal, "[NOT_STORED] a batch of %d messages and %d bytes is over the limit of one frame", len(p.recs), len(p.buf))
	}
	return nil
}

// encodeItems appends a record for each message of a batch.
func (r *Replica) encodeItems(p *send, rec *message.Record, body []byte) error {
	for item, err := range message.SplitBatch(body) {
		if err != nil {
			return err
		}
		rec.Body, rec.Flag, rec.Properties = item.Body, item.Flag, item.Properties
		if _, err := r.encodeOne(p, rec, false, true); err != nil {
			return err
		}
		if p.later.due != 0 {
			return refuse(remoting.MessageIllegal, "[NOT_STORED] a batch cannot have a delayed message: send it by itself")
		}
	}
	if len(p.recs) == 0 {
		return refuse(remoting.MessageIllegal, "[NOT_STORED] the batch is empty")
	}
	return nil
}

// maxSendSpace is what one send may take in a frame: 4 MiB of bodies and what is around them.
const maxSendSpace = 5 << 20

// checked is what the broker reads of a message's properties.
type checked struct {
	properties string // without what clients may not set
	unique     string
	tags       string
	half       bool
	region     bool // it has ours already: it was stored before
	delays     delays
}

// checkProperties looks at each property once.
func checkProperties(props string) (c checked, err error) {
	c.properties = props
	popped, elsewhere := false, false
	for k, v := range message.Properties(props) {
		switch k {
		case message.KeyUniqueKey:
			c.unique = v
		case message.KeyTags:
			c.tags = v
		case message.KeyDelayLevel:
			c.delays.level = v
		case message.KeyTimerDeliverMs:
			c.delays.deliverMs = v
		case message.KeyTimerDelayMs:
			c.delays.delayMs = v
		case message.KeyTimerDelaySec:
			c.delays.delaySec = v
		case message.KeyTimerOutMs:
			c.delays.set = true
		case message.KeyTimerDeletes:
			return c, refuse(remoting.MessageIllegal, "[NOT_STORED] property %s is not for clients: take a timed message back with request %d", k, remoting.RecallMessage)
		case message.KeyTransactionPrepared:
			c.half = strings.EqualFold(v, "true")
		case message.KeyPopCk:
			popped = true
		case message.KeyMsgRegion:
			c.region = v == defaultRegion
			elsewhere = elsewhere || !c.region
		}
	}
	if popped {
		c.properties = message.DeleteProperty(c.properties, message.KeyPopCk)
	}
	if elsewhere {
		c.properties, c.region = message.DeleteProperty(c.properties, message.KeyMsgRegion), false
	}
	return c, nil
}

// bornHost is the address of the client: of a forwarded request the one that the forwarder saw.
func (r *Replica) bornHost(c *remoting.Conn, req *remoting.Command) netip.AddrPort {
	if v, ok := req.Get(fieldClient); ok {
		if a, err := netip.ParseAddrPort(v); err == nil {
			return a
		}
	}
	if c != nil && c.RemoteAddr().IsValid() {
		return c.RemoteAddr()
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

// retryTarget decides about a message that a client sends to its retry topic by itself, which it does when 36 fails: past the
// maximum of its group it goes to the dead-letter topic. It may block.
func (r *Replica) retryTarget(g *state.SubscriptionGroup, t state.Topic, s *sendRequest) (state.Topic, error) {
	asked := int32(-1)
	if s.hasMax {
		asked = s.maxReconsume
	}
	// A member that consumes in order sends here only what it gives up, with a count that it has not raised. So a group that holds a lock
	// has no other retries.
	if s.reconsume <= retryMaximum(g, asked) && !r.st.HoldsLocks(g.Name) {
		return t, nil
	}
	s.queue = 0
	return r.ensureTopic(dlqTopic(g.Name))
}
