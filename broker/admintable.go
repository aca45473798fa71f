package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// adminHandler returns what answers a request of RocketMQ's admin tools (mqadmin, the dashboard) that stands in no other table; nil for
// another code. Who answers which:
//
//	here       this replica, for itself: slaves have figures and settings of their own
//	confirmed  a master that a quorum has just confirmed; a slave passes the request on
//	onMaster   the master, through the log mostly: what was answered OK survives a failover
//	refusal    nobody: the remark says why, and what to use instead
func (r *Replica) adminHandler(code int32) func(*remoting.Command, *remoting.Pending) {
	switch code {
	case remoting.GetBrokerRuntimeInfo:
		return r.here(r.runtimeInfo)
	case remoting.UpdateBrokerConfig:
		return r.onMaster(r.changeConfig)
	case remoting.GetBrokerConfig:
		return r.here(r.brokerConfig)
	case remoting.GetAllTopicConfig:
		return r.confirmed(r.allTopics)
	case remoting.GetTopicConfig:
		return r.confirmed(r.oneTopic)
	case remoting.GetTopicStatsInfo:
		return r.confirmed(r.survey(r.topicStats))
	case remoting.ViewBrokerStatsData:
		return r.here(r.brokerStats)
	case remoting.UpdateAndCreateTopicList:
		return r.onMaster(r.putTopicList)
	case remoting.UpdateAndCreateSubscriptionGroupList:
		return r.onMaster(r.putGroupList)
	case remoting.DeleteSubscriptionGroup:
		return r.onMaster(r.deleteGroup)
	case remoting.QueryTopicConsumeByWho:
		return r.confirmed(r.consumersOfTopic)
	case remoting.GetSubscriptionGroupConfig:
		return r.confirmed(r.oneGroup)
	case remoting.GetBrokerConsumeStats:
		return r.confirmed(r.survey(r.allConsumeStats))
	case remoting.GetAllProducerInfo:
		return r.here(r.allProducers)
	case remoting.QueryTopicsByConsumer:
		return r.confirmed(r.topicsOfConsumer)
	case remoting.QuerySubscriptionByConsumer:
		return r.confirmed(r.subscriptionOf)
	case remoting.UpdateAndGetGroupForbidden:
		return r.confirmed(r.forbidden)
	case remoting.GetTimerMetrics:
		return r.confirmed(r.timerMetrics)
	case remoting.QueryConsumeTimeSpan:
		return r.confirmed(r.survey(r.consumeTimeSpan))
	case remoting.GetSystemTopicListFromBroker:
		return r.confirmed(r.systemTopics)
	case remoting.QueryConsumeQueue:
		return r.confirmed(r.consumeQueue)
	case remoting.CleanExpiredConsumeQueue, remoting.CleanUnusedTopic:
		return r.here(nothingToClean)
	case remoting.DeleteExpiredCommitLog:
		return r.confirmed(r.deleteExpired)
	case remoting.GetBrokerEpochCache:
		return r.here(r.epochs)
	case remoting.GetBrokerHAStatus:
		return r.here(r.haStatus)
	}
	return nil
}

// nothingToClean takes CLEAN_EXPIRED_CONSUMEQUEUE (306) and CLEAN_UNUSED_TOPIC (316): the index of a queue goes with its segment, and
// that of a topic with the topic, so there never is anything left.
func nothingToClean(*remoting.Command) (*remoting.Command, error) {
	return remoting.NewResponse(remoting.Success, ""), nil
}

// deleteExpired takes DELETE_EXPIRED_COMMITLOG (329): what the replicas do by themselves every few seconds, now. It may take long, and who
// waited for another one would hold a worker for as long: what is under way is said to be.
func (r *Replica) deleteExpired(*remoting.Command) (*remoting.Command, error) {
	if !r.retaining.TryLock() {
		return remoting.NewResponse(remoting.Success, "old segments are being given up already"), nil
	}
	defer r.retaining.Unlock()
	if err := r.giveUpFront(r.now()); err != nil {
		return nil, err
	}
	return remoting.NewResponse(remoting.Success, ""), nil
}

// Bounds of requests that read something of many queues: each holds a worker while it does.
const (
	maxSurveys    = 32 // at once
	surveyTimeout = 30 * time.Second
)

// survey answers with f while fewer than maxSurveys such requests are under way. ctx ends with the replica, or after surveyTimeout: f looks
// at it between two queues.
func (r *Replica) survey(f func(context.Context, *remoting.Command) (*remoting.Command, error)) answerer {
	return func(req *remoting.Command) (*remoting.Command, error) {
		defer r.surveys.Add(-1)
		if r.surveys.Add(1) > maxSurveys {
			return nil, refuse(remoting.SystemBusy, "%d requests that read of many queues are under way: try again", maxSurveys)
		}
		ctx, cancel := context.WithTimeout(r.ctx, surveyTimeout)
		defer cancel()
		resp, err := f(ctx, req)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, refuse(remoting.SystemBusy, "it was not read within %v: the disk is slow, or has more to do: try again", surveyTimeout)
		}
		return resp, err
	}
}

// answerer makes the answer of one request.
type answerer func(*remoting.Command) (*remoting.Command, error)

func answerWith(f answerer, req *remoting.Command, pend *remoting.Pending) {
	resp, err := f(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	pend.Answer(resp)
}

func (r *Replica) here(f answerer) func(*remoting.Command, *remoting.Pending) {
	return func(req *remoting.Command, pend *remoting.Pending) { answerWith(f, req, pend) }
}

func (r *Replica) confirmed(f answerer) func(*remoting.Command, *remoting.Pending) {
	return r.onMaster(func(req *remoting.Command, pend *remoting.Pending) {
		ctx, cancel := r.requestContext()
		defer cancel()
		if err := r.confirm(ctx); err != nil {
			answerError(pend, err)
			return
		}
		answerWith(f, req, pend)
	})
}

// jsonAnswer is a success whose body is v.
func jsonAnswer(v any) (*remoting.Command, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = body
	return resp, nil
}
