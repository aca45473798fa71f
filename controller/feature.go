package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Level is a feature level of a cluster: what its programs may say to each other and write down. A cluster has one, in the
// controllers' state, and it never falls. A program understands a range of levels, and tells it with each registration, heartbeat and
// status; one that tells none knows level 1 only. So programs of two versions can run beside each other: until the level is raised
// the newer one says and writes nothing that the older one does not understand, and a way back is open.
//
//	1  what the first programs with replicas say and write. They know of no levels
//	2  the level itself in the state and in a node's folder; the commands and fields that came with it
//	3  records 11 and above in the logs of broker groups: timers and what else a group's state machine learned with them
//
// A new cluster begins with the newest level that all of its first controllers understand. From then on only an operator raises it
// (`ledgermq admin cluster upgrade`), when every controller answers, every node with a replica is heard, and all of them understand the
// new one. From then on a program that does not is refused, by name: a controller does not open its file or stops at the command,
// a node does not open its folder, and no controller registers it.
//
// How to add something that older programs do not understand, a command, a field of one, a record:
//
//  1. If NewestLevel was released, add the next level to it and to the table above, and to docs/versions.md.
//  2. Let the command's needs method return the level, for each value of its fields that is new. A field that is absent in its old
//     form is `omitempty`, so that the old form keeps its bytes. Where it is proposed and where it is applied, State.allows refuses
//     it before the cluster has that level. What is no command asks State.need, or on a node Node.Level.
//  3. Nothing else: whoever comes back with an older program is refused before it meets what is new.
type Level uint32

// The levels that this program understands.
const (
	LeastLevel  Level = 1
	NewestLevel Level = 3
)

// LevelService is from where on the logs of broker groups may have records of type 11 and above.
const LevelService Level = 3

// Levels is a range of levels, both ends included.
type Levels struct{ Least, Newest Level }

// OwnLevels are those that this program understands.
func OwnLevels() Levels { return Levels{LeastLevel, NewestLevel} }

// LevelsOf reads levels from the wire: none are level 1 only.
func LevelsOf(p *pb.Levels) Levels {
	l := Levels{Level(p.GetLeast()).orFirst(), Level(p.GetNewest()).orFirst()}
	return Levels{l.Least, max(l.Least, l.Newest)}
}

// Wire returns what travels.
func (l Levels) Wire() *pb.Levels {
	return &pb.Levels{Least: uint32(l.Least), Newest: uint32(l.Newest)}
}

func (l Levels) has(level Level) bool { return l.Least <= level && level <= l.Newest }

// String is "1..3".
func (l Levels) String() string { return fmt.Sprintf("%d..%d", l.Least, l.Newest) }

// Check returns an error when a program that understands these levels does not understand level.
func (l Levels) Check(level Level) error {
	if level = level.orFirst(); !l.has(level) {
		return &LevelError{level, l}
	}
	return nil
}

// orFirst is 1 for the level that was not told. orNone is the other way round, for forms in which level 1 is absent.
func (l Level) orFirst() Level { return max(l, 1) }

func (l Level) orNone() Level {
	if l == 1 {
		return 0
	}
	return l
}

// LevelError says that a program does not understand the cluster's level.
type LevelError struct {
	Level  Level
	Levels Levels
}

func (e *LevelError) Error() string {
	mend := "a newer"
	if e.Level < e.Levels.Least {
		mend = "an older"
	}
	return fmt.Sprintf("this cluster's feature level is %d, this program understands %v: use %s program", e.Level, e.Levels, mend)
}

// needy is a command that a cluster of level 1 does not understand.
type needy interface {
	// needs returns the level that the command needs, and what it is for an operator.
	needs() (Level, string)
}

// level is the cluster's level.
func (s *State) level() Level { return s.cluster.Level.orFirst() }

// need refuses what needs a level that the cluster does not have yet.
func (s *State) need(level Level, what string) error {
	if s.level() >= level {
		return nil
	}
	return refuse(ErrNotNow, "%s needs the cluster's feature level %d, and it is %d: run `ledgermq admin cluster upgrade` when all programs are new enough", what, level, s.level())
}

// allows refuses a command that the cluster's level does not have yet.
func (s *State) allows(c Command) error {
	if n, ok := c.(needy); ok {
		if level, what := n.needs(); level > 1 {
			return s.need(level, what)
		}
	}
	return nil
}

// understood refuses a node whose program does not understand the cluster's level.
func (s *State) understood(node ids.NodeID, l Levels) error {
	if err := l.Check(s.level()); err != nil {
		return refuse(ErrNodeConflict, "node %s: %v", node, err)
	}
	return nil
}

// raiseLevelCommand raises the cluster's level. Members that do not know the command, or that level, stop: the leader has asked all
// of them before.
type raiseLevelCommand struct {
	Level Level `json:"level"`
}

func (*raiseLevelCommand) commandType() byte { return typeRaiseLevel }

// checkLevel returns a *LevelError when c sets a level that this program does not understand.
func checkLevel(c Command) error {
	switch c := c.(type) {
	case *foundCommand:
		return OwnLevels().Check(c.Level)
	case *raiseLevelCommand:
		return OwnLevels().Check(c.Level)
	}
	return nil
}

func (s *State) applyRaiseLevel(c *raiseLevelCommand) error {
	if c.Level > s.level() { // it never falls
		s.cluster.Level = c.Level
		s.touch(keyCluster)
	}
	return nil
}

// levelOf reads the level out of the cluster's entry of any version.
func levelOf(value []byte) Level {
	var e struct {
		Level Level `json:"level"`
	}
	_ = json.Unmarshal(value, &e) // what cannot be read at all is told by who reads the rest
	return e.Level.orFirst()
}

// mayRaise refuses a level that a node does not understand. A node without replicas that is silent is passed over: nothing of the cluster
// is on it, and when it comes back with an old program it is refused.
func (l *Leader) mayRaise(now time.Time, st *State, to Level) error {
	nodes := l.nodesAt(now)
	var faults []string
	for _, id := range sortedKeys(st.nodes) {
		n := nodes.of(id)
		switch {
		case !n.live && st.replicasOn(id) > 0:
			faults = append(faults, fmt.Sprintf("node %s is not heard: start it with the new program, or give its replicas' places to another node", id))
		case n.live && !n.levels.has(to):
			faults = append(faults, fmt.Sprintf("node %s understands %v: start the new program there", id, n.levels))
		}
	}
	return cannotRaise(st.level(), to, faults)
}

// membersMayRaise refuses a level that a controller does not understand, or that cannot be asked.
func membersMayRaise(now, to Level, answers []MemberStatus) error {
	var faults []string
	for _, a := range answers {
		switch levels := LevelsOf(a.Status.GetLevels()); {
		case a.Err != nil:
			faults = append(faults, fmt.Sprintf("the controller at %s does not answer: start it with the new program", a.Address))
		case a.Status.GetFailure() != "":
			faults = append(faults, fmt.Sprintf("controller %s takes no part: %s", a.Status.GetId(), a.Status.GetFailure()))
		case !levels.has(to):
			faults = append(faults, fmt.Sprintf("controller %s understands %v: start the new program there", a.Status.GetId(), levels))
		}
	}
	slices.Sort(faults)
	return cannotRaise(now, to, faults)
}

func cannotRaise(now, to Level, faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return refuse(ErrNotNow, "the cluster's feature level stays %d, %d is not understood by all: %s", now, to, strings.Join(faults, "; "))
}
