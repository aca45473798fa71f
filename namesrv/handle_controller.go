package namesrv

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// Cluster is what the controllers know and do, for RocketMQ's tools: they speak to a controller in the remoting protocol, which ours do not.
// So a name server, which can be one of RocketMQ's controllers too, passes on what they ask.
type Cluster interface {
	// Controllers returns the members, and the id of the one that leads.
	Controllers(ctx context.Context) (peers []ControllerPeer, leader string, err error)
	Groups(ctx context.Context) ([]ControlledGroup, error)
	// Elect makes the replica in a slot the master of its group; it returns when it is. An error says why it is not.
	Elect(ctx context.Context, group string, slot ids.Slot) error
}

// ControllerPeer is one of the controllers.
type ControllerPeer struct{ ID, Addr string }

// peersText joins controllers as RocketMQ does, with a separator of ids and addresses that is not the same everywhere.
func peersText(peers []ControllerPeer, separator string) string {
	list := make([]string, len(peers))
	for i, p := range peers {
		list[i] = p.ID + separator + p.Addr
	}
	return strings.Join(list, ";")
}

// ControlledGroup is a broker group as the controllers know it.
type ControlledGroup struct {
	Name       string
	Epoch      ids.Epoch
	Master     ids.Slot // 0: never had one
	MasterLive bool
	MasterAddr string
	MasterTerm ids.Term
	Replicas   []ControlledReplica
}

// ControlledReplica is one of its replicas.
type ControlledReplica struct {
	Slot  ids.Slot
	Addr  string
	Live  bool
	Voter bool // of the epoch in force: in the sync-state set
}

// controllerCall bounds what the controllers may take.
const controllerCall = 5 * time.Second

// answerers are handlers that ask the controllers: they run on a worker.
var answerers = map[int32]func(*Server, context.Context, request) (*remoting.Command, error){
	remoting.ControllerGetMetadataInfo:  (*Server).controllerInfo,
	remoting.ControllerGetSyncStateData: (*Server).syncStateSets,
	remoting.ControllerGetReplicaInfo:   (*Server).replicaInfo,
	remoting.ControllerElectMaster:      (*Server).electMaster,
	remoting.GetControllerConfig:        (*Server).controllerConfig,
}

