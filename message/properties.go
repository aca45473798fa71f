package message

import (
	"iter"
	"strings"
)

// Property keys that the broker reads or writes. All others pass through.
const (
	KeyKeys                = "KEYS" // words to index, separated by one space
	KeyTags                = "TAGS"
	KeyWaitStore           = "WAIT"
	KeyDelayLevel          = "DELAY"
	KeyUniqueKey           = "UNIQ_KEY"
	KeyProducerGroup       = "PGROUP"
	KeyTransactionPrepared = "TRAN_MSG"
	KeyTransactionID       = "__transactionId__"
	KeyCheckImmunity       = "CHECK_IMMUNITY_TIME_IN_SECONDS" // from the half message to the first check
	KeyCheckTimes          = "TRANSACTION_CHECK_TIMES"
	KeyPreparedQueueOffset = "TRAN_PREPARED_QUEUE_OFFSET" // of RocketMQ's own half messages; clients may not set it
	KeyRetryTopic          = "RETRY_TOPIC"                // the topic a retried message was first sent to
	KeyRealTopic           = "REAL_TOPIC"
	KeyRealQueueID         = "REAL_QID"
	KeyOriginMessageID     = "ORIGIN_MESSAGE_ID"
	KeyReconsumeTime       = "RECONSUME_TIME"
	KeyMaxReconsumeTimes   = "MAX_RECONSUME_TIMES"
	KeyMsgRegion           = "MSG_REGION"
	KeyTraceOn             = "TRACE_ON"
	KeyCluster             = "CLUSTER"
	KeyTimerDeliverMs      = "TIMER_DELIVER_MS"
	KeyTimerDelayMs        = "TIMER_DELAY_MS"
	KeyTimerDelaySec       = "TIMER_DELAY_SEC"
	KeyTimerOutMs          = "TIMER_OUT_MS" // when a timed message is due
	KeyTimerEnqueueMs      = "TIMER_ENQUEUE_MS"
	KeyTimerDequeueMs      = "TIMER_DEQUEUE_MS"
	KeyTimerDeletes        = "TIMER_DEL_UNIQKEY" // the model's marker that recalls a timed message
	KeyPopCk               = "POP_CK"            // stripped from incoming sends
	KeyShardingKey         = "__SHARDINGKEY"
	KeyClientShardingKey   = "SHARDING_KEY" // the Go client's own name for it
	KeyDLQOriginTopic      = "DLQ_ORIGIN_TOPIC"
	KeyDLQOriginMessageID  = "DLQ_ORIGIN_MESSAGE_ID"
	KeyResentFrom          = "LEDGERMQ_RESENT_FROM" // ours: the dead letter that was sent again
	KeyMinOffset           = "MIN_OFFSET"
	KeyMaxOffset           = "MAX_OFFSET"
	KeyInstanceID          = "INSTANCE_ID"
	KeyBornTimestamp       = "BORN_TIMESTAMP"
	KeyBornHost            = "__BORNHOST"
)

// Separators of the property string: key, nameSeparator, value, pairSeparator, and again. The last one may be absent.
const (
	nameSeparator = "\x01"
	pairSeparator = "\x02"
)

// Properties walks the pairs of an encoded property string in their order. Pairs without a key or a value are skipped,
// as RocketMQ's clients skip them. Of a key that occurs twice both pairs are given; the last one counts.
func Properties(props string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for len(props) > 0 {
			pair := props
			if i := strings.IndexByte(props, pairSeparator[0]); i >= 0 {
				pair, props = props[:i], props[i+1:]
			} else {
				props = ""
			}
			key, value, ok := strings.Cut(pair, nameSeparator)
			if !ok || key == "" || value == "" {
				continue
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

// Property returns the value of key in an encoded property string: of its last pair, as in RocketMQ's map.
func Property(props, key string) (value string, ok bool) {
	for k, v := range Properties(props) {
		if k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// ValidProperty returns a *NameError when the pair cannot be written: an empty key or value, or a separator in one of them.
func ValidProperty(key, value string) error {
	switch {
	case key == "" || value == "":
		return &NameError{Kind: "property", Name: key, Reason: "has no key or no value"}
	case strings.ContainsAny(key, nameSeparator+pairSeparator) || strings.ContainsAny(value, nameSeparator+pairSeparator):
		return &NameError{Kind: "property", Name: key, Reason: "has a byte 1 or 2 in it"}
	}
	return nil
}

// AppendProperty returns props with the pair at its end, which then counts. It does not remove an earlier pair of the
// same key, SetProperty does. A pair that ValidProperty refuses cannot be written: props comes back unchanged.
func AppendProperty(props, key, value string) string {
	if ValidProperty(key, value) != nil {
		return props
	}
	if needsSeparator(props) {
		props += pairSeparator
	}
	return props + key + nameSeparator + value + pairSeparator
}

// PropertySize returns by how many bytes AppendProperty, or Record.AppendWith, makes props longer.
func PropertySize(props, key, value string) int {
	n := len(key) + len(nameSeparator) + len(value) + len(pairSeparator)
	if needsSeparator(props) {
		n += len(pairSeparator)
	}
	return n
}

// needsSeparator tells whether another pair needs a separator before it.
func needsSeparator(props string) bool {
	return props != "" && !strings.HasSuffix(props, pairSeparator)
}

// DeleteProperty returns props without the pairs of key. The other bytes stay as they are.
func DeleteProperty(props, key string) string {
	if !strings.Contains(props, key) {
		return props
	}
	var out strings.Builder
	for rest := props; rest != ""; {
		pair := rest
		if i := strings.IndexByte(rest, pairSeparator[0]); i >= 0 {
			pair, rest = rest[:i+1], rest[i+1:]
		} else {
			rest = ""
		}
		if k, _, ok := strings.Cut(pair, nameSeparator); ok && k == key {
			continue
		}
		out.WriteString(pair)
	}
	return out.String()
}

// SetProperty replaces the value of key, or adds the pair.
func SetProperty(props, key, value string) string {
	return AppendProperty(DeleteProperty(props, key), key, value)
}
