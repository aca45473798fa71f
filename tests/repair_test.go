package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/client"
)

// replicaMetric is a metric of a server's replicas, by group.
func (g *guide) replicaMetric(i int, name string) map[string]float64 {
	resp, err := http.Get("http://" + g.addr(i, 3) + "/metrics")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	m := map[string]float64{}
	for _, row := range regexp.MustCompile(`(?m)^ledgermq_replica_`+name+`\{group="([^"]*)",[^}]*\} (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		m[row[1]], _ = strconv.ParseFloat(row[2], 64)
	}
	return m
}

// A bit flips in sealed segments, of a server that is stopped and of one that runs, in modes 2-3 and 2-2. Without a hand all replicas are
// voters again, and their logs are equal byte for byte.
func TestCorruptSegment(t *testing.T) {
	t.Parallel()
	g := startGuide(t)
	ctx := within(t, 5*time.Minute)
	modes := map[string]string{"g1": "2-3", "g2": "2-2"}
	for name, mode := range modes {
		on := "n1,n2,n3"[:3*int(mode[2]-'0')-1]
		eventually(t, time.Minute, "group "+name, func() (bool, error) {
			_, err := g.run(ctx, "admin", "group", "create", name, "--mode", mode, "--on", on, "--segment-size", fmt.Sprint(16<<20))
			return err == nil, nil
		})
		eventually(t, time.Minute, "a topic in "+name, func() (bool, error) {
			_, err := g.run(ctx, "admin", "topic", "create", "T-"+name, "--groups", name)
			return err == nil, nil
		})
	}
	cl, err := client.New([]string{g.addr(1, 0), g.addr(2, 0), g.addr(3, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p := cl.Producer()
	// segments are the log files of a server's replicas, by the folder of the group.
	segments := func(i int) map[string][]string {
		files, err := filepath.Glob(filepath.Join(g.dir, fmt.Sprintf("s%d", i), "broker", "groups", "*", "log", "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		m := map[string][]string{}
		for _, f := range files {
			dir := filepath.Dir(filepath.Dir(f))
			m[dir] = append(m[dir], f)
		}
		return m
	}
	body := bytes.Repeat([]byte("x"), 1<<20)
	grown := func() bool {
		list := segments(1)
		for _, files := range list {
			if len(files) < 3 {
				return false
			}
		}
		return len(list) == len(modes)
	}
	for sent := 0; !grown(); {
		if sent > 200 {
			t.Fatalf("after %d messages of 1 MiB there are %v", sent, segments(1))
		}
		for name := range modes {
			sendCtx, cancel := context.WithTimeout(ctx, 20*time.Second)
			if _, err := p.Send(sendCtx, client.Message{Topic: "T-" + name, Body: body}); err == nil {
				sent++
			}
			cancel()
		}
	}
	// due makes a stopped server scrub soon after its start.
	due := func(i int) {
		for dir := range segments(i) {
			if err := os.Remove(filepath.Join(dir, "scrub.json")); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	voters := func() bool {
		for name, mode := range modes {
			out, err := g.run(ctx, "admin", "group", "show", name, "--json")
			if err != nil || strings.Count(out, `"voter": true`)+strings.Count(out, `"voter":true`) != int(mode[2]-'0') {
				return false
			}
		}
		return true
	}
	eventually(t, time.Minute, "all to vote", func() (bool, error) { return voters(), nil })

	// A server is stopped: its start sees the header, and finds the frame on its way.
	g.stop(t, 2)
	for _, files := range segments(2) {
		flipBit(t, files[1], 40)
		flipBit(t, files[0], 7<<20)
	}
	g.start(t, 2)
	eventually(t, 2*time.Minute, "the server that was stopped to repair its replicas", func() (bool, error) {
		n := g.replicaMetric(2, "repairs_total")
		return n["g1"] >= 1 && n["g2"] >= 1, nil
	})
	eventually(t, time.Minute, "all to vote", func() (bool, error) { return voters(), nil })

	// A server runs. Each scrub ends with the first damage, the last one finds none. On a busy machine the first one may have passed before
	// the flips: then once more.
	for round := 0; ; round++ {
		g.stop(t, 1)
		due(1)
		g.start(t, 1)
		if round == 0 {
			for _, files := range segments(1) {
				flipBit(t, files[0], 3<<20)
				flipBit(t, files[1], 9<<20)
			}
		}
		eventually(t, 2*time.Minute, "a scrub without damage", func() (bool, error) {
			at := g.replicaMetric(1, "scrubbed_timestamp_seconds")
			return at["g1"] > 0 && at["g2"] > 0, nil
		})
		if n := g.replicaMetric(1, "repairs_total"); n["g1"] >= 1 && n["g2"] >= 1 {
			break
		}
		if round == 3 {
			t.Fatal("nothing was repaired")
		}
	}
	eventually(t, 2*time.Minute, "all to vote", func() (bool, error) { return voters(), nil })
	for name := range modes {
		eventually(t, time.Minute, "a send to "+name, func() (bool, error) {
			sendCtx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			_, err := p.Send(sendCtx, client.Message{Topic: "T-" + name, Body: []byte("after it")})
			return err == nil, nil
		})
	}
	for i := 1; i <= 3; i++ {
		g.stop(t, i)
	}
	out, err := g.run(ctx, "log", "verify", g.dir)
	if err != nil || !strings.Contains(out, "g1") || !strings.Contains(out, "g2") {
		t.Errorf("log verify: %v\n%s", err, out)
	}
}

// corruptMarks are the marks of the walk-through of a corrupt segment.
var corruptMarks = map[string]func(w *walker, args []string){
	`a bit flips in the log of (\S+)`: func(w *walker, a []string) {
		dir := filepath.Join(w.c.Dir, a[0], "groups", "*", "log")
		logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil || len(logs) == 0 {
			w.t.Fatalf("no log in %s: %v", dir, err)
		}
		flipBit(w.t, logs[0], 4096+200)
		// Without the tables of the last checkpoint the start reads all frames, and not only those behind it.
		tables, err := filepath.Glob(filepath.Join(dir, "*.idx"))
		w.must(err)
		for _, name := range tables {
			w.must(os.Remove(name))
		}
	},
	`(\S+) repairs its replica`: func(w *walker, a []string) {
		eventually(w.t, time.Minute, "a repair", func() (bool, error) {
			return strings.Contains(scrape(w.t, w.c, "broker"), fmt.Sprintf("ledgermq_replica_repairs_total{group=%q,node=%q} 1\n", "g1", a[0])), nil
		})
	},
}

// flipBit changes a bit of a file in its place.
func flipBit(t *testing.T, file string, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}
