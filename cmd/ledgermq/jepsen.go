package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/jepsen"
)

func (t *tool) jepsenCommand() *cli.Command {
	return &cli.Command{
		Name: "jepsen", Usage: "break a cluster on purpose and judge what its clients saw",
		Subcommands: []*cli.Command{
			{
				Name: "run", Usage: "run the workloads through faults; NAME is a kind of faults and a mode, such as kill-23", ArgsUsage: "NAME",
				Flags: withEnv(
					&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "the faults follow from `N`"},
					&cli.DurationFlag{Name: "duration", Value: 30 * time.Second, Usage: "how long faults go on"},
					&cli.StringFlag{Name: "data", Usage: "keep data, logs and history in `FOLDER`, which must be empty; default: a temporary one, kept on a violation"},
				),
				Action: t.action(func(c *cli.Context) error {
					if err := wantArgs(c, 1, 1, "a NAME such as kill-23"); err != nil {
						return err
					}
					if _, _, err := jepsen.ParseName(c.Args().First()); err != nil {
						return usagef("%v", err)
					}
					if c.Duration("duration") <= 0 {
						return usagef("--duration %v: use more than 0", c.Duration("duration"))
					}
					return t.jepsenRun(c)
				}),
			},
		},
	}
}

// historyName is the history's file in the folder of a run.
const historyName = "history.jsonl"

var errViolated = errors.New("the cluster did what it must not do")

func (t *tool) jepsenRun(c *cli.Context) (err error) {
	name := c.Args().First()
	kind, mode, _ := jepsen.ParseName(name)
	dir := c.String("data")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ledgermq-jepsen-"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				os.RemoveAll(dir)
			} else {
				fmt.Fprintf(t.err, "data, logs and history are in %s\n", dir)
			}
		}()
	} else if found, err := os.ReadDir(dir); err == nil && len(found) > 0 {
		return fmt.Errorf("--data %s is not empty; use another folder", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	history, err := os.Create(filepath.Join(dir, historyName))
	if err != nil {
		return err
	}
	defer history.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%s, seed %d, faults for %v\n", name, c.Uint64("seed"), c.Duration("duration"))
	report, err := jepsen.Run(c.Context, jepsen.Options{
		Binary: self, Dir: dir, Kind: kind, Mode: mode, Seed: c.Uint64("seed"), Duration: c.Duration("duration"),
		Drivers: []jepsen.Driver{jepsen.Own()}, History: history,
		Say: func(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	report.Write(t.out)
	if len(report.Violations) > 0 {
		return errViolated
	}
	return nil
}
