package sim

import (
	"errors"
	"syscall"
)

// cutFront lets n give up the front of its log, whoever lacks it: the others must catch up with what is left.
func (s *schedule) cutFront(n *Node) {
	did, err := n.CutFront()
	switch {
	case n.powerAfter < 0:
		s.powerCut(n.Host)
	case err != nil:
		n.w.Check.mayPark[n.ID] = true
	case did:
		s.cuts++
	}
}

// catchUp lets n take what its master offers, after a while.
func (s *schedule) catchUp(n *Node) {
	if n.Offer == nil || n.fetching {
		return
	}
	n.fetching = true
	s.after(s.between(1_000, 400_000), func() {
		n.fetching = false
		if !n.Up || n.Offer == nil || s.pausedFor(n.Host) > 0 {
			return
		}
		if !s.calm && s.chance(0.3) {
			s.armPower(n.Host, 20)
		}
		from := n.w.Node(n.Offer.From)
		if from.gone || from.lost != "" || from.missing {
			return
		}
		done, err := n.Install(from)
		switch {
		case n.powerAfter < 0:
			s.powerCut(n.Host)
		case err != nil && !errors.Is(err, errDisk) && !errors.Is(err, syscall.ENOSPC):
			s.fail("replica %d: %v", n.ID, err)
		case done: // also when a sync failed, or there was no room: the start finds the old log, or the new one
			s.installs++
			s.openReplica(n)
		}
	})
}
