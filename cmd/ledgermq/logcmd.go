package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

func (t *tool) logCommand() *cli.Command {
	return &cli.Command{
		Name: "log", Usage: "look into commit logs on disk",
		Subcommands: []*cli.Command{
			{
				Name: "dump", Usage: "print the frames and records of one replica", ArgsUsage: "FOLDER",
				Flags: withEnv(
					&cli.StringFlag{Name: "group", Usage: "which `GROUP`, when the folder has replicas of several"},
					&cli.Int64Flag{Name: "from", Usage: "first `INDEX`", DefaultText: "the first one there is"},
					&cli.Int64Flag{Name: "count", Usage: "number of frames; 0: all"},
					&cli.BoolFlag{Name: "records", Usage: "print the records of each frame too"},
					jsonFlag(),
				),
				Action: t.action(func(c *cli.Context) error {
					if err := wantArgs(c, 1, 1, "one folder"); err != nil {
						return err
					}
					return t.logDump(c)
				}),
			},
			{
				Name: "verify", Usage: "check every frame, and that replicas of a group are equal byte for byte", ArgsUsage: "FOLDER…",
				Flags: withEnv(jsonFlag()),
				Action: t.action(func(c *cli.Context) error {
					if err := wantArgs(c, 1, -1, "at least one folder"); err != nil {
						return err
					}
					return t.logVerify(c)
				}),
			},
		},
	}
}

// The record types that dump can name; the others are printed as numbers.
var recordTypes = map[uint8]string{
	state.RecordMessage: "message", state.RecordTopicPut: "topic", state.RecordTopicDelete: "topic-delete",
	state.RecordGroupPut: "group", state.RecordGroupDelete: "group-delete", state.RecordOffsets: "offsets",
	state.RecordLock: "lock", state.RecordUnlock: "unlock", state.RecordCutFront: "cut-front",
	state.RecordLeaseExtension: "lease-extension",
	state.RecordHalf:           "half", state.RecordHalfAgain: "half-again",
	state.RecordTransactionEnd: "transaction-end", state.RecordTransactionChecks: "transaction-checks",
	state.RecordTimer: "timer", state.RecordTimerFire: "timer-fire", state.RecordTimerRecall: "timer-recall", state.RecordTimerRoll: "timer-roll",
}

type dumpedFrame struct {
	Index    ids.Index          `json:"index"`
	Term     string             `json:"term"`
	Offset   ids.PhysicalOffset `json:"offset"`
	Size     int                `json:"size"`
	Time     int64              `json:"time"`
	Chain    string             `json:"chain"`
	Records  int                `json:"records"`
	Messages int                `json:"messages"` // of the records
	Detail   []dumpedRecord     `json:"detail,omitempty"`
}

type dumpedRecord struct {
	Type   string             `json:"type"`
	Offset ids.PhysicalOffset `json:"offset"`
	Size   int                `json:"size"`
	Text   string             `json:"text,omitempty"`
	Body   []byte             `json:"body,omitempty"` // of a message, as it was sent
}

