package broker

import (
	"encoding/json"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// maxListed bounds the topics or groups of one request, and the groups of one connection.
const maxListed = 1024

// putTopicList takes UPDATE_AND_CREATE_TOPIC_LIST (18). All are checked before the first is made.
func (r *Replica) putTopicList(req *remoting.Command, pend *remoting.Pending) {
	topics, err := parseTopicList(req.Body)
	if err != nil {
		answerError(pend, err)
		return
	}
	if ref := r.door(); ref != nil {
		answerError(pend, ref)
		return
	}
	r.putTopics(pend, topics)
}

func parseTopicList(body []byte) ([]state.Topic, error) {
	var list struct {
		Topics []topicJSON `json:"topicConfigList"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, refuse(remoting.SystemError, "the body cannot be read: %v", err)
	}
	if err := listed(len(list.Topics), "topicConfigList"); err != nil {
		return nil, err
	}
	topics := make([]state.Topic, 0, len(list.Topics))
	for _, j := range list.Topics {
		if j.FilterType != "" && j.FilterType != "SINGLE_TAG" {
			return nil, refuse(remoting.InvalidParameter, "topicFilterType %q of topic %s: only SINGLE_TAG is supported", j.FilterType, j.Name)
		}
		t := state.Topic{Name: j.Name, ReadQueues: j.ReadQueues, WriteQueues: j.WriteQueues, Perm: j.Perm, Order: j.Order, SysFlag: j.SysFlag}
		if err := checkTopic(&t); err != nil {
			return nil, err
		}
		for k, v := range j.Attributes {
			m, err := parseAttributes(k + "=" + v)
			if err != nil {
				return nil, err
			}
			for k, v := range m {
				if t.Attributes == nil {
					t.Attributes = map[string]string{}
				}
				t.Attributes[k] = v
			}
		}
		topics = append(topics, t)
	}
	return topics, nil
}

func listed(n int, field string) error {
	if n == 0 || n > maxListed {
		return refuse(remoting.InvalidParameter, "%s has %d entries: use 1 to %d", field, n, maxListed)
	}
	return nil
}

// putGroupList takes UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225). All are checked before the first is made.
func (r *Replica) putGroupList(req *remoting.Command, pend *remoting.Pending) {
	var list struct {
		Groups []groupJSON `json:"groupConfigList"`
	}
	err := json.Unmarshal(req.Body, &list)
	if err != nil {
		err = refuse(remoting.SystemError, "the body cannot be read: %v", err)
	} else {
		err = listed(len(list.Groups), "groupConfigList")
	}
	groups := make([]state.SubscriptionGroup, 0, len(list.Groups))
	for i := range list.Groups {
		if err == nil {
			var g state.SubscriptionGroup
			g, err = list.Groups[i].group()
			groups = append(groups, g)
		}
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	r.putGroups(pend, groups)
}

// deleteGroup takes DELETE_SUBSCRIPTIONGROUP (207). Deleting what is not there is a success, as it is for a topic. Its retry and
// dead-letter topics stay, with what is in them, until somebody deletes them. A member that still lives makes the group anew with its
// next heartbeat.
func (r *Replica) deleteGroup(req *remoting.Command, pend *remoting.Pending) {
	name, err := req.MustString("groupName")
	if err == nil {
		name, err = checkedName(name, message.ValidGroup)
	}
	clean := false
	if err == nil {
		clean, err = req.BoolOr("cleanOffset", false)
	}
	if err == nil && clean { // what is gathered before or meanwhile would bring an offset back
		defer r.commits.refuse(name)()
	}
	if err == nil {
		err = r.awaitCommits(name)
	}
	if err == nil {
		_, err = r.commitCommand(state.RecordGroupDelete, state.AppendGroupDelete(nil, name, clean))
	}
	if err == nil {
		err = r.allowAll(name)
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}
