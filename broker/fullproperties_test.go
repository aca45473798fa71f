package broker

import (
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
)

// What the broker adds to the properties of a stored message is left out where there is no room for it: the message is asked for,
// committed and delivered all the same.
func TestPropertiesWithoutRoom(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	if err := l.r.guarded(func() error { panic("a fault") }); err == nil || !strings.Contains(err.Error(), "a fault") {
		t.Errorf("a panic is %v", err)
	}
	half := "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01K\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
	for left := range 64 {
		for _, end := range []string{"", "\x02"} { // a client may leave the last separator away
			full := half + "pad\x01" + strings.Repeat("x", message.MaxProperties-left-len(half)-len("pad\x01")-len(end)) + end
			for _, checks := range []uint8{0, 1, state.MaxChecks} {
				x := state.Transaction{Checks: checks}
				rec := message.Record{Topic: message.HalfTopic, Properties: full, BornHost: l.r.storeHost, StoreHost: l.r.storeHost}
				asked := rec
				m, _, err := message.Decode(l.r.checkRequest(&x, &asked).Body)
				if err != nil || m.Topic != "T" || !strings.HasPrefix(m.Properties, full) {
					t.Fatalf("%d bytes left: asked with %d bytes of properties of topic %q, %v", left, len(m.Properties), m.Topic, err)
				}
				if _, told := message.Property(m.Properties, message.KeyCheckTimes); told != (checks > 0 && left >= 30) && (left < 26 || left >= 30) {
					t.Errorf("%d bytes left after %d checks: the count is told: %v", left, checks, told)
				}
				p, err := l.r.committed(&rec, &x)
				if err != nil {
					t.Fatalf("%d bytes left: %v", left, err)
				}
				m, _, err = message.Decode(p.buf)
				if v, _ := message.Property(m.Properties, "pad"); err != nil || m.Topic != "T" || !strings.HasPrefix(v, "xxx") {
					t.Errorf("%d bytes left: committed with %d bytes of properties of topic %q, %v", left, len(m.Properties), m.Topic, err)
				}
			}
		}
	}
	for left := range 128 {
		rec := message.Record{Topic: "T", Properties: "pad\x01" + strings.Repeat("x", message.MaxProperties-left-len("pad\x01"))}
		park(&rec, later{due: 1 << 62})
		if len(rec.Properties) <= message.MaxProperties { // else it is refused at the door
			if !unpark(&rec, 1<<62) || rec.Topic != "T" || len(rec.Properties) > message.MaxProperties {
				t.Errorf("%d bytes left: a timer is delivered to %q with %d bytes of properties", left, rec.Topic, len(rec.Properties))
			}
		}
	}
}
