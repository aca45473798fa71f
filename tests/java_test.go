package tests

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// The official Java client. `make java` builds tests/java with Maven and then runs these; plain `go test` needs only Go.

const javaVariable = "LEDGERMQ_TEST_JAVA"

// javaSlots bounds how many JVMs run at the same time: each takes a core while it starts.
var javaSlots = make(chan struct{}, 2)

// javaCommand is one run of a case with one of the two clients, "current" or "legacy".
func javaCommand(t *testing.T, c *cluster.Cluster, client, name string, args ...string) *exec.Cmd {
	t.Helper()
	target := filepath.Join(cluster.Root(), "tests", "java", client, "target")
	home := t.TempDir() // the client writes logs and offsets of broadcasting consumers there
	line := []string{
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-Duser.home=" + home, "-Drocketmq.client.logRoot=" + home,
		"-Drocketmq.client.localOffsetStoreDir=" + filepath.Join(home, "offsets"),
		"-cp", filepath.Join(target, "classes") + string(os.PathListSeparator) + filepath.Join(target, "lib", "*"),
		"org.ledgermq.tests.Harness", strings.Join(c.Namesrv, ";"), name,
	}
	return exec.CommandContext(t.Context(), "java", append(line, args...)...)
}

func needJava(t *testing.T) {
	t.Helper()
	if os.Getenv(javaVariable) == "" {
		t.Skipf("needs Maven and a JDK: run `make java`, which sets %s", javaVariable)
	}
}

func TestJavaCases(t *testing.T) {
	t.Parallel()
	needJava(t)
	c := start(t, cluster.Options{})
	cases := map[string][]string{
		"current": {
			"send", "batch", "push", "orderly", "broadcast", "lite-subscribe", "lite-assign", "lite-seek", "dlq", "first-steps",
		},
		"legacy": {"send", "push"},
	}
	t.Run("cases", func(t *testing.T) { // ends when all of them have, before the cluster does
		for client, names := range cases {
			for _, name := range names {
				t.Run(client+"/"+name, func(t *testing.T) {
					t.Parallel()
					javaSlots <- struct{}{}
					defer func() { <-javaSlots }()
					runJava(t, javaCommand(t, c, client, name, "id="+client), 3*time.Minute)
				})
			}
		}
	})
}

func runJava(t *testing.T, cmd *exec.Cmd, limit time.Duration) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, tail(out.String(), 6000))
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// TestJavaSurvivesKill kills the master of a group twice while the official Java client sends and consumes.
func TestJavaSurvivesKill(t *testing.T) {
	t.Parallel()
	needJava(t)
	c := start(t, cluster.Options{})
	javaSlots <- struct{}{}
	defer func() { <-javaSlots }()
	cmd := javaCommand(t, c, "current", "survive", "topic=JavaSurvives")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(4*time.Minute, func() { cmd.Process.Kill() })
	defer watchdog.Stop()

	lines := make(chan string, 1<<17) // room for what comes while a member is down
	go func() {                       // ends with the process
		defer close(lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			lines <- s.Text()
		}
	}()
	acked := make(map[string]bool)
	note := func(line string) {
		if name, ok := strings.CutPrefix(line, "ACK "); ok {
			acked[name] = true
		}
	}
	more := func(n int) {
		t.Helper()
		for want := len(acked) + n; len(acked) < want; {
			line, ok := <-lines
			if !ok {
				t.Fatalf("the client ended: %v\n%s", cmd.Wait(), tail(stderr.String(), 6000))
			}
			note(line)
		}
	}
	more(100)
	for range 2 {
		node := masterOf(t, c, "g1")
		kill(t, c, node)
		more(200)
		restart(t, c, node)
		more(100)
	}
	io.WriteString(stdin, "stop\n")
	last := ""
	for line := range lines {
		note(line)
		last = line
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s\n%s", err, last, tail(stderr.String(), 6000))
	}
	found := readEverywhere(t, c, "JavaSurvives")
	for name := range acked {
		if found[name] == 0 {
			t.Errorf("%s was answered OK and is lost", name)
		}
	}
	t.Logf("%d sends answered OK", len(acked))
}
