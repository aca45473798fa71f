package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// waitFlag is that of commands whose work goes on after the answer.
func waitFlag() cli.Flag {
	return &cli.DurationFlag{Name: "wait", Value: time.Minute, Usage: "wait so long until it is done; 0: return when it is accepted. It goes on by itself in any case"}
}

func (t *tool) adminSetMode() *cli.Command {
	return &cli.Command{
		Name: "set-mode", Usage: "change the mode of a running group: copies before an answer, number of replicas, min ISR", ArgsUsage: "NAME A-M",
		Flags: adminFlags(
			&cli.IntFlag{Name: "min-isr", Usage: "never fewer in-sync replicas than this; 0: by mode if it was so, else as it was"},
			&cli.StringFlag{Name: "on", Usage: "nodes of new replicas, `n4,n5,…`, as many as the mode has more"},
			&cli.StringFlag{Name: "learner", Usage: "`NODES` of --on whose replicas stay learners"},
			&cli.StringFlag{Name: "remove", Usage: "`IDS` of the replicas that go, as many as the mode has fewer; default: those that are the least useful"},
			waitFlag(),
		),
		Action: t.adminShape(2, "the group's name and a mode", func(c *cli.Context, req *pb.SetModeRequest) error {
			answers, members, err := parseMode(c.Args().Get(1))
			if err != nil {
				return usagef("%s: %v", c.Args().Get(1), err)
			}
			if req.Remove, err = replicaIDs(c.String("remove")); err != nil {
				return usagef("--remove %v", err)
			}
			req.Answers, req.Members, req.MinIsr = uint32(answers), uint32(members), uint32(max(0, c.Int("min-isr")))
			req.On, req.Learners = splitList(c.String("on")), splitList(c.String("learner"))
			for _, n := range req.Learners {
				if !slices.Contains(req.On, n) {
					return usagef("--learner %s: it is none of --on; `admin group set-learner` changes a replica that is there", n)
				}
			}
			if c.Int("min-isr") < 0 {
				return usagef("--min-isr %d is negative", c.Int("min-isr"))
			}
			return nil
		}, nil),
	}
}

// adminShape is the action of a command that changes a group's mode or replicas: check reads the request from the command line, and
// complete, if any, adds what follows from the group as it is.
func (t *tool) adminShape(args int, names string, check func(*cli.Context, *pb.SetModeRequest) error, complete func(*pb.Group, *pb.SetModeRequest) error) cli.ActionFunc {
	return t.admin(args, args, names, func(ctx context.Context, c *cli.Context, cl *client.Client) error {
		req := &pb.SetModeRequest{Group: c.Args().First()}
		if err := check(c, req); err != nil {
			return err
		}
		ctl, err := newControllers(ctx, c, cl)
		if err != nil {
			return err
		}
		defer ctl.Close()
		if complete != nil {
			g, err := ctl.GetGroup(ctx, req.Group)
			if err == nil {
				err = complete(g, req)
			}
			if err != nil {
				return err
			}
		}
		g, err := ctl.SetMode(ctx, req)
		if err != nil {
			return err
		}
		return t.awaitShape(c, ctl, g)
	})
}

func (t *tool) adminAddReplica() *cli.Command {
	return &cli.Command{
		Name: "add-replica", Usage: "give a running group one more replica", ArgsUsage: "NAME",
		Flags: adminFlags(
			&cli.StringFlag{Name: "on", Required: true, Usage: "`NODE` of the new replica"},
			&cli.BoolFlag{Name: "learner", Usage: "it stays a learner"},
			waitFlag(),
		),
		Action: t.adminShape(1, "the group's name", func(c *cli.Context, req *pb.SetModeRequest) error {
			req.On = []string{c.String("on")}
			if c.Bool("learner") {
				req.Learners = req.On
			}
			return nil
		}, func(g *pb.Group, req *pb.SetModeRequest) error {
			node := req.On[0]
			for _, r := range g.GetReplicas() {
				if r.GetNodeId() == node {
					return fmt.Errorf("group %s: node %s has replica %d of it, and each replica needs a node of its own: choose another node", g.GetName(), node, r.GetReplicaId())
				}
			}
			req.Answers, req.Members = g.GetAnswers(), g.GetMembers()+1
			if controller.CheckMode(int(req.Answers), int(req.Members)) != nil {
				return fmt.Errorf("group %s has %d replicas, the most there can be: take one out first, with `admin group remove-replica`", g.GetName(), g.GetMembers())
			}
			return nil
		}),
	}
}

