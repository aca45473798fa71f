package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestTools holds what an operator's commands say of things that are not as they should be.
func TestTools(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	ctx := within(t, 3*time.Minute)
	namesrv := c.Namesrv[0]
	ok := func(args ...string) string {
		t.Helper()
		out, err := c.Run(ctx, append(args, "--namesrv", namesrv)...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	refuses := func(want string, args ...string) {
		t.Helper()
		began := time.Now()
		_, err := c.Run(ctx, append(args, "--namesrv", namesrv)...)
		refused(t, err, 1, want)
		if took := time.Since(began); took > 8*time.Second { // their own limit is 10 s
			t.Errorf("%v: refused after %v", args, took)
		}
	}
	ok("admin", "topic", "create", "Orders", "--queues", "1")
	ok("produce", "Orders", "a", "b", "c")
	ok("admin", "topic", "create", "Closed", "--queues", "1", "--perm", "r")
	refuses("it is not writable; `ledgermq admin topic create NAME --perm rw`", "produce", "Closed", "x")

	// Of a topic that is there, only what is given changes; queues go with --yes alone.
	ok("admin", "topic", "create", "Wide", "--queues", "12", "--order")
	ok("admin", "topic", "create", "Wide", "--perm", "r")
	ok("admin", "topic", "create", "Wide", "--perm", "rw")
	wide := func() client.TopicSpec {
		t.Helper()
		cl, err := client.New(c.Namesrv)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		spec, found, err := cl.TopicIn(ctx, "g1", "Wide")
		if err != nil || !found {
			t.Fatalf("topic Wide: %v, %v", found, err)
		}
		return spec
	}
	if s := wide(); s.ReadQueues != 12 || s.WriteQueues != 12 || s.Perm != 6 || !s.Order {
		t.Errorf("after changes of its permission the topic is %+v", s)
	}
	_, err := c.Run(ctx, "admin", "topic", "create", "Wide", "--queues", "4", "--namesrv", namesrv)
	refused(t, err, 2, "--queues 4: topic Wide has 12 queues in group g1")
	ok("admin", "topic", "create", "Wide", "--queues", "4", "--order=false", "--yes")
	refuses("--groups g9: the name server knows no such broker group, only g1", "admin", "topic", "create", "Wide", "--groups", "g9")
	if s := wide(); s.ReadQueues != 4 || s.WriteQueues != 4 || s.Order {
		t.Errorf("after the loss of queues the topic is %+v", s)
	}

	refuses("there is no consumer group nobody", "admin", "consumer", "show", "nobody", "--topic", "Orders")
	refuses("there is no consumer group nobody", "admin", "consumer", "reset", "nobody", "--topic", "Orders", "--to", "first")
	ok("admin", "consumer", "create", "made")
	ok("consume", "Orders", "--group", "reading", "--count", "2") // it has an offset, and is no member of anything
	refuses("consumer group made does not consume topic Orders", "admin", "consumer", "reset", "made", "--topic", "Orders", "--to", "7")
	for group, flag := range map[string]string{"made": "--new", "reading": "--new=false"} {
		ok("admin", "consumer", "show", group, "--topic", "Orders")
		var moved []struct {
			Offset int64
			Asked  *int64
		}
		out := ok("admin", "consumer", "reset", group, "--topic", "Orders", "--to", "7", "--json", flag)
		if err := json.Unmarshal([]byte(out), &moved); err != nil || len(moved) != 1 || moved[0].Offset != 3 || moved[0].Asked == nil || *moved[0].Asked != 7 {
			t.Errorf("a reset beyond the end: %v\n%s", err, out)
		}
		out = ok("admin", "consumer", "reset", group, "--topic", "Orders", "--to", "earliest", "--json")
		if err := json.Unmarshal([]byte(out), &moved); err != nil || moved[0].Offset != 0 {
			t.Errorf("a reset to the beginning: %v\n%s", err, out)
		}
	}

	// A broker that the controller refuses never says that it serves.
	bin, err := cluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	controller, err := c.Member("c1")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "n1")
	foreign := exec.CommandContext(ctx, bin, "broker", "--http", "", "--id", "n1", "--data", folder, "--log-format", "json",
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--controllers", c.At(controller.Ports["grpc"]), "--namesrv", namesrv)
	text, err := foreign.CombinedOutput()
	if err == nil || strings.Contains(string(text), `"message":"serving"`) || !strings.Contains(string(text), "\nledgermq: broker n1: ") {
		t.Errorf("a stranger with the name of a node: %v\n%s", err, text)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left its folder behind, bound to the name of another: %v", err)
	}

	// With two of three nodes dead there is no master: consume says so, and when there is one again.
	consume := exec.CommandContext(ctx, bin, "consume", "Orders", "--from", "last", "--namesrv", namesrv)
	stderr, err := consume.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	wait, err := cluster.Spawn(consume)
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() { // ends with the process
		for s := bufio.NewScanner(stderr); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	says := func(want string) {
		t.Helper()
		for {
			select {
			case line, more := <-lines:
				if strings.Contains(line, want) {
					return
				}
				if !more {
					t.Fatalf("consume ended before it said %q", want)
				}
			case <-ctx.Done():
				t.Fatalf("consume never said %q", want)
			}
		}
	}
	master := masterOf(t, c, "g1")
	other := "n1"
	if master == other {
		other = "n2"
	}
	kill(t, c, other, master)
	says("waiting: group g1 has no master")
	var g groupInfo
	eventually(t, 30*time.Second, "the controller's view", func() (bool, error) {
		err := c.AdminJSON(ctx, &g, "group", "show", "g1")
		return err == nil && g.State == "no master", err
	})
	for _, r := range g.Replicas {
		if (r.Role == "silent") == r.Live || r.Role == "master" {
			t.Errorf("replica on %s is live: %v, and %s", r.Node, r.Live, r.Role)
		}
	}
	restart(t, c, master)
	says("going on: group g1 is there again")
	consume.Process.Signal(syscall.SIGTERM)
	for range lines { // until it has ended
	}
	if err := wait(); err != nil {
		t.Errorf("consume: %v", err)
	}
}

// TestRequestsThatAreServed asks a broker and a name server for everything, and compares what they do not refuse with what
// docs/divergence.md lists.
func TestRequestsThatAreServed(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	page, err := os.ReadFile(filepath.Join("..", "docs", "divergence.md"))
	if err != nil {
		t.Fatal(err)
	}
	master, err := c.Member(masterOf(t, c, "g1"))
	if err != nil {
		t.Fatal(err)
	}
	for who, addr := range map[string]string{"broker": c.At(master.Ports["client:g1"]), "name server": c.Namesrv[0]} {
		rows := regexp.MustCompile(`(?m)^\| a `+who+` \| (.*) \|$`).FindAllStringSubmatch(string(page), -1)
		if rows == nil {
			t.Fatalf("docs/divergence.md does not say what a %s serves", who)
		}
		var listed []int
		for _, row := range rows {
			for _, text := range regexp.MustCompile(`\d+`).FindAllString(row[1], -1) {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, n)
			}
		}
		slices.Sort(listed)
		if served := servedBy(t, addr); !slices.Equal(served, listed) {
			t.Errorf("a %s serves %v, docs/divergence.md says %v", who, served, listed)
		}
	}
}

// servedBy sends every request code without any field. What is served is answered with what is missing in it.
func servedBy(t *testing.T, addr string) (codes []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := remoting.Dial(ctx, addr, remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, span := range [][2]int{{1, 1100}, {2000, 2010}, {3000, 3020}, {31000, 31030}, {200050, 200160}} {
		for code := span[0]; code <= span[1]; code++ {
			resp, err := cl.Call(ctx, remoting.NewRequest(int32(code)))
			if err != nil {
				t.Fatalf("request %d: %v", code, err)
			}
			if resp.Code != remoting.RequestCodeNotSupported {
				codes = append(codes, code)
			}
		}
	}
	return codes
}
