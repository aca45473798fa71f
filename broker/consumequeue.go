package broker

import (
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// maxQueueEntries is how many entries of a queue one request shows.
const maxQueueEntries = 1024

type queueEntryJSON struct {
	Offset   ids.PhysicalOffset `json:"physicOffset"`
	Size     uint32             `json:"physicSize"`
	TagsCode int64              `json:"tagsCode"`
	Matches  bool               `json:"eval"` // the group's subscription takes it, by its tag hash
}

// consumeQueue takes QUERY_CONSUME_QUEUE (321): what the index has of a queue, and with a group whether its subscription takes it.
func (r *Replica) consumeQueue(req *remoting.Command) (*remoting.Command, error) {
	t, err := r.topicOf(req)
	if err != nil {
		return nil, err
	}
	q, err := queueOf(&t, req)
	if err != nil {
		return nil, err
	}
	from, err := req.MustInt64("index")
	if err != nil {
		return nil, err
	}
	count, err := req.MustInt32("count")
	if err != nil {
		return nil, err
	}
	if count < 1 {
		return nil, refuse(remoting.InvalidParameter, "count %d: ask for at least 1", count)
	}
	k := index.Key{Topic: t.ID, Queue: q}
	first, end := r.queueRange(k)
	answer := struct {
		Entries      []queueEntryJSON  `json:"queueData"`
		Max          ids.QueueOffset   `json:"maxQueueIndex"`
		Min          ids.QueueOffset   `json:"minQueueIndex"`
		Subscription *SubscriptionData `json:"subscriptionData,omitempty"`
	}{Entries: []queueEntryJSON{}, Max: end, Min: first}
	var filter tagFilter
	if group := req.GetOr("consumerGroup", ""); group != "" {
		r.presenceMu.Lock()
		s, _, found := r.presence.subscription(nil, group, t.Name)
		r.presenceMu.Unlock()
		if found {
			filter, answer.Subscription = parseTagFilter(s.SubString), &s
		}
	}
	at := ids.QueueOffset(from)
	if at < first || at >= end {
		resp, err := jsonAnswer(answer)
		if err == nil {
			resp.Remark = "the queue has no message at this index"
		}
		return resp, err
	}
	for want := min(int(count), maxQueueEntries); want > 0 && at < end; {
		entries, err := r.entries(k, at, want, nil)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			answer.Entries = append(answer.Entries, queueEntryJSON{e.Offset, e.Size, e.TagsCode, answer.Subscription != nil && filter.mayMatch(e.TagsCode)})
		}
		at += ids.QueueOffset(len(entries))
		want -= len(entries)
	}
	return jsonAnswer(answer)
}
