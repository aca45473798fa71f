package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// devStartLimit bounds how long `dev` waits until its cluster serves.
const devStartLimit = 90 * time.Second

func (t *tool) devCommand() *cli.Command {
	flags := slices.Concat([]cli.Flag{
		&cli.IntFlag{Name: "nodes", Value: 3, Usage: "broker nodes"},
		&cli.IntFlag{Name: "groups", Value: 3, Usage: "broker groups; each has its first replica on another node"},
		&cli.StringFlag{Name: "mode", Value: "2-3", Usage: "`A-M`: M replicas, a send is answered when A of them have it"},
		&cli.IntFlag{Name: "min-isr", Usage: "never fewer in-sync replicas than this; 0: by mode"},
		flushFlag(),
		&cli.Int64Flag{Name: "segment-size", Value: 64 << 20, Usage: "size of a commit-log segment in `BYTES`, a power of two"},
		&cli.IntFlag{Name: "controller-count", Value: 1, Usage: "controllers, 1 or 3"},
		&cli.IntFlag{Name: "namesrv-count", Value: 1, Usage: "name servers"},
		&cli.IntFlag{Name: "port-base", Usage: "put the name server on `PORT` and everything else above it; 0: RocketMQ's usual ports"},
		&cli.StringFlag{Name: "host", Value: devHost, Usage: "listen on this loopback `ADDRESS`: a second cluster beside another one has all its ports on another address"},
		&cli.StringFlag{Name: "data", Usage: "keep the data in `FOLDER`; default: a temporary one, removed at the end"},
		&cli.BoolFlag{Name: "processes", Usage: "run each node, controller and name server as a process of its own"},
		&cli.BoolFlag{Name: "auto-create-topic", Value: true, Usage: "a first send creates its topic"},
		&cli.BoolFlag{Name: "auto-create-group", Value: true, Usage: "a first heartbeat creates its consumer group"},
		&cli.BoolFlag{Name: "pprof", Usage: "serve Go profiles below /debug/pprof on the HTTP ports"},
		&cli.StringFlag{Name: "log-level", Value: "warn", Usage: "debug, info, warn or error; processes log to FOLDER/log"},
		&cli.StringFlag{Name: "log-format", Value: "auto", Usage: "json, text, or auto: text on a terminal"},
	})
	return &cli.Command{
		Name: "dev", Usage: "run a replicated cluster on this machine", ArgsUsage: " ",
		Flags:       withEnv(flags...),
		Subcommands: []*cli.Command{t.devStartCommand()},
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 0, 0, "no argument"); err != nil {
				return err
			}
			return t.dev(c)
		}),
	}
}

// dev runs the cluster until the context ends.
func (t *tool) dev(c *cli.Context) error {
	async, err := parseFlush(c.String("flush"))
	if err != nil {
		return err
	}
	if c.IsSet("port-base") && (c.Int("port-base") < 1 || c.Int("port-base") > 65535) {
		return usagef("--port-base %d: use 1 to 65535", c.Int("port-base"))
	}
	plan := devPlan{
		PortBase: c.Int("port-base"), Host: c.String("host"), Nodes: c.Int("nodes"), Groups: c.Int("groups"),
		Controllers: c.Int("controller-count"), Namesrvs: c.Int("namesrv-count"),
		Mode: c.String("mode"), MinISR: c.Int("min-isr"), SegmentSize: c.Int64("segment-size"), Async: async,
	}
	for _, flag := range autoCreateFlags {
		plan.setCreates(flag, c.Bool(flag))
	}
	dir, temporary := c.String("data"), false
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "ledgermq-dev-"); err != nil {
			return err
		}
		temporary = true
		defer os.RemoveAll(dir)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := plan.settle(dir, c.IsSet); err != nil {
		return err
	}
	unmake := unmakeFolder(dir)
	if err := os.MkdirAll(filepath.Join(dir, devLogName), 0o755); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockDev(c.Context, dir)
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("data folder %s is in use by another dev cluster; end that one, or use another --data folder", dir)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	defer lock.Close()
	if err := os.Remove(filepath.Join(dir, clusterFileName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // an old one would tell others that this cluster serves already
	}
	_, err = os.Stat(filepath.Join(dir, devPlanName))
	fresh := errors.Is(err, os.ErrNotExist)
	if err := plan.save(dir); err != nil {
		return err
	}
	var world devWorld
	if c.Bool("processes") {
		world = &devProcesses{plan: plan, dir: dir, logLevel: c.String("log-level"), profiles: c.Bool("pprof")}
	} else {
		log, err := t.logger(c)
		if err != nil {
			return err
		}
		world = &devInProcess{plan: plan, dir: dir, log: log, profiles: c.Bool("pprof")}
	}
	served, err := t.runDev(c.Context, world, plan, dir, temporary)
	if !served && fresh && plan.isNew() {
		clearDev(plan, dir)
		unmake()
	}
	return err
}

