package broker

import (
	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// creation is a topic or group whose creation is under way; who needs it too waits for the same command.
type creation struct {
	done chan struct{}
	err  error
}

// once runs create for a name unless that runs already; then it waits for it.
func (r *Replica) once(name string, create func() error) error {
	c := &creation{done: make(chan struct{})}
	if other, running := r.creating.LoadOrStore(name, c); running {
		o := other.(*creation)
		<-o.done
		return o.err
	}
	c.err = refuse(remoting.SystemError, "the creation of %s failed", name) // what others get if create panics
	defer func() {
		r.creating.Delete(name)
		close(c.done)
	}()
	c.err = create()
	return c.err
}

// ensureTopic creates a topic that does not exist and returns the one that then does. It may block.
func (r *Replica) ensureTopic(t state.Topic) (state.Topic, error) {
	if have, found := r.st.Topic(t.Name); found {
		return have, nil
	}
	err := r.once("topic/"+t.Name, func() error {
		_, err := r.commitCommand(state.RecordTopicPut, state.AppendTopicPut(nil, state.Create, t))
		if err == nil {
			r.node.publish(r) // who hears that a first send is OK finds the topic's route: clients ask again only after 30 s
		}
		return err
	})
	if err != nil {
		return t, err
	}
	have, found := r.st.Topic(t.Name)
	if !found {
		return t, refuse(remoting.TopicNotExist, "[NOT_STORED] topic %q was deleted meanwhile", t.Name)
	}
	return have, nil
}

// ensureGroup creates a consumer group with the defaults, and its retry topic. It may block.
func (r *Replica) ensureGroup(name string) error {
	if _, known := r.st.Group(name); !known {
		err := r.once("group/"+name, func() error {
			_, err := r.commitCommand(state.RecordGroupPut, state.AppendGroupPut(nil, state.Create, state.DefaultGroup(name)))
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := r.ensureTopic(retryTopic(name))
	return err
}

// groupForRetry finds the group of a message that is to be tried again, and creates one that does not exist if a heartbeat would: a
// consumer may get messages before its first heartbeat is through. It may block.
func (r *Replica) groupForRetry(name string) (state.SubscriptionGroup, error) {
	if g, known := r.st.Group(name); known {
		return g, nil
	}
	if !r.groupMissing(name) {
		if err := message.ValidGroup(name); err != nil {
			return state.SubscriptionGroup{}, err
		}
		if err := r.ensureGroup(name); err != nil {
			return state.SubscriptionGroup{}, err
		}
		if g, known := r.st.Group(name); known {
			return g, nil
		}
	}
	return state.SubscriptionGroup{}, refuse(remoting.SubscriptionGroupNotExist, "[NOT_STORED] consumer group %q does not exist in group %s", name, r.group)
}

func retryTopic(group string) state.Topic {
	return state.Topic{Name: message.RetryTopic(group), ReadQueues: 1, WriteQueues: 1, Perm: permRead | permWrite}
}

func dlqTopic(group string) state.Topic {
	return state.Topic{Name: message.DLQTopic(group), ReadQueues: 1, WriteQueues: 1, Perm: permRead | permWrite}
}

// Queues of the topics that exist in every group.
const (
	templateQueues = 8
	clusterQueues  = 16
)

// makeSystemTopics proposes the topics that every group has and that are missing: the template of auto-created ones, and those
// that RocketMQ's tools route by, named after the cluster and the group, and the one to which clients send what they trace: those of Go look for its
// route and create nothing. It runs on the loop of a new master.
func (r *Replica) makeSystemTopics() {
	for _, t := range []state.Topic{
		{Name: message.DefaultTopic, ReadQueues: templateQueues, WriteQueues: templateQueues, Perm: permRead | permWrite | permInherit},
		{Name: r.node.o.ClusterName, ReadQueues: clusterQueues, WriteQueues: clusterQueues, Perm: permRead | permWrite | permInherit},
		{Name: r.group, ReadQueues: 1, WriteQueues: 1, Perm: permRead | permWrite},
		{Name: message.TraceTopic, ReadQueues: 1, WriteQueues: 1, Perm: permRead | permWrite},
	} {
		if _, found := r.st.Topic(t.Name); !found {
			r.inbox.put(&command{kind: state.RecordTopicPut, body: state.AppendTopicPut(nil, state.Create, t), at: r.now()})
		}
	}
}
