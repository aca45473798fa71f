package namesrv

import (
	"context"
	"fmt"

	"github.com/ledgermq/ledgermq/remoting"
)

// request is what a handler gets. The strings and the body of cmd are valid until the handler returns.
type request struct {
	cmd   *remoting.Command
	conn  *connState
	local string // this server's address as the client reached it
}

// handlers by request code. Every other code is answered with REQUEST_CODE_NOT_SUPPORTED.
var handlers = map[int32]func(*Server, request) (*remoting.Command, error){
	remoting.RegisterBroker:                (*Server).registerBroker,
	remoting.UnregisterBroker:              (*Server).unregisterBroker,
	remoting.QueryDataVersion:              (*Server).queryDataVersion,
	remoting.BrokerHeartbeat:               (*Server).brokerHeartbeat,
	remoting.GetRouteInfoByTopic:           (*Server).routeOfTopic,
	remoting.GetBrokerClusterInfo:          (*Server).clusterInfo,
	remoting.GetAllTopicListFromNameserver: (*Server).topicList,
	remoting.DeleteTopicInNamesrv:          (*Server).deleteTopic,
	remoting.GetControllers:                (*Server).getControllers,
	remoting.WipeWritePermOfBroker:         (*Server).writePerm,
	remoting.AddWritePermOfBroker:          (*Server).writePerm,
	remoting.GetTopicsByCluster:            (*Server).topicsOfCluster,
	remoting.GetUnitTopicList:              (*Server).unitTopics,
	remoting.GetHasUnitSubTopicList:        (*Server).unitTopics,
	remoting.GetHasUnitSubUnunitTopicList:  (*Server).unitTopics,
	remoting.GetSystemTopicListFromNamesrv: (*Server).systemTopics,
	remoting.GetBrokerMemberGroup:          (*Server).memberGroup,
	remoting.PutKVConfig:                   (*Server).keyValue,
	remoting.GetKVConfig:                   (*Server).keyValue,
	remoting.DeleteKVConfig:                (*Server).keyValue,
	remoting.GetKVListByNamespace:          (*Server).keyValue,
	remoting.GetNamesrvConfig:              (*Server).getConfig,
	remoting.UpdateNamesrvConfig:           (*Server).updateConfig,
}

// handle answers one request. An error of a handler is answered with SYSTEM_ERROR and its text.
func (s *Server) handle(c *remoting.Conn, cmd *remoting.Command) {
	local := c.LocalAddr().String()
	if ask := answerers[cmd.Code]; ask != nil && s.o.Cluster != nil {
		c.Async(cmd, func(cmd *remoting.Command, p *remoting.Pending) {
			ctx, cancel := context.WithTimeout(s.ctx, controllerCall)
			defer cancel()
			resp, err := ask(s, ctx, request{cmd: cmd, local: local})
			p.Answer(s.done(cmd.Code, resp, err))
		})
		return
	}
	h, ok := handlers[cmd.Code]
	if !ok {
		s.counters.answered("other", remoting.RequestCodeNotSupported)
		remark := fmt.Sprintf("a name server does not serve request code %d", cmd.Code)
		if why := refusals[cmd.Code]; why != "" {
			remark += ": " + why
		}
		c.Reply(cmd, remoting.NewResponse(remoting.RequestCodeNotSupported, remark))
		return
	}
	resp, err := h(s, request{cmd: cmd, conn: c.Value().(*connState), local: local})
	c.Reply(cmd, s.done(cmd.Code, resp, err))
}

// done counts an answer. An error becomes one.
func (s *Server) done(code int32, resp *remoting.Command, err error) *remoting.Command {
	if err != nil {
		resp = remoting.NewResponse(remoting.SystemError, err.Error())
	}
	resp.Remark = remoting.Line(resp.Remark) // it may repeat what a client sent
	s.counters.answered(remoting.RequestName(code), resp.Code)
	return resp
}
