package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The views are the JSON of the admin commands; docs/cli.md shows them.

type clusterView struct {
	ClusterID   string           `json:"clusterID"`
	Level       uint32           `json:"level"` // feature level
	Controllers []controllerView `json:"controllers"`
	Nodes       []nodeView       `json:"nodes"`
	Groups      []groupView      `json:"groups"`
}

type controllerView struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Leader  bool   `json:"leader"`
	Applied uint64 `json:"applied"`
	Levels  string `json:"levels,omitempty"` // feature levels that its program understands
	Error   string `json:"error,omitempty"`
}

type nodeView struct {
	ID           string `json:"id"`
	Live         bool   `json:"live"`
	NotHeardYet  bool   `json:"notHeardYet,omitempty"`
	SilentMillis int64  `json:"silentMillis"` // -1: never heard by this leader
	Replicas     int    `json:"replicas"`
	Peer         string `json:"peer"`
	Metrics      string `json:"metrics,omitempty"`
	Zone         string `json:"zone,omitempty"`
	Levels       string `json:"levels,omitempty"` // feature levels that its program understands
}

type groupView struct {
	Name        string        `json:"name"`
	ID          string        `json:"id"`
	State       string        `json:"state"` // pending, ready, degraded, no master, not heard yet
	Mode        string        `json:"mode"`
	MinISR      uint32        `json:"minISR"`
	SegmentSize int64         `json:"segmentSize"`
	Flush       string        `json:"flush"` // sync, async: when a replica acknowledges
	Epoch       uint32        `json:"epoch"`
	ActiveEpoch uint32        `json:"activeEpoch"`     // last epoch in which a master was elected; below epoch while a change is under way
	Stuck       string        `json:"stuck,omitempty"` // why no master can be elected
	WaitingFor  []string      `json:"waitingFor,omitempty"`
	Preferred   string        `json:"preferred,omitempty"` // node of the master that is wanted
	Master      *masterView   `json:"master,omitempty"`
	Replicas    []replicaView `json:"replicas"`
	Changes     []epochView   `json:"changes,omitempty"`  // the last ones, oldest first
	Changing    []string      `json:"changing,omitempty"` // what is still to be done until the group is as it is wanted
	// UncleanElections counts those in which an operator gave up what only other replicas had.
	UncleanElections uint64   `json:"uncleanElections,omitempty"`
	Notes            []string `json:"notes,omitempty"`

	modeVoters int // that the mode wants
}

// epochView is one epoch and why it was issued.
type epochView struct {
	Epoch  uint32   `json:"epoch"`
	Time   string   `json:"time"`   // RFC 3339, of the controller that issued it
	Voters []string `json:"voters"` // nodes
	Reason string   `json:"reason"`
	// Unclean: an operator gave up what only other replicas had.
	Unclean bool `json:"unclean,omitempty"`
}

type masterView struct {
	Node    string `json:"node"`
	Replica uint64 `json:"replica"`
	Term    string `json:"term"` // epoch.election
	Address string `json:"address"`
	Live    bool   `json:"live"`
}

type replicaView struct {
	Node    string `json:"node"`
	Replica uint64 `json:"replica"`
	Slot    uint32 `json:"slot"`
	Voter   bool   `json:"voter"`
	Learner bool   `json:"learner,omitempty"` // kept one: it never becomes a voter by itself
	Leaving bool   `json:"leaving,omitempty"` // taken out of the group, and not gone yet
	Live    bool   `json:"live"`
	// SilentMillis is how long a replica that is not live was not heard; absent: never by this controller, or not live at all.
	SilentMillis int64  `json:"silentMillis,omitempty"`
	Role         string `json:"role"` // what it does, or why that is not known; see roleName
	Term         string `json:"term"`
	Last         uint64 `json:"last"`
	Commit       uint64 `json:"commit"`
	Applied      uint64 `json:"applied"`
	EndOffset    int64  `json:"endOffset"`
	BehindBytes  int64  `json:"behindBytes"` // of the master's end; -1: not known
	Client       string `json:"client"`
	Peer         string `json:"peer"`
	Parked       string `json:"parked,omitempty"`
	Poisoned     string `json:"poisoned,omitempty"`
	Lost         string `json:"lost,omitempty"`
	DiskFull     bool   `json:"diskNearlyFull,omitempty"`
	Scrubbed     string `json:"scrubbed,omitempty"` // when its sealed segments were last read through and found good

	Fetching *fetchingView `json:"fetching,omitempty"` // from another replica, outside of the log

	preferred bool // its node is the group's preferred one
}

