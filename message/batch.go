package message

import (
	"encoding/binary"
	"fmt"
	"iter"
	"unsafe"
)

// batchItemFixed is the size of an item without body and properties: size, magic, crc, flag, body length, properties length.
const batchItemFixed = 22

// BatchItem is one message inside the body of a batch send. What it has not comes from the header of the send.
type BatchItem struct {
	Flag       int32
	Body       []byte
	Properties string
}

// SplitBatch walks the items of a batch body. Body and properties lie in body: they are valid as long as it is, and must
// not be kept longer. The walk ends at the first fault with a *FormatError; an empty body has no item and no fault.
func SplitBatch(body []byte) iter.Seq2[BatchItem, error] {
	return func(yield func(BatchItem, error) bool) {
		for n := 0; len(body) > 0; n++ {
			item, size, err := decodeBatchItem(body)
			if err != nil {
				err = &FormatError{What: "batch item", Reason: fmt.Sprintf("number %d: %v", n, err)}
			}
			if !yield(item, err) || err != nil {
				return
			}
			body = body[size:]
		}
	}
}

func decodeBatchItem(b []byte) (BatchItem, int, error) {
	if len(b) < batchItemFixed {
		return BatchItem{}, 0, fmt.Errorf("%d bytes are left, less than the smallest item", len(b))
	}
	size := int(binary.BigEndian.Uint32(b))
	if size < batchItemFixed || size > len(b) {
		return BatchItem{}, 0, fmt.Errorf("size %d of %d bytes", size, len(b))
	}
	// Magic and checksum are zero on the wire and not looked at, as in RocketMQ.
	c := cursor{b: b[:size], at: 12}
	var it BatchItem
	it.Flag = int32(c.uint32())
	it.Body = c.bytes(int(int32(c.uint32())))
	props := c.bytes(int(int16(c.uint16())))
	it.Properties = unsafe.String(unsafe.SliceData(props), len(props))
	if c.fault != "" {
		return BatchItem{}, 0, fmt.Errorf("%s", c.fault)
	}
	if c.at != size {
		return BatchItem{}, 0, fmt.Errorf("size %d, but the fields end at %d", size, c.at)
	}
	return it, size, nil
}

// AppendBatchItem appends the bytes of one item. It panics when the properties are longer than MaxProperties.
func AppendBatchItem(dst []byte, it BatchItem) []byte {
	if len(it.Properties) > MaxProperties {
		panic(fmt.Sprintf("message: properties of %d bytes reached the batch encoder", len(it.Properties)))
	}
	b := binary.BigEndian
	dst = b.AppendUint32(dst, uint32(batchItemFixed+len(it.Body)+len(it.Properties)))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = b.AppendUint32(dst, uint32(it.Flag))
	dst = b.AppendUint32(dst, uint32(len(it.Body)))
	dst = append(dst, it.Body...)
	dst = b.AppendUint16(dst, uint16(len(it.Properties)))
	return append(dst, it.Properties...)
}
