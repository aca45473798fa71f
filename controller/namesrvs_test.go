package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

func TestNamesrvList(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 1)
	if err := s.Apply(&namesrvCommand{Now: []string{"a:1"}}); !errors.Is(err, ErrNotNow) {
		t.Errorf("at feature level 1: %v", err)
	}
	must(t, s.Apply(&raiseLevelCommand{2}))
	do := func(req *pb.ChangeNamesrvRequest) error {
		next, err := planNamesrv(s.cluster.Namesrv, req)
		if err != nil {
			return err
		}
		before := s.Hash()
		err = s.Apply(&namesrvCommand{Before: s.cluster.Namesrv, Now: next})
		if err != nil && s.Hash() != before {
			t.Errorf("%v was refused and changed the state", req)
		}
		return err
	}
	for _, c := range []struct {
		set, add, remove, want string
		kind                   error
	}{
		{add: "a:1", kind: ErrNotNow},
		{set: "a:1 b:2", want: "a:1 b:2"},
		{add: "c:3 a:1", want: "a:1 b:2 c:3"},
		{add: "d:4", remove: "a:1", want: "b:2 c:3 d:4"},
		{remove: "x:1", want: "b:2 c:3 d:4", kind: ErrNotFound},
		{remove: "b:2 c:3 d:4", want: "b:2 c:3 d:4", kind: ErrInvalid},
		{set: "b:2 b:2", want: "b:2 c:3 d:4", kind: ErrInvalid},
		{set: "no-port", want: "b:2 c:3 d:4", kind: ErrInvalid},
		{set: strings.Repeat("h:1 ", maxNamesrv+1), want: "b:2 c:3 d:4", kind: ErrInvalid},
	} {
		err := do(&pb.ChangeNamesrvRequest{Set: strings.Fields(c.set), Add: strings.Fields(c.add), Remove: strings.Fields(c.remove)})
		if !errors.Is(err, c.kind) || !slices.Equal(s.cluster.Namesrv, strings.Fields(c.want)) {
			t.Errorf("%+v: %v, the list is %v", c, err, s.cluster.Namesrv)
		}
	}
	if err := s.Apply(&namesrvCommand{Before: []string{"a:1"}, Now: []string{"e:5"}}); !errors.Is(err, ErrStale) {
		t.Errorf("an old list: %v", err)
	}
}
