package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The founding of a cluster decides which identities its first members have; later ones are added (members.go). The member with the
// lowest id is the founder: when every other one has answered who it is, and none knows a membership yet, the founder writes
// the membership down. The others ask around until one shows it to them.
//
// A membership that names another identity for this member's id means that this folder is a new one: the member is refused and
// takes no part, because it has forgotten the votes that its predecessor gave. Two memberships can never both be used: each
// member adopts one, and Raft messages carry its token.
type founding struct {
	self   identity
	o      *Options
	newest Level    // that this program understands
	peers  []string // all ids, sorted
	others map[string]string
	ask    func(ctx context.Context, address string) (*pb.IdentifyResponse, error)
	logger zerolog.Logger
	every  time.Duration
}

// run asks until there is a membership that this member may adopt. It returns *FolderError when it may not, for ever.
func (f *founding) run(ctx context.Context) (*membership, error) {
	if len(f.peers) == 1 && !f.o.Join {
		return f.decide([]identity{f.self}, f.newest), nil
	}
	ticker := time.NewTicker(f.every)
	defer ticker.Stop()
	lastMissing := ""
	for {
		m, missing, err := f.once(ctx)
		if m != nil || err != nil {
			return m, err
		}
		if missing != lastMissing && missing != "" {
			f.logger.Info().Str("waiting_for", missing).Msg("founding the cluster: every controller must have answered once")
		}
		lastMissing = missing
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// once asks every other member, and tells which of them did not answer.
func (f *founding) once(ctx context.Context) (m *membership, missing string, err error) {
	found := []identity{f.self}
	level := f.newest
	var silent []string
	waits := "a controller of the cluster that answers"
	for _, id := range f.peers {
		address, other := f.others[id]
		if !other {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, time.Second)
		resp, err := f.ask(callCtx, address)
		cancel()
		if err != nil {
			silent = append(silent, id)
			continue
		}
		if resp.GetId() != id {
			f.logger.Error().Str("address", address).Str("want", id).Str("got", resp.GetId()).
				Msg("another controller answers at this address: correct the list of controllers")
			silent = append(silent, id)
			continue
		}
		if resp.GetMembership() != nil {
			m := membershipOf(resp.GetMembership())
			if f.o.Join && m.name(f.self.RaftID) == "" {
				waits = "an operator: `ledgermq admin controller add " + f.self.ID + "=" + f.o.Peers[f.self.ID] + "`"
				continue // another one may know better
			}
			return m, "", m.fits(f.self, f.o)
		}
		found = append(found, identity{ID: resp.GetId(), RaftID: resp.GetRaftId()})
		level = min(level, LevelsOf(resp.GetLevels()).Newest)
	}
	if f.o.Join {
		return nil, waits, nil
	}
	if len(silent) > 0 {
		return nil, strings.Join(silent, ", "), nil
	}
	if f.self.ID != f.peers[0] {
		return nil, f.peers[0], nil // the founder will decide
	}
	return f.decide(found, level), "", nil
}

// decide makes the membership, with the newest feature level that all members understand.
func (f *founding) decide(members []identity, level Level) *membership {
	slices.SortFunc(members, func(a, b identity) int { return strings.Compare(a.ID, b.ID) })
	return &membership{Token: hexID(ids.NewUUID(nil)), Members: members, Level: level.orNone()}
}

// fits returns an error when m does not have self, or when the list that was given disagrees with it. While the members are those of the
// founding that list tells their addresses, so it has the same ids. Later they are kept with the members, and the list need only have one
// of the others.
func (m *membership) fits(self identity, o *Options) error {
	peers := sortedKeys(o.Peers)
	var names []string
	known, common := false, len(m.Members) == 1
	for _, i := range m.Members {
		names = append(names, i.ID)
		switch {
		case i.RaftID == self.RaftID:
			known = true
		case o.Peers[i.ID] != "" || slices.Contains(mapValues(o.Peers), i.Address):
			common = true
		}
	}
	slices.Sort(names)
	all := strings.Join(names, ", ")
	switch {
	case !known && slices.Contains(names, self.ID):
		return fmt.Errorf("the cluster knows controller %s under another identity, so this data folder is a new or another one: bring the old folder back, or start this one, "+
			"empty, with --%sjoin and run `ledgermq admin controller replace %s --with %s=%s`", self.ID, o.FlagPrefix, self.ID, self.ID, o.Peers[self.ID])
	case !known && !m.Changed:
		return fmt.Errorf("the cluster was founded by the controllers %s, %s is not one of them: start it, empty, with --%sjoin and run `ledgermq admin controller add`", all, self.ID, o.FlagPrefix)
	case !known:
		return fmt.Errorf("the cluster's controllers are %s, %s is not one of them: it was removed; start it, empty, with --%sjoin and run `ledgermq admin controller add`", all, self.ID, o.FlagPrefix)
	case !m.Changed && !slices.Equal(names, peers):
		return fmt.Errorf("the cluster was founded by the controllers %s, the list given has %s: give the same ids, only addresses may change (one that was recovered is alone until others are added: leave --%speers out)", all, strings.Join(peers, ", "), o.FlagPrefix)
	case m.Changed && !common && len(peers) > 1:
		return fmt.Errorf("the cluster's controllers are %s, the list given has %s, and none of the others: this is the list of another cluster, or a very old one", all, strings.Join(peers, ", "))
	}
	return nil
}

func membershipOf(p *pb.Membership) *membership {
	m := &membership{Level: Level(p.GetLevel()).orNone(), Changed: p.GetChanged()}
	copy(m.Token[:], p.GetToken())
	for _, i := range p.GetMembers() {
		m.Members = append(m.Members, identity{i.GetId(), i.GetRaftId(), i.GetAddress(), i.GetLearner()})
	}
	return m
}

func (m *membership) proto() *pb.Membership {
	p := &pb.Membership{Token: m.Token[:], Level: uint32(m.Level), Changed: m.Changed}
	for _, i := range m.Members {
		p.Members = append(p.Members, &pb.MemberIdentity{Id: i.ID, RaftId: i.RaftID, Address: i.Address, Learner: i.Learner})
	}
	return p
}

// name returns the id of the member with that raft id, or "".
func (m *membership) name(raftID uint64) string {
	for _, i := range m.Members {
		if i.RaftID == raftID {
			return i.ID
		}
	}
	return ""
}