func (t *tool) adminRemoveReplica() *cli.Command {
	return &cli.Command{
		Name: "remove-replica", Usage: "take a replica out of a running group, for ever", ArgsUsage: "NAME ID",
		Flags: adminFlags(waitFlag()),
		Action: t.adminShape(2, "the group's name and a replica's id", func(c *cli.Context, req *pb.SetModeRequest) (err error) {
			if req.Remove, err = replicaIDs(c.Args().Get(1)); err != nil || len(req.Remove) != 1 {
				return usagef("%q is not the id of a replica, as group show tells it", c.Args().Get(1))
			}
			return nil
		}, func(g *pb.Group, req *pb.SetModeRequest) error {
			list := req.Remove
			a, m := g.GetAnswers(), g.GetMembers()
			var ids []string
			known := false
			for _, r := range g.GetReplicas() {
				ids = append(ids, fmt.Sprintf("%d on %s", r.GetReplicaId(), r.GetNodeId()))
				known = known || r.GetReplicaId() == list[0] && !r.GetLeaving()
			}
			switch {
			case !known:
				return fmt.Errorf("group %s has no replica %d that could go: its replicas are %s", g.GetName(), list[0], strings.Join(ids, ", "))
			case m == 1:
				return fmt.Errorf("replica %d is the last one of group %s: add another one first, with `admin group add-replica`", list[0], g.GetName())
			case a == m:
				return fmt.Errorf("mode %d-%d of group %s answers with %d copies and needs every replica: `admin group set-mode %s %d-%d --remove %d` answers with one copy fewer",
					a, m, g.GetName(), a, g.GetName(), a-1, m-1, list[0])
			}
			req.Answers, req.Members = a, m-1
			return nil
		}),
	}
}

// awaitShape says which replicas leave, waits until the group is as it is wanted, and shows it.
func (t *tool) awaitShape(c *cli.Context, ctl *controller.Client, g *pb.Group) error {
	for _, r := range g.GetReplicas() {
		if r.GetLeaving() {
			fmt.Fprintf(t.err, "replica %d on %s leaves group %s\n", r.GetReplicaId(), r.GetNodeId(), g.GetName())
		}
	}
	if wait := c.Duration("wait"); wait > 0 {
		ctx, cancel := context.WithTimeoutCause(c.Context, wait, fmt.Errorf("waited for %v", wait))
		defer cancel()
		var err error
		if g, err = ctl.WaitShape(ctx, g.GetName()); err != nil {
			return err
		}
	}
	return t.showGroup(c, g)
}

// replicaIDs reads a list of replica ids.
func replicaIDs(text string) (out []uint64, err error) {
	for _, part := range splitList(text) {
		var id uint64
		if n, err := fmt.Sscanf(part+"\n", "%d\n", &id); n != 1 || err != nil || id == 0 {
			return nil, fmt.Errorf("%q: want ids of replicas, as group show tells them", part)
		}
		out = append(out, id)
	}
	return out, nil
}

func (t *tool) adminSetLearner() *cli.Command {
	return &cli.Command{
		Name: "set-learner", Usage: "keep a replica a learner, asynchronous and never a voter by itself; --off lets it vote again", ArgsUsage: "NAME ID",
		Flags: adminFlags(&cli.BoolFlag{Name: "off", Usage: "let it vote again, when the mode has a place"}, waitFlag()),
		Action: t.admin(2, 2, "the group's name and a replica's id", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
			list, err := replicaIDs(c.Args().Get(1))
			if err != nil || len(list) != 1 {
				return usagef("%q is not the id of a replica, as group show tells it", c.Args().Get(1))
			}
			ctl, err := newControllers(ctx, c, cl)
			if err != nil {
				return err
			}
			defer ctl.Close()
			g, err := ctl.KeepLearner(ctx, &pb.KeepLearnerRequest{Group: c.Args().First(), ReplicaId: list[0], Learner: !c.Bool("off")})
			if err != nil {
				return err
			}
			return t.awaitShape(c, ctl, g)
		}),
	}
}

