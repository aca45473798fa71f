package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/urfave/cli/v2"
)

// oneRun is held while a command line runs in this process: the library sets a help flag that all its apps share.
var oneRun sync.Mutex

// runTool runs one command line in this process.
func runTool(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	oneRun.Lock()
	defer oneRun.Unlock()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"ledgermq"}, args...), streams{in: strings.NewReader(""), out: &out, err: &errs})
	return code, out.String(), errs.String()
}

// TestBadInput holds that a command that makes no sense ends at once, with code 2 and one line that names the thing and the
// mend; and one that is refused with code 1.
func TestBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	typo := filepath.Join(dir, "typo.yaml")
	if err := os.WriteFile(typo, []byte("brokr:\n  id: n1\nlisten-on: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "secret")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := []string{"broker", "--http", "", "--id", "n1", "--data", dir, "--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:1"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"nonsense"}, 2, `no command "nonsense"`},
		{[]string{"admin", "topic", "nonsense"}, 2, `no command "nonsense"`},
		{[]string{"admin"}, 2, "which command"},
		{[]string{"dev", "--nodes", "many"}, 2, `dev: --nodes "many": want a whole number`},
		{[]string{"dev", "--wheels", "4"}, 2, "dev: there is no flag --wheels"},
		{[]string{"dev", "-w"}, 2, "there is no flag -w;"},
		{[]string{"dev", "--groups"}, 2, "--groups needs a value"},
		{[]string{"dev", "--processes=perhaps"}, 2, `--processes "perhaps": want true or false`},
		{[]string{"dev", "start", "n1", "--timeout", "long"}, 2, `dev start: --timeout "long": want a duration`},
		{[]string{"admin", "elect", "g1"}, 2, "give --node; see --help"},
		{[]string{"admin", "group", "elect-unclean", "g1", "--replica", "1", "--stopped", "n1"}, 2, `--stopped "n1": want whole numbers`},
		{[]string{"dev", "--flush", "never"}, 2, `--flush "never": use sync or async`},
		{[]string{"admin", "group", "create", "g9", "--on", "a,b,c", "--flush", "never"}, 2, `--flush "never": use sync or async`},
		{[]string{"dev", "--mode", "3-2"}, 2, "want A-M"},
		{[]string{"dev", "--mode", "2-4"}, 2, "needs 4 nodes"},
		{[]string{"dev", "--nodes", "0"}, 2, "--nodes 0: use 1 to"},
		{[]string{"dev", "--groups", "1000"}, 2, "--groups 1000: use 1 to"},
		{[]string{"dev", "--min-isr", "4"}, 2, "--min-isr 4: mode 2-3 allows"},
		{[]string{"dev", "--mode", "1-3", "--min-isr", "2"}, 2, "--min-isr 2: mode 1-3 allows 1 to 1"},
		{[]string{"dev", "--port-base", "65530"}, 2, "--port-base 65530: the cluster needs"},
		{[]string{"dev", "--port-base", "0"}, 2, "--port-base 0: use"},
		{[]string{"dev", "--host", "10.0.0.1"}, 2, "--host 10.0.0.1: use an address of this machine alone"},
		{[]string{"dev", "--host", "localhost"}, 2, "--host localhost: use an address of this machine alone"},
		{[]string{"dev", "--segment-size", "1000"}, 2, "use a power of two"},
		{[]string{"dev", "start"}, 2, "want the ID of a member"},
		{[]string{"dev", "start", "n1"}, 2, "--data"},
		{[]string{"dev", "start", "n1", "--data", dir}, 1, "not the folder of a dev cluster"},
		{[]string{"server", "--roles", "broker,cook"}, 2, `"cook" is not a role`},
		{[]string{"server", "--roles", "broker,broker"}, 2, "named twice"},
		{[]string{"server", "--roles", "broker"}, 2, "no data folder"},
		{[]string{"broker", "--http", "", "--data", dir}, 2, "no node id"},
		{append(slices.Clone(broker), "--listen", "127.0.0.1"), 2, "want HOST:PORT"},
		{append(slices.Clone(broker), "--listen", "127.0.0.1:20-10"), 2, "the first not above the last"},
		{append(slices.Clone(broker), "--listen", "0.0.0.0:20-30"), 2, "no cluster secret; give one with --secret-file"},
		{append(slices.Clone(broker), "--listen", "0.0.0.0:20-30", "--insecure"), 2, "say with --advertise which one"},
		{[]string{"server", "--http", "", "--roles", "broker", "--broker-id", "n1", "--data", dir, "--controllers", "127.0.0.1:1",
			"--namesrv", "127.0.0.1:1", "--broker-listen", "0.0.0.0:20-30", "--insecure"}, 2, "say with --broker-advertise which one"},
		{append(slices.Clone(broker), "--peer-listen", "0.0.0.0:0"), 2, "no cluster secret"},
		{append(slices.Clone(broker), "--peer-listen", "0.0.0.0:0", "--insecure"), 2, "which one others shall dial"},
		{append(slices.Clone(broker), "--peer-listen", busy.Addr().String()), 1, "the port is in use; end the process that has it"},
		{append(slices.Clone(broker), "--http", "127.0.0.1:99999"), 2, "0 to 65535"},
		{append(slices.Clone(broker), "--secret", "x", "--secret-file", empty), 2, "both given"},
		{append(slices.Clone(broker), "--secret-file", empty), 2, "is empty"},
		{append(slices.Clone(broker), "--log-level", "loud"), 2, "use debug, info, warn or error"},
		{[]string{"namesrv", "--http", "", "--listen", busy.Addr().String()}, 1, "the port is in use"},
		{[]string{"namesrv", "--http", "", "--listen", "0.0.0.0:0"}, 2, "no cluster secret"},
		{[]string{"namesrv", "--config", typo}, 2, "no such setting: listen-on, brokr"},
		{[]string{"namesrv", "--config", filepath.Join(dir, "absent.yaml")}, 2, "does not exist"},
		{[]string{"controller", "--http", "", "--data", dir, "--peers", "c1"}, 2, "want ID=HOST:PORT"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c1"), "--listen", "127.0.0.1:0"}, 1, "allow a new one with --bootstrap, --join or --recover"},
		{[]string{"server", "--http", "", "--roles", "controller", "--data", filepath.Join(dir, "c1"), "--controller-listen", "127.0.0.1:0"}, 1,
			"allow a new one with --controller-bootstrap, --controller-join or --controller-recover"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c2"), "--bootstrap", "--listen", "0.0.0.0:0", "--insecure"}, 2,
			"--advertise: the listener takes every address of this machine; say which one"},
		{[]string{"server", "--http", "", "--roles", "controller", "--data", filepath.Join(dir, "c2"), "--controller-bootstrap",
			"--controller-listen", "0.0.0.0:0", "--insecure"}, 2, "--controller-advertise: the listener takes every address"},
		{[]string{"controller", "--http", "", "--data", filepath.Join(dir, "c2"), "--listen", "127.0.0.1:0", "--peers", "c1=0.0.0.0:9"}, 2,
			"nobody can dial 0.0.0.0:9 of c1"},
		{[]string{"admin", "cluster", "--namesrv", "here"}, 2, `"here" is not HOST:PORT`},
		{[]string{"admin", "cluster", "extra"}, 2, "want no argument, got 1 argument"},
		{[]string{"admin", "cluster", "--namesrv", "127.0.0.1:1"}, 1, "does a name server run at 127.0.0.1:1?"},
		{[]string{"admin", "group", "create", "g1", "--mode", "2-3", "--on", "n1,n2"}, 2, "needs 3 nodes"},
		{[]string{"admin", "group", "create", "g1", "--mode", "2-3", "--on", "n1,n2,n3", "--learner", "n4"}, 2, "--learner n4: it is none of --on"},
		{[]string{"admin", "group", "set-mode", "g1"}, 2, "want the group's name and a mode"},
		{[]string{"admin", "group", "set-mode", "g1", "3-2"}, 2, "want A-M"},
		{[]string{"admin", "group", "set-mode", "g1", "2-6"}, 2, "want A-M"},
		{[]string{"admin", "group", "set-mode", "g1", "0-3"}, 2, "want A-M"},
		{[]string{"admin", "group", "set-mode", "g1", "2-3", "--min-isr", "-1"}, 2, "--min-isr -1 is negative"},
		{[]string{"admin", "group", "set-mode", "g1", "2-3", "--remove", "n1"}, 2, `--remove "n1": want ids of replicas`},
		{[]string{"admin", "group", "set-mode", "g1", "2-3", "--learner", "n1"}, 2, "set-learner"},
		{[]string{"admin", "group", "remove-replica", "g1", "n1"}, 2, "is not the id of a replica"},
		{[]string{"admin", "topic", "create", "a b"}, 2, "topic name"},
		{[]string{"admin", "topic", "create", "T", "--queues", "0"}, 2, "--queues 0: use 1 to"},
		{[]string{"admin", "topic", "create", "T", "--queues", "65537"}, 2, "--queues 65537: use 1 to 65536"},
		{[]string{"admin", "topic", "create", "T", "--perm", "x"}, 2, "use rw, r or w"},
		{[]string{"admin", "consumer", "create", "G", "--retries", "-1"}, 2, "--retries -1: use 0 to"},
		{[]string{"admin", "consumer", "create", "G", "--retry-delays", "1s,soon"}, 2, `--retry-delays "soon": use delays such as`},
		{[]string{"admin", "consumer", "create", "G", "--retry-delays", "1s,-5s"}, 2, `--retry-delays "-5s": use delays such as`},
		{[]string{"admin", "consumer", "create", "G", "--retry-growth", "5s,2h"}, 2, `--retry-growth "5s,2h": use FIRST,LONGEST,FACTOR`},
		{[]string{"admin", "consumer", "create", "G", "--retry-growth", "5s,1s,2"}, 2, "FIRST not above LONGEST"},
		{[]string{"admin", "consumer", "create", "G", "--retry-growth", "5s,2h,2", "--retry-delays", "1s"}, 2, "use one of them"},
		{[]string{"admin", "consumer", "reset", "G", "--topic", "T"}, 2, "where to? Give --to: first or earliest"},
		{[]string{"admin", "consumer", "reset", "G", "--topic", "T", "--to", "soon"}, 2, `--to "soon": use first or earliest`},
		{[]string{"admin", "consumer", "reset", "G", "--to", "first"}, 2, "which topic"},
		{[]string{"admin", "dlq", "list", "a b"}, 2, "group"},
		{[]string{"admin", "dlq", "list", "G", "--since", "soon"}, 2, `--since "soon": use a time such as`},
		{[]string{"admin", "dlq", "list", "--limit", "-1", "G"}, 2, "--limit -1: use 0 or more"},
		{[]string{"admin", "dlq", "show", "G", "x"}, 2, `"x" names no dead letter: use GROUP/OFFSET`},
		{[]string{"admin", "dlq", "resend"}, 2, "which consumer group?"},
		{[]string{"admin", "dlq", "resend", "--rate", "0", "G"}, 2, "--rate 0: use more than 0"},
		{[]string{"produce"}, 2, "want a topic"},
		{[]string{"produce", "T", "x", "--timeout", "0"}, 2, "--timeout 0s: use more than 0"},
		{[]string{"produce", "a b", "x"}, 2, "topic name"},
		{[]string{"consume", "T", "--from", "middle"}, 2, "use first or last"},
		{[]string{"consume", "T", "--group", "a b"}, 2, "--group"},
		{[]string{"log", "verify"}, 2, "at least one folder"},
		{[]string{"log", "verify", filepath.Join(dir, "absent")}, 2, "does not exist"},
		{[]string{"log", "dump", dir}, 2, "no replica below"},
		{[]string{"log", "dump", dir, "--from", "-1"}, 2, "--from -1: indexes begin at 1"},
		{[]string{"log", "dump", dir, "--from", "0"}, 2, "--from 0: indexes begin at 1"},
		{[]string{"log", "dump", dir, "--count", "-1"}, 2, "--count -1 is negative"},
		{[]string{"bench", "produce", "--size", "9000000"}, 2, "a send carries at most"},
		{[]string{"config"}, 2, "which command's settings"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, _, stderr := runTool(t, c.args...)
			last := stderr[strings.LastIndex(strings.TrimSuffix(stderr, "\n"), "\n")+1:]
			if code != c.code || !strings.Contains(last, c.want) {
				t.Errorf("exit code %d, want %d; stderr:\n%s\nwant %q", code, c.code, stderr, c.want)
			}
			if !strings.HasPrefix(last, "ledgermq: ") || strings.HasPrefix(last, "ledgermq: ledgermq") || strings.Contains(last, "  ") {
				t.Errorf("the message is more than a line, or doubles a word:\n%s", stderr)
			}
		})
	}
}

