package namesrv

import (
	"fmt"

	"github.com/ledgermq/ledgermq/remoting"
)

// request is what a handler gets. The strings and the body of cmd are valid until the handler returns.
type request struct {
	cmd  *remoting.Command
	conn *connState
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
}

// handle answers one request. An error of a handler is answered with SYSTEM_ERROR and its text.
func (s *Server) handle(c *remoting.Conn, cmd *remoting.Command) {
	h, ok := handlers[cmd.Code]
	if !ok {
		s.counters.answered("other", remoting.RequestCodeNotSupported)
		c.Reply(cmd, remoting.NewResponse(remoting.RequestCodeNotSupported, fmt.Sprintf("a name server does not serve request code %d", cmd.Code)))
		return
	}
	resp, err := h(s, request{cmd: cmd, conn: c.Value().(*connState)})
	if err != nil {
		resp = remoting.NewResponse(remoting.SystemError, err.Error())
	}
	s.counters.answered(remoting.RequestName(cmd.Code), resp.Code)
	c.Reply(cmd, resp)
}
