package broker

import (
	"math"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Retries. A message that a consumer could not handle comes again in %RETRY%group, its reconsumeTimes raised by one, after a delay:
//
//	36  delayLevel < 0, or reconsumeTimes >= the maximum ──▶ %DLQ%group, at once
//	    delayLevel > 0                                    ──▶ after that level
//	    delayLevel = 0                                    ──▶ after the delay of the group's retry policy
//	a client's own send to %RETRY%group                   ──▶ after its DELAY property; past the maximum ──▶ %DLQ%group, at once
//
// So with a maximum of N a message is delivered 1+N times. The maximum is the request's, else the group's; below 0 it is defaultRetries.
// Both are one proposal: a message is answered OK when its next try, or its dead letter, is in the log.

const (
	defaultRetries = 16
	firstRetry     = 3 // level of the first retry, without a policy
)

// retryMaximum is how often a message of the group is delivered again.
func retryMaximum(g *state.SubscriptionGroup, asked int32) int32 {
	if asked >= 0 {
		return asked
	}
	if g.RetryMax >= 0 {
		return g.RetryMax
	}
	return defaultRetries
}

// nextTry tells when a message that was tried again so often comes next, by the policy of its group.
func (r *Replica) nextTry(g *state.SubscriptionGroup, reconsumed int32) later {
	wait, policy := policyDelay(&g.RetryPolicy, reconsumed)
	if !policy {
		return r.afterLevel(firstRetry + int(max(reconsumed, 0)))
	}
	if wait <= 0 {
		return later{}
	}
	return later{due: r.now().Add(min(wait, r.node.o.TimerMaxDelay)).UnixMilli()}
}

// policyDelay is RocketMQ's: a customized policy begins with its third delay, as the levels of a group without a policy do, and goes on
// with its last one; an exponential one is bounded by its max. It returns false when there is no policy.
func policyDelay(p *state.RetryPolicy, reconsumed int32) (time.Duration, bool) {
	n := int64(max(reconsumed, 0))
	var ms int64
	switch {
	case p.Kind == state.RetryCustomized && len(p.Next) > 0:
		ms = p.Next[min(n+2, int64(len(p.Next)-1))]
	case p.Kind == state.RetryExponential:
		ms = int64(min(float64(p.Max), float64(p.Initial)*math.Pow(float64(p.Multiplier), float64(min(n, 32)))))
	default:
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

// maxRetryDelay bounds the delays of a policy, so that they can be counted in nanoseconds.
const maxRetryDelay = int64(10 * 365 * 24 * time.Hour / time.Millisecond)

// policy reads a retry policy. RocketMQ's tools send CUSTOMIZED without delays when none was given.
func (j *retryPolicyJSON) policy() (p state.RetryPolicy, err error) {
	if j == nil {
		return p, nil
	}
	switch j.Type {
	case "", "CUSTOMIZED":
		if j.Customized == nil {
			return p, nil
		}
		if n := len(j.Customized.Next); n == 0 || n > 64 {
			return p, refuse(remoting.InvalidParameter, "a customized retry policy has %d delays: use 1 to 64", n)
		}
		for i, ms := range j.Customized.Next {
			if ms < 0 || ms > maxRetryDelay {
				return p, refuse(remoting.InvalidParameter, "delay %d of the retry policy is %d ms: use 0 to %d", i+1, ms, maxRetryDelay)
			}
		}
		return state.RetryPolicy{Kind: state.RetryCustomized, Next: j.Customized.Next}, nil
	case "EXPONENTIAL":
		e := exponentialPolicyJSON{Initial: 5000, Max: 7_200_000, Multiplier: 2} // RocketMQ's defaults
		if j.Exponential != nil {
			e = *j.Exponential
		}
		if e.Initial < 0 || e.Initial > maxRetryDelay || e.Max < e.Initial || e.Max > maxRetryDelay || e.Multiplier < 1 || e.Multiplier > 1000 {
			return p, refuse(remoting.InvalidParameter, "an exponential retry policy with initial %d, max %d, multiplier %d: use 0 <= initial <= max <= %d and 1 <= multiplier <= 1000", e.Initial, e.Max, e.Multiplier, maxRetryDelay)
		}
		return state.RetryPolicy{Kind: state.RetryExponential, Initial: e.Initial, Max: e.Max, Multiplier: e.Multiplier}, nil
	}
	return p, refuse(remoting.InvalidParameter, "retry policy %.40q: use CUSTOMIZED or EXPONENTIAL", j.Type)
}

// markDead tells in the properties of a dead letter where it comes from. It stays as it was told first.
func markDead(properties, topic string) string {
	if _, have := message.Property(properties, message.KeyDLQOriginTopic); !have {
		from := propertyOr(properties, message.KeyRetryTopic, topic)
		id := propertyOr(properties, message.KeyOriginMessageID, propertyOr(properties, message.KeyUniqueKey, ""))
		properties = message.SetProperty(properties, message.KeyDLQOriginTopic, from)
		if id != "" {
			properties = message.SetProperty(properties, message.KeyDLQOriginMessageID, id)
		}
	}
	for _, k := range [...]string{message.KeyDelayLevel, message.KeyTimerDelaySec, message.KeyTimerDelayMs, message.KeyTimerDeliverMs} {
		properties = message.DeleteProperty(properties, k) // there is no next try
	}
	return properties
}

// handedBack counts a message that a consumer handed back.
func (c *counters) handedBack(dead bool) {
	if dead {
		c.deadLetters.Add(1)
	} else {
		c.retries.Add(1)
	}
}
