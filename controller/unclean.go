package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has the unclean election: an operator makes a replica the only voter of its group although it may lack what was
// answered OK. It begins a new history, as the first epoch did:
//
//	voters lost for ever ──plan: what may be lost──▶ operator confirms ──uncleanCommand──▶ epoch e+1 = {winner}
//	   every other replica ──given up──▶ leaves the group ──renew──▶ new id, empty, learns; its old folder goes to lost/
//
// The others give up their ids, those that only learned too: whoever has committed more than the winner would acknowledge to it,
// with a log that says something else. Their ids are in no record any more, so that they neither vote nor acknowledge nor lead
// when they come back.

// uncleanCommand makes Winner the only voter of the group.
type uncleanCommand struct {
	Group  hexID         `json:"group"`
	Epoch  ids.Epoch     `json:"epoch"` // the newest one that the operator saw: compare-and-set
	Winner ids.ReplicaID `json:"winner"`
	Last   ids.Index     `json:"last"`  // last entry of the winner's log
	Terms  []termStart   `json:"terms"` // of the winner's log, the newest ones, in their order
	Reason string        `json:"reason,omitempty"`
	Millis int64         `json:"millis"`
	Revive bool          `json:"revive,omitempty"` // the winner's identity is lost, and it goes on with what its log has: only of an asynchronous group
	Auto   bool          `json:"auto,omitempty"`   // by the controllers: see async.go
}

func (*uncleanCommand) commandType() byte { return typeUnclean }

// termStart is where a term begins in a log.
type termStart struct {
	Term  ids.Term  `json:"term"`
	Start ids.Index `json:"start"`
}

// maxTerms is how many of the newest terms of its log a replica tells.
const maxTerms = 64

// maxUncleans is how many unclean elections a group remembers.
const maxUncleans = 4

// uncleanElection is what a group remembers of one, so that each replica that was given up can tell what of its log was removed.
type uncleanElection struct {
	Epoch  ids.Epoch     `json:"epoch"`
	Winner ids.ReplicaID `json:"winner"`
	Node   ids.NodeID    `json:"node"`
	Last   ids.Index     `json:"last"`
	Terms  []termStart   `json:"terms"`
	Gone   voterSet      `json:"gone"` // the replicas that were given up
	Millis int64         `json:"millis"`
}

func (s *State) applyUnclean(c *uncleanCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	fault := func(format string, args ...any) error {
		return refuse(ErrInvalid, "group %s, replica %d: %s", g.Name, c.Winner, fmt.Sprintf(format, args...))
	}
	r := g.replica(c.Winner)
	switch {
	case r == nil:
		return refuse(ErrNotFound, "group %s has no replica %d: look at `group show`", g.Name, c.Winner)
	case g.Epoch == 0:
		return fault("the group is not ready yet")
	case g.Epoch != c.Epoch:
		return refuse(ErrStale, "group %s: epoch %d is the newest, the election was meant for %d: look again", g.Name, g.Epoch, c.Epoch)
	case (c.Revive || c.Auto) && !g.Async:
		return fault("its group flushes synchronously")
	case c.Auto && g.Active < g.Recovered:
		return fault("the controllers were recovered, and which voters there were is not known: only an operator can say who goes on")
	case c.Auto && g.intact() != "":
		return fault("%s", g.intact())
	case r.Lost != "" && !c.Revive:
		return fault("it is lost: %s", r.Lost)
	case !g.everVoted().has(r.ID) && (c.Revive || c.Auto || !g.inRecord(r.ID)):
		return fault("it is not in the record of epoch %d", g.Epoch)
	case len(c.Reason) > maxReportText:
		return fault("a reason of %d bytes: at most %d", len(c.Reason), maxReportText)
	case len(c.Terms) > maxTerms || !slices.IsSortedFunc(c.Terms, func(a, b termStart) int { return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Start, b.Start)) }):
		return fault("the terms of its log are out of order, or more than %d", maxTerms)
	}
	e := uncleanElection{Epoch: g.Epoch + 1, Winner: r.ID, Node: r.Node, Last: c.Last, Terms: c.Terms, Millis: c.Millis}
	for i := range g.Replicas {
		o := &g.Replicas[i]
		if o.ID == r.ID || o.Incarnation.isZero() {
			continue
		}
		e.Gone = append(e.Gone, o.ID)
		if o.Lost == "" {
			o.Lost = fmt.Sprintf("given up in the unclean election of epoch %d, which replica %d on node %s won", e.Epoch, r.ID, r.Node)
		}
	}
	slices.Sort(e.Gone)
	if r.Lost != "" { // nobody is left who could miss what it has acknowledged; a backup of it is as good
		r.Lost, r.Revived, r.Starts = "", e.Epoch, 0
	}
	// As the first epoch it counts as active at once: what came before binds it no more, and what follows must meet it.
	alone := voterSet{r.ID}
	g.Since = []voterSet{alone}
	s.issue(g, alone)
	g.Active = g.Epoch
	g.UncleanCount++
	g.Uncleans = append(g.Uncleans, e)
	g.Uncleans = slices.Clone(g.Uncleans[max(0, len(g.Uncleans)-maxUncleans):])
	by := "by an operator"
	if c.Auto {
		by = "because of asynchronous flush"
	}
	why := fmt.Sprintf("UNCLEAN election of replica %d on node %s %s", r.ID, r.Node, by)
	if c.Reason != "" {
		why += ": " + c.Reason
	}
	g.remember(change{Epoch: g.Epoch, Voters: alone, Reason: why, Millis: c.Millis, Unclean: true})
	s.touchGroup(g)
	return nil
}