// TestFlagsAfterArguments holds that flags may stand anywhere.
func TestFlagsAfterArguments(t *testing.T) {
	t.Parallel()
	app := newApp(streams{}, false)
	for _, c := range []struct{ in, want string }{
		{"admin group create NAME --mode 2-3 --json", "admin group create --mode 2-3 --json -- NAME"},
		{"produce T --tag=a b -- --c", "produce --tag=a -- T b --c"},
		{"dev start n1 --data /d", "dev start --data /d -- n1"},
		{"dev --nodes 3", "dev --nodes 3"},
		{"consume -", "consume -- -"},
		{"config broker --id n1", "config broker --id n1"},
	} {
		got := flagsFirst(app, append([]string{"ledgermq"}, strings.Fields(c.in)...))
		if s := strings.Join(got[1:], " "); s != c.want {
			t.Errorf("%s: got %s, want %s", c.in, s, c.want)
		}
	}
}

// TestSettingsOrder holds that the command line goes before the environment, that before the file, that before the default,
// and that a section goes before the top of the file.
func TestSettingsOrder(t *testing.T) { // not parallel: it sets environment variables
	file := filepath.Join(t.TempDir(), "ledgermq.yaml")
	text := "log-level: debug\nnamesrv: [\"a:1\", \"b:2\"]\nid: nobody\nbroker:\n  id: n7\n  cluster-name: filed\n  auto-create-topic: false\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LEDGERMQ_DATA", "/from/env")
	t.Setenv("LEDGERMQ_CLUSTER_NAME", "env")
	t.Setenv("LEDGERMQ_CONFIG", file)
	code, out, stderr := runTool(t, "config", "broker", "--cluster-name", "flag", "--secret", "hush")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	got := make(map[string]string)
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) > 1 {
			got[f[0]] = strings.Join(f[1:], " ")
		}
	}
	for name, want := range map[string]string{
		"id": "n7 file " + file, "data": "/from/env environment LEDGERMQ_DATA", "cluster-name": "flag flag",
		"log-level": "debug file " + file, "namesrv": "a:1,b:2 file " + file, "auto-create-topic": "false file " + file,
		"log-format": "auto default", "secret": "(hidden) flag",
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
	if strings.Contains(out, "hush") {
		t.Error("the secret is printed")
	}
}

