package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has the only unclean election without an operator, who chose it with the flush mode. A group that flushes asynchronously
// acknowledges what its replicas have written and not synced. When so many of them lose their power at once that no majority is left
// which can prove what it holds, they would wait for an operator for ever. Instead the one with the longest log goes on:
//
//	replicas lost ──each voter tells what its log has──▶ the greatest (last term, last index) ──uncleanCommand──▶ epoch e+1 = {that one}
//
// What is kept is exactly this. Let the master of term t have committed entry x, and let a voter since the last active epoch still have x
// and an entry of term t or a later one. Logs are cut short by a loss of power, never changed, so its last term is t at least,
// and the winner's is no smaller. If they are equal, the winner's log is at least as long, and logs with an entry of one term are equal up to
// it. If the winner's is greater, the master of that term was elected while nothing was lost yet, so it had x before its first entry, and
// the winner has one of its entries. So x is in the log that goes on. In plain words: of what was answered OK only that can be lost which none
// of the voters that had it has synced since. A voter that is silent may be the one that has, so it is waited for; only an operator
// can say that it never comes back.
//
// It is not enough that a voter has x. Let x be of term 1, on a majority, and a master of term 2 have an entry of its own there, on itself only;
// then the master of term 3 commits x with its first entry, and all lose that one again. Now the log of term 2 is the newest.

// wordAge is how old a node's word may be when it is heard: its call was given up after that.
const wordAge = 2 * time.Second

// doomed tells whether no majority of voters is left that can prove what it holds, nor will be. Until a recovery of the controllers is
// through, nobody can say so: which voters there were since the last active epoch is known only as far as somebody testified.
func (g *groupEntry) doomed() bool {
	return g.Async && g.Epoch > 0 && g.Active >= g.Recovered && g.intact() == ""
}

// intact tells why a master may still be elected cleanly: enough voters of a set that elects, or that may be issued without a master, have
// kept their identities. It is "" when there is no such set.
func (g *groupEntry) intact() string {
	sets := []voterSet{g.voters(), g.Since[0]}
	for _, id := range g.Since[0] {
		smaller := g.Since[0].without(id)
		sets = append(sets, smaller)
		for _, r := range g.Replicas {
			if g.Active == g.Epoch && !g.Since[0].has(r.ID) { // see decideFailover; decideInactive takes no learner
				sets = append(sets, smaller.with(r.ID))
			}
		}
	}
	for i, set := range sets {
		n := 0
		for _, id := range set {
			if r := g.replica(id); r != nil && r.Lost == "" {
				n++
			}
		}
		if n >= majority(len(set)) && (i == 0 || g.mayIssue(set) == nil) {
			return fmt.Sprintf("enough of the voters %v have kept their identities to elect a master", set)
		}
	}
	return ""
}

// decideDoomed chooses who goes on in a group that is doomed, or says whom it waits for.
func (g *groupEntry) decideDoomed(v *groupView) decision {
	all := g.everVoted()
	var missing []string
	for _, id := range all {
		r, w := g.replica(id), v.replicas[id]
		what := ""
		switch {
		case r == nil:
			what = "is not in the group any more"
		case !v.live(id):
			what = "is silent"
		case v.doomed < w.silent+wordAge:
			what = "was not heard again yet"
		case r.Lost == "" && !w.able:
			what = "takes no part, and is not lost"
		case !w.told:
			what = "has not told what its log has"
		default:
			continue
		}
		on := ""
		if r != nil {
			on = fmt.Sprintf(" on node %s", r.Node)
		}
		missing = append(missing, fmt.Sprintf("replica %d%s %s", id, on, what))
	}
	if len(missing) > 0 {
		return decision{stuck: fmt.Sprintf("too few of the voters %v can prove what they hold, after a loss of power or the like; when all have told what they have, the longest log goes on "+
			"by itself. Waiting: %s. For one that never comes back: `admin group elect-unclean`", all, strings.Join(missing, "; "))}
	}
	best := g.longest(v, all)
	if best == 0 {
		return decision{stuck: fmt.Sprintf("the voters %v are lost, and none of them has a log", all)}
	}
	return decision{unclean: best, reason: fmt.Sprintf("too few of the voters %v could prove what they hold, all of them told what they have, and its log is the longest", all)}
}

// longest returns the voter with the longest log that is good for going on, 0 when there is none; of equal ones first one that is not
// lost, then as best.
func (g *groupEntry) longest(v *groupView, set voterSet) (best ids.ReplicaID) {
	kept := func(id ids.ReplicaID) int {
		if g.replica(id).Lost == "" {
			return 1
		}
		return 0
	}
	for _, r := range g.Replicas { // by slot
		if a, b := v.replicas[r.ID], v.replicas[best]; slices.Contains(set, r.ID) && a.usable &&
			(best == 0 || cmp.Or(cmp.Compare(a.lastTerm, b.lastTerm), cmp.Compare(a.last, b.last), kept(r.ID)-kept(best),
				g.wanted(v, r.ID)-g.wanted(v, best)) > 0) {
			best = r.ID
		}
	}
	return best
}
