package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func (t *tool) devStartCommand() *cli.Command {
	return &cli.Command{
		Name: "start", Usage: "start a member of a running `dev --processes` again", ArgsUsage: "ID",
		Flags: withEnv(
			&cli.StringFlag{Name: "data", Usage: "the cluster's `FOLDER`"},
			&cli.DurationFlag{Name: "timeout", Value: time.Minute, Usage: "how long to wait until it serves"},
			&cli.StringFlag{Name: "log-level", Value: "warn", Usage: "debug, info, warn or error"},
		),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 1, 1, "the ID of a member, such as n1"); err != nil {
				return err
			}
			if c.String("data") == "" {
				return usagef("no data folder: give the cluster's with --data")
			}
			if c.Duration("timeout") <= 0 {
				return usagef("--timeout %v: use more than 0", c.Duration("timeout"))
			}
			dir, err := filepath.Abs(c.String("data"))
			if err != nil {
				return err
			}
			return t.devStart(c, dir, c.Args().First())
		}),
	}
}

// devStart starts one member, detached, with the flags that it had, and returns when it serves.
func (t *tool) devStart(c *cli.Context, dir, id string) error {
	plan, err := loadDevPlan(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not the folder of a dev cluster; start one with `ledgermq dev --processes --data %s`", dir, dir)
	}
	if err != nil {
		return err
	}
	if !isLocked(filepath.Join(dir, devLockName)) {
		return fmt.Errorf("no dev cluster runs on %s; start it with `ledgermq dev --processes --data %s`", dir, dir)
	}
	var member *devMember
	var known []string
	for i, m := range plan.Members {
		known = append(known, m.ID)
		if m.ID == id {
			member = &plan.Members[i]
		}
	}
	if member == nil {
		return usagef("no member %s in this cluster; there are %s", id, strings.Join(known, ", "))
	}
	ended := make(chan error, 1)
	err = changeClusterFile(dir, func(f *clusterFile) (bool, error) {
		entry := f.member(id)
		if entry == nil {
			return false, fmt.Errorf("cluster.json does not know %s", id)
		}
		if isAlive(entry.PID, dir) {
			return false, fmt.Errorf("%s runs already (pid %d)", id, entry.PID)
		}
		cmd, err := startMember(plan, *member, dir, []string{"--log-level", c.String("log-level")}, true)
		if err != nil {
			return false, err
		}
		go func() { ended <- cmd.Wait() }() // ends with the member, or with this process
		entry.PID, entry.Running = cmd.Process.Pid, true
		return true, nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the cluster in %s does not serve yet: there is no cluster.json", dir)
	}
	if err != nil {
		return err
	}
	return t.waitStarted(c.Context, &plan, *member, dir, c.Duration("timeout"), ended)
}

// What a started broker may lack for so long before the wait ends all the same, because nothing that it does can bring it: a master,
// with too few of its group alive; a new replica in the place of one that is given up, which comes only while its group has a master.
var patience = map[string]time.Duration{noMasterWord: 5 * time.Second, lostWord: 3 * time.Second}

func (t *tool) waitStarted(ctx context.Context, plan *devPlan, m devMember, dir string, limit time.Duration, ended <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	var over error
	w := waiting{now: time.Now}
	err := waitReady(ctx, func() error {
		select {
		case err := <-ended:
			over = fmt.Errorf("%s ended: %v: %s", m.ID, err, lastLine(memberLog(dir, m.ID)))
			cancel()
		default:
		}
		if over != nil {
			return over
		}
		err := plan.askReady(m)
		if !w.over(err) {
			return err
		}
		var e *elsewhereError
		errors.As(err, &e)
		fmt.Fprintf(t.err, "%s runs, but %s\n", m.ID, oneLine(e))
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s does not serve: %w", m.ID, err)
	}
	fmt.Fprintf(t.out, "%s serves\n", m.ID)
	return nil
}

// waiting is how long a member has lacked the same thing that it cannot bring about.
type waiting struct {
	now   func() time.Time
	word  string
	since time.Time
}

// over takes the member's newest answer, nil when it serves, and tells whether there is nothing left to wait for but what may never come.
func (w *waiting) over(err error) bool {
	word := elsewhere(err)
	if word != w.word {
		w.word, w.since = word, w.now()
	}
	return word != "" && w.now().Sub(w.since) >= patience[word]
}
