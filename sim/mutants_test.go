package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMutants breaks one rule of a replica at a time and demands that the checker notices within some seeds.
func TestMutants(t *testing.T) {
	for _, m := range Mutants {
		t.Run(string(m), func(t *testing.T) {
			var told []string
			for _, st := range Stories {
				if Tell(st, 1, Options{Mutant: m, Recover: true}).Err != nil {
					told = append(told, st.Name)
				}
			}
			if told != nil {
				t.Logf("stories: %s", strings.Join(told, ", "))
				return
			}
			for seed := uint64(1); seed <= 20; seed++ {
				if res := Run(seed, Options{Mutant: m}); res.Err != nil {
					t.Logf("seed %d: %v", seed, res.Err)
					return
				}
			}
			t.Error("not noticed by a story, nor in 20 seeds")
		})
	}
}

// ruleMutant breaks a rule of membership where it stands: the text old, which must be there once, is replaced and the simulation is
// built again.
type ruleMutant struct{ name, file, old, new string }

var ruleMutants = []ruleMutant{
	{"overlap is not checked", "controller/membership.go",
		"if !overlaps(next, old) {", "if false && !overlaps(next, old) {"},
	{"overlap is checked with the last active epoch only", "controller/membership.go",
		"for _, old := range g.Since {\n\t\tif", "for _, old := range g.Since[:1] {\n\t\tif"},
	{"overlap is not checked for a set of one", "controller/membership.go",
		"if !overlaps(next, old) {", "if len(next) > 1 && !overlaps(next, old) {"},
	{"an epoch counts as active when it is issued", "controller/membership.go",
		"s.issue(g, c.Voters)\n", "s.issue(g, c.Voters)\n\tg.activate()\n"},
	{"any master's report activates the newest epoch", "controller/apply.go",
		"if g.Active < g.Epoch && f.Term.Epoch() == g.Epoch {", "if g.Active < g.Epoch {"},
	{"a replica is master as soon as it is elected", "controller/leader.go",
		"case st.Role == raftlog.RoleMaster:", "case st.Master == st.Replica:"},
	{"two voters change at once", "controller/membership.go",
		"return added <= 1 && removed <= 1", "return added <= 2 && removed <= 2"},
	{"the min ISR is not held", "controller/membership.go",
		"if least := g.least(); len(next) < least {", "if least := g.least(); len(next) == 0 {"},
	{"learners vote and count", "raftlog/replica.go",
		"conf.Learners = append(conf.Learners, uint64(m.ID))", "conf.Voters = append(conf.Voters, uint64(m.ID))"},
	{"a silent voter stays in the set", "controller/decide.go",
		"if d := g.replaceVoter(v, current, id, master); d.voters != nil {", "if d := g.replaceVoter(v, current, id, master); false {"},
	{"a learner never becomes a voter", "controller/reshape.go",
		"if joins == 0 || len(current) >= want {", "if joins == 0 || len(current) >= 1 {"},
	{"a replica leaves before another one follows it", "controller/reshape.go",
		"continue // until the one that takes its place has caught up", "sets = []voterSet{current.without(id)}"},
	{"a new mode never comes into force", "controller/reshape.go", "if !g.modeInForce() {\n\t\treturn", "if false {\n\t\treturn"},
	{"a kept learner becomes a voter", "controller/membership.go", "case r.Learner && !current.has(id)", "case false && r.Learner && !current.has(id)"},
	{"an epoch without a master is never given up", "controller/decide.go",
		"if v.newest < min(activeAfter<<min(v.failures, maxDoublings), maxActive) {", "if v.newest >= 0 {"},
	{"an offer is taken by who has the entry before its front", "raftlog/offer.go",
		"err == nil && term == o.Front.Prev.Term {", "err == nil && term != o.Front.Prev.Term {"},
	{"an unclean election leaves the others their ids", "controller/unclean.go",
		"if o.Lost == \"\" {\n\t\t\to.Lost =", "if o.Lost == \"\" && false {\n\t\t\to.Lost ="},
	{"of two groups on a node one is decided for", "controller/leader.go",
		"\t\tg := st.groups[name]\n\t\tif !slices.ContainsFunc(", "\t\tg := st.groups[name]\n\t\tif len(list) > 0 || name != sortedKeys(st.groups)[0] || !slices.ContainsFunc("},
	{"a read asks no quorum", "raftlog/replica.go",
		"ReadOnlyOption: raft.ReadOnlySafe,", "ReadOnlyOption: raft.ReadOnlyLeaseBased,"},
	{"power that goes under asynchronous flush costs no identity", "commitlog/recover.go",
		"!m.CleanStop && r.reboot {", "false && r.reboot {"},
	{"a sync that fails behind an acknowledgement costs no identity", "raftlog/replica.go",
		"if r.parked.Lost || !r.log.Async() || !r.log.SyncFailed() {", "if r.parked.Lost || !r.log.Async() || true {"},
	{"a start writes nothing again", "commitlog/recover.go",
		"if err := r.rewrite(); err != nil {", "if err := error(nil); err != nil {"},
	{"a start syncs nothing", "commitlog/recover.go",
		"seg.fill.done = max(seg.fill.done, seg.end)\n\treturn l.sync()", "seg.fill.done = max(seg.fill.done, seg.end)\n\treturn nil"},
	{"a log that ends below its durable bound is a whole one", "commitlog/recover.go",
		"if l.tail.Index < m.BoundIndex || l.tail.Offset < m.BoundOffset && l.tail.Index > 0 {", "if false {"},
	{"a bad frame is a torn tail, whatever follows", "commitlog/recover.go",
		"off, found, err := r.later(beyond)\n\t\tif err != nil || !found {", "off, found, err := r.later(beyond)\n\t\tif err != nil || !found || off > 0 {"},
	{"how far a log was synced ends with its process", "commitlog/log.go",
		"return l.writeMeta(false, func(*metaRecord) {})", "return nil"},
	{"a bad end is repaired with what is left", "commitlog/repair.go",
		"case below:\n\t\treturn fail(true,", "case below && false:\n\t\treturn fail(true,"},
	{"a repaired frame is not held against those that follow", "commitlog/repair.go",
		"func (r *Repair) local() (Frame, scanEnd) {\n",
		"func (r *Repair) local() (Frame, scanEnd) {\n\tif b, err := r.w.at(r.pos(), headerSize); r.loose && err == nil && len(b) == headerSize {\n\t\tr.t.Chain = Frame(b).PrevChain()\n\t}\n"},
	{"what a truncation removes is not erased", "commitlog/truncate.go",
		"for at := from; at < to; at += int64(len(zeros)) {", "for at := from; at < 0; at += int64(len(zeros)) {"},
	{"a vote is in one slot of the meta file", "raftlog/job.go",
		"w.log.SaveMeta(w.owner.Encode(), true)", "w.log.SaveMeta(w.owner.Encode(), false)"},
	{"a meta file that is lost costs no identity", "commitlog/errors.go",
		"return errors.Is(err, ErrMetaLost) || errors.As(err, &tail)", "return errors.As(err, &tail)"},
	{"the end of a write that failed counts", "raftlog/ready.go",
		"r.park(reason, err)\n\t}\n\tif r.parked != nil {", "_ = reason\n\t}\n\tif r.parked != nil {"},
	{"an id without a folder is not lost", "controller/apply.go",
		"case f.Missing:", "case f.Missing && false:"},
	{"another incarnation of an id is not lost", "controller/apply.go",
		"case !f.Incarnation.isZero() && f.Incarnation != r.Incarnation:", "case f.Lost && f.Missing:"},
	{"another incarnation of an id takes part", "raftlog/replica.go",
		"case self.Incarnation != r.cfg.Incarnation:", "case false:"},
	{"the start counter is not kept", "controller/apply.go",
		"if !f.Incarnation.isZero() && f.Starts > r.Starts {", "if false && f.Starts > r.Starts {"},
	{"a lost replica is followed under its old id", "controller/renew.go",
		"n := replicaEntry{ID: s.cluster.NextReplica, Slot", "n := replicaEntry{ID: r.ID, Slot"},
	{"a lost replica becomes a voter again", "controller/membership.go",
		"case r.Lost != \"\" && !current.has(id)", "case false && r.Lost != \"\" && !current.has(id)"},
	{"a replica becomes a voter before it is made", "controller/membership.go",
		"case r.Incarnation.isZero():", "case r.Incarnation.isZero() && r.Lost != \"\":"},
	{"before the first master a lost voter is waited for", "controller/decide.go",
		"&& !g.misses(v, current) {", "{"},
	{"a change is made to whatever epoch is the newest", "controller/membership.go",
		"case g.Epoch != c.Epoch:\n\t\treturn refuse(ErrStale, \"group %s: epoch %d is the newest, the change", "case false:\n\t\treturn refuse(ErrStale, \"group %s: epoch %d is the newest, the change"},
	{"a message of a higher epoch is stepped as it comes", "raftlog/replica.go",
		"\t\tlogger:  cfg.Logger,\n", "\t\tlogger:  cfg.Logger,\n\t\thooks: hooks{skipGate: true},\n"},
	{"an epoch begins with the term of the one before", "raftlog/replica.go",
		"\t\tlogger:  cfg.Logger,\n", "\t\tlogger:  cfg.Logger,\n\t\thooks: hooks{keepTerm: true},\n"},
	{"a seal does not wait for what is being written", "raftlog/adopt.go",
		"r.seal.writing || r.outstanding > 0 {", "r.seal.writing {"},
	{"another record of the epoch in force is heard", "raftlog/receive.go",
		"if env.Epoch == r.record.Epoch && r.conflicts(env) {", "if false && r.conflicts(env) {"},
	{"a peer may send what it likes", "raftlog/receive.go",
		"if !peer.Carried(m.GetType()) || m.GetTerm() == 0 {", "if m.GetTerm() == 0 {"},
	{"a peer that does not lead may have others campaign", "raftlog/receive.go",
		"if env.From != r.lead || r.leaving {", "if r.leaving {"},
	{"who is no member of the epoch takes part", "raftlog/replica.go",
		"self, ok := r.record.Member(r.cfg.Replica)", "self, ok := Member{Incarnation: r.cfg.Incarnation}, true"},
	{"a late order to campaign is obeyed", "controller/leader.go",
		"return w.GetCampaign() && uint64(term) == w.GetCampaignTerm()", "return w.GetCampaign() && term > 0"},
	{"a late order to hand over is obeyed", "controller/leader.go",
		"uint64(st.Term) != w.GetHandOverTerm() {", "w.GetHandOverTerm() == 0 {"},
	{"a master that hears nobody leads on", "raftlog/replica.go", "CheckQuorum: true,", "CheckQuorum: false,"},
	{"nobody asks before an election", "raftlog/replica.go", "PreVote: true,", "PreVote: false,"},
	{"an answer waits for a majority only", "raftlog/epoch.go",
		"return min(int(r.A), len(r.Voters)) }", "return len(r.Voters)/2 + 1 }"},
	{"a learner becomes a voter before it has caught up", "controller/reshape.go",
		"if m.caughtUp >= min(caughtUpAfter<<min(again, maxDoublings), maxCaughtUp) &&", "if m.caughtUp >= 0 && again >= 0 &&"},
	{"an unclean election asks nobody who is silent", "controller/unclean.go",
		"} else if all.has(o.ID) && !stopped.has(o.ID) {", "} else if all.has(o.ID) && !stopped.has(o.ID) && o.ID == 0 {"},
	{"the lowest slot goes on when all lose their power", "controller/async.go",
		"cmp.Compare(a.lastTerm, b.lastTerm), cmp.Compare(a.last, b.last), kept", "cmp.Compare(a.lastTerm, a.lastTerm), cmp.Compare(b.last, b.last), kept"},
	{"the log with the most entries goes on when all lose their power", "controller/async.go",
		"cmp.Compare(a.lastTerm, b.lastTerm), cmp.Compare(a.last, b.last), kept", "cmp.Compare(a.last, b.last), cmp.Compare(a.lastTerm, b.lastTerm), kept"},
	{"who may have more is not waited for when all lose their power", "controller/async.go",
		"if len(missing) > 0 {", "if len(missing) == len(all) {"},
	{"a group in which all lose their power waits for ever", "controller/async.go",
		"g.Active >= g.Recovered && g.intact() == \"\"", "g.Active > g.Epoch && g.intact() == \"\""},
	{"who won though it was lost loses nothing any more", "controller/apply.go",
		"case f.Lost && f.Revived >= r.Revived:", "case f.Lost && f.Revived > r.Revived:"},
	{"nobody is told to campaign", "controller/leader.go",
		"return w.GetCampaign() && uint64(term) == w.GetCampaignTerm()", "return w.GetCampaign() && term == 0"},
}