type fetchingView struct {
	What           string `json:"what"`
	Got            int64  `json:"got"`  // bytes
	Size           int64  `json:"size"` // bytes in all; 0: not known
	BytesPerSecond int64  `json:"bytesPerSecond"`
}

// note says how far a replica is with what it fetches.
func (f *fetchingView) note(node string) string {
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	if f.Size == 0 {
		return fmt.Sprintf("replica on %s fetches %s from another one: %s so far", node, f.What, mib(f.Got))
	}
	return fmt.Sprintf("replica on %s fetches %s from another one: %s of %s, %d %%, %s a second", node, f.What, mib(f.Got), mib(f.Size), 100*f.Got/f.Size, mib(f.BytesPerSecond))
}

func viewGroup(g *pb.Group) groupView {
	v := groupView{
		Name: g.GetName(), Mode: fmt.Sprintf("%d-%d", g.GetAnswers(), g.GetMembers()), MinISR: g.GetMinIsr(),
		SegmentSize: g.GetSegmentSize(), Flush: flushName(g.GetAsyncFlush()), Epoch: g.GetEpoch(), ActiveEpoch: g.GetActiveEpoch(), Stuck: g.GetStuck(), Changes: viewEpochs(g), Changing: g.GetChanging(), WaitingFor: g.GetWaitingFor(), ID: uuidText(g.GetGroupId()), Preferred: g.GetPreferredNode(),
	}
	master := g.GetMaster()
	if master != nil {
		v.Master = &masterView{
			Node: master.GetNodeId(), Replica: master.GetReplicaId(), Term: ids.Term(master.GetTerm()).String(),
			Address: master.GetClientAddress(), Live: master.GetLive(),
		}
	}
	var masterEnd int64 = -1
	for _, r := range g.GetReplicas() {
		if master.GetLive() && r.GetReplicaId() == master.GetReplicaId() && r.GetReport() != nil {
			masterEnd = r.GetReport().GetEndOffset()
		}
	}
	voters := 0
	for _, r := range g.GetReplicas() {
		rep := r.GetReport()
		view := replicaView{
			Node: r.GetNodeId(), Replica: r.GetReplicaId(), Slot: r.GetSlot(), Voter: r.GetVoter(), Live: r.GetLive(),
			Learner: r.GetLearner(), Leaving: r.GetLeaving(),
			Role: roleName(r, master), Term: ids.Term(rep.GetTerm()).String(), Last: rep.GetLastIndex(),
			Commit: rep.GetCommit(), Applied: rep.GetApplied(), EndOffset: rep.GetEndOffset(), BehindBytes: -1,
			Client: r.GetClientAddress(), Peer: r.GetPeerAddress(), Parked: plain(rep.GetParked()), Poisoned: plain(rep.GetPoisoned()), Lost: plain(r.GetLost()),
			DiskFull: r.GetLive() && rep.GetDiskNearlyFull(),
		}
		if !view.Live {
			view.SilentMillis = max(0, r.GetSilentMillis())
		}
		view.preferred = view.Node == v.Preferred
		if masterEnd >= 0 && rep != nil {
			view.BehindBytes = max(0, masterEnd-rep.GetEndOffset())
		}
		if at := rep.GetScrubbedMillis(); at > 0 {
			view.Scrubbed = time.UnixMilli(at).UTC().Format(time.RFC3339)
		}
		if f := rep.GetFetching(); f != nil && r.GetLive() {
			view.Fetching = &fetchingView{What: plain(f.GetWhat()), Got: f.GetGot(), Size: f.GetSize(), BytesPerSecond: f.GetBytesPerSecond()}
		}
		fit := r.GetLive() && view.Parked == "" && view.Poisoned == "" && view.Lost == ""
		if r.GetVoter() && fit {
			voters++
		}
		if !fit && !r.GetNotHeardYet() && g.GetState() == pb.GroupState_GROUP_STATE_READY {
			v.Notes = append(v.Notes, holdNote(view, rep != nil))
		}
		if view.DiskFull {
			v.Notes = append(v.Notes, fmt.Sprintf("the disk of %s is nearly full: as master it refuses sends", view.Node))
		}
		v.Replicas = append(v.Replicas, view)
	}
	full := int(g.GetModeVoters())
	v.modeVoters = full
	fewer := g.GetState() == pb.GroupState_GROUP_STATE_READY && countVoters(g) < full
	switch {
	case g.GetState() != pb.GroupState_GROUP_STATE_READY:
		v.State = "pending"
	case master.GetNotHeardYet():
		v.State = notHeardYet
	case !master.GetLive():
		v.State = noMaster
	case len(v.Notes) > 0 || fewer:
		v.State = "degraded"
	default:
		v.State = "ready"
	}
	if v.State == noMaster && master != nil {
		v.Notes = append([]string{fmt.Sprintf("the last master was %s, in term %s", v.Master.Node, v.Master.Term)}, v.Notes...)
	}
	if fewer {
		n := countVoters(g)
		note := fmt.Sprintf("the SyncStateSet has %d of %s", n, countOf(full, "voter"))
		if n == 1 {
			note = "ONE COPY: what is answered OK now is on one disk only; " + note
		}
		v.Notes = append([]string{note}, v.Notes...)
	}
	if v.UncleanElections = g.GetUncleanElections(); v.UncleanElections > 0 {
		v.Notes = append(v.Notes, uncleanNote(g))
	}
	if v.Stuck != "" {
		v.Notes = append([]string{v.Stuck}, v.Notes...)
	}
	if v.State == "degraded" || v.State == noMaster {
		v.Notes = append([]string{fmt.Sprintf("%s of %d alive", countOf(voters, "voter"), countVoters(g))}, v.Notes...)
	}
	for _, r := range v.Replicas {
		if r.Fetching != nil {
			v.Notes = append(v.Notes, r.Fetching.note(r.Node))
		}
	}
	if g.GetAsyncFlush() {
		v.Notes = append(v.Notes, "asynchronous flush: an OK is given before a disk has the message; voters that lose power at once lose the last moment")
	}
	return v
}

