package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Bounds of one query. The numbers are RocketMQ's; the bytes keep an answer well below the 16 MiB that a client takes in one frame.
const (
	maxQueryMessages = 64
	uniqueMessages   = 32 // of a query by unique id, whatever the client asks for
	maxQueryBytes    = 4 << 20
	maxQueries       = 32 // at once
)

// wordsOf appends the hashes of what the message in rec can be asked for by. It allocates nothing but what dst needs.
func wordsOf(dst []uint64, topic ids.TopicID, rec []byte) []uint64 {
	x := message.IndexedOf(rec)
	if x.Unique != "" {
		dst = append(dst, index.Hash(topic, index.WordUnique, x.Unique))
	}
	if x.Tags != "" {
		dst = append(dst, index.Hash(topic, index.WordTag, x.Tags))
	}
	for word := range x.Words() {
		dst = append(dst, index.Hash(topic, index.WordKey, word))
	}
	return dst
}

// query is the header of QUERY_MESSAGE (12). Version 5.5.0 also sends lastKey, which only its index in RocksDB uses.
type query struct {
	topic      string
	kind       index.WordKind
	word       string
	max        int
	begin, end int64 // store times in milliseconds, both inclusive
	before     ids.PhysicalOffset
}

func parseQuery(req *remoting.Command) (q query, err error) {
	if q.topic, err = req.MustString("topic"); err != nil {
		return q, err
	}
	if q.word, err = req.MustString("key"); err != nil {
		return q, err
	}
	limit, err := req.MustInt32("maxNum")
	if err != nil {
		return q, err
	}
	if q.begin, err = req.MustInt64("beginTimestamp"); err != nil {
		return q, err
	}
	if q.end, err = req.MustInt64("endTimestamp"); err != nil {
		return q, err
	}
	before, err := req.Int64Or(fieldBefore, 1<<63-1)
	if err != nil {
		return q, err
	}
	q.before, q.max, q.kind = ids.PhysicalOffset(before), min(int(limit), maxQueryMessages), index.WordKey
	switch kind := req.GetOr("indexType", ""); {
	case strings.EqualFold(req.GetOr("_UNIQUE_KEY_QUERY", ""), "true"):
		q.kind, q.max = index.WordUnique, uniqueMessages
	case kind == "U":
		q.kind = index.WordUnique
	case kind == "T":
		q.kind = index.WordTag
	}
	return q, nil
}

