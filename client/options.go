package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"
)

// options of a Client. Users set them through Option functions.
type options struct {
	dial          func(ctx context.Context, addr string) (net.Conn, error)
	dialTimeout   time.Duration
	callTimeout   time.Duration
	slowAfter     time.Duration
	routeTimeout  time.Duration
	routeEvery    time.Duration
	minBackoff    time.Duration
	maxBackoff    time.Duration
	producerGroup string
	autoCreate    bool
	now           func() time.Time
	logger        zerolog.Logger
}

func defaults() options {
	return options{
		dialTimeout: time.Second, callTimeout: 10 * time.Second, slowAfter: 500 * time.Millisecond,
		routeTimeout: 2 * time.Second, routeEvery: 30 * time.Second,
		minBackoff: 20 * time.Millisecond, maxBackoff: 100 * time.Millisecond,
		producerGroup: "LEDGERMQ_TOOLS", autoCreate: true, now: time.Now, logger: zerolog.Nop(),
	}
}

// validate reports all faults at once.
func (o *options) validate() error {
	var faults []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"dial timeout", o.dialTimeout}, {"call timeout", o.callTimeout}, {"slow-after", o.slowAfter}, {"route timeout", o.routeTimeout},
		{"route refresh", o.routeEvery}, {"shortest back-off", o.minBackoff}, {"longest back-off", o.maxBackoff},
	} {
		if d.value <= 0 {
			faults = append(faults, fmt.Errorf("the %s is %v, it must be above zero", d.name, d.value))
		}
	}
	return errors.Join(faults...)
}

// Option changes how a Client works.
type Option func(*options)

// WithDialer sets how connections are made. The default is TCP; names are looked up again for each connection.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithDialTimeout bounds one attempt to connect. The default is 1 s.
func WithDialTimeout(d time.Duration) Option { return func(o *options) { o.dialTimeout = d } }

// WithCallTimeout bounds how long one answer is waited for, also where the context has no end. A send without an answer until
// then is ErrUnknown. The default is 10 s, twice what a broker takes to say so itself.
func WithCallTimeout(d time.Duration) Option { return func(o *options) { o.callTimeout = d } }

// WithSlowAfter sets how long a broker may take to answer one send until other sends avoid it for a while, where there is
// another one, and the name servers are asked whether it was replaced: then this send ends as ErrUnknown. The default is 500 ms.
func WithSlowAfter(d time.Duration) Option { return func(o *options) { o.slowAfter = d } }

// WithRouteTimeout bounds how long one name server is waited for. The default is 2 s.
func WithRouteTimeout(d time.Duration) Option { return func(o *options) { o.routeTimeout = d } }

// WithRouteRefresh sets how often routes in use are asked for again without a reason. The default is 30 s.
func WithRouteRefresh(d time.Duration) Option { return func(o *options) { o.routeEvery = d } }

// WithBackoff sets the first and the longest pause between two tries. The defaults are 20 ms and 100 ms: the longest one is
// what a failover seems to take longer than it does.
func WithBackoff(shortest, longest time.Duration) Option {
	return func(o *options) { o.minBackoff, o.maxBackoff = shortest, longest }
}

// WithProducerGroup sets the producer group that sends name. The default is LEDGERMQ_TOOLS.
func WithProducerGroup(group string) Option { return func(o *options) { o.producerGroup = group } }

// WithoutAutoCreate makes a send to an unknown topic fail. By default it goes to the brokers that have the template topic
// TBW102, which create the topic. A send with an OrderKey never creates one: the groups create it one after the other, and
// meanwhile keys would move.
func WithoutAutoCreate() Option { return func(o *options) { o.autoCreate = false } }

// WithLogger sets where changes of routes are logged, at debug level. The default is nowhere.
func WithLogger(l zerolog.Logger) Option { return func(o *options) { o.logger = l } }