// uncleanNote tells of the last unclean election, for ever.
func uncleanNote(g *pb.Group) string {
	u := g.GetUncleans()[len(g.GetUncleans())-1]
	return fmt.Sprintf("UNCLEAN ELECTION in epoch %d, %s: replica %d on %s went on alone from index %d; what only others had is in lost/ on their nodes",
		u.GetEpoch(), time.UnixMilli(u.GetMillis()).UTC().Format(time.RFC3339), u.GetReplicaId(), u.GetNodeId(), u.GetLast()+1)
}

func viewEpochs(g *pb.Group) (out []epochView) {
	nodes := map[uint64]string{}
	for _, r := range g.GetReplicas() {
		nodes[r.GetReplicaId()] = r.GetNodeId()
	}
	for _, c := range g.GetChanges() {
		v := epochView{Epoch: c.GetEpoch(), Time: time.UnixMilli(c.GetMillis()).UTC().Format(time.RFC3339Nano), Reason: c.GetReason(), Unclean: c.GetUnclean()}
		for _, id := range c.GetVoters() {
			v.Voters = append(v.Voters, firstNonEmpty(nodes[id], fmt.Sprintf("replica %d", id)))
		}
		out = append(out, v)
	}
	return out
}

func countVoters(g *pb.Group) int {
	n := 0
	for _, r := range g.GetReplicas() {
		if r.GetVoter() {
			n++
		}
	}
	return n
}

// holdNote says what a replica that takes no part means: while it votes it holds the front of the log, which is never given up past a
// voter. Without a report since the controller leads it cannot say from where.
func holdNote(r replicaView, reported bool) string {
	why := "is silent"
	switch {
	case r.Lost != "":
		why = "has lost its identity: " + r.Lost
	case r.Poisoned != "":
		why = "is poisoned: " + r.Poisoned
	case r.Parked != "":
		why = "is parked: " + r.Parked
	}
	if !r.Voter {
		return fmt.Sprintf("replica on %s %s; retention waits for it for four segments, then it needs a snapshot", r.Node, why)
	}
	if !reported {
		return fmt.Sprintf("replica on %s %s; retention keeps what it lacks", r.Node, why)
	}
	return fmt.Sprintf("replica on %s %s; retention keeps everything from index %d on for it", r.Node, why, r.Last+1)
}

// notHeardYet is said of a node, a replica or a group of which a controller that has just begun to lead can say nothing yet.
const notHeardYet = "not heard yet"

// noMaster is the state of a group in which nobody leads.
const noMaster = "no master"