// lockTries bounds, at 20 ms each, how long dev tries to lock a folder. Members of a dev cluster that has just ended hold the
// lock for a moment to see whether it lives.
const lockTries = 50

func lockDev(ctx context.Context, dir string) (lock io.Closer, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range lockTries {
		lock, err = vfs.OS.Lock(filepath.Join(dir, devLockName))
		if !errors.Is(err, vfs.ErrLocked) {
			return lock, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, err
}

// clearDev removes what a new cluster that came to no replica has made, so that its folder does not keep a shape that nobody
// saw. The logs stay where there are some.
func clearDev(plan devPlan, dir string) {
	for _, m := range plan.Members {
		if m.Data != "" {
			os.RemoveAll(m.Data)
		}
	}
	for _, name := range []string{devPlanName, clusterFileName, clusterLockName, devLogName, devLockName} {
		os.Remove(filepath.Join(dir, name))
	}
}

// devWorld runs the members of a plan, in this process or as processes of their own.
type devWorld interface {
	// start starts every member; each accepts connections soon after.
	start() error
	// ready is nil when every member serves.
	ready() error
	// failed is closed when a member ended that should not have while starting, or when the world cannot go on; err says why.
	failed() <-chan struct{}
	err() error
	// served is called once, when the cluster serves for the first time.
	served(clusterID string) error
	// stop ends every member and waits.
	stop() error
}

// runDev runs the cluster until ctx ends. served tells whether it came so far that it served.
func (t *tool) runDev(ctx context.Context, w devWorld, plan devPlan, dir string, temporary bool) (served bool, err error) {
	began := time.Now()
	if err := w.start(); err != nil {
		return false, errors.Join(err, w.stop())
	}
	starting, cancel := context.WithTimeout(ctx, devStartLimit)
	defer cancel()
	groups, err := t.bringUp(starting, w, plan)
	if err != nil {
		if ctx.Err() != nil { // the user ended it
			err = nil
		}
		return false, errors.Join(err, w.stop())
	}
	t.printDev(plan, groups, dir, temporary, time.Since(began))
	if err := t.firstMessage(starting, plan); err != nil && ctx.Err() == nil {
		return true, errors.Join(fmt.Errorf("the first message: %w", err), w.stop())
	}
	if ctx.Err() == nil {
		fmt.Fprintln(t.out, "Ctrl-C ends it.")
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(t.err, "ending the cluster")
		if err := w.stop(); err != nil {
			return true, err
		}
		fmt.Fprintln(t.err, "the cluster has ended")
		return true, nil
	case <-w.failed():
		return true, errors.Join(w.err(), w.stop())
	}
}

// bringUp creates the groups and waits until every member serves.
func (t *tool) bringUp(ctx context.Context, w devWorld, plan devPlan) ([]*pb.Group, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with this function
		select {
		case <-w.failed():
			cancel(w.err())
		case <-ended:
		}
	}()
	why := func(err error) error {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
			return cause
		}
		return err
	}
	ctl, err := controller.Dial(plan.controllers(), nil)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	if err := waitReady(ctx, func() error { return knowsNodes(ctx, ctl, plan) }); err != nil {
		return nil, why(err)
	}
	answers, members, _ := parseMode(plan.Mode)
	for k := 1; k <= plan.Groups; k++ {
		req := &pb.CreateGroupRequest{
			Name: fmt.Sprintf("g%d", k), Answers: uint32(answers), Members: uint32(members), Nodes: plan.groupNodes(k),
			MinIsr: uint32(plan.MinISR), SegmentSize: plan.SegmentSize, AsyncFlush: plan.Async,
		}
		if err := createGroup(ctx, ctl, req); err != nil {
			return nil, why(err)
		}
	}
	var groups []*pb.Group
	for k := 1; k <= plan.Groups; k++ {
		g, err := ctl.WaitGroup(ctx, fmt.Sprintf("g%d", k))
		if err != nil {
			return nil, why(err)
		}
		groups = append(groups, g)
	}
	if err := waitReady(ctx, w.ready); err != nil {
		return nil, why(err)
	}
	m, err := ctl.Members(ctx)
	if err != nil {
		return nil, why(err)
	}
	var cluster ids.UUID
	copy(cluster[:], m.GetClusterId())
	return groups, w.served(cluster.String())
}

