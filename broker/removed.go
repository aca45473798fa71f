package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/message"
)

// RemovedFile is the report, in the folder of a replica that an unclean election gave up, of what its log had and the group's has not.
const RemovedFile = "removed.txt"

// lastCommon returns the last entry that two logs have in common: that of the greatest term which both have. Where a term begins is
// the same in each log that has it.
func lastCommon(mine, theirs []*controllerpb.TermStart, myLast, theirLast uint64) uint64 {
	end := func(list []*controllerpb.TermStart, i int, last uint64) uint64 {
		if i+1 < len(list) {
			return list[i+1].GetStart() - 1
		}
		return last
	}
	for i := len(mine) - 1; i >= 0; i-- {
		j := slices.IndexFunc(theirs, func(t *controllerpb.TermStart) bool { return t.GetTerm() == mine[i].GetTerm() })
		if j >= 0 {
			return min(end(mine, i, myLast), end(theirs, j, theirLast))
		}
	}
	return 0
}

// termStarts is a log's epoch table as it travels.
func termStarts(l *commitlog.Log) (terms []ids.Term, starts []ids.Index) {
	for _, t := range l.Epochs() {
		terms, starts = append(terms, t.Term), append(starts, t.StartIndex)
	}
	return terms, starts
}

// uncleanOf returns the unclean election that gave a replica up, nil when none did.
func uncleanOf(list []*controllerpb.UncleanElection, id ids.ReplicaID) *controllerpb.UncleanElection {
	for _, u := range list {
		if slices.Contains(u.GetGone(), uint64(id)) {
			return u
		}
	}
	return nil
}

// writeRemoved writes the report into dir, which is the folder of the given-up replica f, and returns how many messages it lists.
// What of the log cannot be read is said in the report, and does not keep the rest from it.
func writeRemoved(o NodeOptions, dir string, f replicaFile, u *controllerpb.UncleanElection) (messages int, err error) {
	cluster, err := ids.ParseUUID(f.Cluster)
	if err != nil {
		return 0, fmt.Errorf("replica.json: cluster: %w", err)
	}
	group, err := ids.ParseUUID(f.GroupID)
	if err != nil {
		return 0, fmt.Errorf("replica.json: group: %w", err)
	}
	lo := logOptions(o, dir, ids.ClusterID(cluster), ids.GroupID(group), f)
	lo.ReadOnly, lo.SmallSegments = true, true
	l, err := commitlog.Open(lo)
	if err != nil {
		return 0, fmt.Errorf("open the commit log: %w", err)
	}
	defer l.Close(false)
	var mine []*controllerpb.TermStart
	for _, t := range l.Epochs() {
		mine = append(mine, &controllerpb.TermStart{Term: uint64(t.Term), Start: uint64(t.StartIndex)})
	}
	last := l.Tail().Index
	common := ids.Index(lastCommon(mine, u.GetTerms(), uint64(last), u.GetLast()))
	name := filepath.Join(dir, RemovedFile)
	file, err := o.FS.Create(name + vfs.TempSuffix)
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriter(io.NewOffsetWriter(file, 0))
	fmt.Fprintf(w, "# Replica %d of group %s on node %s was given up in the unclean election of epoch %d, %s, which replica %d on node %s won.\n",
		f.Replica, f.Group, o.ID, u.GetEpoch(), time.UnixMilli(u.GetMillis()).UTC().Format(time.RFC3339), u.GetReplicaId(), u.GetNodeId())
	fmt.Fprintf(w, "# Its log has entries up to %d; up to %d they are in the log of the winner. What follows is in the group no more:\n", last, common)
	fmt.Fprintf(w, "# topic\tqueue\toffset\tmessage id\tunique key\tkeys\tborn\tbytes\n")
	others := 0
	var fault error
	for frame, err := range l.Frames(max(common+1, l.FirstIndex())) {
		if err != nil {
			fault = err
			break
		}
		for rec := range frame.Records() {
			record, ok := state.MessageIn(rec)
			if !ok {
				others++
				continue
			}
			m, _, err := message.Decode(record)
			if err != nil {
				fault = err
				continue
			}
			messages++
			writeRemovedMessage(w, &m, rec.Offset+ids.PhysicalOffset(len(rec.Body)-len(record)))
		}
	}
	if others > 0 {
		fmt.Fprintf(w, "# and %d records that are no messages: consumer offsets, topics, groups, locks\n", others)
	}
	if fault != nil {
		fmt.Fprintf(w, "# the log could not be read to its end: %v\n", fault)
	}
	fmt.Fprintf(w, "# %d messages. Their bodies are in the log beside this file: `ledgermq log dump FOLDER --records --json`, with the folder of this file, has them in base64.\n", messages)
	if err := errors.Join(w.Flush(), file.SyncData(), file.Close()); err != nil {
		return messages, err
	}
	if err := o.FS.Rename(name+vfs.TempSuffix, name); err != nil {
		return messages, err
	}
	return messages, o.FS.SyncDir(dir)
}

func writeRemovedMessage(w *bufio.Writer, m *message.Record, at ids.PhysicalOffset) {
	unique, _ := message.Property(m.Properties, message.KeyUniqueKey)
	keys, _ := message.Property(m.Properties, message.KeyKeys)
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d\n", plainText(m.Topic), m.QueueID, m.QueueOffset, message.AppendOffsetMessageID(nil, m.StoreHost, at),
		plainText(unique), plainText(keys), time.UnixMilli(m.BornTime).UTC().Format(time.RFC3339Nano), len(m.Body))
}

// plainText keeps a text of a client from breaking the lines of the report.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
