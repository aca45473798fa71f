package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// uncleanView is what an unclean election costs, and whether it was done.
type uncleanView struct {
	Group   string   `json:"group"`
	Replica uint64   `json:"replica"`
	Node    string   `json:"node"`
	Epoch   uint32   `json:"epoch"`   // the newest one before
	MayLose []string `json:"mayLose"` // empty: nothing that was answered OK
	Others  []string `json:"others"`  // what becomes of the other replicas
	Done    bool     `json:"done"`
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "do it; without it only what it costs is said"}
}

func (t *tool) adminElectUnclean() *cli.Command {
	return &cli.Command{
		Name: "elect-unclean", Usage: "let a replica go on alone that may lack what was answered OK, when its voters are lost for ever", ArgsUsage: "GROUP",
		Flags: adminFlags(
			&cli.Uint64Flag{Name: "replica", Required: true, Usage: "`ID` of the replica that goes on, as group show tells it"},
			&cli.Uint64SliceFlag{Name: "stopped", Usage: "`ID,ID…` of the voters that do not answer, and that you made sure are stopped for ever"},
			&cli.StringFlag{Name: "reason", Usage: "for the record, a short `TEXT`"},
			yesFlag(),
		),
		Action: t.adminControllers(1, 1, "the group's name", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
			req := &pb.ElectUncleanRequest{Group: c.Args().First(), ReplicaId: c.Uint64("replica"), Stopped: c.Uint64Slice("stopped"), Reason: c.String("reason")}
			plan, err := ctl.ElectUnclean(ctx, req)
			if err != nil {
				return err
			}
			v := uncleanView{Group: req.GetGroup(), Replica: req.GetReplicaId(), Node: plan.GetNodeId(), Epoch: plan.GetEpoch(), MayLose: plan.GetLosses(), Others: plan.GetGone()}
			if !c.Bool("yes") {
				if err := t.show(c, v, func(w *tabwriter.Writer) { writeUnclean(w, v) }); err != nil {
					return err
				}
				return fmt.Errorf("nothing was changed: say --yes to elect replica %d on node %s", v.Replica, v.Node)
			}
			if !c.Bool("json") {
				w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
				writeUnclean(w, v)
				w.Flush()
			}
			req.Epoch = plan.GetEpoch()
			if _, err := ctl.ElectUnclean(ctx, req); err != nil {
				return err
			}
			v.Done = true
			g, err := ctl.WaitGroup(ctx, req.GetGroup())
			if err != nil {
				return fmt.Errorf("the election is decided, and the group has no master yet: %w", err)
			}
			if c.Bool("json") {
				return t.show(c, v, nil)
			}
			fmt.Fprintln(t.out)
			return t.showGroup(c, g)
		}),
	}
}

func writeUnclean(w *tabwriter.Writer, v uncleanView) {
	fmt.Fprintf(w, "UNCLEAN election of replica %d on node %s in group %s, after epoch %d.\n", v.Replica, v.Node, v.Group, v.Epoch)
	if len(v.MayLose) == 0 {
		fmt.Fprintln(w, "Nothing that was answered OK is lost: it has all of it.")
	} else {
		fmt.Fprintln(w, "May be lost:")
		for _, l := range v.MayLose {
			fmt.Fprintf(w, "  %s\n", l)
		}
	}
	for _, l := range v.Others {
		fmt.Fprintf(w, "%s\n", l)
	}
}
