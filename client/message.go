package client

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

// Message is a message to send, or one that was received. The second part is filled only in a received one.
type Message struct {
	Topic      string
	Body       []byte
	Keys       []string // words to find it by
	Tags       string
	OrderKey   string            // messages of one key keep their order
	Properties map[string]string // of the application; keys and values without the bytes 1 and 2, not empty

	ID             string // unique key, drawn by the sender
	OffsetID       string // names the record: store host and physical offset
	Group          string // broker group that holds it
	Queue          ids.QueueID
	Offset         ids.QueueOffset
	PhysicalOffset ids.PhysicalOffset
	BornTime       time.Time
	BornHost       netip.AddrPort
	StoreTime      time.Time
	StoreHost      netip.AddrPort
	ReconsumeTimes int32
	Compressed     bool // Body is packed in a way that this client does not unpack
}

// QueueRef names one queue. Broker is the address of the replica to ask; "" means the master as the route names it.
type QueueRef struct {
	Group  string // broker group
	Topic  string
	Queue  ids.QueueID
	Broker string
}

func (q QueueRef) String() string { return fmt.Sprintf("%s/%s/%d", q.Topic, q.Group, q.Queue) }

// Receipt tells where a message is stored.
type Receipt struct {
	MessageID       string // unique key
	OffsetMessageID string
	Group           string // broker group
	Queue           ids.QueueID
	Offset          ids.QueueOffset
	RecallHandle    string // of a message with a time, which then has no place yet: what Recall needs. "": it cannot be recalled
}

// maxUnpacked bounds the size of a packed body once it is unpacked.
const maxUnpacked = 64 << 20

// properties encodes what the message says about itself; id is its unique key. Later pairs win over earlier ones of the
// same key, so the client's own come last.
func (m *Message) properties(id string) (string, error) {
	var props strings.Builder
	add := func(key, value string) error {
		if key == "" || value == "" || strings.ContainsAny(key, "\x01\x02") || strings.ContainsAny(value, "\x01\x02") {
			return fmt.Errorf("the property %q cannot be written: key or value is empty or holds a separator", key)
		}
		props.WriteString(key)
		props.WriteByte(1)
		props.WriteString(value)
		props.WriteByte(2)
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(m.Properties)) {
		if err := add(key, m.Properties[key]); err != nil {
			return "", err
		}
	}
	for _, own := range [][2]string{
		{message.KeyKeys, strings.Join(m.Keys, " ")}, {message.KeyTags, m.Tags}, {message.KeyShardingKey, m.OrderKey}, {message.KeyUniqueKey, id},
	} {
		if own[1] == "" {
			continue
		}
		if err := add(own[0], own[1]); err != nil {
			return "", err
		}
	}
	if props.Len() > message.MaxProperties {
		return "", fmt.Errorf("the properties have %d bytes, at most %d are allowed", props.Len(), message.MaxProperties)
	}
	return props.String(), nil
}

// check refuses what no broker would take.
func (m *Message) check() error {
	if err := message.ValidTopic(m.Topic); err != nil {
		return err
	}
	if len(m.Body) > message.MaxBody {
		return fmt.Errorf("the body has %d bytes, at most %d are allowed", len(m.Body), message.MaxBody)
	}
	return nil
}

// decodeMessages reads records back to back. Nothing in the result shares memory with b.
func decodeMessages(b []byte, group string) ([]Message, error) {
	var list []Message
	for len(b) > 0 {
		r, n, err := message.Decode(b)
		if err != nil {
			return list, fmt.Errorf("record %d of the answer: %w", len(list), err)
		}
		list = append(list, received(&r, group))
		b = b[n:]
	}
	return list, nil
}

func received(r *message.Record, group string) Message {
	m := Message{
		Topic: strings.Clone(r.Topic), Group: group, Queue: r.QueueID, Offset: r.QueueOffset, PhysicalOffset: r.PhysicalOffset,
		BornTime: time.UnixMilli(r.BornTime), BornHost: r.BornHost, StoreTime: time.UnixMilli(r.StoreTime), StoreHost: r.StoreHost,
		ReconsumeTimes: r.ReconsumeTimes, OffsetID: message.OffsetMessageID(r.StoreHost, r.PhysicalOffset),
	}
	m.Body, m.Compressed = unpack(r.Body, r.SysFlag)
	for key, value := range message.Properties(strings.Clone(r.Properties)) {
		switch key {
		case message.KeyKeys:
			m.Keys = strings.Fields(value)
		case message.KeyTags:
			m.Tags = value
		case message.KeyUniqueKey:
			m.ID = value
		case message.KeyShardingKey, message.KeyClientShardingKey:
			m.OrderKey = value
		default:
			if m.Properties == nil {
				m.Properties = map[string]string{}
			}
			m.Properties[key] = value
		}
	}
	return m
}

// unpack copies a body, or unpacks it when the sender packed it with zlib, which is what official clients do by default.
func unpack(body []byte, sysFlag int32) (plain []byte, still bool) {
	if sysFlag&message.SysCompressed == 0 {
		return bytes.Clone(body), false
	}
	if z, err := zlib.NewReader(bytes.NewReader(body)); err == nil {
		plain, err = io.ReadAll(io.LimitReader(z, maxUnpacked+1))
		if err == nil && len(plain) <= maxUnpacked {
			return plain, false
		}
	}
	return bytes.Clone(body), true
}
