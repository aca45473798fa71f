package main

import (
	"context"
	"slices"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

func (t *tool) adminController() *cli.Command {
	return &cli.Command{
		Name: "controller", Usage: "the controllers themselves",
		Subcommands: []*cli.Command{
			{
				Name: "show", Usage: "show the controllers", ArgsUsage: " ", Flags: adminFlags(),
				Action: t.adminControllers(0, 0, "no argument", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					return t.showControllers(ctx, c, ctl)
				}),
			},
			{
				Name: "add", Usage: "add controllers that were started with an empty folder and --join", ArgsUsage: "ID=HOST:PORT…", Flags: adminFlags(),
				Action: t.adminControllers(1, -1, "each new controller as ID=HOST:PORT", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					return t.changeControllers(ctx, c, ctl, c.Args().Slice(), nil)
				}),
			},
			{
				Name: "remove", Usage: "remove controllers for ever", ArgsUsage: "ID…", Flags: adminFlags(),
				Action: t.adminControllers(1, -1, "the ids of the controllers", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					return t.changeControllers(ctx, c, ctl, nil, c.Args().Slice())
				}),
			},
			{
				Name: "replace", Usage: "put a controller that was started with an empty folder and --join into the place of another one", ArgsUsage: "ID",
				Flags: adminFlags(&cli.StringFlag{Name: "with", Required: true, Usage: "the new one as `ID=HOST:PORT`; the id may be the same"}),
				Action: t.adminControllers(1, 1, "the id of the controller that goes", func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
					return t.changeControllers(ctx, c, ctl, []string{c.String("with")}, c.Args().Slice())
				}),
			},
			t.adminRecover(),
		},
	}
}

func (t *tool) changeControllers(ctx context.Context, c *cli.Context, ctl *controller.Client, add, remove []string) error {
	req := &pb.ChangeControllersRequest{Remove: remove}
	for _, pair := range add {
		list, err := memberList("ID=HOST:PORT", pair)
		if err != nil {
			return err
		}
		for id, addr := range list {
			req.Add = append(req.Add, &pb.Member{Id: id, Address: addr})
		}
	}
	if _, err := ctl.ChangeControllers(ctx, req); err != nil {
		return err
	}
	return t.showControllers(ctx, c, ctl)
}

func (t *tool) showControllers(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
	list, err := viewControllers(ctx, ctl)
	if err != nil {
		return err
	}
	return t.show(c, list, func(w *tabwriter.Writer) { writeControllers(w, list) })
}

// viewControllers asks the leading controller who they are, and each one about itself.
func viewControllers(ctx context.Context, ctl *controller.Client) ([]controllerView, error) {
	members, err := ctl.Members(ctx)
	if err != nil {
		return nil, err
	}
	status, err := ctl.Status(ctx)
	if err != nil {
		return nil, err
	}
	var list []controllerView
	for _, m := range members.GetMembers() {
		list = append(list, viewController(m, status))
	}
	return slices.Clip(list), nil
}
