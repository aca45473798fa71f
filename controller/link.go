package controller

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// link carries Raft messages to one other member, in order, many in one call. Raft repeats what is lost, so nothing is ever
// waited for: over linkQueue messages the newest are dropped, and after a failed call all that wait.
type link struct {
	to      identity
	address string
	conn    *grpc.ClientConn
	queue   chan outMessage
	server  *Server
	up      bool // last call succeeded
	stop    context.CancelFunc
}

const (
	linkQueue      = 256     // messages
	linkBatchBytes = 4 << 20 // of one call, unless one message is larger
	stepTimeout    = time.Second
	snapTimeout    = 20 * time.Second
)

// send queues a message. It tells false when the queue is full.
func (l *link) send(m outMessage) bool {
	select {
	case l.queue <- m:
		return true
	default:
		return false
	}
}

// run delivers until ctx ends.
func (l *link) run(ctx context.Context) {
	client := pb.NewPeerClient(l.conn)
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-l.queue:
			l.deliver(ctx, client, l.gather(first))
		}
	}
}

func (l *link) gather(first outMessage) []outMessage {
	batch := []outMessage{first}
	size := len(first.data)
	for size < linkBatchBytes {
		select {
		case m := <-l.queue:
			batch = append(batch, m)
			size += len(m.data)
		default:
			return batch
		}
	}
	return batch
}

func (l *link) deliver(ctx context.Context, client pb.PeerClient, batch []outMessage) {
	s := l.server
	membership := s.membership.Load()
	req := &pb.StepRequest{Token: membership.Token[:], From: s.identity.RaftID, To: l.to.RaftID}
	if m := s.member.Load(); m != nil {
		m.stateMu.RLock()
		if m.check.index > 0 {
			hash := m.check.hash
			req.CheckIndex, req.CheckHash = m.check.index, hash[:]
		}
		m.stateMu.RUnlock()
	}
	timeout := stepTimeout
	snapshot := false
	for _, m := range batch {
		req.Messages = append(req.Messages, m.data)
		if m.snapshot {
			snapshot, timeout = true, snapTimeout
		}
	}
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	resp, err := client.Step(callCtx, req)
	cancel()
	if resp.GetRemoved() {
		s.post(ctx, func(lp *loop) { lp.member.fail(errRemoved) })
		return
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		// What waits was made for the world before the failure.
		for len(l.queue) > 0 {
			m := <-l.queue
			snapshot = snapshot || m.snapshot
		}
	}
	if (err == nil) != l.up {
		l.up = err == nil
		if l.up {
			s.log.Info().Str("controller", l.to.ID).Str("address", l.address).Msg("the controller is reachable")
		} else {
			s.log.Warn().Str("controller", l.to.ID).Str("address", l.address).Err(err).Msg("the controller cannot be reached: going on without it")
		}
	}
	if err != nil || snapshot {
		s.post(ctx, func(lp *loop) {
			if snapshot {
				lp.member.reportSnapshot(l.to.RaftID, err == nil)
			}
			if err != nil {
				lp.member.reportUnreachable(l.to.RaftID)
			}
		})
	}
}
