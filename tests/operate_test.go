package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// This file runs docs/operate.md, and knows how a page is run. A section with ```console blocks is a walk-through, and each has a test
// that runs it as it stands. In a block
//
//	$ a command     is run by a shell, with `ledgermq` in the PATH; it goes on where a line ends with \
//	# what happens  is done by the test: see marks
//	another line    is what the command before prints: the output must have a line like it, in this order, where … is anything
//	                and white space does not count
//
// A command that only looks is repeated until its output is like that, any other one runs once. It must succeed, unless the page
// shows its "ledgermq: …" error, which it must end with then. To add a walk-through, write its section, and its line in walks.
var walks = map[string]walk{
	"A cluster on three machines":                 {run: threeMachines},
	"Mode 2-2 with one replica dead":              {cluster: cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"}},
	"Mode 2-3 with two dead, one after the other": {cluster: cluster.Options{Groups: 1, MinISR: 1}},
	"A node never comes back":                     {cluster: cluster.Options{Nodes: 4, Groups: 1}},
	"Another mode":                                {cluster: cluster.Options{Nodes: 5, Groups: 1}},
	"Replacing all three nodes":                   {cluster: cluster.Options{Nodes: 6, Groups: 1}},
	"Adding a broker group":                       {cluster: cluster.Options{Groups: 1}},
	"Taking a node away":                          {cluster: cluster.Options{Nodes: 4, Groups: 1}},
	"Removing a broker group":                     {run: removedGroup},
	"Equal replicas":                              {cluster: cluster.Options{Groups: 1}},
	"More controllers, or other ones":             {run: moreControllers},
	"All controllers are lost":                    {run: lostControllers},
	"Other name servers":                          {run: otherNamesrvs},
	"Losing a site and coming back":               {run: lostSite},
	"A corrupt segment":                           {cluster: cluster.Options{Groups: 1}, marks: corruptMarks},
	"Raising the feature level":                   {cluster: cluster.Options{Groups: 1}},
	"Masters go back to where they are wanted":    {cluster: cluster.Options{Groups: 2}},
	"A wiped disk":                                {cluster: cluster.Options{Groups: 1}},
	"Messages that fail, wait or hang":            {cluster: cluster.Options{Groups: 1}, marks: failingMarks},
	"A full disk":                                 {cluster: smallDisks, prepare: onSmallDisks, marks: diskMarks},
}

// walk is how a section is run: on a cluster of `ledgermq dev --processes` under load, after which everything that was answered OK is
// on every replica; or in its own way.
type walk struct {
	cluster cluster.Options
	prepare func(w *walker)                           // before the first step
	marks   map[string]func(w *walker, args []string) // more marks, by regular expression; args are its groups
	run     func(t *testing.T, steps []step)
}

// walker runs the steps of one section.
type walker struct {
	t    *testing.T
	c    *cluster.Cluster
	load *load
	dir  string // of the shell
	env  []string
	walk walk
}

// marks are what may happen in every walk-through.
var marks = map[string]func(w *walker, args []string){
	`(\S+) dies`:               func(w *walker, a []string) { kill(w.t, w.c, a[0]) },
	`(\S+) and (\S+) die`:      func(w *walker, a []string) { kill(w.t, w.c, a...) },
	`(\S+) is started again`:   func(w *walker, a []string) { restart(w.t, w.c, a[0]) },
	`(\S+) is paused`:          func(w *walker, a []string) { w.must(w.c.Pause(a[0])) },
	`(\S+) wakes up`:           func(w *walker, a []string) { w.must(w.c.Resume(a[0])) },
	`sends are answered OK`:    func(w *walker, _ []string) { w.load.awaitMore(w.t, 100, time.Minute) },
	`sends are refused`:        func(w *walker, _ []string) { w.load.awaitStop(w.t, time.Minute) },
	`(\S+) is stopped`:         func(w *walker, a []string) { w.must(w.c.Interrupt(w.t.Context(), a[0])) },
	`(\S+) gets SIGTERM`:       func(w *walker, a []string) { w.must(w.c.Terminate(a[0])) },
	`(\S+) has ended`:          func(w *walker, a []string) { w.must(w.c.Ended(within(w.t, 2*time.Minute), a[0])) },
	`the disk of (\S+) is new`: func(w *walker, a []string) { wipe(w.t, w.c, a[0]) },
}

// looks are the commands that only look.
var looks = regexp.MustCompile(`^(mqadmin (clusterList|topicRoute)( [^|;&]*)?|ledgermq admin (cluster|cluster show|group (show|list|remove [a-z0-9]+$)|topic (show|list)|route|consumer show)( [^|;&]*)?|ledgermq (log verify|version)( [^|;&]*)?|(curl|ls|cat|grep) [^;&]*)$`)

func TestOperate(t *testing.T) {
	t.Parallel()
	for title, steps := range operateSections(t) {
		w, ok := walks[title]
		if !ok {
			t.Errorf("docs/operate.md: the commands of %q are run by no test: add it to walks", title)
			continue
		}
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			if w.run != nil {
				needProcesses(t)
				w.run(t, steps)
				return
			}
			c := start(t, w.cluster)
			r := &walker{t: t, c: c, walk: w, dir: c.Dir, load: startOwnLoad(t, c, "Walk", 2)}
			r.env = append(r.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
			if w.prepare != nil {
				w.prepare(r)
			}
			firstLeads(r.t, r.c, "g1", "n1")
			r.steps(steps)
			r.load.check(t, c)
		})
	}
}

