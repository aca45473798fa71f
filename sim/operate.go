package sim

import (
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// maxHosts bounds how many machines a run has, with those that an operator adds.
const maxHosts = 9

// operate is an operator who wants another mode, one replica more or less, or a replica moved. The controllers have the last word.
func (s *schedule) operate(w *World) {
	g := s.c.group(w)
	want := controller.SetMode{Answers: 1 + s.r.IntN(3), Members: min(max(int(g.Members)-1+s.r.IntN(3), 1), 4)}
	if s.chance(0.3) {
		want.MinISR = 1 + s.r.IntN(3)
	}
	moves := s.chance(0.3)
	if moves {
		want.Answers, want.Members = int(g.Answers), int(g.Members)
		want.Remove = []ids.ReplicaID{ids.ReplicaID(g.Replicas[s.r.IntN(len(g.Replicas))].ReplicaId)}
	}
	if moves || want.Members > int(g.Members) {
		h := s.spare(w)
		if h == nil {
			return
		}
		want.On = []ids.NodeID{h.Name}
		if s.chance(0.2) {
			want.Learners = want.On
		}
	}
	s.after(s.between(s.p.ApplyMin, s.p.ApplyMax), func() {
		if !s.calm && !w.misses() { // or he would want a min ISR that cannot be
			_ = s.setMode(w, want) // many are refused
		}
	})
}

// spare returns a machine without a replica of the group, a new one if need be; nil when there are too many.
func (s *schedule) spare(w *World) *Host {
	for _, h := range s.Hosts {
		if h.at(w) == nil {
			return h
		}
	}
	if len(s.Hosts) == maxHosts {
		return nil
	}
	h := s.addHost()
	h.agent = &agent{s: s, h: h}
	_ = s.c.apply(controller.NewRegistration(h.Name, h.checkCode(), h.firstSession()))
	s.open(h)
	s.after(s.between(0, 50_000), h.agent.beat)
	return h
}

// setMode lets the controllers change a group, and the nodes of new replicas make their folders.
func (s *schedule) setMode(w *World, want controller.SetMode) error {
	want.Group = w.name
	if s.c.lead == nil {
		return errNoController
	}
	cmd, err := s.c.lead.SetMode(s.c.now(), s.c.state, want)
	if err == nil {
		err = s.c.apply(cmd)
	}
	s.Tracef("group %s is to have mode %d-%d, on %v, without %v: %v", w.name, want.Answers, want.Members, want.On, want.Remove, err)
	if err != nil {
		return err
	}
	for _, r := range s.c.group(w).Replicas {
		if w.Node(ids.ReplicaID(r.ReplicaId)) != nil {
			continue
		}
		for _, h := range s.Hosts {
			if string(h.Name) != r.NodeId || h.at(w) != nil { // that one is lost: see follow
				continue
			}
			n, err := w.addNode(h, ids.ReplicaID(r.ReplicaId))
			if err != nil {
				s.fail("create replica %d: %w", r.ReplicaId, err)
				return err
			}
			s.after(s.between(0, 50_000), func() { s.tick(n) })
			if h.running {
				h.failSync = false // a folder whose making failed would be made again
				s.openReplica(n)
			}
		}
	}
	return nil
}
