package namesrv

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/remoting"
)

// 205 WIPE_WRITE_PERM_OF_BROKER and 327 ADD_WRITE_PERM_OF_BROKER. Each name server is asked for itself and forgets it when it ends;
// brokerPermission of the group is what stays. Giving the permission back restores what each topic has, and gives nothing more.
func (s *Server) writePerm(r request) (*remoting.Command, error) {
	name, err := r.cmd.MustString("brokerName")
	if err != nil {
		return nil, err
	}
	protect, field := r.cmd.Code == remoting.WipeWritePermOfBroker, "addTopicCount"
	if protect {
		field = "wipeTopicCount"
	}
	s.mu.Lock()
	topics := s.routes.ProtectGroup(name, protect)
	s.mu.Unlock()
	s.o.Logger.Info().Str("group", strings.Clone(name)).Bool("protected", protect).Int("topics", topics).Msg("the writability of a group's routes was changed by an operator")
	resp := remoting.NewResponse(remoting.Success, "")
	resp.SetInt64(field, int64(topics))
	return resp, nil
}

// 224 GET_TOPICS_BY_CLUSTER.
func (s *Server) topicsOfCluster(r request) (*remoting.Command, error) {
	cluster, err := r.cmd.MustString("cluster")
	if err != nil {
		return nil, err
	}
	return s.topicsThat(cluster, func(TopicConfig) bool { return true })
}

// Bits of a topic's system flag.
const (
	sysUnit    = 1
	sysUnitSub = 2
)

// 311 GET_UNIT_TOPIC_LIST, 312 GET_HAS_UNIT_SUB_TOPIC_LIST, 313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.
func (s *Server) unitTopics(r request) (*remoting.Command, error) {
	code := r.cmd.Code
	return s.topicsThat("", func(t TopicConfig) bool {
		switch code {
		case remoting.GetUnitTopicList:
			return t.SysFlag&sysUnit != 0
		case remoting.GetHasUnitSubTopicList:
			return t.SysFlag&sysUnitSub != 0
		}
		return t.SysFlag&sysUnitSub != 0 && t.SysFlag&sysUnit == 0
	})
}

func (s *Server) topicsThat(cluster string, is func(TopicConfig) bool) (*remoting.Command, error) {
	s.mu.RLock()
	topics := s.routes.TopicsOf(cluster, is)
	s.mu.RUnlock()
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = appendTopicList(nil, topics)
	return resp, nil
}

// 304 GET_SYSTEM_TOPIC_LIST_FROM_NS: the topics that are named after clusters and broker groups, and an address to ask for more.
func (s *Server) systemTopics(request) (*remoting.Command, error) {
	s.mu.RLock()
	brokers := s.routes.Cluster()
	s.mu.RUnlock()
	var names []string
	addr := ""
	for _, b := range brokers {
		names = append(names, b.Cluster, b.Group)
		if addr == "" && len(b.Addrs) > 0 {
			addr = b.Addrs[0].Addr
		}
	}
	slices.Sort(names)
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = append(appendString([]byte(`{"brokerAddr":`), addr), `,"topicList":`...)
	resp.Body = append(appendStrings(resp.Body, slices.Compact(names)), '}')
	return resp, nil
}

// 901 GET_BROKER_MEMBER_GROUP.
func (s *Server) memberGroup(r request) (*remoting.Command, error) {
	cluster, err := r.cmd.MustString("clusterName")
	if err != nil {
		return nil, err
	}
	group, err := r.cmd.MustString("brokerName")
	if err != nil {
		return nil, err
	}
	addrs := map[string]string{}
	s.mu.RLock()
	for _, b := range s.routes.Cluster() {
		if b.Cluster == cluster && b.Group == group {
			for _, a := range b.Addrs {
				addrs[fmt.Sprint(a.ID)] = a.Addr
			}
		}
	}
	s.mu.RUnlock()
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body, err = json.Marshal(map[string]memberGroupJSON{"brokerMemberGroup": {addrs, group, cluster}})
	return resp, err
}

// memberGroupJSON is RocketMQ's BrokerMemberGroup.
type memberGroupJSON struct {
	Addrs   map[string]string `json:"brokerAddrs"`
	Group   string            `json:"brokerName"`
	Cluster string            `json:"cluster"`
}

