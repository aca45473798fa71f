package broker

import (
	"testing"

	"github.com/ledgermq/ledgermq/raftlog"
)

// A replica that has handed over is silent until the new master has registered; if it leads again before, the name servers hear of it at once.
func TestWhoLeadsAgainSpeaksAtOnce(t *testing.T) {
	t.Parallel()
	l := newLoop(t)
	now := l.r.now()
	l.r.office.quiet.Store(now.Add(hush).UnixMilli())
	if !l.r.office.hushed(now) {
		t.Fatal("a replica that has handed over registers as a slave at once")
	}
	l.term++
	l.r.Role(raftlog.Role{Kind: raftlog.RoleMaster, Term: l.term})
	if l.r.office.hushed(now) {
		t.Error("a master tells the name servers nothing")
	}
}
