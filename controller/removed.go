package controller

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has how a broker group is removed. The group decides it: its master freezes its log, and a freeze that a replica has applied is
// committed for ever. From then on the group stores nothing, so it does not matter when the controllers hear of it, and from whom. They
// forget the group and remember its id, for ever: a node that was away learns from it that the folder which it still has is of no group.

// removedEntry has the key "removed/" + ID in hexadecimal digits.
type removedEntry struct {
	ID     hexID     `json:"id"`
	Name   string    `json:"name"`
	Epoch  ids.Epoch `json:"epoch"`  // its newest one: a group that gets its name begins behind it
	Millis int64     `json:"millis"` // when, by the clock of the controller that proposed it, since 1970
}

const keyRemovedPrefix = "removed/"

func (e *removedEntry) key() string { return keyRemovedPrefix + hex.EncodeToString(e.ID[:]) }

// maxRemovedGroups bounds the groups that are remembered. At the bound a group is not removed any more: to forget one would let a node that
// was away bring it back.
const maxRemovedGroups = 100_000

// removeGroupCommand removes a group that is frozen, or with Pending one that has never had an epoch.
type removeGroupCommand struct {
	Group   hexID `json:"group"`
	Pending bool  `json:"pending,omitempty"`
	Millis  int64 `json:"millis"`
}

func (*removeGroupCommand) commandType() byte { return typeRemoveGroup }

func (*removeGroupCommand) needs() (Level, string) { return LevelService, "the removal of a group" }

func (s *State) applyRemoveGroup(c *removeGroupCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	switch {
	case g == nil && s.removed[c.Group] != nil:
		return nil
	case g == nil:
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	case c.Pending && g.Epoch > 0:
		return refuse(ErrInvalid, "group %s is ready by now, and may have messages: it must be write-protected and drained first", g.Name)
	case len(s.removed) >= maxRemovedGroups:
		return refuse(ErrInvalid, "group %s: %d groups were removed from this cluster, and no more can be remembered", g.Name, len(s.removed))
	}
	e := &removedEntry{ID: g.ID, Name: g.Name, Epoch: max(g.Epoch, g.After), Millis: c.Millis}
	s.removed[e.ID] = e
	delete(s.groups, g.Name)
	delete(s.byID, ids.GroupID(g.ID))
	s.touch(e.key())
	s.touchGroup(g)
	return nil
}

// after is the epoch behind which a new group of that name begins: name servers and clients take nothing of a lower term than they know
// of a name.
func (s *State) after(name string) (epoch ids.Epoch) {
	for _, e := range s.removed {
		if e.Name == name {
			epoch = max(epoch, e.Epoch)
		}
	}
	return epoch
}

// checkRemoved tests what State says of removed groups.
func (s *State) checkRemoved() error {
	for id, e := range s.removed {
		if e.ID != id || s.byID[ids.GroupID(id)] != nil || !groupName.MatchString(e.Name) {
			return fmt.Errorf("the removed group %s, %v, is another one, or is there", e.Name, ids.GroupID(id))
		}
	}
	return nil
}

// unknownGroup is the refusal of a group that does not exist, and tells of one that did.
func (s *State) unknownGroup(name string) error {
	var last *removedEntry
	for _, e := range s.removed {
		if e.Name == name && (last == nil || e.Millis > last.Millis) {
			last = e
		}
	}
	if last == nil {
		return refuse(ErrNotFound, "group %q does not exist: create it, or look at the list of groups", cut(name))
	}
	return refuse(ErrNotFound, "group %s was removed at %s", name, time.UnixMilli(last.Millis).UTC().Format(time.RFC3339))
}

// ofRemoved tells a node that a replica which it reports belongs to a group that was removed.
func (e *removedEntry) ofRemoved(r *pb.ReplicaReport) *pb.WantedReplica {
	return &pb.WantedReplica{GroupId: r.GetGroupId(), GroupName: e.Name, ReplicaId: r.GetReplicaId(), Incarnation: r.GetIncarnation(),
		Lost: fmt.Sprintf("group %s was removed", e.Name), Retired: true, Planned: true, Removed: true}
}

// PendingRemoval returns the command that removes a group which has never been ready. Errors: ErrNotFound, ErrInvalid.
func (s *State) PendingRemoval(now time.Time, name string) (Command, error) {
	g := s.groups[name]
	switch {
	case g == nil:
		return nil, s.unknownGroup(name)
	case g.Epoch > 0:
		return nil, refuse(ErrInvalid, "group %s is ready, and may have messages: it is removed by its master, when it is write-protected and drained", g.Name)
	}
	return &removeGroupCommand{Group: g.ID, Pending: true, Millis: now.UnixMilli()}, nil
}

// frozen tells whether a replica said that the group is.
func (v *groupView) frozen() bool {
	for _, r := range v.replicas {
		if r.frozen {
			return true
		}
	}
	return false
}

func (c *calls) RemoveGroup(ctx context.Context, req *pb.RemoveGroupRequest) (*pb.RemoveGroupResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	var cmd Command
	var err error
	s.readState(func(st *State) { cmd, err = st.PendingRemoval(s.o.Clock(), req.GetName()) })
	if err == nil {
		err = s.propose(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	s.log.Info().Str("group", req.GetName()).Msg("an operator removes a group that was never ready")
	return &pb.RemoveGroupResponse{}, nil
}