// uncleanPlan is what an operator is told before an unclean election.
type uncleanPlan struct {
	winner *replicaEntry
	losses []string // what may be lost; empty: nothing that was answered OK
	gone   []string // what becomes of the others
}

// planUnclean looks whether an unclean election of a replica is what is left to do, and what it costs. stopped are the replicas that
// the operator says will not act any more.
func (g *groupEntry) planUnclean(v *groupView, winner ids.ReplicaID, stopped voterSet) (uncleanPlan, error) {
	r := g.replica(winner)
	if r == nil {
		return uncleanPlan{}, refuse(ErrNotFound, "group %s has no replica %d: look at `group show`", g.Name, winner)
	}
	refused := func(kind error, format string, args ...any) (uncleanPlan, error) {
		return uncleanPlan{}, refuse(kind, "group %s, replica %d on node %s: %s", g.Name, r.ID, r.Node, fmt.Sprintf(format, args...))
	}
	if err := g.heardOf(v); err != nil {
		return uncleanPlan{}, err
	}
	w := v.replicas[r.ID]
	switch {
	case g.Epoch == 0:
		return refused(ErrInvalid, "the group is not ready yet")
	case r.Lost != "" && !g.asksLost(r):
		return refused(ErrInvalid, "it is lost: %s", r.Lost)
	case r.Lost == "" && !g.inRecord(r.ID):
		return refused(ErrInvalid, "it is not in the record of epoch %d: it may have nothing", g.Epoch)
	case !v.live(r.ID):
		return refused(ErrNotNow, "it was not heard for %v: start its node first", w.silent.Round(time.Millisecond))
	case r.Lost != "" && !w.usable:
		return refused(ErrNotNow, "it is lost and has not told what its log has: `group show` says why")
	case r.Lost != "":
	case !w.able:
		return refused(ErrNotNow, "it is parked, poisoned or lost: `group show` says why")
	case w.epoch != g.Epoch:
		return refused(ErrNotNow, "it has not adopted epoch %d yet: ask again in a moment", g.Epoch)
	}
	if why := g.electsCleanly(v); why != "" {
		return refused(ErrNotNow, "%s: nothing need be lost", why)
	}
	all := g.everVoted()
	for _, id := range stopped {
		o := g.replica(id)
		switch {
		case o == nil:
			return refused(ErrInvalid, "--stopped %d: the group has no such replica", id)
		case id == r.ID:
			return refused(ErrInvalid, "--stopped %d: it is the one that is to be elected", id)
		case v.mayVote(id):
			return refused(ErrInvalid, "--stopped %d: it is not stopped: node %s was heard %v ago", id, o.Node, v.replicas[id].silent.Round(time.Millisecond))
		}
	}
	for _, o := range g.Replicas {
		if o.ID == r.ID || o.Lost != "" && !g.asksLost(&o) {
			continue
		}
		if v.live(o.ID) {
			x := v.replicas[o.ID]
			if o.Lost != "" && !x.told && !stopped.has(o.ID) {
				return refused(ErrInvalid, "replica %d on node %s voted, is lost and has not told what its log has: wait for it, or say --stopped %d to give up what it has",
					o.ID, o.Node, o.ID)
			}
			if o.Lost == "" && !x.able && all.has(o.ID) && !stopped.has(o.ID) {
				return refused(ErrInvalid, "replica %d on node %s voted, lives and takes no part: `group show` says why; wait for it when it is being repaired, "+
					"or say --stopped %d to give up what it has", o.ID, o.Node, o.ID)
			}
			if (x.able || o.Lost != "" && x.usable) && cmp.Or(cmp.Compare(x.lastTerm, w.lastTerm), cmp.Compare(x.last, w.last)) > 0 {
				return refused(ErrInvalid, "replica %d on node %s lives and has more, up to entry %d of term %v against %d of term %v: elect that one%s",
					o.ID, o.Node, x.last, x.lastTerm, w.last, w.lastTerm, g.keepsAll(o.ID))
			}
		} else if all.has(o.ID) && !stopped.has(o.ID) {
			return refused(ErrInvalid, "replica %d on node %s voted and does not answer: bring it back, or make sure that it is stopped for ever and say --stopped %d", o.ID, o.Node, o.ID)
		}
	}
	if len(w.terms) == 0 {
		return refused(ErrNotNow, "it has not told its terms yet: ask again in a second")
	}
	p := uncleanPlan{winner: r, losses: g.mayLose(v, r.ID)}
	for _, o := range g.Replicas {
		if o.ID != r.ID && !o.Incarnation.isZero() {
			p.gone = append(p.gone, fmt.Sprintf("replica %d on node %s gives up its id; its place gets a new one, which begins empty and learns; its folder is kept in lost/ on its node", o.ID, o.Node))
		}
	}
	return p, nil
}

