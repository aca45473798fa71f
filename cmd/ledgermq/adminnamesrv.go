package main

import (
	"context"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

func (t *tool) adminNamesrv() *cli.Command {
	list := func(name, usage string, least int, fill func(req *pb.ChangeNamesrvRequest, addrs []string)) *cli.Command {
		most, args, names := -1, "HOST:PORT…", "the addresses of name servers"
		if least == 0 {
			most, args, names = 0, " ", "no argument"
		}
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args, Flags: adminFlags(),
			Action: t.adminControllers(least, most, names, func(ctx context.Context, c *cli.Context, ctl *controller.Client) error {
				req := &pb.ChangeNamesrvRequest{}
				for _, a := range c.Args().Slice() {
					addrs, err := addressList("HOST:PORT", a)
					if err != nil {
						return err
					}
					fill(req, addrs)
				}
				now, err := ctl.ChangeNamesrv(ctx, req)
				if err != nil {
					return err
				}
				return t.show(c, append([]string{}, now...), func(w *tabwriter.Writer) {
					row(w, "NAME SERVER")
					for _, a := range now {
						row(w, a)
					}
					if len(now) == 0 {
						row(w, "no list is kept: each node has that of its configuration")
					}
				})
			}),
		}
	}
	return &cli.Command{
		Name: "namesrv", Usage: "the name servers that all nodes register with",
		Subcommands: []*cli.Command{
			list("show", "show the list that the controllers keep", 0, nil),
			list("set", "set the whole list", 1, func(req *pb.ChangeNamesrvRequest, addrs []string) { req.Set = append(req.Set, addrs...) }),
			list("add", "add name servers to the list", 1, func(req *pb.ChangeNamesrvRequest, addrs []string) { req.Add = append(req.Add, addrs...) }),
			list("remove", "take name servers off the list", 1, func(req *pb.ChangeNamesrvRequest, addrs []string) { req.Remove = append(req.Remove, addrs...) }),
		},
	}
}