// 1005 CONTROLLER_GET_METADATA_INFO. Who asks next asks here: the leader's address is this server's, as the client reached it.
func (s *Server) controllerInfo(ctx context.Context, r request) (*remoting.Command, error) {
	peers, leader, err := s.o.Cluster.Controllers(ctx)
	if err != nil {
		return nil, err
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Set("group", "ledgermq")
	resp.Set("controllerLeaderId", leader)
	resp.Set("controllerLeaderAddress", r.local)
	resp.SetBool("isLeader", leader != "")
	resp.Set("peers", peersText(peers, ":"))
	return resp, nil
}

// replicaJSON is RocketMQ's ReplicaIdentity. The id is the replica's slot in its group, whoever leads.
type replicaJSON struct {
	Alive bool     `json:"alive"`
	Addr  string   `json:"brokerAddress"`
	ID    ids.Slot `json:"brokerId"`
	Group string   `json:"brokerName"`
}

type replicasJSON struct {
	InSync    []replicaJSON `json:"inSyncReplicas"`
	Addr      string        `json:"masterAddress"`
	ID        ids.Slot      `json:"masterBrokerId"`
	Epoch     ids.Epoch     `json:"masterEpoch"`
	NotInSync []replicaJSON `json:"notInSyncReplicas"`
	SetEpoch  ids.Epoch     `json:"syncStateSetEpoch"`
}

// 1006 CONTROLLER_GET_SYNC_STATE_DATA: the voters of each group that the body names, and the others. Unknown groups are left out.
func (s *Server) syncStateSets(ctx context.Context, r request) (*remoting.Command, error) {
	var names []string
	if err := json.Unmarshal(r.cmd.Body, &names); err != nil {
		return nil, fmt.Errorf("the body is no list of broker names: %w", err)
	}
	groups, err := s.o.Cluster.Groups(ctx)
	if err != nil {
		return nil, err
	}
	table := map[string]replicasJSON{}
	for _, name := range names {
		for _, g := range groups {
			if g.Name == name {
				table[name] = g.replicas()
			}
		}
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body, err = json.Marshal(map[string]map[string]replicasJSON{"replicasInfoTable": table})
	return resp, err
}

func (g *ControlledGroup) replicas() replicasJSON {
	j := replicasJSON{InSync: []replicaJSON{}, NotInSync: []replicaJSON{}, Addr: g.MasterAddr, ID: g.Master, Epoch: g.MasterTerm.Epoch(), SetEpoch: g.Epoch}
	for _, r := range g.Replicas {
		one := replicaJSON{r.Live, r.Addr, r.Slot, g.Name}
		if r.Voter {
			j.InSync = append(j.InSync, one)
		} else {
			j.NotInSync = append(j.NotInSync, one)
		}
	}
	return j
}

// Codes of RocketMQ's controllers.
const (
	masterNotAvailable = 2004
	noSuchGroup        = 2008
	noGroupToElect     = 2010
	electionFailed     = 2012
)

// controlled finds the group that the field brokerName names.
func (s *Server) controlled(ctx context.Context, name string) (*ControlledGroup, *remoting.Command, error) {
	groups, err := s.o.Cluster.Groups(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range groups {
		if groups[i].Name == name {
			return &groups[i], nil, nil
		}
	}
	return nil, remoting.NewResponse(noSuchGroup, fmt.Sprintf("there is no broker group %s", name)), nil
}

// masterAnswer has the fields that tell who is master.
func (g *ControlledGroup) masterAnswer() *remoting.Command {
	resp := remoting.NewResponse(remoting.Success, "")
	resp.SetInt64("masterBrokerId", int64(g.Master))
	resp.Set("masterAddress", g.MasterAddr)
	resp.SetInt64("masterEpoch", int64(g.MasterTerm.Epoch()))
	resp.SetInt64("syncStateSetEpoch", int64(g.Epoch))
	return resp
}

// voters are the slots of the sync-state set.
func (g *ControlledGroup) voters() []int64 {
	list := []int64{}
	for _, r := range g.Replicas {
		if r.Voter {
			list = append(list, int64(r.Slot))
		}
	}
	return list
}

// 1004 CONTROLLER_GET_REPLICA_INFO.
func (s *Server) replicaInfo(ctx context.Context, r request) (*remoting.Command, error) {
	name, err := r.cmd.MustString("brokerName")
	if err != nil {
		return nil, err
	}
	g, no, err := s.controlled(ctx, name)
	if g == nil {
		return no, err
	}
	resp := g.masterAnswer()
	if !g.MasterLive {
		resp = remoting.NewResponse(masterNotAvailable, fmt.Sprintf("group %s has no master at the moment", name))
	}
	resp.Body, err = json.Marshal(map[string]any{"syncStateSet": g.voters(), "syncStateSetEpoch": g.Epoch})
	return resp, err
}

// 1002 CONTROLLER_ELECT_MASTER: the master hands over to the replica that is named, which fails no send. Only one that is designated can
// be asked for: who is best otherwise the controllers know without being asked.
func (s *Server) electMaster(ctx context.Context, r request) (*remoting.Command, error) {
	name, err := r.cmd.MustString("brokerName")
	if err != nil {
		return nil, err
	}
	slot, err := r.cmd.MustInt64("brokerId")
	if err != nil {
		return nil, err
	}
	designated, err := r.cmd.BoolOr("designateElect", false)
	if err != nil {
		return nil, err
	}
	if !designated {
		return remoting.NewResponse(electionFailed, "only a designated replica can be elected: the controllers elect by themselves"), nil
	}
	g, no, err := s.controlled(ctx, name)
	if g == nil {
		if no != nil {
			no.Code = noGroupToElect
		}
		return no, err
	}
	if slot < 1 || slot > 255 {
		return remoting.NewResponse(electionFailed, fmt.Sprintf("group %s has no replica with broker id %d", name, slot)), nil
	}
	if err := s.o.Cluster.Elect(ctx, name, ids.Slot(slot)); err != nil {
		return remoting.NewResponse(electionFailed, err.Error()), nil
	}
	if g, no, err = s.controlled(ctx, name); g == nil {
		return no, err
	}
	addrs := map[string]string{}
	for _, r := range g.Replicas {
		addrs[fmt.Sprint(r.Slot)] = r.Addr
	}
	resp := g.masterAnswer()
	resp.Body, err = json.Marshal(map[string]any{
		"brokerMemberGroup": memberGroupJSON{addrs, name, r.cmd.GetOr("clusterName", "")},
		"syncStateSet":      g.voters(),
	})
	return resp, err
}

// 1010 GET_CONTROLLER_CONFIG: who the controllers are; they have no settings that change while they run.
func (s *Server) controllerConfig(ctx context.Context, _ request) (*remoting.Command, error) {
	peers, _, err := s.o.Cluster.Controllers(ctx)
	if err != nil {
		return nil, err
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = fmt.Appendf(nil, "controllerDLegerPeers=%s\ncontrollerType=LedgerMQ\nenableElectUncleanMaster=false\n", peersText(peers, "-"))
	return resp, nil
}

// refusals are requests that RocketMQ's tools and brokers send to name servers and controllers and that make no sense here.
var refusals = map[int32]string{
	217:  "a broker registers all its topics",
	1001: "the sync-state set is an epoch record of the controllers, see `ledgermq admin group show`",
	1003: "brokers register with our controllers by another protocol",
	1009: "controllers have no settings to change while they run",
	1011: "`ledgermq admin group remove-replica` takes a replica out of its group, `ledgermq admin node remove` forgets a node",
	1012: "replica ids are given by the controllers",
	1013: "replica ids are given by the controllers",
}
