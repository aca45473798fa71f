package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
)

func (t *tool) adminCommand() *cli.Command {
	return &cli.Command{
		Name: "admin", Usage: "show and change a cluster",
		Subcommands: []*cli.Command{
			t.adminCluster(), t.adminNode(), t.adminGroup(), t.adminTopic(), t.adminRoute(), t.adminMessage(), t.adminTrace(), t.adminConsumer(), t.adminTx(), t.adminDLQ(), t.adminTimer(), t.adminElect(), t.adminRebalance(), t.adminController(), t.adminNamesrv(),
		},
	}
}

// adminFlags are those of every admin command.
func adminFlags(more ...cli.Flag) []cli.Flag {
	return withEnv(append(more, namesrvFlag(), jsonFlag(),
		&cli.StringFlag{Name: "secret", Usage: "the cluster's `SECRET`; better put it into a file"},
		&cli.StringFlag{Name: "secret-file", Usage: "`FILE` with the cluster's secret"})...)
}

// admin is the action of an admin command: it has a client and toolTimeout.
func (t *tool) admin(least, most int, names string, do func(ctx context.Context, c *cli.Context, cl *client.Client) error) cli.ActionFunc {
	return t.action(func(c *cli.Context) error {
		if err := wantArgs(c, least, most, names); err != nil {
			return err
		}
		cl, err := newClient(c)
		if err != nil {
			return err
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
		defer cancel()
		return explain(c, do(ctx, c, cl))
	})
}

// adminControllers is admin for a command that only the controllers are asked.
func (t *tool) adminControllers(least, most int, names string, do func(ctx context.Context, c *cli.Context, ctl *controller.Client) error) cli.ActionFunc {
	return t.admin(least, most, names, func(ctx context.Context, c *cli.Context, cl *client.Client) error {
		ctl, err := newControllers(ctx, c, cl)
		if err != nil {
			return err
		}
		defer ctl.Close()
		return do(ctx, c, ctl)
	})
}

// show prints v as JSON, or as the table that fill writes.
func (t *tool) show(c *cli.Context, v any, fill func(w *tabwriter.Writer)) error {
	if c.Bool("json") {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fill(w)
	return w.Flush()
}

// row writes one line of a table; an empty cell becomes -.
func row(w *tabwriter.Writer, cells ...any) {
	parts := make([]string, len(cells))
	for i, c := range cells {
		if parts[i] = fmt.Sprint(c); parts[i] == "" {
			parts[i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(parts, "\t"))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// splitList splits a comma-separated list of names.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// changeView is how a change went in one broker group.
type changeView struct {
	Group string `json:"group"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// reportGroups prints how a change went in each broker group. When it failed in some, the error says so, and each reason once.
func (t *tool) reportGroups(c *cli.Context, results []client.GroupResult, err error) error {
	if len(results) == 0 {
		return err
	}
	list := make([]changeView, len(results))
	var failed int
	var reasons []string
	for i, r := range results {
		list[i] = changeView{Group: r.Group, OK: r.Err == nil}
		if r.Err != nil {
			failed++
			list[i].Error = reason(r.Err)
			if !slices.Contains(reasons, list[i].Error) {
				reasons = append(reasons, list[i].Error)
			}
		}
	}
	shown := t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "GROUP", "RESULT")
		for _, r := range list {
			row(w, r.Group, firstNonEmpty(r.Error, "ok"))
		}
	})
	if shown != nil || failed == 0 {
		return errors.Join(shown, err)
	}
	return fmt.Errorf("failed in %d of %s: %s", failed, countOf(len(list), "broker group"), strings.Join(reasons, "; "))
}

// reason is what a broker answered, without its address, or the error as it is.
func reason(err error) string {
	var code *client.CodeError
	if errors.As(err, &code) {
		return fmt.Sprintf("%s (code %d)", code.Remark, code.Code)
	}
	return oneLine(err)
}