// findings is what kills a mutant.
type findings struct {
	Stories []string
	Seed    uint64 // the first one, when no story does; 0: none
	Rule    string // the first breach of a rule, as the checker's twin sees it
	Harm    string // the first thing that came of it
}

// huntSeeds are run when no story notices a mutant: it tells how a story of it may look.
const huntSeeds = 40

// TestHunt runs in the process of a mutant.
func TestHunt(t *testing.T) {
	if !*hunt {
		t.Skip("it runs in the process of a mutant: `make sim-mutants` builds those")
	}
	var f findings
	note := func(name string, res Result) bool {
		if res.Rule != nil && f.Rule == "" {
			f.Rule = name + ": " + res.Rule.Error()
		}
		if res.Err != nil && !errors.Is(res.Err, res.Rule) && f.Harm == "" {
			f.Harm = name + ": " + res.Err.Error()
		}
		return res.Err != nil
	}
	for _, st := range Stories {
		if note(st.Name, Tell(st, 1, Options{Recover: true})) {
			f.Stories = append(f.Stories, st.Name)
		}
	}
	for seed := uint64(1); seed <= huntSeeds && f.Stories == nil && f.Seed == 0; seed++ {
		if note(fmt.Sprintf("seed %d", seed), Run(seed, Options{Recover: true})) {
			f.Seed = seed
		}
	}
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nfindings %s\n", b)
}