// roleName is the role that a replica has now, or why that is not known. What a silent one had last says nothing of now, and a report
// of a master is older than the mastership of a higher term: that one leads no more.
func roleName(r *pb.Replica, master *pb.Master) string {
	rep := r.GetReport()
	switch {
	case r.GetNotHeardYet():
		return notHeardYet
	case !r.GetLive():
		return "silent"
	case rep == nil && len(r.GetIncarnation()) == 0:
		return "not made yet"
	case rep == nil:
		return "not reported yet"
	case rep.GetRole() == pb.Role_ROLE_UNSPECIFIED:
		return "opening"
	case rep.GetRole() == pb.Role_ROLE_MASTER && rep.GetTerm() < master.GetTerm():
		return "deposed"
	}
	return strings.ToLower(strings.TrimPrefix(rep.GetRole().String(), "ROLE_"))
}

// roleText is the role in a table: of a silent replica, also for how long.
func (r replicaView) roleText() string {
	if r.SilentMillis == 0 {
		return r.Role
	}
	d := time.Duration(r.SilentMillis) * time.Millisecond
	return fmt.Sprintf("%s %v", r.Role, d.Round(time.Second))
}

// vote says in a table whether the replica votes, whether that is to change, and whether it is the one that should lead.
func (r replicaView) vote() string {
	text := yesNo(r.Voter)
	switch {
	case r.Leaving:
		text += ", leaves"
	case r.Learner:
		text += ", learner"
	}
	if r.preferred && !r.Leaving {
		text += ", preferred"
	}
	return text
}

func uuidText(b []byte) string {
	var u ids.UUID
	if copy(u[:], b) != len(u) {
		return ""
	}
	return u.String()
}

func (t *tool) adminCluster() *cli.Command {
	show := t.adminControllers(0, 0, "no argument", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
		v, err := viewCluster(ctx, ctl)
		if err != nil {
			return err
		}
		return t.show(c, v, func(w *tabwriter.Writer) { writeCluster(w, v) })
	})
	return &cli.Command{
		Name: "cluster", Usage: "show controllers, nodes and groups, or raise the feature level", ArgsUsage: " ", Flags: adminFlags(),
		Subcommands: []*cli.Command{
			{
				Name: "show", Usage: "show controllers, nodes and groups", ArgsUsage: " ", Flags: adminFlags(), Action: show,
			},
			{
				Name: "upgrade", Usage: "raise the feature level to the newest one, when all programs understand it; there is no way back", ArgsUsage: " ", Flags: adminFlags(),
				Action: t.adminControllers(0, 0, "no argument", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					before, now, err := ctl.Upgrade(ctx)
					if err != nil {
						return err
					}
					return t.show(c, levelView{before, now}, func(w *tabwriter.Writer) {
						row(w, "LEVEL BEFORE", "LEVEL")
						row(w, before, now)
					})
				}),
			},
		},
		Action: show,
	}
}

// levelView is how the cluster's feature level was raised.
type levelView struct {
	Before controller.Level `json:"before"`
	Level  controller.Level `json:"level"`
}

func viewCluster(ctx context.Context, ctl *controller.Client) (clusterView, error) {
	var v clusterView
	members, err := ctl.Members(ctx)
	if err != nil {
		return v, err
	}
	nodes, err1 := ctl.ListNodes(ctx)
	groups, err2 := ctl.ListGroups(ctx)
	status, err3 := ctl.Status(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		return v, err
	}
	v.ClusterID, v.Level = uuidText(members.GetClusterId()), max(members.GetLevel(), 1)
	for _, m := range members.GetMembers() {
		v.Controllers = append(v.Controllers, viewController(m, status))
	}
	for _, n := range nodes {
		view := nodeView{
			ID: n.GetNodeId(), Live: n.GetLive(), NotHeardYet: n.GetNotHeardYet(), SilentMillis: n.GetSilentMillis(), Replicas: int(n.GetReplicas()),
			Peer: n.GetAddresses().GetPeer(), Metrics: n.GetAddresses().GetMetrics(), Zone: n.GetAddresses().GetZone(),
		}
		if n.GetLevels() != nil {
			view.Levels = controller.LevelsOf(n.GetLevels()).String()
		}
		v.Nodes = append(v.Nodes, view)
	}
	for _, g := range groups {
		v.Groups = append(v.Groups, viewGroup(g))
	}
	return v, nil
}

