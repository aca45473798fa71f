package tests

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestOperateGuide sets up a cluster as docs/operate.md tells: three servers with every role, one configuration file each, one
// secret; a group made by hand; messages; a clean stop of one of them, and its return.
func TestOperateGuide(t *testing.T) {
	t.Parallel()
	g := startGuide(t)
	ctx := within(t, 2*time.Minute)
	eventually(t, time.Minute, "the first group", func() (bool, error) {
		_, err := g.run(ctx, "admin", "group", "create", "g1", "--mode", "2-3", "--on", "n1,n2,n3", "--segment-size", fmt.Sprint(64<<20))
		if err != nil && !strings.Contains(err.Error(), "n1") && !strings.Contains(err.Error(), "controller") &&
			!strings.Contains(err.Error(), "name server") && !strings.Contains(err.Error(), "node") {
			return false, err
		}
		return err == nil, nil
	})
	if out, err := g.run(ctx, "produce", "Orders", "one", "two", "three"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.stop(t, 1)
	if out, err := g.run(ctx, "produce", "Orders", "four"); err != nil {
		t.Fatalf("with one server stopped: %v\n%s", err, out)
	}
	g.start(t, 1)
	out, err := g.run(ctx, "consume", "Orders", "--count", "4", "--idle", "20s", "--group", "readers")
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"one", "two", "three", "four"} {
		if !strings.Contains(out, " "+body+"\n") {
			t.Errorf("%s was not consumed:\n%s", body, out)
		}
	}
	// Who does not know the secret is told so, and is told nothing else.
	_, err = cluster.Run(ctx, os.Environ(), "admin", "cluster", "--namesrv", g.addr(1, 0), "--secret", "another one")
	if err == nil || !strings.Contains(err.Error(), "secret") {
		t.Errorf("with a wrong secret: %v", err)
	}
	// A second process on a folder that is in use ends by itself and harms nobody.
	bin, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	second := exec.CommandContext(ctx, bin, "broker", "--http", "", "--id", "n2", "--data", filepath.Join(g.dir, "s2", "broker"),
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--controllers", g.addr(2, 1), "--namesrv", g.addr(2, 0))
	text, err := second.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "in use by another process") {
		t.Errorf("a second process on a data folder: %v\n%s", err, text)
	}
	g.stop(t, 2)
	wrong := exec.CommandContext(ctx, bin, "broker", "--http", "", "--id", "n9", "--data", filepath.Join(g.dir, "s2", "broker"),
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--controllers", g.addr(3, 1), "--namesrv", g.addr(3, 0))
	text, err = wrong.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "belongs to node n2") {
		t.Errorf("the data folder of another node: %v\n%s", err, text)
	}
	g.stop(t, 1)
	g.stop(t, 3)
	if out, err := g.run(ctx, "log", "verify", g.dir); err != nil {
		t.Errorf("log verify: %v\n%s", err, out)
	}
}

// guide is three servers, each with a block of 16 ports: name server, controller, replication, HTTP, clients.
type guide struct {
	dir string
	at  cluster.Place

	mu      sync.Mutex
	running map[int]*running
}

// running is a server that runs.
type running struct {
	*exec.Cmd
	wait func() error
	out  *bytes.Buffer // to be read after wait
}

// startGuide starts the three servers, with more arguments than those of the page.
func startGuide(t *testing.T, more ...string) *guide {
	t.Helper()
	needProcesses(t)
	at, err := cluster.NewPlace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Release)
	g := &guide{dir: t.TempDir(), at: at}
	if err := os.WriteFile(filepath.Join(g.dir, "secret"), []byte("a secret of the tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 3; i++ {
		g.configure(t, i)
		g.start(t, i, append([]string{"--controller-bootstrap"}, more...)...)
	}
	return g
}

func (g *guide) addr(server, port int) string {
	return g.at.Addr(16*(server-1) + port)
}

func (g *guide) all(port int) string {
	return strings.Join([]string{g.addr(1, port), g.addr(2, port), g.addr(3, port)}, ", ")
}

func (g *guide) file(i int) string { return filepath.Join(g.dir, fmt.Sprintf("s%d.yaml", i)) }

func (g *guide) configure(t *testing.T, i int) {
	t.Helper()
	first := g.at.Base + 16*(i-1) + 4
	text := fmt.Sprintf(`
secret-file: %s
data: %s
http: %s
controllers: [%s]
namesrv: [%s]
server:
  namesrv-listen: %s
  controller-id: c%d
  controller-listen: %s
  controller-peers: [c1=%s, c2=%s, c3=%s]
  broker-id: n%d
  broker-listen: %s:%d-%d
  broker-peer-listen: %s
`, filepath.Join(g.dir, "secret"), filepath.Join(g.dir, fmt.Sprintf("s%d", i)), g.addr(i, 3), g.all(1), g.all(0),
		g.addr(i, 0), i, g.addr(i, 1), g.addr(1, 1), g.addr(2, 1), g.addr(3, 1), i, g.at.Host, first, first+11, g.addr(i, 2))
	if err := os.WriteFile(g.file(i), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g *guide) start(t *testing.T, i int, more ...string) {
	t.Helper()
	bin, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, append([]string{"server", "--config", g.file(i), "--log-level", "warn"}, more...)...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	wait, err := cluster.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	s := &running{Cmd: cmd, wait: wait, out: out}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running == nil {
		g.running = make(map[int]*running)
	}
	g.running[i] = s
	t.Cleanup(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.running[i] == s {
			s.Process.Kill()
			s.wait()
			t.Logf("server %d:\n%s", i, tail(out.String(), 3000))
		}
	})
	eventually(t, 30*time.Second, fmt.Sprintf("an answer of server %d", i), func() (bool, error) {
		resp, err := http.Get("http://" + g.addr(i, 3) + "/healthz")
		if err != nil {
			return false, nil
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
}

// stop ends a server with SIGINT, which must be a clean end. SIGTERM hands its groups over first, and forwards for a while.
func (g *guide) stop(t *testing.T, i int) {
	t.Helper()
	g.mu.Lock()
	s := g.running[i]
	delete(g.running, i)
	g.mu.Unlock()
	s.Process.Signal(syscall.SIGINT)
	timer := time.AfterFunc(30*time.Second, func() { s.Process.Kill() })
	defer timer.Stop()
	if err := s.wait(); err != nil {
		t.Errorf("server %d ended with %v:\n%s", i, err, tail(s.out.String(), 3000))
	}
}

// run runs a tool with the environment that docs/operate.md shows.
func (g *guide) run(ctx context.Context, args ...string) (string, error) {
	env := append(os.Environ(), "LEDGERMQ_NAMESRV="+strings.ReplaceAll(g.all(0), " ", ""), "LEDGERMQ_SECRET_FILE="+filepath.Join(g.dir, "secret"))
	return cluster.Run(ctx, env, args...)
}
