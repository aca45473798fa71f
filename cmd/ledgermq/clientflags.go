package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/controller"
)

// toolTimeout bounds one question of an admin command.
const toolTimeout = 10 * time.Second

func namesrvFlag() cli.Flag {
	return &cli.StringFlag{Name: "namesrv", Value: "127.0.0.1:9876", Usage: "`HOST:PORT,…` of the name servers"}
}

// newClient makes a client of the name servers that the command names.
func newClient(c *cli.Context, opts ...client.Option) (*client.Client, error) {
	addrs, err := addressList("namesrv", c.String("namesrv"))
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, usagef("no name server: give its address with --namesrv HOST:PORT")
	}
	return client.New(addrs, opts...)
}

// newControllers finds the controllers through a name server.
func newControllers(ctx context.Context, c *cli.Context, cl *client.Client) (*controller.Client, error) {
	secret, err := readSecret(c.String("secret"), c.String("secret-file"))
	if err != nil {
		return nil, err
	}
	_, addrs, err := cl.Controllers(ctx)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, errors.New("the name server knows no controller: start it with --controllers, or start a broker")
	}
	return controller.Dial(addrs, secret)
}

// explain adds the mend to errors that an operator meets first.
func explain(c *cli.Context, err error) error {
	switch {
	case errors.Is(err, client.ErrNoNamesrv):
		return fmt.Errorf("%w; does a name server run at %s? --namesrv names another", err, c.String("namesrv"))
	case errors.Is(err, client.ErrNotReady), errors.Is(err, client.ErrTopicNotFound):
		if hint := masterlessHint(c); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		if errors.Is(err, client.ErrTopicNotFound) {
			return fmt.Errorf("%w; `ledgermq admin topic create NAME` makes one", err)
		}
	case errors.Is(err, client.ErrNotWritable), errors.Is(err, client.ErrNotReadable):
		return fmt.Errorf("%w; `ledgermq admin topic create NAME --perm rw` makes it so", err)
	}
	return err
}

// masterlessHint names the broker groups that have replicas and no master: only a master tells the name servers which topics its
// group has. It is "" when there is none, or nobody tells.
func masterlessHint(c *cli.Context) string {
	cl, err := newClient(c)
	if err != nil {
		return ""
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(c.Context, toolTimeout)
	defer cancel()
	cluster, err := cl.Cluster(ctx)
	if err != nil {
		return ""
	}
	return hintOf(cluster)
}

func hintOf(cluster client.Cluster) string {
	var names []string
	for _, g := range cluster.Groups {
		if g.Master() == "" {
			names = append(names, g.Group)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("broker group %[1]s has no master, without which its topics may be unknown: see `ledgermq admin group show %[1]s`", names[0])
	}
	return fmt.Sprintf("broker groups %s have no master, without which their topics may be unknown: see `ledgermq admin group list`", strings.Join(names, ", "))
}