func viewController(m *pb.Member, status []controller.MemberStatus) controllerView {
	view := controllerView{ID: m.GetId(), Address: m.GetAddress(), Leader: m.GetLeader()}
	for _, s := range status {
		switch {
		case s.Address != m.GetAddress():
		case s.Err != nil:
			view.Error = oneLine(s.Err)
		default:
			view.Applied, view.Error, view.Levels = s.Status.GetApplied(), s.Status.GetFailure(), controller.LevelsOf(s.Status.GetLevels()).String()
		}
	}
	return view
}

func writeControllers(w *tabwriter.Writer, list []controllerView) {
	row(w, "CONTROLLER", "ADDRESS", "LEADER", "APPLIED", "LEVELS", "STATE")
	for _, c := range list {
		row(w, c.ID, c.Address, yesNo(c.Leader), c.Applied, c.Levels, firstNonEmpty(c.Error, "ok"))
	}
}

func writeCluster(w *tabwriter.Writer, v clusterView) {
	row(w, "CLUSTER", v.ClusterID)
	row(w, "LEVEL", v.Level)
	fmt.Fprintln(w)
	writeControllers(w, v.Controllers)
	fmt.Fprintln(w)
	row(w, "NODE", "LIVE", "REPLICAS", "LEVELS", "PEER", "METRICS")
	for _, n := range v.Nodes {
		live := yesNo(n.Live)
		if n.NotHeardYet {
			live = notHeardYet
		}
		row(w, n.ID, live, n.Replicas, n.Levels, n.Peer, n.Metrics)
	}
	fmt.Fprintln(w)
	writeGroups(w, v.Groups)
}

func writeGroups(w *tabwriter.Writer, groups []groupView) {
	row(w, "GROUP", "MODE", "MIN ISR", "EPOCH", "STATE", "MASTER", "TERM", "ADDRESS", "REPLICAS")
	for _, g := range groups {
		var nodes []string
		for _, r := range g.Replicas {
			switch {
			case r.Role == notHeardYet:
				nodes = append(nodes, r.Node+"?")
			case !r.Live:
				nodes = append(nodes, r.Node+"!")
			default:
				nodes = append(nodes, r.Node)
			}
		}
		m := masterView{} // a dead one is none
		if g.Master != nil && g.Master.Live {
			m = *g.Master
		}
		row(w, g.Name, g.Mode, g.MinISR, g.Epoch, g.State, m.Node, m.Term, m.Address, strings.Join(nodes, " "))
	}
}

func (t *tool) adminGroup() *cli.Command {
	return &cli.Command{
		Name: "group", Usage: "broker groups",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "create a broker group", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.StringFlag{Name: "mode", Value: "2-3", Usage: "`A-M`: M replicas, a send is answered when A of them have it"},
					&cli.StringFlag{Name: "on", Usage: "the nodes, `n1,n2,…`, M of them; the first one becomes master"},
					&cli.IntFlag{Name: "min-isr", Usage: "never fewer in-sync replicas than this; 0: by mode"},
					&cli.StringFlag{Name: "learner", Usage: "`NODES` of --on whose replicas stay learners: asynchronous, never voters by themselves"},
					&cli.Int64Flag{Name: "segment-size", Usage: "size of a commit-log segment in `BYTES`, a power of two; 0: 1 GiB"},
					flushFlag(),
				),
				Action: t.admin(1, 1, "the group's name", t.createBrokerGroup),
			},
			{
				Name: "replace", Usage: "give the place of a replica to a new one, which begins empty and learns; one that lives votes until then", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.Uint64Flag{Name: "replica", Required: true, Usage: "`ID` of the replica, as group show tells it"},
					&cli.StringFlag{Name: "on", Usage: "`NODE` of the new one; default: the same node"},
					&cli.BoolFlag{Name: "give-up", Usage: "give it up at once though it lives; needed for one that votes when the new one is on the same node"},
					&cli.StringFlag{Name: "reason", Usage: "for the record, a short `TEXT`"},
				),
				Action: t.adminControllers(1, 1, "the group's name", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					if c.IsSet("on") && c.String("on") == "" {
						return usagef("--on is empty: name a node, or leave it out for the same one")
					}
					g, err := ctl.ReplaceReplica(ctx, &pb.ReplaceReplicaRequest{Group: c.Args().First(), ReplicaId: c.Uint64("replica"), NodeId: c.String("on"), Reason: c.String("reason"), GiveUp: c.Bool("give-up")})
					if err != nil {
						return err
					}
					return t.showGroup(c, g)
				}),
			},
			t.adminElectUnclean(),
			t.adminSetMode(), t.adminAddReplica(), t.adminRemoveReplica(), t.adminWriteProtect(), t.adminRemoveGroup(), t.adminSetLearner(), t.adminPrefer(), t.adminWatch(),
			{
				Name: "list", Usage: "list broker groups", ArgsUsage: " ", Flags: adminFlags(),
				Action: t.adminControllers(0, 0, "no argument", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					groups, err := ctl.ListGroups(ctx)
					if err != nil {
						return err
					}
					views := make([]groupView, 0, len(groups))
					for _, g := range groups {
						views = append(views, viewGroup(g))
					}
					return t.show(c, views, func(w *tabwriter.Writer) { writeGroups(w, views) })
				}),
			},
			{
				Name: "show", Usage: "show one broker group and its replicas", ArgsUsage: "NAME", Flags: adminFlags(),
				Action: t.adminControllers(1, 1, "the group's name", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					g, err := ctl.GetGroup(ctx, c.Args().First())
					if err != nil {
						return err
					}
					return t.showGroup(c, g)
				}),
			},
		},
	}
}

