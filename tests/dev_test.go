package tests

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestDevKeepsItsPromises looks at what `dev --processes` says of itself: cluster.json, dev start, refusals, and that a folder
// keeps its messages and its shape.
func TestDevKeepsItsPromises(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 2})
	ctx := within(t, 2*time.Minute)
	members, err := c.Members()
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]int{}
	ports := map[int]string{}
	for _, m := range members {
		roles[m.Role]++
		if !m.Running || m.PID <= 0 {
			t.Errorf("%s: running %v, pid %d", m.ID, m.Running, m.PID)
		}
		for name, port := range m.Ports {
			if port < c.Base || ports[port] != "" {
				t.Errorf("port %d of %s %s: base is %d, and %q has it", port, m.ID, name, c.Base, ports[port])
			}
			ports[port] = m.ID + " " + name
			conn, err := net.Dial("tcp", c.At(port))
			if err != nil {
				t.Errorf("%s %s: %v", m.ID, name, err)
				continue
			}
			conn.Close()
		}
	}
	if roles["broker"] != 3 || roles["controller"] != 1 || roles["namesrv"] != 1 || ports[c.Base] != "ns1 remoting" {
		t.Errorf("roles %v; the first port belongs to %q", roles, ports[c.Base])
	}
	refuses := func(code int, want string, args ...string) {
		t.Helper()
		_, err := c.Run(ctx, args...)
		refused(t, err, code, want)
	}
	refuses(1, "n1 runs already", "dev", "start", "n1", "--data", c.Dir)
	refuses(2, "no member n7", "dev", "start", "n7", "--data", c.Dir)
	refuses(1, "in use by another dev cluster", "dev", "--processes", "--data", c.Dir)
	refuses(1, "the port is in use", "dev", "--data", t.TempDir(), "--port-base", strconv.Itoa(c.Base), "--host", c.Host)
	refuses(1, "in use", "dev", "--processes", "--data", t.TempDir(), "--port-base", strconv.Itoa(c.Base), "--host", c.Host)

	if _, err := c.Run(ctx, "produce", "Kept", "a", "b", "--namesrv", c.Namesrv[0]); err != nil {
		t.Fatal(err)
	}
	// A member that ended is noted, and starts again with the same ports.
	before, err := c.Member("n2")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Interrupt(ctx, "n2"); err != nil {
		t.Fatal(err)
	}
	restart(t, c, "n2")
	after, err := c.Member("n2")
	if err != nil {
		t.Fatal(err)
	}
	if !after.Running || after.PID == before.PID {
		t.Errorf("after its start: running %v, pid %d, it had %d", after.Running, after.PID, before.PID)
	}
	for name, port := range before.Ports {
		if after.Ports[name] != port {
			t.Errorf("n2 had %s on %d, and has it on %d now", name, port, after.Ports[name])
		}
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	// The same folder again, told nothing but the folder.
	again, err := cluster.Resume(t.Context(), c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Stop(); err != nil {
			t.Errorf("%v\n%s", err, again.Output())
		}
	}()
	if again.ID != c.ID {
		t.Errorf("the cluster id was %s and is %s", c.ID, again.ID)
	}
	out, err := again.Run(ctx, "consume", "Kept", "--count", "2", "--idle", "20s", "--namesrv", again.Namesrv[0])
	if err != nil || !strings.Contains(out, " a\n") || !strings.Contains(out, " b\n") {
		t.Errorf("after the restart of all: %v\n%s", err, out)
	}
}

// TestDevLeavesNothingBehind kills the foreground process: its members, those that were started later too, end by themselves.
func TestDevLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	needProcesses(t)
	c, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), Groups: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop() // in case it fails
	kill(t, c, "n3")
	restart(t, c, "n3")
	c.KillForeground()
	eventually(t, 30*time.Second, "the end of every member", func() (bool, error) {
		alive, err := c.Alive()
		return len(alive) == 0, err
	})
}

// TestDevInOneProcess runs what `make run` runs, until it is told to end.
func TestDevInOneProcess(t *testing.T) {
	t.Parallel()
	needProcesses(t)
	bin, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	at, err := cluster.NewPlace()
	if err != nil {
		t.Fatal(err)
	}
	defer at.Release()
	tmp := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "dev", "--port-base", strconv.Itoa(at.Base), "--host", at.Host)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	wait, err := cluster.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(text.String(), "Ctrl-C ends it.") {
		n, err := stdout.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			t.Fatalf("it ended: %v\n%s%s", err, text.String(), stderr.String())
		}
	}
	for _, want := range []string{"g1 ", "g2 ", "g3 ", "2-3", "n1 n2 n3", "The data is temporary", "Hello from LedgerMQ"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it did not print %q:\n%s", want, text.String())
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, stderr.String())
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "ledgermq-dev-*")); len(left) > 0 {
		t.Errorf("it left %v behind", left)
	}
}
