package broker

import "github.com/ledgermq/ledgermq/remoting"

// consumerHandler returns what answers an administrator's request about consumer groups, their progress and their members; nil for
// another code.
func (r *Replica) consumerHandler(code int32) func(*remoting.Command, *remoting.Pending) {
	switch code {
	case remoting.GetAllSubscriptionGroupConfig:
		return r.confirmed(r.allGroups)
	case remoting.GetConsumerConnectionList:
		return r.here(r.consumerConnections)
	case remoting.GetProducerConnectionList:
		return r.here(r.producerConnections)
	case remoting.GetConsumeStats:
		return r.onMaster(r.consumeStats)
	case remoting.InvokeBrokerToResetOffset:
		return r.onMaster(r.resetOffset)
	case remoting.CloneGroupOffset:
		return r.onMaster(r.cloneOffset)
	case remoting.GetConsumerRunningInfo, remoting.ConsumeMessageDirectly:
		return r.relay
	case remoting.InvokeBrokerToGetConsumerStatus:
		return r.memberStatus
	}
	return nil
}

// bodyAnswer is a success with this body.
func bodyAnswer(body []byte) *remoting.Command {
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = body
	return resp
}