// TestConfigHelps holds that config tells of itself, and of a command that stands behind it.
func TestConfigHelps(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"ledgermq config COMMAND [flags of COMMAND]": {"config", "--help"},
		"ledgermq namesrv - run a name server":       {"config", "namesrv", "--help"},
	} {
		if code, out, stderr := runTool(t, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: exit code %d: %s%s\nwant %q", args, code, out, stderr, want)
		}
	}
}

// TestErrorsNameTheSource holds that a setting which is wrong is named as it was given.
func TestErrorsNameTheSource(t *testing.T) { // not parallel: it sets environment variables
	file := filepath.Join(t.TempDir(), "ledgermq.yaml")
	if err := os.WriteFile(file, []byte("groups: 1000\nnodes: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := func(want string, args ...string) {
		t.Helper()
		code, _, stderr := runTool(t, args...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d: %s\nwant %q", args, code, stderr, want)
		}
	}
	wrong(file+`: nodes: "many": want a whole number`, "dev", "--config", file)
	wrong("groups of "+file+" 1000: use 1 to", "dev", "--config", file, "--nodes", "3")
	wrong("admin group set-mode: --on needs a value", "admin", "group", "set-mode", "g1", "2-3", "--on")
	t.Setenv("LEDGERMQ_MODE", "2-4")
	wrong("LEDGERMQ_MODE 2-4 needs 4 nodes and --nodes is 3; raise --nodes", "dev")
	t.Setenv("LEDGERMQ_SECRET", "x")
	wrong("LEDGERMQ_SECRET and --secret-file are both given", "namesrv", "--http", "", "--secret-file", file)
	t.Setenv("LEDGERMQ_NODES", "many")
	wrong(`LEDGERMQ_NODES="many": want a whole number`, "dev")
}

// TestOnlyACommandLineConfirms holds that neither a variable nor a file says the flags that confirm a loss.
func TestOnlyACommandLineConfirms(t *testing.T) { // not parallel: it sets environment variables
	for _, name := range spoken {
		t.Setenv(envName(name), "1")
	}
	for _, command := range [][]string{
		{"admin", "group", "elect-unclean", "g1", "--replica", "1"},
		{"admin", "group", "replace", "g1", "--replica", "1"},
	} {
		code, out, stderr := runTool(t, append([]string{"config"}, command...)...)
		if code != 0 || !strings.Contains(out, "replica ") || strings.Contains(out, "environment") {
			t.Errorf("%v, exit code %d: what is in force:\n%s%s", command, code, out, stderr)
		}
	}
	for _, name := range spoken {
		file := filepath.Join(t.TempDir(), "ledgermq.yaml")
		if err := os.WriteFile(file, []byte(name+": 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := runTool(t, "admin", "group", "elect-unclean", "g1", "--replica", "1", "--config", file)
		if code != 2 || !strings.Contains(stderr, "no such setting: "+name) {
			t.Errorf("%s in a file: exit code %d: %s", name, code, stderr)
		}
	}
	walk(newApp(streams{}, false).Commands, nil, func(path string, c *cli.Command) {
		for name, f := range shown(c) {
			if names := strings.Contains(f.GetUsage(), "[$"+envName(name)+"]"); names == slices.Contains(spoken, name) {
				t.Errorf("the help of %s names a variable for --%s: %v, want %v", path, name, names, !names)
			}
		}
	})
}

// TestVersion holds the JSON that docs/cli.md describes.
func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, stderr := runTool(t, "version", "--json")
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
	}
	for _, key := range []string{"version", "revision", "go", "platform", "protocol"} {
		if v[key] == nil {
			t.Errorf("no %s in %s", key, out)
		}
	}
}

// TestServerServes runs every role in one process until it is told to end, and looks at its HTTP listener.
func TestServerServes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it opens everything, and then ends at once
	oneRun.Lock()
	defer oneRun.Unlock()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"ledgermq", "server", "--namesrv-listen", "127.0.0.1:0", "--controller-listen", freeAddr(t), "--controller-bootstrap",
		"--broker-id", "n1", "--broker-listen", "127.0.0.1:0", "--broker-peer-listen", "127.0.0.1:0",
		"--http", "127.0.0.1:0", "--data", t.TempDir()}, streams{in: strings.NewReader(""), out: &out, err: &errs})
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	if log := errs.String(); !strings.Contains(log, `"message":"started"`) || !strings.Contains(log, `"message":"stopped"`) || strings.Contains(log, `"message":"serving"`) {
		t.Errorf("the log of a process that ended before it could serve:\n%s", log)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
