package broker

import (
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

type epochJSON struct {
	Epoch ids.Epoch          `json:"epoch"`
	Start ids.PhysicalOffset `json:"startOffset"`
	End   ids.PhysicalOffset `json:"endOffset"`
}

// epochs takes GET_BROKER_EPOCH_CACHE (1007): where each epoch begins in this replica's log. Elections inside an epoch do not show.
func (r *Replica) epochs(*remoting.Command) (*remoting.Command, error) {
	list := []epochJSON{}
	tail := r.clog.Tail().Offset
	for _, t := range r.clog.Epochs() {
		if n := len(list); n > 0 {
			if list[n-1].Epoch == t.Term.Epoch() {
				continue
			}
			list[n-1].End = t.StartOffset
		}
		list = append(list, epochJSON{t.Term.Epoch(), t.StartOffset, tail})
	}
	return jsonAnswer(struct {
		Cluster string             `json:"clusterName"`
		Group   string             `json:"brokerName"`
		ID      ids.BrokerID       `json:"brokerId"`
		Epochs  []epochJSON        `json:"epochList"`
		Max     ids.PhysicalOffset `json:"maxOffset"`
	}{r.node.o.ClusterName, r.group, r.brokerID(), list, tail})
}

type haConnectionJSON struct {
	Addr     string             `json:"addr"`
	Acked    ids.PhysicalOffset `json:"slaveAckOffset"`
	Behind   ids.PhysicalOffset `json:"diff"`
	InSync   bool               `json:"inSync"`
	Rate     int64              `json:"transferredByteInSecond"`
	Transfer ids.PhysicalOffset `json:"transferFromWhere"`
}

type haClientJSON struct {
	Master    string             `json:"masterAddr"`
	Rate      int64              `json:"transferredByteInSecond"`
	Max       ids.PhysicalOffset `json:"maxOffset"`
	LastRead  int64              `json:"lastReadTimestamp"`
	LastWrite int64              `json:"lastWriteTimestamp"`
	Flushed   ids.PhysicalOffset `json:"masterFlushOffset"`
	Active    bool               `json:"activated"`
}

// haStatus takes GET_BROKER_HA_STATUS (907): how far the other replicas are, as the master of this group sees them, or how a slave sees its
// master. In sync is who votes; a learner is asynchronous.
func (r *Replica) haStatus(*remoting.Command) (*remoting.Command, error) {
	st := r.raft.Status()
	answer := struct {
		Master      bool               `json:"master"`
		Max         ids.PhysicalOffset `json:"masterCommitLogMaxOffset"`
		InSync      int                `json:"inSyncSlaveNums"`
		Connections []haConnectionJSON `json:"haConnectionInfo"`
		Client      haClientJSON       `json:"haClientRuntimeInfo"`
	}{Master: st.Role == raftlog.RoleMaster, Max: st.End, Connections: []haConnectionJSON{}}
	if !answer.Master {
		now := r.now()
		answer.Client = haClientJSON{Master: r.masterAddr(), Max: st.End, Flushed: r.offsetAfter(st.Commit, st.End),
			LastRead: now.Add(-st.MasterSilent).UnixMilli(), LastWrite: now.UnixMilli(), Active: st.Master != 0 && st.MasterSilent < time.Second}
		return jsonAnswer(answer)
	}
	others := *r.others.Load()
	add := func(list []raftlog.MemberStatus, votes bool) {
		for _, m := range list {
			if m.ID == r.id {
				continue
			}
			acked := r.offsetAfter(m.Match, st.End)
			answer.Connections = append(answer.Connections, haConnectionJSON{Addr: others[m.ID].client, Acked: acked, Behind: st.End - acked, InSync: votes, Transfer: acked})
			if votes {
				answer.InSync++
			}
		}
	}
	add(st.Voters, true)
	add(st.Learners, false)
	return jsonAnswer(answer)
}

// offsetAfter is where the log goes on after an entry, at most end; 0 for one that the log does not have any more.
func (r *Replica) offsetAfter(i ids.Index, end ids.PhysicalOffset) ids.PhysicalOffset {
	if i >= r.clog.Tail().Index {
		return end
	}
	ref, err := r.clog.RefOf(i + 1)
	if err != nil {
		return 0
	}
	return ref.Offset
}
