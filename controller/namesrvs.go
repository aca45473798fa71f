package controller

import (
	"context"
	"slices"
	"strings"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// This file has the list of name servers that the controllers keep, once an operator has set one: each node is told it with every
// heartbeat, registers with those that are new, and leaves the others. Until then a node takes the list of its configuration.

// maxNamesrv is how many name servers a cluster has at most: each node registers with each of them.
const maxNamesrv = 16

// namesrvCommand sets the list of name servers.
type namesrvCommand struct {
	Before []string `json:"before,omitempty"` // the list that the proposer saw: compare-and-set
	Now    []string `json:"now"`
}

func (*namesrvCommand) commandType() byte      { return typeNamesrv }
func (*namesrvCommand) needs() (Level, string) { return 2, "a list of name servers" }

func (s *State) applyNamesrv(c *namesrvCommand) error {
	if !slices.Equal(c.Before, s.cluster.Namesrv) {
		return refuse(ErrStale, "the list of name servers is %s now: look again", strings.Join(s.cluster.Namesrv, ", "))
	}
	if err := checkNamesrv(c.Now); err != nil {
		return err
	}
	s.cluster.Namesrv = c.Now
	s.touch(keyCluster)
	return nil
}

func checkNamesrv(list []string) error {
	if len(list) == 0 {
		return refuse(ErrInvalid, "the last name server cannot be removed: add another one first, clients find nobody without")
	}
	if len(list) > maxNamesrv {
		return refuse(ErrInvalid, "%d name servers: at most %d", len(list), maxNamesrv)
	}
	for i, a := range list {
		if !validAddress(a) {
			return refuse(ErrInvalid, "name server %q: want host:port", cut(a))
		}
		if slices.Contains(list[:i], a) {
			return refuse(ErrInvalid, "name server %s is named twice", a)
		}
	}
	return nil
}

// planNamesrv makes the next list of what an operator wants.
func planNamesrv(now []string, req *pb.ChangeNamesrvRequest) ([]string, error) {
	if len(req.GetSet()) > 0 {
		return req.GetSet(), nil
	}
	if len(now) == 0 && len(req.GetAdd())+len(req.GetRemove()) > 0 {
		return nil, refuse(ErrNotNow, "the controllers keep no list of name servers yet, each node has that of its configuration: set the whole list first, with `ledgermq admin namesrv set`")
	}
	next := slices.Clone(now)
	for _, a := range req.GetAdd() {
		if !slices.Contains(next, a) {
			next = append(next, a)
		}
	}
	for _, a := range req.GetRemove() {
		if !slices.Contains(now, a) {
			return nil, refuse(ErrNotFound, "there is no name server %q in the list: it has %s", cut(a), strings.Join(now, ", "))
		}
		next = slices.DeleteFunc(next, func(o string) bool { return o == a })
	}
	return next, nil
}

// ChangeNamesrv changes the list, or only tells it when nothing is asked for.
func (c *calls) ChangeNamesrv(ctx context.Context, req *pb.ChangeNamesrvRequest) (*pb.ChangeNamesrvResponse, error) {
	s := c.s
	if err := s.confirm(ctx); err != nil {
		return nil, err
	}
	cmd := &namesrvCommand{}
	s.readState(func(st *State) { cmd.Before = st.cluster.Namesrv })
	var err error
	if cmd.Now, err = planNamesrv(cmd.Before, req); err != nil {
		return nil, err
	}
	if !slices.Equal(cmd.Now, cmd.Before) || len(req.GetSet())+len(req.GetAdd())+len(req.GetRemove()) > 0 {
		if err := checkNamesrv(cmd.Now); err != nil {
			return nil, err
		}
	}
	if !slices.Equal(cmd.Now, cmd.Before) {
		if err := s.propose(ctx, cmd); err != nil {
			return nil, err
		}
		s.log.Info().Strs("namesrv", cmd.Now).Msg("an operator changes the list of name servers")
	}
	return &pb.ChangeNamesrvResponse{Namesrv: cmd.Now}, nil
}