// A page that shows a command in another way than the tests run would not be held to it.
func TestOperateShowsCommandsInWalks(t *testing.T) {
	t.Parallel()
	page := readRepoFile(t, "docs/operate.md")
	sections := operateSections(t)
	for title := range walks {
		if len(sections[title]) == 0 {
			t.Errorf("docs/operate.md has no commands in a section %q", title)
		}
	}
	for i, fence := range regexp.MustCompile("(?m)^```(.*)\n").FindAllStringSubmatch(page, -1) {
		if lang := fence[1]; i%2 == 0 && lang != "console" && lang != "yaml" {
			t.Errorf("docs/operate.md has a block of %q: commands stand in console blocks", lang)
		}
	}
	var run []string
	for _, steps := range sections {
		for _, s := range steps {
			if s.command != "" {
				run = append(run, strings.Join(strings.Fields(s.command), " "))
			}
		}
	}
	// In the text a command stands with capitals, or nothing, for its arguments.
	for _, span := range regexp.MustCompile("`(ledgermq [^`]+)`").FindAllStringSubmatch(page, -1) {
		var words []string
		for _, word := range strings.Fields(span[1]) {
			if word == strings.ToUpper(word) || strings.HasPrefix(word, "-") {
				break
			}
			words = append(words, word)
		}
		if prefix := strings.Join(words, " "); !slices.ContainsFunc(run, func(c string) bool { return c == prefix || strings.HasPrefix(c, prefix+" ") }) {
			t.Errorf("docs/operate.md names `%s`, and no walk-through runs it", span[1])
		}
	}
}

// step is a command and what it prints, a mark, or a file that is written.
type step struct {
	at      string // page and line
	command string
	want    []string
	mark    string
	file    string // name, of a yaml block that begins with it
	text    string
}

func operateSections(t *testing.T) map[string][]step { return pageSections(t, "docs/operate.md") }

// pageSections returns the steps of each section of a page that has commands.
func pageSections(t *testing.T, page string) map[string][]step {
	t.Helper()
	out := map[string][]step{}
	title, lang := "", ""
	var steps []step
	end := func() {
		if slices.ContainsFunc(steps, func(s step) bool { return s.command != "" }) {
			out[title] = append(out[title], steps...)
		}
		steps = nil
	}
	for i, line := range strings.Split(readRepoFile(t, page), "\n") {
		last, at := len(steps)-1, fmt.Sprintf("%s:%d", page, i+1)
		switch {
		case lang == "" && strings.HasPrefix(line, "```"):
			lang = strings.TrimPrefix(line, "```")
			if lang == "yaml" {
				steps = append(steps, step{at: at})
			}
		case line == "```":
			lang = ""
		case lang == "" && (strings.HasPrefix(line, "## ") || strings.HasPrefix(line, "### ")):
			end()
			title = strings.TrimLeft(line, "# ")
		case lang == "yaml" && strings.HasPrefix(line, "# ") && steps[last].file == "":
			steps[last].file = line[2:]
		case lang == "yaml":
			steps[last].text += line + "\n"
		case lang != "console" || line == "":
		case last >= 0 && strings.HasSuffix(steps[last].command, "\\"):
			steps[last].command = strings.TrimSuffix(steps[last].command, "\\") + line
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{at: at, command: line[2:]})
		case strings.HasPrefix(line, "# "):
			steps = append(steps, step{at: at, mark: line[2:]})
		case last < 0 || steps[last].command == "":
			t.Fatalf("%s: output without a command: %s", at, line)
		default:
			steps[last].want = append(steps[last].want, line)
		}
	}
	end()
	return out
}

