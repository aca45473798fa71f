package namesrv

import (
	"strings"

	"github.com/ledgermq/ledgermq/remoting"
)

// 105 GET_ROUTEINFO_BY_TOPIC. Clients before V4_9_4 get integer keys without quotes unless they ask for standard JSON. The
// official Go client calls itself V4_5_2 and reads both.
func (s *Server) routeOfTopic(r request) (*remoting.Command, error) {
	topic, err := r.cmd.MustString("topic")
	if err != nil {
		return nil, err
	}
	d, err := dialectFor(r.cmd)
	if err != nil {
		return nil, err
	}
	// The order matters: who is not ready before the look may be ready after it, and then "unknown" was not the truth yet.
	ready := s.Ready()
	s.mu.RLock()
	route, ok := s.routes.Topic(topic)
	s.mu.RUnlock()
	switch {
	case ok:
		resp := remoting.NewResponse(remoting.Success, "")
		resp.Body = d.appendRoute(nil, route)
		resp.Set(FieldTerms, terms(route.Brokers))
		return resp, nil
	case !ready:
		return remoting.NewResponse(remoting.SystemError, "name remoting server not ready"), nil
	}
	return remoting.NewResponse(remoting.TopicNotExist, "No topic route info in name server for the topic: "+strings.Clone(topic)), nil
}

func dialectFor(cmd *remoting.Command) (dialect, error) {
	plain, err := cmd.BoolOr("acceptStandardJsonOnly", false)
	if err != nil {
		return standard, err
	}
	return dialect(!plain && cmd.Version < firstStandardVersion), nil
}

// 106 GET_BROKER_CLUSTER_INFO, in the dialects of 105.
func (s *Server) clusterInfo(r request) (*remoting.Command, error) {
	d, err := dialectFor(r.cmd)
	if err != nil {
		return nil, err
	}
	s.mu.RLock()
	brokers := s.routes.Cluster()
	s.mu.RUnlock()
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = d.appendCluster(nil, brokers)
	resp.Set(FieldTerms, terms(brokers))
	return resp, nil
}

// 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER.
func (s *Server) topicList(request) (*remoting.Command, error) {
	s.mu.RLock()
	topics := s.routes.Topics()
	s.mu.RUnlock()
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = appendTopicList(nil, topics)
	return resp, nil
}

// 216 DELETE_TOPIC_IN_NAMESRV, in one cluster or in all.
func (s *Server) deleteTopic(r request) (*remoting.Command, error) {
	topic, err := r.cmd.MustString("topic")
	if err != nil {
		return nil, err
	}
	topic, cluster := strings.Clone(topic), strings.Clone(r.cmd.GetOr("clusterName", "")) // a key outlives the request
	s.mu.Lock()
	s.routes.DeleteTopic(topic, cluster)
	s.mu.Unlock()
	s.o.Logger.Info().Str("topic", topic).Str("cluster", cluster).Msg("a topic was deleted from the routes")
	return remoting.NewResponse(remoting.Success, ""), nil
}

// 31001 GET_CONTROLLERS, our own: where tools find the controllers.
func (s *Server) getControllers(request) (*remoting.Command, error) {
	s.mu.RLock()
	clusterID, addrs := s.routes.Controllers()
	s.mu.RUnlock()
	if s.o.ClusterID != "" {
		clusterID = s.o.ClusterID
	}
	if len(addrs) == 0 { // the nodes know better: who the controllers are may change
		addrs = s.o.Controllers
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Set("clusterID", clusterID)
	resp.Set("controllers", strings.Join(addrs, ","))
	return resp, nil
}
