package message

import (
	"fmt"
	"slices"
	"strings"
)

// Names with a meaning of their own.
const (
	DefaultTopic  = "TBW102" // the template of topics that are created by a first send
	RetryPrefix   = "%RETRY%"
	DLQPrefix     = "%DLQ%"
	systemPrefix  = "rmq_sys_"
	systemCID     = "CID_RMQ_SYS_"
	ScheduleTopic = "SCHEDULE_TOPIC_XXXX" // where messages of a delay level wait; the queue is the level less one
	TimerTopic    = "rmq_sys_wheel_timer" // where messages with a time wait
	TraceTopic    = "RMQ_SYS_TRACE_TOPIC"
	HalfTopic     = "RMQ_SYS_TRANS_HALF_TOPIC" // of half messages: nobody consumes them
)

// systemTopics belong to the broker. Those that are true take messages of clients all the same.
var systemTopics = map[string]bool{
	DefaultTopic:                          true,
	ScheduleTopic:                         false,
	HalfTopic:                             false,
	TimerTopic:                            false,
	"RMQ_SYS_TRANS_OP_HALF_TOPIC":         false,
	"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC":    false,
	"RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": false,
	"TRANS_CHECK_MAX_TIME_TOPIC":          false,
	"SELF_TEST_TOPIC":                     false,
	"OFFSET_MOVED_EVENT":                  false,
	TraceTopic:                            true,
	"BenchmarkTest":                       true,
	"CHECKPOINT_TOPIC":                    true,
}

var systemGroups = []string{
	"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
	"CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
}

// NameError tells what is wrong with the name of a topic or a group.
type NameError struct {
	Kind   string // "topic" or "group"
	Name   string
	Reason string
}

func (e *NameError) Error() string {
	name := e.Name
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	return fmt.Sprintf("the %s name %q %s", e.Kind, name, e.Reason)
}

// ValidTopic returns a *NameError when name is empty, longer than MaxTopic (a retry or dead-letter topic: than
// MaxInternalTopic), or has other characters than letters, digits and % | _ -. Reserved names are valid here.
func ValidTopic(name string) error {
	limit := MaxTopic
	if IsRetryTopic(name) || IsDLQTopic(name) {
		limit = MaxInternalTopic
	}
	return validName("topic", name, limit)
}

// ValidGroup is ValidTopic for consumer and producer groups, with MaxGroup.
func ValidGroup(name string) error { return validName("group", name, MaxGroup) }

func validName(kind, name string, limit int) error {
	switch {
	case name == "":
		return &NameError{Kind: kind, Name: name, Reason: "is empty"}
	case len(name) > limit:
		return &NameError{Kind: kind, Name: name, Reason: fmt.Sprintf("has %d bytes, at most %d are allowed", len(name), limit)}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '%', c == '|':
		default:
			return &NameError{Kind: kind, Name: name, Reason: "has other characters than letters, digits and % | _ -"}
		}
	}
	return nil
}

// IsSystemTopic tells whether the broker makes and keeps the topic itself. Retry and dead-letter topics are not meant.
func IsSystemTopic(name string) bool {
	_, ok := systemTopics[name]
	return ok || strings.HasPrefix(name, systemPrefix)
}

// IsWritable tells whether clients may send to the topic. A send to another one is refused with NO_PERMISSION.
func IsWritable(name string) bool {
	writable, ok := systemTopics[name]
	return !ok || writable
}

// IsSystemGroup tells whether the group is one of RocketMQ's own tools.
func IsSystemGroup(name string) bool {
	return slices.Contains(systemGroups, name) || strings.HasPrefix(name, systemCID)
}

// ReplyTopic is RocketMQ's topic of replies in a cluster, which its brokers make.
func ReplyTopic(cluster string) string { return cluster + "_REPLY_TOPIC" }

// RetryTopic is the topic of a group's messages that are to be consumed again.
func RetryTopic(group string) string { return RetryPrefix + group }

// DLQTopic is the topic of a group's messages that were given up.
func DLQTopic(group string) string { return DLQPrefix + group }

// IsRetryTopic tells whether name has the prefix of retry topics.
func IsRetryTopic(name string) bool { return strings.HasPrefix(name, RetryPrefix) }

// IsDLQTopic tells whether name has the prefix of dead-letter topics.
func IsDLQTopic(name string) bool { return strings.HasPrefix(name, DLQPrefix) }

// GroupOfRetryTopic returns the group of a retry topic, ok is false for other names.
func GroupOfRetryTopic(name string) (group string, ok bool) {
	return strings.CutPrefix(name, RetryPrefix)
}