// TestRuleMutants builds each mutant, lets it hunt, and prints the table of what killed it.
func TestRuleMutants(t *testing.T) {
	if *rules == "" {
		t.Skip("takes minutes, it builds and runs the simulation once for each mutant: `make sim-mutants` runs it")
	}
	wanted := regexp.MustCompile(*rules)
	for _, m := range ruleMutants {
		if !wanted.MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			f := m.hunt(t)
			t.Logf("%s\n  stories: %s\n  rule: %.200s\n  harm: %.200s", m.name, strings.Join(f.Stories, ", "), f.Rule, f.Harm)
			if len(f.Stories) == 0 {
				t.Errorf("%q survives all stories; of %d seeds the first one that notices is %d", m.name, huntSeeds, f.Seed)
			}
		})
	}
}

// TestRuleMutantsStand: the text that each mutant replaces is still there.
func TestRuleMutantsStand(t *testing.T) {
	for _, m := range ruleMutants {
		m.mutate(t)
	}
}

// mutate returns the path of the file and its text with the rule broken.
func (m ruleMutant) mutate(t *testing.T) (path, text string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(whole), m.old); n != 1 {
		t.Fatalf("%s has %q %d times, a mutant wants to replace it once: write it anew", path, m.old, n)
	}
	return path, strings.Replace(string(whole), m.old, m.new, 1)
}

// hunt builds the mutant and lets it look for what kills it.
func (m ruleMutant) hunt(t *testing.T) (f findings) {
	t.Helper()
	dir := t.TempDir()
	path, text := m.mutate(t)
	mutated, overlay, bin := filepath.Join(dir, filepath.Base(path)), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{mutated: []byte(text), overlay: replace} {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-ldflags=-s -w", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	out, err := exec.Command(bin, "-test.run", "^TestHunt$", "-hunt").CombinedOutput()
	if err != nil {
		t.Fatalf("the hunt fails: %v\n%s", err, out)
	}
	_, found, _ := strings.Cut(string(out), "\nfindings ")
	if err := json.NewDecoder(strings.NewReader(found)).Decode(&f); err != nil {
		t.Fatalf("the hunt says nothing: %v\n%s", err, out)
	}
	return f
}
