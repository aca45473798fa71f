// Package message is the codec of RocketMQ's stored message: the record that lies in the commit log and travels to
// consumers as the same bytes, the items of a batch, the property string, the message ids and the rules for names.
//
// A record, all integers big-endian, h = 8 bytes for an IPv4 host and 20 for IPv6:
//
//	0        4     8    12       16    20            28              36       40
//	| size   |magic| crc| queue  | flag| queue offset| physical offset| sysFlag|
//	| born time 8 | born host h | store time 8 | store host h | reconsume times 4 | prepared offset 8 |
//	| body length 4 | body | topic length 1 or 2 | topic | properties length 2 | properties |
//
// Guarantees: Decode(AppendTo(r)) gives r back; Decode never panics and never allocates by a length that it has not
// checked; Patch changes only the four fields it names. docs/format/message.md shows the golden bytes.
//
// All functions may be called from any goroutine. Nothing here keeps state but NewUniqueKey, which is safe too.
//
// Read first: record.go, then properties.go, names.go.
package message

// Bounds of one message, in bytes. A send over one of them is refused with MESSAGE_ILLEGAL.
const (
	MaxBody          = 4 << 20 // of one body, and of a whole batch
	MaxProperties    = 32767   // of the property string after the broker has added its own
	MaxTopic         = 127     // of the name of an ordinary topic
	MaxInternalTopic = 255     // of the name of a retry or dead-letter topic
	MaxGroup         = 120     // of the name of a consumer or producer group
)

// Bits of a record's sysFlag.
const (
	SysCompressed      int32 = 1
	SysMultiTags       int32 = 2
	SysTransaction     int32 = 12 // mask: 0 none, 4 prepared, 8 commit, 12 rollback
	SysPrepared        int32 = 4
	SysCommit          int32 = 8
	SysRollback        int32 = 12
	SysBornHostV6      int32 = 16 // AppendTo sets it from BornHost
	SysStoreHostV6     int32 = 32 // AppendTo sets it from StoreHost
	SysNeedUnwrap      int32 = 64
	SysInnerBatch      int32 = 128
	SysCompressionMask int32 = 7 << 8 // 0 legacy zlib, 1 LZ4, 2 ZSTD, 3 ZLIB
)

// Bits of the sysFlag of a pull request.
const (
	PullCommitOffset int32 = 1
	PullSuspend      int32 = 2
	PullSubscription int32 = 4
	PullClassFilter  int32 = 8
	PullLite         int32 = 16
)