// knowsNodes is nil when a controller leads and every node has registered. A group cannot be made on a node before.
func knowsNodes(ctx context.Context, ctl *controller.Client, plan devPlan) error {
	nodes, err := ctl.ListNodes(ctx)
	if err != nil {
		return err
	}
	for _, m := range plan.Members {
		if m.Role == "broker" && !slices.ContainsFunc(nodes, func(n *pb.Node) bool { return n.GetNodeId() == m.ID }) {
			return fmt.Errorf("node %s has not registered with the controller", m.ID)
		}
	}
	return nil
}

// createGroup asks until the controller answers. The group that an earlier run made is the answer too; a refusal is final.
func createGroup(ctx context.Context, ctl *controller.Client, req *pb.CreateGroupRequest) error {
	var refused error
	err := waitReady(ctx, func() error {
		_, err := ctl.CreateGroup(ctx, req)
		if errors.Is(err, controller.ErrInvalid) || errors.Is(err, controller.ErrExists) {
			refused = err
			return nil
		}
		return err
	})
	if err = errors.Join(refused, err); err != nil {
		return fmt.Errorf("creating group %s: %w", req.GetName(), err)
	}
	return nil
}

// waitReady calls ready every 50 ms until it returns nil, or until ctx ends: then its last error is returned.
func waitReady(ctx context.Context, ready func() error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

func (t *tool) printDev(plan devPlan, groups []*pb.Group, dir string, temporary bool, took time.Duration) {
	fmt.Fprintf(t.out, "LedgerMQ serves after %.1f s. Name server: %s\n\n", took.Seconds(), strings.Join(plan.namesrvs(), ","))
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GROUP\tMODE\tMASTER\tADDRESS\tREPLICAS")
	for _, g := range groups {
		var nodes []string
		for _, r := range g.GetReplicas() {
			nodes = append(nodes, r.GetNodeId())
		}
		fmt.Fprintf(w, "%s\t%d-%d\t%s\t%s\t%s\n", g.GetName(), g.GetAnswers(), g.GetMembers(),
			g.GetMaster().GetNodeId(), g.GetMaster().GetClientAddress(), strings.Join(nodes, " "))
	}
	w.Flush()
	fmt.Fprintln(t.out)
	if temporary {
		fmt.Fprintf(t.out, "The data is temporary and is removed at the end (%s); --data FOLDER keeps it.\n", dir)
	} else {
		fmt.Fprintf(t.out, "Data: %s\n", dir)
	}
	fmt.Fprintf(t.out, "Look around: ledgermq admin cluster --namesrv %s\n", plan.namesrvs()[0])
}