func (t *tool) adminPrefer() *cli.Command {
	return &cli.Command{
		Name: "prefer", Usage: "name the node whose replica is to be master when several may be; `admin rebalance` moves it there", ArgsUsage: "NAME NODE", Flags: adminFlags(),
		Action: t.adminControllers(2, 2, "the group's name and a node", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
			g, err := ctl.Prefer(ctx, c.Args().First(), c.Args().Get(1))
			if err != nil {
				return err
			}
			return t.showGroup(c, g)
		}),
	}
}

// nodeRemovedView is a node that is forgotten.
type nodeRemovedView struct {
	Node string `json:"node"`
}

func (t *tool) adminNode() *cli.Command {
	return &cli.Command{
		Name: "node", Usage: "nodes",
		Subcommands: []*cli.Command{{
			Name: "remove", Usage: "forget a node that has no replica and does not run", ArgsUsage: "NODE", Flags: adminFlags(),
			Action: t.adminControllers(1, 1, "a node", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
				v := nodeRemovedView{c.Args().First()}
				if err := ctl.RemoveNode(ctx, v.Node); err != nil {
					return err
				}
				return t.show(c, v, func(w *tabwriter.Writer) { row(w, "removed node", v.Node) })
			}),
		}},
	}
}

// watchView is a group as `group watch` prints it: what changes when something happens, and not with each message.
type watchView struct {
	Time        string   `json:"time"` // RFC 3339, of this machine
	Group       string   `json:"group"`
	State       string   `json:"state"`
	Mode        string   `json:"mode"`
	MinISR      uint32   `json:"minISR"`
	Epoch       uint32   `json:"epoch"`
	ActiveEpoch uint32   `json:"activeEpoch"`
	Master      string   `json:"master,omitempty"` // node
	Term        string   `json:"term,omitempty"`
	Voters      []string `json:"voters"`
	Learners    []string `json:"learners,omitempty"`
	Down        []string `json:"down,omitempty"`     // nodes of replicas that take no part
	Because     string   `json:"because,omitempty"`  // of the newest epoch
	Changing    []string `json:"changing,omitempty"` // what is still to be done
	Stuck       string   `json:"stuck,omitempty"`

	modeVoters int // that the mode wants
}

func watchOf(g groupView, now string) watchView {
	v := watchView{Time: now, Group: g.Name, State: g.State, Mode: g.Mode, MinISR: g.MinISR, Epoch: g.Epoch, ActiveEpoch: g.ActiveEpoch, Changing: g.Changing, Stuck: g.Stuck, Voters: []string{}, modeVoters: g.modeVoters}
	if g.Master != nil && g.Master.Live {
		v.Master, v.Term = g.Master.Node, g.Master.Term
	}
	for _, r := range g.Replicas {
		if r.Voter {
			v.Voters = append(v.Voters, r.Node)
		} else {
			v.Learners = append(v.Learners, r.Node)
		}
		if r.Role != notHeardYet && (!r.Live || r.Parked != "" || r.Poisoned != "" || r.Lost != "") {
			v.Down = append(v.Down, r.Node)
		}
	}
	if n := len(g.Changes); n > 0 {
		v.Because = g.Changes[n-1].Reason
	}
	return v
}

