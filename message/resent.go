package message

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// ResentID is the unique id that a dead letter of a broker group gets when it is sent again: the same each time, so that it can be found.
func ResentID(group string, dead *Record) string {
	unique, _ := Property(dead.Properties, KeyUniqueKey)
	sum := sha256.Sum256(fmt.Appendf(nil, "resent/%s/%s/%d/%d/%s", group, dead.Topic, dead.QueueOffset, dead.PhysicalOffset, unique))
	return strings.ToUpper(fmt.Sprintf("%x", sum[:16]))
}

// ResentProperties are the properties with which a dead letter is sent again: of a message that was never a dead letter, and waits for nothing.
func ResentProperties(group string, dead *Record) string {
	props := dead.Properties
	origin, _ := Property(props, KeyDLQOriginTopic)
	for _, k := range [...]string{KeyDLQOriginTopic, KeyDLQOriginMessageID, KeyDelayLevel, KeyRealTopic, KeyRealQueueID, KeyTimerDeliverMs, KeyTimerDelayMs,
		KeyTimerDelaySec, KeyTimerOutMs, KeyTimerEnqueueMs, KeyTimerDequeueMs, KeyReconsumeTime, KeyMaxReconsumeTimes, KeyTransactionPrepared} {
		props = DeleteProperty(props, k)
	}
	props = SetProperty(props, KeyUniqueKey, ResentID(group, dead))
	props = SetProperty(props, KeyResentFrom, fmt.Sprintf("%s/%d", group, dead.QueueOffset))
	if _, have := Property(props, KeyRetryTopic); !have && origin != "" {
		props = SetProperty(props, KeyRetryTopic, origin)
	}
	return props
}
