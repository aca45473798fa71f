package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

func (t *tool) adminElect() *cli.Command {
	return &cli.Command{
		Name: "elect", Usage: "make the replica on a node the master of a group, without a failed send", ArgsUsage: "GROUP",
		Flags: adminFlags(&cli.StringFlag{Name: "node", Required: true, Usage: "`NODE` of the replica that is to be master"}),
		Action: t.adminControllers(1, 1, "the group's name", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
			g, err := ctl.Elect(ctx, c.Args().First(), c.String("node"))
			if err != nil {
				return err
			}
			return t.showGroup(c, g)
		}),
	}
}

// balanceView is what became of one group in a rebalance.
type balanceView struct {
	Group  string `json:"group"`
	Before string `json:"before"` // node of the master, empty: none
	Master string `json:"master"` // afterwards
	Error  string `json:"error,omitempty"`
}

func (t *tool) adminRebalance() *cli.Command {
	return &cli.Command{
		Name: "rebalance", Usage: "give each group its preferred master, one after the other", ArgsUsage: " ", Flags: adminFlags(),
		Action: t.adminControllers(0, 0, "no argument", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
			groups, err := ctl.ListGroups(ctx)
			if err != nil {
				return err
			}
			list := make([]balanceView, 0, len(groups))
			failed := 0
			for _, g := range groups {
				v := balance(g, func(group, node string) (*pb.Group, error) {
					ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
					defer cancel()
					return ctl.Elect(ctx, group, node)
				})
				if v.Error != "" {
					failed++
				}
				list = append(list, v)
			}
			err = t.show(c, list, func(w *tabwriter.Writer) {
				row(w, "GROUP", "BEFORE", "MASTER", "RESULT")
				for _, v := range list {
					row(w, v.Group, v.Before, v.Master, firstNonEmpty(v.Error, "ok"))
				}
			})
			if err == nil && failed > 0 {
				err = fmt.Errorf("%d of %s not with the preferred master", failed, countOf(len(list), "broker group"))
			}
			return err
		}),
	}
}

// balance gives one group its preferred master, if it has another one.
func balance(g *pb.Group, elect func(group, node string) (*pb.Group, error)) balanceView {
	v := balanceView{Group: g.GetName()}
	if m := g.GetMaster(); m.GetLive() {
		v.Before = m.GetNodeId()
	}
	v.Master = v.Before
	if v.Before == g.GetPreferredNode() {
		return v
	}
	after, err := elect(g.GetName(), g.GetPreferredNode())
	if err != nil {
		v.Error = oneLine(err)
		return v
	}
	v.Master = after.GetMaster().GetNodeId()
	return v
}