// asksLost tells whether a lost replica is asked what it has: it voted in an asynchronous group. What it has is a part of what it had.
func (g *groupEntry) asksLost(r *replicaEntry) bool { return g.Async && g.everVoted().has(r.ID) }

// everVoted returns all voters of the epochs since the last active one.
func (g *groupEntry) everVoted() (all voterSet) {
	for _, set := range g.Since {
		for _, id := range set {
			if !all.has(id) {
				all = all.with(id)
			}
		}
	}
	return all
}

// electsCleanly tells why the group has a master or gets one without an operator, "" when it does not.
func (g *groupEntry) electsCleanly(v *groupView) string {
	if m := g.liveMaster(v); m != 0 {
		return fmt.Sprintf("replica %d on node %s is master", m, g.replica(m).Node)
	}
	if len(g.everVoted()) == 0 {
		return ""
	}
	sets := append([]voterSet{g.voters()}, g.Since[0])
	for _, id := range g.Since[0] {
		smaller := g.Since[0].without(id)
		sets = append(sets, smaller)
		for _, r := range g.Replicas {
			if r.Lost == "" && !g.Since[0].has(r.ID) {
				sets = append(sets, smaller.with(r.ID))
			}
		}
	}
	for i, set := range sets {
		if v.votes(set) && (i == 0 || g.mayIssue(set) == nil) {
			return fmt.Sprintf("enough of the voters %v live to elect a master", set)
		}
	}
	return ""
}

// votes tells whether enough of the voters live to elect a master.
func (v *groupView) votes(set voterSet) bool {
	n := 0
	for _, id := range set {
		if v.mayVote(id) {
			n++
		}
	}
	return n >= majority(len(set))
}

// keepsAll says of a replica that it has all that was answered OK, "" when that is not known.
func (g *groupEntry) keepsAll(id ids.ReplicaID) string {
	if g.Active < g.Recovered {
		return "" // what the lost controllers have issued is not known
	}
	for _, old := range g.Since {
		if !overlaps(voterSet{id}, old) {
			return ""
		}
	}
	return ", which loses nothing that was answered OK"
}

// mayLose tells what may be lost when a replica goes on alone, one line each; nothing when it is in every majority of every set that
// may have committed something.
func (g *groupEntry) mayLose(v *groupView, winner ids.ReplicaID) (losses []string) {
	if g.keepsAll(winner) != "" {
		return nil
	}
	w := v.replicas[winner]
	losses = append(losses, fmt.Sprintf("everything after entry %d of term %v, the last one that replica %d has, also what was answered OK", w.last, w.lastTerm, winner))
	for _, id := range g.everVoted() {
		if id == winner {
			continue
		}
		o := v.replicas[id]
		var what string
		switch {
		case o.last == 0:
			what = "what it had is not known: this controller has not heard it"
		case cmp.Or(cmp.Compare(o.lastTerm, w.lastTerm), cmp.Compare(o.last, w.last)) <= 0:
			what = fmt.Sprintf("had nothing more when it was last heard, %v ago", o.silent.Round(time.Second))
		default:
			what = fmt.Sprintf("had the log up to entry %d of term %v when it was last heard, %v ago", o.last, o.lastTerm, o.silent.Round(time.Second))
			if o.last > w.last {
				what += fmt.Sprintf(": %d entries more", o.last-w.last)
			}
		}
		losses = append(losses, fmt.Sprintf("replica %d on node %s %s", id, g.replica(id).Node, what))
	}
	return losses
}