// 100 PUT_KV_CONFIG, 101 GET_KV_CONFIG, 102 DELETE_KV_CONFIG, 219 GET_KVLIST_BY_NAMESPACE. A name server keeps nothing beyond its life, so
// there is one namespace, whose values follow from the topics: a put that says what is so anyway, as `updateTopic -o true` does, and a
// removal of what is not there are successes.
func (s *Server) keyValue(r request) (*remoting.Command, error) {
	namespace, err := r.cmd.MustString("namespace")
	if err != nil {
		return nil, err
	}
	resp := remoting.NewResponse(remoting.Success, "")
	if r.cmd.Code == remoting.GetKVListByNamespace {
		if namespace != orderNamespace {
			return remoting.NewResponse(remoting.QueryNotFound, "there is no such namespace: "+strings.Clone(namespace)), nil
		}
		s.mu.RLock()
		all := s.routes.OrderConfs()
		s.mu.RUnlock()
		resp.Body, err = json.Marshal(map[string]map[string]string{"table": all})
		return resp, err
	}
	key, err := r.cmd.MustString("key")
	if err != nil {
		return nil, err
	}
	conf := ""
	if namespace == orderNamespace {
		s.mu.RLock()
		conf = s.routes.OrderConf(key)
		s.mu.RUnlock()
	}
	switch r.cmd.Code {
	case remoting.GetKVConfig:
		if conf == "" {
			return remoting.NewResponse(remoting.QueryNotFound, fmt.Sprintf("there is no value in namespace %s under key %s", namespace, key)), nil
		}
		resp.Set("value", conf)
		return resp, nil
	case remoting.DeleteKVConfig:
		if conf != "" {
			return refused("topic %s is an ordered one, which its order configuration follows from: make it another kind with updateTopic -o false, or delete it", key), nil
		}
		return resp, nil
	}
	value, err := r.cmd.MustString("value")
	if err != nil {
		return nil, err
	}
	switch {
	case namespace != orderNamespace:
		return refused("name servers keep no key-value configuration: the only namespace is %s, and follows from the topics", orderNamespace), nil
	case conf == "":
		return refused("no broker has %s as an ordered topic: make it one with updateTopic -o true, its order configuration follows from that", key), nil
	case !sameOrder(conf, value):
		return refused("the order configuration of topic %s follows from its queues, and is %s: change the topic", key, conf), nil
	}
	return resp, nil
}

func refused(format string, args ...any) *remoting.Command {
	return remoting.NewResponse(remoting.InvalidParameter, strings.Clone(fmt.Sprintf(format, args...)))
}

// config is what a name server has of RocketMQ's settings, sorted by name. None changes while it runs.
func (s *Server) config() [][2]string {
	_, port, _ := net.SplitHostPort(s.Addr().String())
	return [][2]string{
		{"brokerExpiredTimeMillis", fmt.Sprint(s.o.Expiry.Milliseconds())},
		{"clusterTest", "false"},
		{"enableControllerInNamesrv", fmt.Sprint(s.o.Cluster != nil)},
		{"listenPort", port},
		{"needWaitForService", "true"},
		{"orderMessageEnable", "true"},
		{"scanNotActiveBrokerInterval", fmt.Sprint(s.o.ScanEvery.Milliseconds())},
		{"supportActingMaster", "false"},
		{"waitSecondsForService", fmt.Sprint(int64(s.o.ReadyAfter.Seconds()))},
	}
}

// 319 GET_NAMESRV_CONFIG.
func (s *Server) getConfig(request) (*remoting.Command, error) {
	resp := remoting.NewResponse(remoting.Success, "")
	for _, kv := range s.config() {
		resp.Body = fmt.Appendf(resp.Body, "%s=%s\n", kv[0], kv[1])
	}
	return resp, nil
}

// 318 UPDATE_NAMESRV_CONFIG: nothing of a name server can be changed from afar, and what is asked for is said by name.
func (s *Server) updateConfig(r request) (*remoting.Command, error) {
	var known, unknown []string
	for line := range strings.Lines(string(r.cmd.Body)) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key = strings.TrimSpace(key); key == "" || strings.HasPrefix(key, "#") {
			continue
		}
		if slices.ContainsFunc(s.config(), func(kv [2]string) bool { return kv[0] == key }) {
			known = append(known, key)
		} else if len(unknown) < 20 {
			unknown = append(unknown, fmt.Sprintf("%.64q", key))
		}
	}
	switch {
	case len(unknown) > 0:
		return refused("no such setting of a name server: %s", strings.Join(unknown, ", ")), nil
	case len(known) > 0:
		return refused("not changed: %s of a name server is set when it starts, by its flags", strings.Join(known, ", ")), nil
	}
	return refused("the body names no setting: want lines of key=value"), nil
}
