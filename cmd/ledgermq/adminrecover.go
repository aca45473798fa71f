package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// recoverView is what becomes of a cluster whose controllers are lost.
type recoverView struct {
	Cluster  string               `json:"cluster"`
	Recovery uint32               `json:"recovery"` // how often it was done, with this time
	Nodes    []string             `json:"nodes"`    // that have testified
	Groups   []recoveredGroupView `json:"groups"`
	Notes    []string             `json:"notes"`
	Blocked  []string             `json:"blocked"` // what is in the way
	Done     bool                 `json:"done"`
}

type recoveredGroupView struct {
	Name     string   `json:"name"`
	Known    uint32   `json:"known"` // the newest epoch that a node has adopted
	Epoch    uint32   `json:"epoch"` // the one that begins
	Voters   []string `json:"voters"`
	Whole    []string `json:"whole"`    // those of them that answer and have what they promised
	Complete bool     `json:"complete"` // they are a majority: nothing that was answered OK can be missing
	Notes    []string `json:"notes"`
}

// recoverPatience is for how long the groups may elect after a recovery.
const recoverPatience = 20 * time.Second

func (t *tool) adminRecover() *cli.Command {
	return &cli.Command{
		Name: "recover", Usage: "make controllers anew from what the nodes have, when the disks of all controllers are lost", ArgsUsage: "HOST:PORT",
		Flags: adminFlags(
			&cli.StringFlag{Name: "stopped", Usage: "`NODE,NODE…` that do not answer, and that you made sure are stopped for ever: what only they have is given up"},
			yesFlag(),
		),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 1, 1, "the address of a controller that runs with an empty folder and --recover"); err != nil {
				return err
			}
			secret, err := readSecret(c.String("secret"), c.String("secret-file"))
			if err != nil {
				return err
			}
			addrs, err := addressList("controller", c.Args().First())
			if err != nil {
				return err
			}
			ctl, err := controller.Dial(addrs, secret, controller.WithAttemptTimeout(toolTimeout))
			if err != nil {
				return err
			}
			defer ctl.Close()
			ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
			defer cancel()
			return t.recoverControllers(ctx, c, ctl)
		}),
	}
}

func (t *tool) recoverControllers(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
	req := &pb.RecoverRequest{Stopped: splitList(c.String("stopped")), Execute: c.Bool("yes")}
	plan, err := ctl.Recover(ctx, req)
	if err != nil {
		return err
	}
	v := viewRecovery(plan)
	v.Done = req.GetExecute()
	if err := t.show(c, v, func(w *tabwriter.Writer) { writeRecovery(w, v) }); err != nil {
		return err
	}
	switch {
	case len(v.Blocked) > 0:
		return fmt.Errorf("the controllers cannot be recovered: %s", strings.Join(v.Blocked, "; "))
	case !v.Done:
		return fmt.Errorf("nothing was changed: say --yes to recover the controllers")
	}
	ctx, cancel := context.WithTimeout(c.Context, recoverPatience)
	defer cancel()
	for _, g := range v.Groups {
		if !g.Complete {
			continue // an operator decides about it
		}
		if _, err := ctl.WaitActive(ctx, g.Name, g.Epoch); err != nil {
			return fmt.Errorf("the controllers are recovered, and group %s has no master yet: look at `group show`: %w", g.Name, err)
		}
	}
	return nil
}

func viewRecovery(p *pb.RecoverResponse) recoverView {
	v := recoverView{Recovery: p.GetRecovery(), Nodes: listed(p.GetNodes()), Groups: []recoveredGroupView{}, Notes: listed(p.GetNotes()), Blocked: listed(p.GetBlocked())}
	if len(p.GetClusterId()) == len(ids.UUID{}) {
		v.Cluster = ids.UUID(p.GetClusterId()).String()
	}
	for _, g := range p.GetGroups() {
		v.Groups = append(v.Groups, recoveredGroupView{Name: g.GetName(), Known: g.GetKnownEpoch(), Epoch: g.GetEpoch(), Voters: listed(g.GetVoters()),
			Whole: listed(g.GetHeard()), Complete: g.GetSure(), Notes: listed(g.GetNotes())})
	}
	return v
}

func writeRecovery(w *tabwriter.Writer, v recoverView) {
	fmt.Fprintf(w, "RECOVERY %d of the controllers of cluster %s, from the nodes %s.\n", v.Recovery, firstNonEmpty(v.Cluster, "-"), firstNonEmpty(strings.Join(v.Nodes, " "), "-"))
	row(w, "GROUP", "KNOWN", "EPOCH", "VOTERS", "WHOLE", "COMPLETE")
	for _, g := range v.Groups {
		row(w, g.Name, g.Known, g.Epoch, strings.Join(g.Voters, " "), strings.Join(g.Whole, " "), yesNo(g.Complete))
	}
	w.Flush()
	for _, g := range v.Groups {
		for _, n := range g.Notes {
			fmt.Fprintf(w, "NOTE: group %s: %s\n", g.Name, n)
		}
	}
	for _, n := range v.Notes {
		fmt.Fprintf(w, "NOTE: %s\n", n)
	}
}

// listed is list, and not null in JSON when it is empty.
func listed(list []string) []string { return append([]string{}, list...) }