func (t *tool) logDump(c *cli.Context) error {
	if n := c.Int64("from"); c.IsSet("from") && n < 1 {
		return usagef("--from %d: indexes begin at 1; leave it out for the first one there is", n)
	}
	if n := c.Int64("count"); n < 0 {
		return usagef("--count %d is negative; leave it out for all there is", n)
	}
	found, err := findReplicas(c.Args().Slice())
	if err != nil {
		return err
	}
	var groups []string
	var chosen []replicaFolder
	for _, r := range found {
		groups = append(groups, r.Node+"/"+r.Group)
		if c.String("group") == "" || c.String("group") == r.Group {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) != 1 {
		return usagef("%s below %s: %s; name one node's folder, and with --group one group",
			countOf(len(chosen), "such replica"), c.Args().First(), strings.Join(groups, ", "))
	}
	d := dump{next: ids.Index(c.Int64("from")), left: c.Int64("count")}
	for try := 1; ; try++ {
		err := t.dumpFrames(c, chosen[0], &d)
		if try < overtakenTries && errors.Is(err, commitlog.ErrOvertaken) {
			continue
		}
		if err == nil {
			fmt.Fprintf(t.err, "%s, %s, %s\n", countOf(d.frames, "frame"), countOf(d.records, "record"), countOf(d.messages, "message"))
		}
		return err
	}
}

// dump is how far a dump has come.
type dump struct {
	next                      ids.Index
	left                      int64 // frames to print; 0: all
	frames, records, messages int   // printed
}

// begin looks whether the log has what was asked for.
func (d *dump) begin(l *commitlog.Log) (notice string, err error) {
	first, last := l.FirstIndex(), l.Tail().Index
	switch {
	case d.frames > 0:
	case last < first:
		return "the log has no frame yet", nil
	case d.next > last:
		return "", usagef("--from %d is beyond the log, which has %d to %d", d.next, first, last)
	case d.next > 0 && d.next < first:
		return fmt.Sprintf("the log begins at index %d: what was before it was given up", first), nil
	}
	return "", nil
}

// overtakenTries bounds how often the log of a running node, which cuts it while it is read, is opened again.
const overtakenTries = 5

// dumpFrames prints what is left of the dump.
func (t *tool) dumpFrames(c *cli.Context, r replicaFolder, at *dump) error {
	l, _, err := r.open()
	if err != nil {
		return err
	}
	defer l.Close(false)
	notice, err := at.begin(l)
	if err != nil {
		return err
	}
	if notice != "" {
		fmt.Fprintln(t.err, notice)
	}
	enc := json.NewEncoder(t.out)
	for f, err := range l.Frames(max(at.next, l.FirstIndex())) {
		if err != nil {
			return err
		}
		if c.Context.Err() != nil {
			return c.Context.Err()
		}
		d := dumpedFrame{
			Index: f.Index(), Term: f.Term().String(), Offset: f.Offset(), Size: f.Size(), Time: f.Time(),
			Chain: fmt.Sprintf("%08x", f.Chain()), Records: f.RecordCount(),
		}
		for r := range f.Records() {
			if r.Type == state.RecordMessage {
				d.Messages++
			}
			if c.Bool("records") {
				d.Detail = append(d.Detail, dumpRecord(r))
			}
		}
		if c.Bool("json") {
			err = enc.Encode(d)
		} else {
			err = t.printFrame(d)
		}
		if err != nil {
			return err
		}
		at.next = f.Index() + 1
		at.frames, at.records, at.messages = at.frames+1, at.records+d.Records, at.messages+d.Messages
		if at.left--; at.left == 0 {
			break
		}
	}
	return nil
}

func dumpRecord(r commitlog.Record) dumpedRecord {
	d := dumpedRecord{Type: recordTypes[r.Type], Offset: r.Offset, Size: len(r.Body)}
	if d.Type == "" {
		d.Type = fmt.Sprint(r.Type)
	}
	if record, ok := state.MessageIn(r); ok {
		if m, _, err := message.Decode(record); err == nil {
			key, _ := message.Property(m.Properties, message.KeyUniqueKey)
			d.Text = fmt.Sprintf("%s/%d@%d %s %d bytes", m.Topic, m.QueueID, m.QueueOffset, key, len(m.Body))
			d.Body = m.Body
		} else {
			d.Text = oneLine(err)
		}
	}
	if r.Type == state.RecordTimer {
		d.Text, d.Body = timerText(r.Body)
	}
	return d
}

func timerText(body []byte) (text string, content []byte) {
	p, err := state.CheckTimer(body)
	if err != nil {
		return oneLine(err), nil
	}
	m, _, err := message.Decode(body[state.TimerPrefixSize:])
	if err != nil {
		return oneLine(err), nil
	}
	topic, _ := message.Property(m.Properties, message.KeyRealTopic)
	key, _ := message.Property(m.Properties, message.KeyUniqueKey)
	return fmt.Sprintf("%s due %d %s %d bytes", topic, p.Due, key, len(m.Body)), m.Body
}

func (t *tool) printFrame(d dumpedFrame) error {
	_, err := fmt.Fprintf(t.out, "%d term %s offset %d size %d records %d messages %d chain %s\n", d.Index, d.Term, d.Offset, d.Size, d.Records, d.Messages, d.Chain)
	for _, r := range d.Detail {
		if err == nil {
			_, err = fmt.Fprintf(t.out, "    %s offset %d size %d %s\n", r.Type, r.Offset, r.Size, r.Text)
		}
	}
	return err
}

// verifiedGroup is the result for one group.
type verifiedGroup struct {
	Group    string            `json:"group"`
	Replicas []verifiedReplica `json:"replicas"`
	From     ids.Index         `json:"from"`   // highest common start
	To       ids.Index         `json:"to"`     // lowest commit, inclusive
	Frames   int               `json:"frames"` // compared
	Bytes    int64             `json:"bytes"`  // compared
	Equal    bool              `json:"equal"`
	Fault    string            `json:"fault,omitempty"`
}

type verifiedReplica struct {
	Node   string    `json:"node"`
	Folder string    `json:"folder"`
	First  ids.Index `json:"first"`
	Last   ids.Index `json:"last"`
	Commit ids.Index `json:"commit"`
	Fault  string    `json:"fault,omitempty"`
}

func (t *tool) logVerify(c *cli.Context) error {
	found, err := findReplicas(c.Args().Slice())
	if err != nil {
		return err
	}
	var results []verifiedGroup
	faults := 0
	for len(found) > 0 {
		n := 1
		for n < len(found) && found[n].Group == found[0].Group {
			n++
		}
		g := verifyGroup(c.Context, found[:n])
		found = found[n:]
		results = append(results, g)
		if g.Fault != "" {
			faults++
		}
	}
	if c.Bool("json") {
		err = json.NewEncoder(t.out).Encode(results)
	} else {
		err = t.printVerified(results)
	}
	if err == nil && faults > 0 {
		err = fmt.Errorf("%s of %s not clean", countOf(faults, "group"), countOf(len(results), "group"))
	}
	return err
}

func (t *tool) printVerified(results []verifiedGroup) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GROUP\tNODE\tFIRST\tLAST\tCOMMIT\tCOMPARED\tRESULT")
	for _, g := range results {
		for _, r := range g.Replicas {
			result := "clean"
			if r.Fault != "" {
				result = r.Fault
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t\t%s\n", g.Group, r.Node, r.First, r.Last, r.Commit, result)
		}
		result := "equal"
		if g.Fault != "" {
			result = g.Fault
		}
		fmt.Fprintf(w, "%s\tall\t%d\t%d\t\t%d frames, %d bytes\t%s\n", g.Group, g.From, g.To, g.Frames, g.Bytes, result)
	}
	return w.Flush()
}

// verifyGroup checks every frame of each replica and compares them from the highest common start to the lowest commit. The
// commit that a replica's folder names lags behind by at most what was written since it was last idle or checkpointed. A
// replica that cannot be opened is a fault; the others are looked at all the same.
func verifyGroup(ctx context.Context, replicas []replicaFolder) verifiedGroup {
	for try := 1; ; try++ {
		g, overtaken := verifyOnce(ctx, replicas)
		if !overtaken || try == overtakenTries {
			return g
		}
	}
}

// openReplica is a replica of the group whose log could be opened.
type openReplica struct {
	log *commitlog.Log
	r   *verifiedReplica
}

// verifyOnce is one try of verifyGroup; overtaken tells that the result is worth little, since a node cut its log meanwhile.
func verifyOnce(ctx context.Context, replicas []replicaFolder) (g verifiedGroup, overtaken bool) {
	g = verifiedGroup{Group: replicas[0].Group, Equal: true, Replicas: make([]verifiedReplica, len(replicas))}
	fail := func(err error) {
		overtaken = overtaken || errors.Is(err, commitlog.ErrOvertaken)
		g.Equal = false
		if g.Fault == "" {
			g.Fault = oneLine(err)
		}
	}
	failReplica := func(r *verifiedReplica, err error) {
		r.Fault = oneLine(err)
		fail(fmt.Errorf("%s: %w", r.Node, err))
	}
	var open []openReplica
	for i, folder := range replicas {
		r := &g.Replicas[i]
		r.Node, r.Folder = folder.Node, folder.Dir
		l, owner, err := folder.open()
		if err != nil {
			failReplica(r, err)
			continue
		}
		defer l.Close(false)
		r.First, r.Last, r.Commit = l.FirstIndex(), l.Tail().Index, min(owner.Commit, l.Tail().Index)
		if len(open) == 0 {
			g.To = r.Commit
		}
		g.From, g.To = max(g.From, r.First), min(g.To, r.Commit)
		open = append(open, openReplica{l, r})
	}
	if len(open) == 0 {
		return g, overtaken
	}
	from, to := g.From, g.To
	if err := compare(ctx, open, &g); err != nil {
		fail(err)
		from, to = 1, 0 // nobody's frames were all seen
	}
	for _, o := range open {
		if err := checkRest(ctx, o, from, to); err != nil {
			failReplica(o.r, err)
		}
	}
	return g, overtaken
}

// compare walks all logs in step.
func compare(ctx context.Context, open []openReplica, g *verifiedGroup) error {
	if g.From > g.To {
		return nil
	}
	type step struct {
		next func() (commitlog.Frame, error, bool)
		stop func()
	}
	steps := make([]step, len(open))
	for i, o := range open {
		steps[i].next, steps[i].stop = iter.Pull2(o.log.Frames(g.From))
		defer steps[i].stop()
	}
	for index := g.From; index <= g.To; index++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var first commitlog.Frame
		for i, s := range steps {
			node := open[i].r.Node
			f, err, ok := s.next()
			switch {
			case !ok:
				return fmt.Errorf("%s: the log ends before index %d", node, index)
			case err != nil:
				return fmt.Errorf("%s: %w", node, err)
			case i == 0:
				first = f
			case !bytes.Equal(first, f):
				return fmt.Errorf("index %d differs: %s has %s, %s has %s", index, open[0].r.Node, describe(first), node, describe(f))
			}
		}
		g.Frames++
		g.Bytes += int64(first.Size())
	}
	return nil
}

func describe(f commitlog.Frame) string {
	return fmt.Sprintf("term %s offset %d size %d chain %08x", f.Term(), f.Offset(), f.Size(), f.Chain())
}

// checkRest reads the frames of one log that compare did not look at: those before index from and those after index to.
func checkRest(ctx context.Context, o openReplica, from, to ids.Index) error {
	for _, span := range [][2]ids.Index{{o.r.First, min(from-1, o.r.Last)}, {max(to+1, o.r.First), o.r.Last}} {
		if span[0] > span[1] {
			continue
		}
		for f, err := range o.log.Frames(span[0]) {
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if f.Index() >= span[1] {
				break
			}
		}
	}
	return nil
}
