package namesrv

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// dialect chooses how integer keys are written. Java clients before V4_9_4 get what RocketMQ gave them, a bare integer; all
// others get standard JSON.
type dialect bool

const (
	standard dialect = false
	bareKeys dialect = true
)

// firstStandardVersion is V4_9_4.
const firstStandardVersion = 403

func (d dialect) appendKey(dst []byte, id int64) []byte {
	if d == bareKeys {
		return strconv.AppendInt(dst, id, 10)
	}
	return append(strconv.AppendInt(append(dst, '"'), id, 10), '"')
}

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // a string can always be written
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

// appendBroker appends a BrokerData. The addresses stay free of spaces: the official Go client cuts them up by hand.
func (d dialect) appendBroker(dst []byte, b BrokerData) []byte {
	dst = append(dst, `{"brokerAddrs":{`...)
	for i, a := range b.Addrs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(d.appendKey(dst, int64(a.ID)), ':')
		dst = appendString(dst, a.Addr)
	}
	dst = append(dst, `},"brokerName":`...)
	dst = appendString(dst, b.Group)
	dst = append(dst, `,"cluster":`...)
	dst = appendString(dst, b.Cluster)
	dst = append(dst, `,"enableActingMaster":`...)
	dst = strconv.AppendBool(dst, b.Acting)
	if b.Zone != "" {
		dst = append(dst, `,"zoneName":`...)
		dst = appendString(dst, b.Zone)
	}
	return append(dst, '}')
}

// appendRoute appends a TopicRouteData.
func (d dialect) appendRoute(dst []byte, r TopicRoute) []byte {
	dst = slices.Grow(dst, 128+(len(r.Brokers)+len(r.Queues))*160)
	dst = append(dst, `{"brokerDatas":[`...)
	for i, b := range r.Brokers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = d.appendBroker(dst, b)
	}
	dst = append(dst, `],"filterServerTable":{},`...)
	if r.Order != "" {
		dst = append(dst, `"orderTopicConf":`...)
		dst = append(appendString(dst, r.Order), ',')
	}
	dst = append(dst, `"queueDatas":[`...)
	for i, q := range r.Queues {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"brokerName":`...)
		dst = appendString(dst, q.Group)
		dst = append(dst, `,"perm":`...)
		dst = strconv.AppendInt(dst, int64(q.Perm), 10)
		dst = append(dst, `,"readQueueNums":`...)
		dst = strconv.AppendInt(dst, int64(q.ReadQueues), 10)
		dst = append(dst, `,"topicSysFlag":`...)
		dst = strconv.AppendInt(dst, int64(q.SysFlag), 10)
		dst = append(dst, `,"writeQueueNums":`...)
		dst = strconv.AppendInt(dst, int64(q.WriteQueues), 10)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// appendCluster appends a ClusterInfo.
func (d dialect) appendCluster(dst []byte, brokers []BrokerData) []byte {
	dst = append(dst, `{"brokerAddrTable":{`...)
	clusters := map[string][]string{}
	var names []string
	for i, b := range brokers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, b.Group), ':')
		dst = d.appendBroker(dst, b)
		if clusters[b.Cluster] == nil {
			names = append(names, b.Cluster)
		}
		clusters[b.Cluster] = append(clusters[b.Cluster], b.Group)
	}
	dst = append(dst, `},"clusterAddrTable":{`...)
	slices.Sort(names)
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		dst = appendStrings(dst, clusters[name])
	}
	return append(dst, `}}`...)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}

// appendTopicList appends a TopicList.
func appendTopicList(dst []byte, topics []string) []byte {
	dst = append(dst, `{"topicList":`...)
	return append(appendStrings(dst, topics), '}')
}

// terms lists group=term for the answer field FieldTerms. A name that would break the list is left out; our own names never
// hold these characters.
func terms(brokers []BrokerData) string {
	var s strings.Builder
	for _, b := range brokers {
		if strings.ContainsAny(b.Group, ",=") {
			continue
		}
		if s.Len() > 0 {
			s.WriteByte(',')
		}
		s.WriteString(b.Group)
		s.WriteByte('=')
		s.WriteString(strconv.FormatUint(uint64(b.Term), 10))
	}
	return s.String()
}