// queryMessage takes QUERY_MESSAGE (12): the newest messages of a topic that have a key, a unique id (_UNIQUE_KEY_QUERY, or indexType U) or a
// tag (indexType T, since 5.5.0), in the order of the log. Each replica answers from its own index, up to what it knows as committed. An
// unknown topic has no such message.
func (r *Replica) queryMessage(req *remoting.Command, pend *remoting.Pending) {
	q, err := parseQuery(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	if r.queries.Add(1) > maxQueries {
		err = refuse(remoting.SystemBusy, "%d queries are under way: try again", maxQueries)
	}
	defer r.queries.Add(-1)
	resp := remoting.NewResponse(remoting.Success, "")
	resp.SetInt64("indexLastUpdateTimestamp", r.st.Time())
	resp.SetInt64("indexLastUpdatePhyoffset", r.appliedEnd.Load())
	if err == nil {
		ctx, cancel := r.requestContext()
		defer cancel()
		var more bool
		if resp.Body, more, err = r.find(ctx, &q); more {
			resp.Set(fieldMore, "true")
		}
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	if len(resp.Body) == 0 {
		resp.Code, resp.Remark = remoting.QueryNotFound, "no message of topic "+strconv.Quote(q.topic)+" has this key in this time"
	}
	pend.Answer(resp)
}

// find returns the records of a query back to back; more tells that a bound ended it.
func (r *Replica) find(ctx context.Context, q *query) (body []byte, more bool, err error) {
	t, known := r.st.Topic(q.topic)
	if !known || q.max <= 0 || q.begin > q.end {
		return nil, false, nil
	}
	from, to, err := r.timeWindow(q.begin, q.end)
	if err != nil {
		return nil, false, err
	}
	// What the group has agreed to give up is not there any more, whether this replica still has the files or not.
	from = max(from, r.st.CutBase())
	var found [][]byte // newest first
	size := 0
	var fault error
	err = r.idx.Find(index.Hash(t.ID, q.kind, q.word), from, min(to, q.before), func(off ids.PhysicalOffset) bool {
		var rec []byte
		if rec, fault = r.messageAt(&t, off); fault != nil {
			return false
		}
		if !q.matches(rec) {
			fault = ctx.Err() // messages whose hash is the same by chance or by malice
			return fault == nil
		}
		if more = len(found) > 0 && size+len(rec) > maxQueryBytes; more {
			return false
		}
		size += len(rec)
		found = append(found, rec)
		more = len(found) == q.max
		return !more
	})
	if err == nil {
		err = fault
	}
	var hole *index.HoleError
	var bad *index.CorruptionError
	switch {
	case errors.As(err, &hole):
		signal(r.mend)
		return nil, false, refuse(remoting.SystemBusy, "the key index is being rebuilt: what was stored before offset %d of the log cannot be found yet, try again", hole.Hole.To)
	case errors.As(err, &bad):
		r.log.Error().Err(err).Msg("the key index is damaged: it is rebuilt from the log")
		signal(r.mend)
		return nil, false, refuse(remoting.SystemBusy, "the key index is being rebuilt: try again")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, false, refuse(remoting.SystemBusy, "too many messages look as if they had this key: ask for a shorter time")
	case errors.Is(err, commitlog.ErrCompacted): // the front was cut meanwhile, and what lies before it is older than what was found
	case err != nil:
		return nil, false, err
	}
	body = make([]byte, 0, size)
	for i := len(found) - 1; i >= 0; i-- {
		body = append(body, found[i]...)
	}
	return body, more, nil
}

// matches tells whether a record has the word of the query: the index knows its hash only.
func (q *query) matches(rec []byte) bool {
	if rec == nil {
		return false
	}
	x := message.IndexedOf(rec)
	switch q.kind {
	case index.WordUnique:
		return x.Unique == q.word
	case index.WordTag:
		return x.Tags == q.word
	}
	for word := range x.Words() {
		if word == q.word {
			return true
		}
	}
	return false
}

// messageAt reads and checks the message whose RocketMQ record starts at off, as the index told; nil when it is of another topic.
func (r *Replica) messageAt(t *state.Topic, off ids.PhysicalOffset) ([]byte, error) {
	var head [state.MessagePrefixSize + 4]byte
	if err := r.clog.ReadAt(head[:], off-state.MessagePrefixSize); err != nil {
		return nil, fmt.Errorf("read the message at %d: %w", off, err)
	}
	p, err := state.ParseMessagePrefix(head[:])
	if err != nil {
		return nil, r.damaged(off, err)
	}
	if p.Key.Topic != t.ID {
		return nil, nil
	}
	size := binary.BigEndian.Uint32(head[state.MessagePrefixSize:])
	if size > maxSendSpace {
		return nil, r.damaged(off, fmt.Errorf("its size is %d", size))
	}
	rec := make([]byte, size)
	if err := r.clog.ReadAt(rec, off); err != nil {
		return nil, fmt.Errorf("read the message at %d: %w", off, err)
	}
	if err := message.Check(rec, t.Name, p.Key.Queue, p.QueueOffset, off); err != nil {
		return nil, r.damaged(off, err)
	}
	return rec, nil
}

// timeWindow returns the part of the applied log in which the messages with a store time in [begin, end] lie: time never goes back along it.
func (r *Replica) timeWindow(begin, end int64) (from, to ids.PhysicalOffset, err error) {
	if from, err = r.offsetOfTime(begin); err != nil || end == 1<<63-1 {
		return from, ids.PhysicalOffset(r.appliedEnd.Load()), err
	}
	to, err = r.offsetOfTime(end + 1)
	return from, to, err
}

// offsetOfTime returns where the first frame with a time of at least t begins, the end of what is applied when there is none.
func (r *Replica) offsetOfTime(t int64) (ids.PhysicalOffset, error) {
	lo, end := r.clog.FirstIndex(), ids.Index(r.applied.Load())+1
	if t <= 0 {
		return 0, nil
	}
	past := ids.PhysicalOffset(r.appliedEnd.Load())
	if t > r.st.Time() {
		return past, nil
	}
	var buf []byte
	for hi := end; lo < hi; {
		mid := lo + (hi-lo)/2
		i := mid
		var f commitlog.Frame
		for ; i < hi; i++ {
			var err error
			if f, err = r.clog.ReadFrame(i, buf); errors.Is(err, commitlog.ErrCompacted) {
				f = nil
				break // older than what is there
			} else if err != nil {
				return 0, fmt.Errorf("find the messages of a time: %w", err)
			}
			if buf = f[:0]; !f.Empty() { // an empty one has no time
				break
			}
		}
		switch {
		case i == hi:
			hi = mid
		case f == nil || f.Time() < t:
			lo = i + 1
		default:
			hi = mid
		}
	}
	if lo == end {
		return past, nil
	}
	ref, err := r.clog.RefOf(lo)
	if errors.Is(err, commitlog.ErrCompacted) {
		return 0, nil
	}
	return ref.Offset, err
}