// text is one line: first how it stands, then who, then what is new since the line before, which is nil for the first one.
func (v watchView) text(before *watchView) string {
	how, last := v.State, ""
	if before != nil {
		last = before.Master
	}
	if v.Master != "" && !slices.Contains(v.Voters, v.Master) { // it led in an epoch that is over, and was not heard to stop yet
		v.State, v.Master, last = noMaster, "", v.Master
	}
	dead := !slices.ContainsFunc(v.Voters, func(n string) bool { return !slices.Contains(v.Down, n) })
	switch n := len(v.Voters); {
	case v.Stuck != "", v.State == noMaster && dead:
		how = "NO MASTER"
	case v.State == noMaster:
		how = "electing"
	case v.State == "degraded" && n == 1 && n < v.modeVoters:
		how = "ONE COPY"
	}
	var who []string
	switch {
	case v.Master != "":
		who = append(who, fmt.Sprintf("master %s in term %s", v.Master, v.Term))
	case v.State == noMaster && last != "":
		who = append(who, "no master, last "+last)
	default:
		who = append(who, "no master")
	}
	voters := "voters " + strings.Join(v.Voters, " ")
	if len(v.Voters) < v.modeVoters {
		voters += fmt.Sprintf(" of %d", v.modeVoters)
	}
	who = append(who, voters)
	for _, p := range []struct {
		name string
		list []string
	}{{"learners ", v.Learners}, {"down ", v.Down}} {
		if len(p.list) > 0 {
			who = append(who, p.name+strings.Join(p.list, " "))
		}
	}
	who = append(who, fmt.Sprintf("mode %s, min ISR %d, epoch %d", v.Mode, v.MinISR, v.Epoch))
	line := fmt.Sprintf("%s %s %s: %s", v.Time, v.Group, how, strings.Join(who, ", "))
	var more []string
	if before != nil && before.Epoch < v.Epoch && v.Because != "" {
		more = append(more, fmt.Sprintf("epoch %d because %s", v.Epoch, v.Because))
	}
	if v.Stuck != "" {
		more = append(more, v.Stuck)
	}
	for _, c := range v.Changing {
		if v.Master != "" || !strings.HasPrefix(c, fmt.Sprintf("epoch %d ", v.Epoch)) { // that it has no master is said already
			more = append(more, "under way: "+c)
		}
	}
	return strings.Join(append([]string{line}, more...), "; ")
}

// watchEvery is how often `group watch` looks.
const watchEvery = 200 * time.Millisecond

func (t *tool) adminWatch() *cli.Command {
	return &cli.Command{
		Name: "watch", Usage: "print a line for each change of a group, or of all, until Ctrl-C", ArgsUsage: "[NAME]", Flags: adminFlags(),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 0, 1, "at most the group's name"); err != nil {
				return err
			}
			cl, err := newClient(c)
			if err != nil {
				return err
			}
			defer cl.Close()
			ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
			ctl, err := newControllers(ctx, c, cl)
			cancel()
			if err != nil {
				return explain(c, err)
			}
			defer ctl.Close()
			return t.watchGroups(c, ctl)
		}),
	}
}

// watchGroups looks again and again, and prints what differs.
func (t *tool) watchGroups(c *cli.Context, ctl *controller.Client) error {
	name := c.Args().First()
	seen := map[string]watchView{}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for first, quiet := true, false; ; first = false {
		groups, err := lookAt(c.Context, ctl, name)
		switch {
		case c.Context.Err() != nil:
			return nil
		case err != nil && (first || !errors.Is(err, controller.ErrUnavailable)):
			return err
		case err != nil && !quiet:
			fmt.Fprintf(t.err, "no controller answers: %s\n", oneLine(err))
		case err == nil && quiet:
			fmt.Fprintln(t.err, "a controller answers again")
		}
		quiet = err != nil
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
		for _, g := range groups {
			v := watchOf(viewGroup(g), "")
			var before *watchView
			if old, ok := seen[v.Group]; ok {
				before = &old
				if reflect.DeepEqual(old, v) {
					continue
				}
			}
			seen[v.Group] = v
			v.Time = now
			if c.Bool("json") {
				err = json.NewEncoder(t.out).Encode(v)
			} else {
				_, err = fmt.Fprintln(t.out, v.text(before))
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-c.Context.Done():
			return nil
		}
	}
}

func lookAt(ctx context.Context, ctl *controller.Client, name string) ([]*pb.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if name == "" {
		return ctl.ListGroups(ctx)
	}
	g, err := ctl.GetGroup(ctx, name)
	if err != nil {
		return nil, err
	}
	return []*pb.Group{g}, nil
}
