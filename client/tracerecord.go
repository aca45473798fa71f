package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// TraceRecord is what a client told the trace topic of one message: that it sent it, that it began to consume it, that it ended that, how its
// transaction ended, or that it recalled it. Fields that a kind, or an older client, does not have are empty.
type TraceRecord struct {
	Kind      string // Pub, SubBefore, SubAfter, EndTransaction or Recall
	Time      time.Time
	Region    string
	Group     string // producer or consumer group
	Topic     string
	ID        string // unique id of the message
	OffsetID  string
	Tags      string
	Keys      string
	StoreHost string
	Client    string // host of the client
	Request   string // of SubBefore and SubAfter: the same in both that belong together
	Retry     int    // of SubBefore: which repetition it was
	Bytes     int    // of Pub: size of the body
	Cost      time.Duration
	Success   bool   // of Pub, SubAfter and Recall
	Result    string // of SubAfter: success, timeout, exception, null or failed
	State     string // of EndTransaction: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW
	Checked   bool   // of EndTransaction: it answered a check
}

// Separators of a trace message's body.
const (
	traceField  = "\x01"
	traceRecord = "\x02"
)

// consumeResults are RocketMQ's codes in SubAfter.
var consumeResults = []string{"success", "timeout", "exception", "null", "failed"}

// ParseTrace reads the body of a message of a trace topic: records of clients of any version. What cannot be read is passed over, and
// counted: anybody may send to the topic.
func ParseTrace(body []byte) (list []TraceRecord, bad int) {
	for text := range strings.SplitSeq(string(body), traceRecord) {
		if text == "" {
			continue
		}
		f := traceFields{list: strings.Split(text, traceField)}
		r, ok := f.record()
		if !ok || f.fault {
			bad++
			continue
		}
		list = append(list, r)
	}
	return list, bad
}

// traceFields are the fields of one record; fault tells that one that was asked for is missing, or is no number.
type traceFields struct {
	list  []string
	fault bool
}

func (f *traceFields) text(i int) string {
	if i >= len(f.list) {
		f.fault = true
		return ""
	}
	return f.maybe(i)
}

// maybe is a field that only newer clients have. Java writes null for what it does not have.
func (f *traceFields) maybe(i int) string {
	if i >= len(f.list) || f.list[i] == "null" {
		return ""
	}
	return strings.ToValidUTF8(f.list[i], "\ufffd")
}

func (f *traceFields) number(i int) int64 {
	n, err := strconv.ParseInt(f.text(i), 10, 64)
	f.fault = f.fault || err != nil
	return n
}

func (f *traceFields) time(i int) time.Time { return time.UnixMilli(f.number(i)) }

// cost is a field in milliseconds. One that a Duration cannot hold is no time that anything took.
func (f *traceFields) cost(i int) time.Duration {
	n := f.number(i)
	d := time.Duration(n) * time.Millisecond
	f.fault = f.fault || d.Milliseconds() != n
	return d
}

func (f *traceFields) record() (r TraceRecord, known bool) {
	r.Kind = f.list[0]
	switch r.Kind {
	case "Pub":
		f.head(&r)
		f.message(&r)
		r.Bytes, r.Cost = int(f.number(9)), f.cost(10)
		if len(f.list) < 14 { // before the offset id was added
			r.Success = f.text(12) == "true"
		} else {
			r.OffsetID, r.Success, r.Client = f.maybe(12), f.text(13) == "true", f.maybe(14)
		}
	case "SubBefore":
		f.head(&r)
		r.Request, r.ID, r.Retry, r.Keys, r.Client = f.text(4), f.text(5), int(f.number(6)), f.text(7), f.maybe(8)
	case "SubAfter":
		r.Request, r.ID, r.Cost, r.Success, r.Keys = f.text(1), f.text(2), f.cost(3), f.text(4) == "true", f.text(5)
		if len(f.list) > 6 {
			r.Result = fmt.Sprintf("code %d", f.number(6))
			if n := f.number(6); n >= 0 && n < int64(len(consumeResults)) {
				r.Result = consumeResults[n]
			}
		}
		if len(f.list) > 7 {
			r.Time = f.time(7)
		}
		r.Group = f.maybe(8)
	case "EndTransaction":
		f.head(&r)
		f.message(&r)
		r.State, r.Checked = f.text(11), f.text(12) == "true"
	case "Recall":
		f.head(&r)
		r.Topic, r.ID, r.Success = f.text(4), f.text(5), f.text(6) == "true"
	default:
		return r, false
	}
	return r, r.ID != ""
}

// head reads what all but SubAfter begin with.
func (f *traceFields) head(r *TraceRecord) {
	r.Time, r.Region, r.Group = f.time(1), f.text(2), f.text(3)
}

// message reads what Pub and EndTransaction tell of the message.
func (f *traceFields) message(r *TraceRecord) {
	r.Topic, r.ID, r.Tags, r.Keys, r.StoreHost = f.text(4), f.text(5), f.text(6), f.text(7), f.text(8)
}
