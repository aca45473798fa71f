package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// groupRemovedView is what is in the way of the removal of a group, or that it was done.
type groupRemovedView struct {
	Group        string   `json:"group"`
	State        string   `json:"state"` // before
	Refused      string   `json:"refused,omitempty"`
	Left         []string `json:"left"` // what is given up
	Messages     int64    `json:"messages"`
	Timers       uint64   `json:"timers"`
	Transactions int      `json:"transactions"`
	Removed      bool     `json:"removed"`
}

func (t *tool) adminWriteProtect() *cli.Command {
	return &cli.Command{
		Name: "write-protect", Usage: "take writability out of the routes of a broker group, so that clients send to others; --off gives it back", ArgsUsage: "NAME",
		Flags: adminFlags(&cli.BoolFlag{Name: "off", Usage: "give it back"}),
		Action: t.admin(1, 1, "the group's name", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
			permission := "4"
			if c.Bool("off") {
				permission = "default"
			}
			results, err := cl.Configure(ctx, c.Args().First(), map[string]string{"brokerPermission": permission})
			return t.reportGroups(c, results, err)
		}),
	}
}

func (t *tool) adminRemoveGroup() *cli.Command {
	return &cli.Command{
		Name: "remove", Usage: "remove a broker group that is write-protected and drained", ArgsUsage: "NAME",
		Flags: adminFlags(
			&cli.BoolFlag{Name: "give-up", Usage: "remove it although something in it was not consumed; without --yes it is said what"},
			&cli.BoolFlag{Name: "yes", Usage: "do it; without it only what is in the way is said"},
			waitFlag(),
		),
		Action: t.admin(1, 1, "the group's name", t.removeGroup),
	}
}

func (t *tool) removeGroup(ctx context.Context, c *cli.Context, cl *client.Client) error {
	name := c.Args().First()
	ctl, err := newControllers(ctx, c, cl)
	if err != nil {
		return err
	}
	defer ctl.Close()
	g, err := ctl.GetGroup(ctx, name)
	if err != nil {
		return err
	}
	v := groupRemovedView{Group: name, State: viewGroup(g).State, Left: []string{}}
	if g.GetState() == pb.GroupState_GROUP_STATE_PENDING {
		return t.removePending(ctx, c, ctl, v)
	}
	var s client.Freeze
	if s.Frozen = frozen(g); !s.Frozen { // a frozen one is not known to the name servers any more
		if s, err = cl.FreezeGroup(ctx, name, c.Bool("give-up"), false); err != nil {
			return err
		}
	}
	v.Refused, v.Messages, v.Timers, v.Transactions = s.Refused, s.Messages, s.Timers, s.Transactions
	v.Left = append(v.Left, s.Left...)
	switch {
	case s.Frozen: // an earlier call was interrupted
	case s.Refused != "":
		return errors.New(s.Refused)
	case len(s.Left) > 0 && !c.Bool("give-up"):
		if err := t.showRemoval(c, v); err != nil {
			return err
		}
		return fmt.Errorf("group %s is not drained: wait until it is, or say --give-up to remove it with %s", name, v.what())
	case !c.Bool("yes"):
		if err := t.showRemoval(c, v); err != nil {
			return err
		}
		return fmt.Errorf("nothing was changed: say --yes to remove group %s%s", name, v.givingUp())
	default:
		if s, err = cl.FreezeGroup(ctx, name, c.Bool("give-up"), true); err != nil {
			return err
		}
		v.Left, v.Messages, v.Timers, v.Transactions = append([]string{}, s.Left...), s.Messages, s.Timers, s.Transactions
	}
	if wait := c.Duration("wait"); wait > 0 {
		ctx, cancel := context.WithTimeoutCause(c.Context, wait, fmt.Errorf("waited for %v", wait))
		defer cancel()
		if err := ctl.WaitRemoved(ctx, name, g.GetGroupId()); err != nil {
			return err
		}
		v.Removed = true
	}
	return t.showRemoval(c, v)
}

// frozen tells whether a call before this one has frozen the group.
func frozen(g *pb.Group) bool {
	return slices.ContainsFunc(g.GetReplicas(), func(r *pb.Replica) bool { return r.GetReport().GetFrozen() && r.GetLost() == "" })
}

// removePending removes a group that has never been ready: nothing can be in it.
func (t *tool) removePending(ctx context.Context, c *cli.Context, ctl *controller.Client, v groupRemovedView) error {
	if !c.Bool("yes") {
		return fmt.Errorf("nothing was changed: group %s has never been ready; say --yes to remove it", v.Group)
	}
	if err := ctl.RemoveGroup(ctx, v.Group); err != nil {
		return err
	}
	v.Removed = true
	return t.showRemoval(c, v)
}

// what names what is left.
func (v *groupRemovedView) what() string {
	return fmt.Sprintf("%s, %s and %s", countOf(int(v.Messages), "message"), countOf(int(v.Timers), "delayed message"), countOf(v.Transactions, "pending transaction"))
}

func (v *groupRemovedView) givingUp() string {
	if len(v.Left) == 0 {
		return ""
	}
	return ", and to give up " + v.what()
}

func (t *tool) showRemoval(c *cli.Context, v groupRemovedView) error {
	return t.show(c, v, func(w *tabwriter.Writer) {
		switch {
		case v.Removed:
			row(w, "removed group", v.Group)
		default:
			row(w, "group", v.Group)
		}
		for _, l := range v.Left {
			row(w, "not consumed", l)
		}
	})
}
