package broker

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// handleHeartbeat takes HEART_BEAT (34): who is connected and what it subscribes to. Every replica keeps that for its own
// connections, since clients send heartbeats to all of them. A master creates unknown groups and their retry topics before it
// answers, so that a consumer finds its retry topic's route.
func (r *Replica) handleHeartbeat(c *remoting.Conn, req *remoting.Command) {
	var hb HeartbeatData
	if err := json.Unmarshal(req.Body, &hb); err != nil {
		c.ReplyError(req, remoting.SystemError, fmt.Sprintf("the heartbeat cannot be read: %v", err))
		return
	}
	if hb.ClientID == "" {
		c.ReplyError(req, remoting.SystemError, "the heartbeat has no clientID")
		return
	}
	if err := r.checkHeartbeat(&hb); err != nil {
		replyError(c, req, err)
		return
	}
	var changed []string
	r.presenceMu.Lock()
	err := r.presence.fits(c, &hb)
	if err == nil {
		changed = r.presence.heartbeat(c, clientInfo{req.Language, req.Version}, hb, r.now())
	}
	r.presenceMu.Unlock()
	if err != nil {
		replyError(c, req, err)
		return
	}
	r.notifyMembers(changed)
	if r.isMaster() && r.createsGroups() {
		for _, d := range hb.ConsumerDataSet {
			_, known := r.st.Group(d.GroupName)
			_, retry := r.st.Topic(message.RetryTopic(d.GroupName))
			if !known || !retry {
				c.Async(req, func(_ *remoting.Command, pend *remoting.Pending) {
					for _, d := range hb.ConsumerDataSet {
						if err := r.ensureGroup(d.GroupName); err != nil {
							answerError(pend, err)
							return
						}
					}
					pend.Answer(heartbeatAnswer())
				})
				return
			}
		}
	}
	c.Reply(req, heartbeatAnswer())
}

func heartbeatAnswer() *remoting.Command {
	resp := remoting.NewResponse(remoting.Success, "")
	// Version 2 of the heartbeat leaves out subscriptions that did not change; here each one says all.
	resp.Set("IS_SUPPORT_HEART_BEAT_V2", "false")
	resp.Set("IS_SUB_CHANGE", "true")
	return resp
}

// checkHeartbeat checks sizes and names, and leaves out groups that do not exist and may not be created by a heartbeat.
func (r *Replica) checkHeartbeat(hb *HeartbeatData) error {
	if err := hb.bounded(); err != nil {
		return err
	}
	kept := hb.ConsumerDataSet[:0]
	for _, d := range hb.ConsumerDataSet {
		if err := message.ValidGroup(d.GroupName); err != nil {
			return err
		}
		if _, known := r.st.Group(d.GroupName); known || r.createsGroups() {
			kept = append(kept, d)
		}
	}
	hb.ConsumerDataSet = kept
	for _, d := range hb.ProducerDataSet {
		if err := message.ValidGroup(d.GroupName); err != nil {
			return err
		}
	}
	return nil
}

// bounded refuses more than maxListed groups of a kind, or subscriptions of a group: each is kept, and one worker makes the groups.
func (hb *HeartbeatData) bounded() error {
	if n := len(hb.ProducerDataSet); n > maxListed {
		return refuse(remoting.InvalidParameter, "a heartbeat has %d producer groups: it can have %d", n, maxListed)
	}
	if n := len(hb.ConsumerDataSet); n > maxListed {
		return refuse(remoting.InvalidParameter, "a heartbeat has %d consumer groups: it can have %d", n, maxListed)
	}
	for _, d := range hb.ConsumerDataSet {
		if n := len(d.SubscriptionDataSet); n > maxListed {
			return refuse(remoting.InvalidParameter, "consumer group %q has %d subscriptions in a heartbeat: it can have %d", d.GroupName, n, maxListed)
		}
	}
	return nil
}

// notifyMembers pushes NOTIFY_CONSUMER_IDS_CHANGED (40) to the members of groups that changed, so that they share out their
// queues anew at once.
func (r *Replica) notifyMembers(groups []string) {
	r.noteMixed(groups)
	for _, g := range groups {
		if cfg, known := r.st.Group(g); known && !cfg.NotifyIDsChanged {
			continue
		}
		r.presenceMu.Lock()
		conns := r.presence.listeners(g)
		r.presenceMu.Unlock()
		for _, c := range conns {
			cmd := remoting.NewRequest(remoting.NotifyConsumerIDsChanged)
			cmd.Set("consumerGroup", g)
			if err := c.Push(cmd); err != nil {
				r.log.Debug().Err(err).Str("consumer_group", g).Msg("a member could not be told of a change")
			}
		}
	}
}

// connClosed forgets what a connection had: the Go client never says goodbye.
func (r *Replica) connClosed(c *remoting.Conn) {
	r.presenceMu.Lock()
	changed := r.presence.closed(c)
	r.presenceMu.Unlock()
	r.holds.ofConn(c)
	r.notifyMembers(changed)
}

// handleUnregister takes UNREGISTER_CLIENT (35).
func (r *Replica) handleUnregister(c *remoting.Conn, req *remoting.Command) {
	if _, err := req.MustString("clientID"); err != nil {
		replyError(c, req, err)
		return
	}
	r.presenceMu.Lock()
	// The names become keys, which outlive the request.
	changed := r.presence.unregister(c, strings.Clone(req.GetOr("producerGroup", "")), strings.Clone(req.GetOr("consumerGroup", "")))
	r.presenceMu.Unlock()
	c.Reply(req, remoting.NewResponse(remoting.Success, ""))
	r.notifyMembers(changed)
}

// handleConsumerList takes GET_CONSUMER_LIST_BY_GROUP (38). Each replica answers for its own connections.
func (r *Replica) handleConsumerList(c *remoting.Conn, req *remoting.Command) {
	group, err := req.MustString("consumerGroup")
	if err != nil {
		replyError(c, req, err)
		return
	}
	r.presenceMu.Lock()
	members := r.presence.members(group)
	r.presenceMu.Unlock()
	if len(members) == 0 {
		replyError(c, req, refuse(remoting.SystemError, "consumer group %q has no member here", group))
		return
	}
	body, err := json.Marshal(struct {
		IDs []string `json:"consumerIdList"`
	}{members})
	if err != nil {
		replyError(c, req, err)
		return
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = body
	c.Reply(req, resp)
}

// handleCheckClientConfig takes CHECK_CLIENT_CONFIG (46): whether a subscription's filter can be served.
func (r *Replica) handleCheckClientConfig(c *remoting.Conn, req *remoting.Command) {
	var body struct {
		SubscriptionData *SubscriptionData `json:"subscriptionData"`
	}
	if err := json.Unmarshal(req.Body, &body); err != nil {
		c.ReplyError(req, remoting.SystemError, fmt.Sprintf("the body cannot be read: %v", err))
		return
	}
	if s := body.SubscriptionData; s != nil && s.ExpressionType != "" && s.ExpressionType != expressionTag {
		c.ReplyError(req, remoting.SystemError, fmt.Sprintf("filters of type %s are not supported", s.ExpressionType))
		return
	}
	c.Reply(req, remoting.NewResponse(remoting.Success, ""))
}
