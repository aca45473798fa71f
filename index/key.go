package index

import (
	"cmp"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Key names one message queue of one incarnation of a topic.
type Key struct {
	Topic ids.TopicID
	Queue ids.QueueID
}

// Compare orders keys by topic, then by queue: the order of every sorted file and of every snapshot.
func (k Key) Compare(o Key) int {
	if c := cmp.Compare(k.Topic, o.Topic); c != 0 {
		return c
	}
	return cmp.Compare(k.Queue, o.Queue)
}

// String formats k as topic/queue, for messages.
func (k Key) String() string { return fmt.Sprintf("%d/%d", k.Topic, k.Queue) }

// Entry tells where one message of a queue lies. It takes 20 bytes in a file.
type Entry struct {
	Offset   ids.PhysicalOffset // first byte of the RocketMQ record
	Size     uint32             // bytes of the RocketMQ record
	TagsCode int64              // hash of the message's tags, 0 without tags
}

// end is the first byte after the record.
func (e Entry) end() ids.PhysicalOffset { return e.Offset + ids.PhysicalOffset(e.Size) }