// translate puts the addresses of a test in the place of those of the page.
func translate(steps []step, here func(string) string) {
	for i := range steps {
		steps[i].command = here(steps[i].command)
		for j := range steps[i].want {
			steps[i].want[j] = here(steps[i].want[j])
		}
	}
}

func (w *walker) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// shellEnv has the binary in the PATH, and none of the settings of who runs the tests.
func (w *walker) shellEnv() []string {
	w.t.Helper()
	bin, err := cluster.Binary()
	w.must(err)
	dir := w.t.TempDir()
	w.must(os.Symlink(bin, filepath.Join(dir, "ledgermq")))
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LEDGERMQ_") || strings.HasPrefix(v, "PATH=") })
	return append(env, "PATH="+dir+":"+os.Getenv("PATH"))
}

func (w *walker) steps(steps []step) {
	w.t.Helper()
	for _, s := range steps {
		switch {
		case s.mark != "":
			w.mark(s)
		case s.command != "":
			w.command(s)
		}
	}
}

func (w *walker) mark(s step) {
	w.t.Helper()
	for _, table := range []map[string]func(*walker, []string){w.walk.marks, marks} {
		for pattern, do := range table {
			if m := regexp.MustCompile("^" + pattern + "$").FindStringSubmatch(s.mark); m != nil {
				w.t.Logf("%s: # %s", s.at, s.mark)
				do(w, m[1:])
				return
			}
		}
	}
	w.t.Fatalf("%s: nobody knows how to do %q", s.at, s.mark)
}

func (w *walker) command(s step) {
	w.t.Helper()
	w.t.Logf("%s: $ %s", s.at, s.command)
	if vars, ok := strings.CutPrefix(s.command, "export "); ok {
		w.env = append(w.env, strings.Fields(vars)...)
		return
	}
	if !looks.MatchString(s.command) {
		if out, err := w.shell(s); err != nil {
			w.t.Fatalf("%s: $ %s: %v\n%s", s.at, s.command, err, out)
		}
		return
	}
	var out string
	var err error
	ctx := within(w.t, 2*time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if out, err = w.shell(s); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s: $ %s: %v\n%s", s.at, s.command, err, out)
		case <-tick.C:
		}
	}
}

// shell runs a command once, and holds it against the page.
func (w *walker) shell(s step) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.command)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w.dir, w.env, &out, &out, time.Second
	err := cmd.Run()
	failure := slices.ContainsFunc(s.want, func(l string) bool { return strings.HasPrefix(l, "ledgermq: ") })
	switch {
	case err != nil && !failure:
		return out.String(), err
	case err == nil && failure:
		return out.String(), errors.New("it succeeded, and the page shows an error")
	}
	return out.String(), fits(s.want, out.String())
}

// fits tells whether the output has the lines, in this order.
func fits(want []string, output string) error {
	lines := strings.Split(output, "\n")
	for _, l := range want {
		i := slices.IndexFunc(lines, func(have string) bool { return like(l, have) })
		if i < 0 {
			return fmt.Errorf("the output has no line like %q, or not in this order", l)
		}
		lines = lines[i+1:]
	}
	return nil
}

// like tells whether a line of output is what the page shows. White space does not count; … is anything, also nothing; a|b is one of them.
// The number of an epoch is how often the voters changed on a machine that keeps up: one that is late with an answer now and then has more.
func like(shown, have string) bool {
	shown = epochs.ReplaceAllString(shown, "$1…$2")
	pattern := regexp.QuoteMeta(squeeze(oneOf.ReplaceAllString(shown, "\x01$0\x02")))
	for from, to := range map[string]string{"…": ".*", "\x01": "(?:", "\x02": ")", `\|`: "|"} {
		pattern = strings.ReplaceAll(pattern, from, to)
	}
	return regexp.MustCompile("^" + pattern + "$").MatchString(squeeze(have))
}

// epochs finds the epoch in the line of a group, and in one of its history.
var epochs = regexp.MustCompile(`^(g\d+\s+\d-\d\s+\d+\s+|)\d+(\s+(?:ready|degraded|no master|…\s+n\d))`)

var oneOf = regexp.MustCompile(`\w+(?:\|\w+)+`)

