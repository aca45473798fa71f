package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// answers refuses the address of a name server at which nobody listens: brokers would leave those that clients ask.
func answers(ctx context.Context, address string) error {
	d := net.Dialer{Timeout: 3 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("no name server answers at %s: start it first: %w", address, err)
	}
	return conn.Close()
}

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
				for _, a := range slices.Concat(req.Set, req.Add) {
					if err := answers(ctx, a); err != nil {
						return err
					}
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