// Unclean looks what an unclean election of a replica costs, and returns the command that does it. Errors: ErrNotFound, ErrInvalid,
// ErrNotNow.
func (l *Leader) Unclean(now time.Time, st *State, req *pb.ElectUncleanRequest) (*pb.ElectUncleanResponse, Command, error) {
	g := st.groups[req.GetGroup()]
	if g == nil {
		return nil, nil, refuse(ErrNotFound, "group %q does not exist: look at the list of groups", cut(req.GetGroup()))
	}
	v, _ := l.view(now, g)
	if v == nil {
		return nil, nil, refuse(ErrNotNow, "group %s: this controller leads no more: ask again", g.Name)
	}
	var stopped voterSet
	for _, id := range req.GetStopped() {
		if !stopped.has(ids.ReplicaID(id)) {
			stopped = stopped.with(ids.ReplicaID(id))
		}
	}
	p, err := g.planUnclean(v, ids.ReplicaID(req.GetReplicaId()), stopped)
	if err != nil {
		return nil, nil, err
	}
	w := v.replicas[p.winner.ID]
	resp := &pb.ElectUncleanResponse{Epoch: uint32(g.Epoch), NodeId: string(p.winner.Node), Losses: p.losses, Gone: p.gone}
	return resp, &uncleanCommand{Group: g.ID, Epoch: ids.Epoch(req.GetEpoch()), Winner: p.winner.ID, Last: w.last, Terms: w.terms,
		Revive: p.winner.Lost != "", Reason: cut(req.GetReason()), Millis: now.UnixMilli()}, nil
}

// heardOf refuses what depends on who is silent while this controller leads for too short a time to know.
func (g *groupEntry) heardOf(v *groupView) error {
	for _, r := range g.Replicas {
		if v.replicas[r.ID].early {
			return refuse(ErrNotNow, "group %s: this controller leads since a moment only and has not heard node %s yet: ask again in some seconds", g.Name, r.Node)
		}
	}
	return nil
}

// ReportTerms tells the newest terms of a replica's log while it hears no master: what an unclean election needs to know.
func ReportTerms(rep *pb.ReplicaReport, terms []ids.Term, starts []ids.Index) {
	if rep.GetRole() == pb.Role_ROLE_MASTER || rep.GetMasterSilentMillis() < urgentAfter.Milliseconds() {
		return
	}
	TellTerms(rep, terms, starts)
}

// TellTerms tells them in any case.
func TellTerms(rep *pb.ReplicaReport, terms []ids.Term, starts []ids.Index) {
	for i := max(0, len(terms)-maxTerms); i < len(terms); i++ {
		rep.Terms = append(rep.Terms, &pb.TermStart{Term: uint64(terms[i]), Start: uint64(starts[i])})
	}
}

func termsOf(list []*pb.TermStart) (out []termStart) {
	for _, t := range list[max(0, len(list)-maxTerms):] {
		out = append(out, termStart{ids.Term(t.GetTerm()), ids.Index(t.GetStart())})
	}
	return out
}

func (e *uncleanElection) proto() *pb.UncleanElection {
	p := &pb.UncleanElection{Epoch: uint32(e.Epoch), ReplicaId: uint64(e.Winner), NodeId: string(e.Node), Last: uint64(e.Last), Millis: e.Millis}
	for _, t := range e.Terms {
		p.Terms = append(p.Terms, &pb.TermStart{Term: uint64(t.Term), Start: uint64(t.Start)})
	}
	for _, id := range e.Gone {
		p.Gone = append(p.Gone, uint64(id))
	}
	return p
}

func (g *groupEntry) uncleans() (out []*pb.UncleanElection) {
	for i := range g.Uncleans {
		out = append(out, g.Uncleans[i].proto())
	}
	return out
}

// checkUncleans tests what the group remembers of unclean elections.
func (g *groupEntry) checkUncleans() error {
	if len(g.Uncleans) > maxUncleans || uint64(len(g.Uncleans)) > g.UncleanCount {
		return fmt.Errorf("%d unclean elections of %d", len(g.Uncleans), g.UncleanCount)
	}
	for _, e := range g.Uncleans {
		if e.Epoch < 2 || e.Epoch > g.Epoch || len(e.Terms) > maxTerms || !slices.IsSorted(e.Gone) || e.Gone.has(e.Winner) || strings.TrimSpace(string(e.Node)) == "" {
			return fmt.Errorf("its unclean election of epoch %d cannot be", e.Epoch)
		}
	}
	return nil
}

func (*uncleanCommand) needs() (Level, string) { return 2, "an unclean election" }
