package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/remoting"
)

// The outcomes of a send that is not OK. Test with errors.Is.
var (
	ErrNotStored = errors.New("not stored")               // and it never will be
	ErrUnknown   = errors.New("stored or not is unknown") // it may also be stored later
)

// Reasons, for errors.Is.
var (
	ErrTopicNotFound = errors.New("no such topic")
	ErrNotWritable   = errors.New("it is not writable") // a topic
	ErrNotReadable   = errors.New("it is not readable") // a topic
	ErrNoMaster      = errors.New("the broker group has no master")
	ErrNotReady      = errors.New("the name server is not ready")
	ErrNoNamesrv     = errors.New("no name server answers")
	ErrClosed        = errors.New("the client is closed")
)

// SendError is the error of Send and SendBatch. It unwraps to its Outcome and to its reason.
type SendError struct {
	Outcome error // ErrNotStored or ErrUnknown
	Topic   string
	Code    int32  // of the last answer; 0 when there was none
	Remark  string // of the last answer
	Err     error  // what happened last
}

func (e *SendError) Error() string {
	return fmt.Sprintf("send to %s: %v: %v", e.Topic, e.Outcome, e.Err)
}

// Unwrap lets errors.Is find the outcome and the reason.
func (e *SendError) Unwrap() []error { return []error{e.Outcome, e.Err} }

// CodeError is an answer other than success.
type CodeError struct {
	Op     string // name of the request
	Addr   string // of the server
	Code   int32
	Remark string
}

func (e *CodeError) Error() string {
	return fmt.Sprintf("%s at %s: code %d: %s", e.Op, e.Addr, e.Code, e.Remark)
}

// Remarks of answers to a send begin with one of these when the broker knows the outcome.
const (
	remarkNotStored = "[NOT_STORED]"
	remarkUnknown   = "[UNKNOWN]"
)

// verdict is what an answer to a send means for the message.
type verdict int

const (
	verdictStored  verdict = iota
	verdictRetry           // not stored; another try may succeed
	verdictRefused         // not stored; another try is refused too
	verdictUnknown
)

// judge reads an answer to a send. What the table does not know is unknown: that is the safe side.
func judge(code int32, remark string) verdict {
	switch {
	case code == remoting.Success:
		return verdictStored
	case strings.HasPrefix(remark, remarkUnknown):
		return verdictUnknown
	}
	switch code {
	case remoting.MessageIllegal, remoting.NoPermission, remoting.TopicNotExist, remoting.InvalidParameter,
		remoting.RequestCodeNotSupported, remoting.SubscriptionGroupNotExist, remoting.VersionNotSupported:
		return verdictRefused
	case remoting.SystemBusy:
		// The door is shut: the request was read and dropped. Java brokers use this code in the same way.
		return verdictRetry
	}
	if strings.HasPrefix(remark, remarkNotStored) {
		return verdictRetry
	}
	return verdictUnknown
}

// passes tells whether asking again, by a fresh route, can help after a *CodeError of something that may be asked twice.
// SYSTEM_ERROR does so only where the broker says that it refused at the door; else it is a reason.
func (e *CodeError) passes() bool {
	switch e.Code {
	case remoting.SystemBusy, remoting.ServiceNotAvailable, remoting.GoAway:
		return true
	}
	return strings.HasPrefix(e.Remark, remarkNotStored) || strings.HasPrefix(e.Remark, remarkUnknown)
}

// ended returns the error of a context that is over, with the reason why the call had not succeeded until then.
func ended(ctx context.Context, last error) error {
	if last == nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w; before that: %w", context.Cause(ctx), last)
}
