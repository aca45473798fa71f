package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// While the cluster's feature level is too low for them, transactional and delayed messages are refused with a line that says what to do. A
// retry comes at once then, as before there were delays.
func TestBelowTheFeatureLevel(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	l.r.node.file.Level, l.r.node.o.TimerMaxDelay = 2, 100*365*24*time.Hour
	encode := func(properties string, retry bool) (*send, error) {
		p := newSend(l.r.now())
		rec := message.Record{Topic: "T", Body: []byte("x"), Properties: properties, BornHost: l.r.storeHost, StoreHost: l.r.storeHost}
		var err error
		if strings.Contains(properties, message.KeyTransactionPrepared) {
			err = l.r.makeHalf(p, &rec, &sendRequest{group: "pg"}, retry)
		}
		if err == nil {
			_, err = l.r.encodeOne(p, &rec, retry, true)
		}
		return p, err
	}
	for _, properties := range []string{"DELAY\x013\x02", "TIMER_DELAY_MS\x015000\x02", "TIMER_DELAY_SEC\x015\x02", "TIMER_DELIVER_MS\x014102444800000\x02", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"} {
		_, err := encode(properties, false)
		at, remark := errorAnswer(err)
		if err == nil || at != remoting.MessageIllegal || !strings.HasPrefix(remark, "[NOT_STORED] ") || !strings.Contains(remark, "feature level 3, and it is 2: run `ledgermq admin cluster upgrade`") {
			t.Errorf("%q: code %d %q", properties, at, remark)
		}
	}
	for _, properties := range []string{"", "DELAY\x010\x02", "TIMER_DELIVER_MS\x011\x02"} {
		if p, err := encode(properties, false); err != nil || p.later.due != 0 {
			t.Errorf("%q: %v, due %d", properties, err, p.later.due)
		}
	}
	if p, err := encode("DELAY\x013\x02", true); err != nil || p.later.due != 0 {
		t.Errorf("a retry: %v, due %d", err, p.later.due)
	}
	l.r.node.file.Level = 3
	if p, err := encode("DELAY\x0119\x02", false); err != nil || p.later.level != 18 {
		t.Errorf("a level above the last one: %v, level %d", err, p.later.level)
	}
}

// Pending transactions have two bounds; over one of them a half message is refused at once, and says where to look.
func TestPendingBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ofGroup, inAll int
		want           string
	}{
		{0, 0, ""}, {maxPending - 1, maxPendingInAll - 1, ""}, {maxPending, maxPending, `producer group "pg" has 200000 pending`},
		{maxPending + 5, maxPendingInAll + 5, `producer group "pg" has`}, {0, maxPendingInAll, "group g has 1000000 pending"},
	} {
		err := tooManyPending("pg", tt.ofGroup, "g", tt.inAll)
		if err == nil || tt.want == "" {
			if err != nil || tt.want != "" {
				t.Errorf("%d of the group, %d in all: %v", tt.ofGroup, tt.inAll, err)
			}
			continue
		}
		if at, remark := errorAnswer(err); at != remoting.SystemBusy || !strings.HasPrefix(remark, "[NOT_STORED] "+tt.want) || !strings.Contains(remark, "admin tx list") {
			t.Errorf("%d of the group, %d in all: code %d %q", tt.ofGroup, tt.inAll, at, remark)
		}
	}
}
