package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// askMaster sends a request that may be sent twice to the master of q's group, or to the replica that q.Broker names. It asks
// again, by a fresh route, until ctx ends, when the master is away, the connection is lost or the answer is a refusal; a
// named replica is asked once. Any other answer than success is a *CodeError.
func (c *Client) askMaster(ctx context.Context, q QueueRef, req *remoting.Command) (*remoting.Command, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	op := remoting.RequestName(req.Code)
	req.Set("bname", q.Group)
	if q.Broker != "" {
		resp, err := c.askOnce(ctx, q.Broker, req)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		return resp, nil
	}
	var last error
	for wait, try := c.newBackoff(), 0; ; try++ {
		addr, err := c.masterOf(ctx, q)
		if err == nil {
			var resp *remoting.Command
			if resp, err = c.askOnce(ctx, addr, req); err == nil {
				c.heard(q.Group, addr, resp)
				return resp, nil
			}
			var code *CodeError
			if errors.As(err, &code) && !code.passes() {
				return nil, err
			}
			if resp != nil {
				c.heard(q.Group, addr, resp)
			}
		}
		last = err
		if errors.Is(err, ErrTopicNotFound) {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		if !wait.pause(ctx) {
			return nil, fmt.Errorf("%s: %w", op, ended(ctx, last))
		}
		c.refreshAfter(ctx, q.Topic, try > 0)
	}
}

// askOnce returns the answer together with a *CodeError when its code is not success.
func (c *Client) askOnce(ctx context.Context, addr string, req *remoting.Command) (*remoting.Command, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.callTimeout)
	defer cancel()
	resp, err := c.conns.call(ctx, addr, req)
	if err != nil {
		return nil, err
	}
	if resp.Code != remoting.Success {
		return resp, &CodeError{Op: remoting.RequestName(req.Code), Addr: addr, Code: resp.Code, Remark: resp.Remark}
	}
	return resp, nil
}

func (c *Client) masterOf(ctx context.Context, q QueueRef) (string, error) {
	addr, err := c.replicaOf(ctx, q, ids.MasterBrokerID)
	if err == nil && addr == "" {
		err = fmt.Errorf("group %s: %w", q.Group, ErrNoMaster)
	}
	return addr, err
}

// replicaOf returns the address of a replica of q's group, "" when it is not there.
func (c *Client) replicaOf(ctx context.Context, q QueueRef, id ids.BrokerID) (string, error) {
	if _, err := c.cachedRoute(ctx, q.Topic); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.cache.groups[q.Group]
	if g == nil {
		return "", nil
	}
	return g.info.Addr(id), nil
}
