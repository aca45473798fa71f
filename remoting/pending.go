package remoting

import "fmt"

// Pending is an answer that is given after the handler has returned. While it lives the bytes of its request count as in
// flight. It is a plain value, to be kept in the owner's own structures.
//
// Invariant: every Pending is ended exactly once, by Answer or AppendAnswer; of copies only one is used. After the
// connection has closed both do nothing.
type Pending struct {
	conn   *Conn
	cost   int64
	opaque int32
	codec  byte
	oneWay bool
}

func (c *Conn) cost(req *Command) int64 { return int64(req.size) + requestCost }

// Pending takes over the answer to req. It must be called inside the handler call of req.
func (c *Conn) Pending(req *Command) Pending {
	p := Pending{conn: c, cost: c.cost(req), opaque: req.Opaque, codec: req.Codec, oneWay: req.OneWay()}
	c.taken = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.inFlight.Add(p.cost)
		c.limits.inFlight.Add(p.cost)
	}
	return p
}

// Conn returns the connection, nil when p was ended.
func (p *Pending) Conn() *Conn { return p.conn }

// OneWay tells whether the request wants no answer.
func (p *Pending) OneWay() bool { return p.oneWay }

// end locks the connection and takes p's bytes off its account. It returns nil, unlocked, when there is nothing to answer.
func (p *Pending) end() *Conn {
	c := p.conn
	if c == nil {
		return nil
	}
	p.conn = nil
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.inFlight.Add(-p.cost)
	c.limits.inFlight.Add(-p.cost)
	if p.oneWay {
		c.mu.Unlock()
		return nil
	}
	return c
}

// Answer sends the answer. resp can be used again when it returns; opaque, flag, codec, version and language are set
// here.
func (p *Pending) Answer(resp *Command) {
	if c := p.end(); c != nil && c.appendUnlock(resp, answerEnvelope(p.opaque, p.codec)) {
		c.Flush()
	}
}

// AppendAnswer is Answer without the write: Conn.Flush does it, for many answers at once.
func (p *Pending) AppendAnswer(resp *Command) {
	if c := p.end(); c != nil {
		c.appendUnlock(resp, answerEnvelope(p.opaque, p.codec))
	}
}

// Async runs f with a copy of req in the server's worker pool, for work that may block. f must end p. When the pool is
// full the request is answered with SYSTEM_BUSY at once; when f panics, with SYSTEM_ERROR.
func (c *Conn) Async(req *Command, f func(req *Command, p *Pending)) {
	clone := req.Clone()
	p := c.Pending(req)
	ok := c.server != nil && c.server.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				p.Answer(NewResponse(SystemError, fmt.Sprintf("internal error: %v", r)))
				panic(r) // the pool logs it
			}
		}()
		f(clone, &p)
	})
	if !ok {
		p.AppendAnswer(NewResponse(SystemBusy, busyRemark+" all workers are busy, try later"))
	}
}
