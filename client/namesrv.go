package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// fetch is a question for a route that is under way.
type fetch struct {
	done  chan struct{}
	route Route
	err   error
}

// askNamesrv asks the name servers in turn, beginning with the one that answered last, until one answers. They do not know of
// each other: where one is not ready, or says that there is no such topic, another may know more.
func (c *Client) askNamesrv(ctx context.Context, req *remoting.Command) (*remoting.Command, error) {
	var faults []error
	var absent *remoting.Command
	notReady := false
	first := int(c.server.Load())
	for i := range c.namesrv {
		n := (first + i) % len(c.namesrv)
		resp, err := c.askOne(ctx, c.namesrv[n], req)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if resp.Code == remoting.SystemError && strings.Contains(resp.Remark, "not ready") {
			notReady = true
			faults = append(faults, fmt.Errorf("%s: %w", c.namesrv[n], ErrNotReady))
			continue
		}
		if resp.Code == remoting.TopicNotExist {
			absent = resp
			continue
		}
		c.server.Store(uint32(n))
		return resp, nil
	}
	if absent != nil {
		return absent, nil
	}
	if notReady {
		return nil, errors.Join(faults...)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoNamesrv, errors.Join(faults...))
}

func (c *Client) askOne(ctx context.Context, addr string, req *remoting.Command) (*remoting.Command, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.routeTimeout)
	defer cancel()
	return c.conns.call(ctx, addr, req)
}

// fetchRoute asks for a route and puts it into the cache. The error is ErrTopicNotFound, ErrNotReady, ErrNoNamesrv, or that
// of ctx.
func (c *Client) fetchRoute(ctx context.Context, topic string) (Route, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return Route{}, ErrClosed
	}
	f := c.fetching[topic]
	if f == nil {
		f = &fetch{done: make(chan struct{})}
		c.fetching[topic] = f
		c.wg.Add(1)
		go c.runFetch(topic, f)
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.route, f.err
	case <-ctx.Done():
		return Route{}, context.Cause(ctx)
	}
}

// runFetch has the time of the client, not of one of those who wait.
func (c *Client) runFetch(topic string, f *fetch) {
	defer c.wg.Done()
	f.route, f.err = c.queryRoute(topic)
	c.mu.Lock()
	delete(c.fetching, topic)
	switch {
	case f.err == nil:
		c.cache.put(c.o.now(), f.route)
		// What the caller gets is what the cache made of it: it may know of a higher term.
		f.route, _ = c.cache.route(topic)
	case errors.Is(f.err, ErrTopicNotFound):
		c.cache.missing(c.o.now(), topic)
	}
	c.mu.Unlock()
	close(f.done)
}

func (c *Client) queryRoute(topic string) (Route, error) {
	req := remoting.NewRequest(remoting.GetRouteInfoByTopic)
	req.Set("topic", topic)
	req.Set("acceptStandardJsonOnly", "true")
	resp, err := c.askNamesrv(c.ctx, req)
	if err != nil {
		return Route{}, fmt.Errorf("route of %s: %w", topic, err)
	}
	switch resp.Code {
	case remoting.Success:
		return decodeRoute(topic, resp.Body, resp.GetOr(fieldTerms, ""))
	case remoting.TopicNotExist:
		return Route{}, fmt.Errorf("route of %s: %w", topic, ErrTopicNotFound)
	}
	return Route{}, &CodeError{Op: "route of " + topic, Addr: "name server", Code: resp.Code, Remark: resp.Remark}
}

// refreshAfter asks for a route again after a refusal; if that fails the old one stays. When the last answer did not help,
// another name server is asked first: it may have heard of a new master that the last one has not.
func (c *Client) refreshAfter(ctx context.Context, topic string, another bool) {
	if another {
		c.server.Store((c.server.Load() + 1) % uint32(len(c.namesrv)))
	}
	_, err := c.fetchRoute(ctx, topic)
	if errors.Is(err, ErrTopicNotFound) && c.o.autoCreate {
		_, err = c.fetchRoute(ctx, message.DefaultTopic)
	}
	if err != nil {
		c.o.logger.Debug().Err(err).Str("topic", topic).Msg("the route was not refreshed after a refusal")
	}
}

// cachedRoute returns the route that is known, or asks for it.
func (c *Client) cachedRoute(ctx context.Context, topic string) (Route, error) {
	c.mu.Lock()
	r, ok := c.cache.route(topic)
	c.mu.Unlock()
	if ok {
		return r, nil
	}
	return c.fetchRoute(ctx, topic)
}

// Route asks a name server for the route of a topic. The error is ErrTopicNotFound, ErrNotReady, ErrNoNamesrv, or that of
// ctx.
func (c *Client) Route(ctx context.Context, topic string) (Route, error) {
	return c.fetchRoute(ctx, topic)
}

// Cluster asks a name server for all broker groups.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	resp, err := c.askNamesrv(ctx, remoting.NewRequest(remoting.GetBrokerClusterInfo))
	if err != nil {
		return Cluster{}, fmt.Errorf("cluster: %w", err)
	}
	if resp.Code != remoting.Success {
		return Cluster{}, &CodeError{Op: "cluster", Addr: "name server", Code: resp.Code, Remark: resp.Remark}
	}
	cl, err := decodeCluster(resp.Body, resp.GetOr(fieldTerms, ""))
	if err != nil {
		return Cluster{}, fmt.Errorf("cluster: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range cl.Groups {
		c.cache.learn(cl.Groups[i])
	}
	return cl, nil
}

// TopicList asks a name server for the names of all topics, sorted.
func (c *Client) TopicList(ctx context.Context) ([]string, error) {
	resp, err := c.askNamesrv(ctx, remoting.NewRequest(remoting.GetAllTopicListFromNameserver))
	if err != nil {
		return nil, fmt.Errorf("topic list: %w", err)
	}
	if resp.Code != remoting.Success {
		return nil, &CodeError{Op: "topic list", Addr: "name server", Code: resp.Code, Remark: resp.Remark}
	}
	var in struct {
		Topics []string `json:"topicList"`
	}
	if err := decodeLax(resp.Body, &in); err != nil {
		return nil, fmt.Errorf("topic list: %w", err)
	}
	return in.Topics, nil
}

// Controllers asks a name server for the id of the cluster and the addresses of its controllers.
func (c *Client) Controllers(ctx context.Context) (clusterID string, addrs []string, err error) {
	resp, err := c.askNamesrv(ctx, remoting.NewRequest(remoting.GetControllers))
	if err != nil {
		return "", nil, fmt.Errorf("controllers: %w", err)
	}
	if resp.Code != remoting.Success {
		return "", nil, &CodeError{Op: "controllers", Addr: "name server", Code: resp.Code, Remark: resp.Remark}
	}
	for a := range strings.SplitSeq(resp.GetOr("controllers", ""), ",") {
		if a != "" {
			addrs = append(addrs, a)
		}
	}
	return resp.GetOr("clusterID", ""), addrs, nil
}
