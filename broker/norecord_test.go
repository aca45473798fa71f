package broker

import (
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
)

// silent is a proposal that finds at form that there is nothing to do.
type silent struct{ outcomes []outcome }

func (s *silent) space() int                        { return recordSpace(100) }
func (s *silent) form(*Replica, *commitlog.Builder) {}
func (s *silent) apply(int, state.Effect)           { panic("it has no record") }
func (s *silent) records() int                      { return 0 }
func (s *silent) finish(_ *Replica, o outcome)      { s.outcomes = append(s.outcomes, o) }
func (s *silent) since() time.Time                  { return time.Now() }
func (s *silent) ended(t *testing.T, where string) {
	t.Helper()
	if len(s.outcomes) != 1 || s.outcomes[0] != outcomeNotStored {
		t.Errorf("%s: outcomes %v, want one, not stored", where, s.outcomes)
	}
}

// A proposal that writes nothing ends at once as not stored, and what stands around it in the frame hears of its own records.
func TestProposalWithoutRecords(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	alone := &silent{}
	if !l.r.inbox.add(alone) {
		t.Fatal("not master")
	}
	b := l.log.NewBuilder(l.tail, l.term, time.Now().UnixMilli())
	if token := l.r.Form(b); token != nil || b.Count() != 0 {
		t.Fatalf("a frame was formed of nothing: %v, %d records", token, b.Count())
	}
	b.Abandon()
	alone.ended(t, "alone")
	var kinds []state.EffectKind
	command := func() {
		l.r.inbox.add(&command{kind: state.RecordTopicDelete, body: state.AppendTopicDelete(nil, "nope"), at: time.Now(),
			done: func(_ outcome, e state.Effect) { kinds = append(kinds, e.Kind) }})
	}
	around := [3]*silent{{}, {}, {}}
	l.r.inbox.add(around[0])
	command()
	l.r.inbox.add(around[1])
	command()
	l.r.inbox.add(around[2])
	f := l.form()
	l.apply(f)
	for _, s := range around {
		s.ended(t, "around others")
	}
	if len(kinds) != 2 {
		t.Errorf("the commands around it heard %v, want two effects", kinds)
	}
}