func TestFits(t *testing.T) {
	t.Parallel()
	out := "GROUP  MODE\ng1     2-2\nNOTE: 1 of 2\ng2 2-3 1 4 ready n1\n4 now n1 n2 replica 3\n4 n1 1 yes\n"
	for _, tt := range []struct {
		want []string
		ok   bool
	}{
		{nil, true}, {[]string{"g1 2-2"}, true}, {[]string{"g1 …"}, true}, {[]string{"…2-2", "NOTE: … of 2"}, true},
		{[]string{"g1 2-2"}, true}, {[]string{"NOTE: 1|2 of 2|3"}, true}, {[]string{"NOTE: 2|3 of 2"}, false}, {[]string{"g1|g2 …"}, true},
		{[]string{"g2 2-3 1 5 ready n1"}, true}, {[]string{"g2 2-3 2 4 ready n1"}, false}, {[]string{"3 … n1 n2 replica 3"}, true},
		{[]string{"3 … n1 n3 replica 3"}, false}, {[]string{"3 n1 1 yes"}, false},
		{[]string{"g1"}, false}, {[]string{"g1 2-3"}, false}, {[]string{"NOTE: …", "g1 …"}, false}, {[]string{"g1 …", "g1 …"}, false},
	} {
		if err := fits(tt.want, out); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.want, err)
		}
	}
}

// threeMachines runs the first section: 10.0.0.1 to 10.0.0.3 are three addresses of loopback, so that all ports are those of the
// page, and the folders of the machines are below one of the test.
func threeMachines(t *testing.T, steps []step) {
	pid := os.Getpid()
	network := fmt.Sprintf("127.%d.%d.", 100+pid>>8&63, pid&255)
	var machines []*walker
	for range 3 {
		root := t.TempDir()
		for _, dir := range []string{"etc/ledgermq", "var/lib"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w := &walker{t: t, dir: root}
		w.env = w.shellEnv()
		machines = append(machines, w)
	}
	at := func(i int, text string) string {
		text = strings.ReplaceAll(text, "10.0.0.", network)
		return regexp.MustCompile(`/(etc|var/lib)/ledgermq`).ReplaceAllString(text, machines[i].dir+"$0")
	}
	// own makes of a line of the first machine's file that of another one. Lists are the same on all.
	own := func(i int, line string) string {
		if strings.Contains(line, "[") {
			return line
		}
		line = strings.ReplaceAll(line, "10.0.0.1:", fmt.Sprintf("10.0.0.%d:", i+1))
		return regexp.MustCompile(`(-id: [nc])1`).ReplaceAllString(line, fmt.Sprintf("${1}%d", i+1))
	}
	first := machines[0]
	for _, s := range steps {
		switch {
		case s.file != "":
			secret, err := os.ReadFile(at(0, "/etc/ledgermq/secret"))
			first.must(err)
			for i := range machines {
				var text strings.Builder
				for line := range strings.Lines(s.text) {
					text.WriteString(at(i, own(i, line)))
				}
				first.must(os.WriteFile(at(i, "/etc/ledgermq/secret"), secret, 0o600))
				first.must(os.WriteFile(at(i, s.file), []byte(text.String()), 0o644))
			}
		case strings.HasPrefix(s.command, "ledgermq server "):
			t.Logf("%s: $ %s", s.at, s.command)
			for i, m := range machines {
				serve(m, at(i, s.command), at(i, fmt.Sprintf("10.0.0.%d:10960", i+1)))
			}
		case s.mark != "":
			t.Fatalf("%s: no marks here", s.at)
		default:
			s.command = at(0, s.command)
			for i, line := range s.want {
				s.want[i] = at(0, line)
			}
			first.command(s)
		}
	}
}

// serve starts a long-lived command and waits until it is healthy. It ends with the test, by SIGINT, which must be a clean end.
func serve(w *walker, command, health string) {
	w.t.Helper()
	out, err := os.Create(filepath.Join(w.dir, "output"))
	w.must(err)
	defer out.Close()
	cmd := exec.Command("bash", "-c", "exec "+command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, w.env, out, out
	wait, err := cluster.Spawn(cmd)
	w.must(err)
	w.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGINT)
		timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		defer timer.Stop()
		if err := wait(); err != nil {
			w.t.Errorf("%s ended with %v", command, err)
		}
		if w.t.Failed() {
			text, _ := os.ReadFile(out.Name())
			w.t.Logf("%s:\n%s", command, tail(string(text), 3000))
		}
	})
	eventually(w.t, 30*time.Second, "an answer of "+health, func() (bool, error) {
		resp, err := http.Get("http://" + health + "/healthz")
		if err != nil {
			return false, nil
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
}