// flushFlag is the one of commands that make groups.
func flushFlag() cli.Flag {
	return &cli.StringFlag{Name: "flush", Value: "sync", Usage: "when a replica acknowledges: sync, after its disk has it; async, before: machines that lose power lose the last moment"}
}

func parseFlush(value string) (async bool, err error) {
	switch value {
	case "sync":
		return false, nil
	case "async":
		return true, nil
	}
	return false, usagef("--flush %q: use sync or async", value)
}

func flushName(async bool) string {
	if async {
		return "async"
	}
	return "sync"
}

func (t *tool) showGroup(c *cli.Context, g *pb.Group) error {
	v := viewGroup(g)
	return t.show(c, v, func(w *tabwriter.Writer) {
		writeGroups(w, []groupView{v})
		fmt.Fprintln(w)
		row(w, "REPLICA", "NODE", "SLOT", "VOTER", "LIVE", "ROLE", "TERM", "LAST", "COMMIT", "APPLIED", "BEHIND", "CLIENT")
		for _, r := range v.Replicas {
			behind := "-"
			if r.BehindBytes >= 0 {
				behind = fmt.Sprint(r.BehindBytes)
			}
			row(w, r.Replica, r.Node, r.Slot, r.vote(), yesNo(r.Live), r.roleText(), r.Term, r.Last, r.Commit, r.Applied, behind, r.Client)
		}
		if len(v.Changes) > 0 {
			fmt.Fprintln(w)
			row(w, "EPOCH", "SINCE", "VOTERS", "BECAUSE")
			for _, c := range v.Changes {
				row(w, c.Epoch, c.Time, strings.Join(c.Voters, " "), c.Reason)
			}
		}
		for _, n := range v.Changing {
			fmt.Fprintf(w, "CHANGING: %s\n", n)
		}
		for _, n := range v.Notes {
			fmt.Fprintf(w, "NOTE: %s\n", n)
		}
	})
}

func (t *tool) createBrokerGroup(ctx context.Context, c *cli.Context, cl *client.Client) error {
	answers, members, err := parseMode(c.String("mode"))
	if err != nil {
		return usagef("--mode %s: %v", c.String("mode"), err)
	}
	nodes := splitList(c.String("on"))
	if len(nodes) != members {
		return usagef("--on %q: mode %s needs %s", c.String("on"), c.String("mode"), countOf(members, "node"))
	}
	if c.Int("min-isr") < 0 {
		return usagef("--min-isr %d is negative", c.Int("min-isr"))
	}
	async, err := parseFlush(c.String("flush"))
	if err != nil {
		return err
	}
	learners := splitList(c.String("learner"))
	for _, n := range learners {
		if !slices.Contains(nodes, n) {
			return usagef("--learner %s: it is none of --on", n)
		}
	}
	ctl, err := newControllers(ctx, c, cl)
	if err != nil {
		return err
	}
	defer ctl.Close()
	_, err = ctl.CreateGroup(ctx, &pb.CreateGroupRequest{
		Name: c.Args().First(), Answers: uint32(answers), Members: uint32(members), Nodes: nodes,
		MinIsr: uint32(c.Int("min-isr")), SegmentSize: c.Int64("segment-size"), AsyncFlush: async, Learners: learners,
	})
	if err != nil {
		return err
	}
	g, err := ctl.WaitGroup(ctx, c.Args().First())
	if err != nil {
		return err
	}
	return t.showGroup(c, g)
}
