package main

import (
	"context"
	"errors"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
)

func (t *tool) adminTimer() *cli.Command {
	return &cli.Command{
		Name: "timer", Usage: "delayed messages that wait for their time",
		Subcommands: []*cli.Command{{
			Name: "show", Usage: "show how many wait, and when the next one is due", ArgsUsage: " ",
			Flags:  adminFlags(&cli.StringFlag{Name: "groups", Usage: "only in these broker `GROUPS`"}),
			Action: t.admin(0, 0, "no argument", t.showTimers),
		}},
	}
}

func (t *tool) showTimers(ctx context.Context, c *cli.Context, cl *client.Client) error {
	list, err := cl.Timers(ctx, splitList(c.String("groups")))
	if len(list) == 0 && err != nil {
		return err
	}
	if list == nil {
		list = []client.Timers{}
	}
	return errors.Join(t.show(c, list, func(w *tabwriter.Writer) { writeTimers(w, list) }), err)
}

func writeTimers(w *tabwriter.Writer, list []client.Timers) {
	row(w, "GROUP", "PENDING", "BYTES", "RECALLED", "NEXT DUE IN", "DROPPED", "INDEX")
	for i := range list {
		x := &list[i]
		next := "-"
		if x.Next != 0 {
			next = time.Until(time.UnixMilli(x.Next)).Round(time.Second).String()
		}
		row(w, x.Group, x.Pending, x.Bytes, x.Recalled, next, x.Dropped, x.Index)
	}
}
