package broker

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
)

// create makes the folder of a replica that the controller wants, under a random incarnation. It is whole or absent: the
// folder gets its name last.
func (n *Node) create(id ids.GroupID, cluster ids.ClusterID, w *controllerpb.WantedReplica) (replicaFile, error) {
	fs, groups := n.o.FS, filepath.Join(n.o.Dir, "groups")
	inc := ids.Incarnation(ids.NewUUID(nil))
	f := replicaFile{Version: replicaFileVersion, Group: w.GroupName, GroupID: id.String(), Cluster: cluster.String(),
		Replica: ids.ReplicaID(w.ReplicaId), Slot: ids.Slot(w.Slot), Incarnation: inc.String(), SegmentSize: w.SegmentSize, Async: w.AsyncFlush}
	tmp, dir := filepath.Join(groups, id.String()+newSuffix), filepath.Join(groups, id.String())
	if err := vfs.MkdirDurable(fs, tmp); err != nil {
		return f, err
	}
	owner := raftlog.Owner{Replica: f.Replica, Incarnation: inc}
	if err := commitlog.Create(logOptions(n.o, tmp, cluster, id, f), owner.Encode()); err != nil {
		return f, err
	}
	if err := f.save(fs, tmp); err != nil {
		return f, err
	}
	if err := fs.Rename(tmp, dir); err != nil {
		return f, err
	}
	return f, fs.SyncDir(groups)
}

func logOptions(o NodeOptions, dir string, cluster ids.ClusterID, group ids.GroupID, f replicaFile) commitlog.Options {
	return commitlog.Options{FS: o.FS, Dir: filepath.Join(dir, "log"), Cluster: cluster, Group: group, SegmentSize: f.SegmentSize,
		Async: f.Async, BootID: o.BootID}
}

// sweepUnfinished removes folders of replicas whose creation a crash cut off. Their incarnation was never reported.
func (n *Node) sweepUnfinished() error {
	dir := filepath.Join(n.o.Dir, "groups")
	names, err := n.o.FS.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, newSuffix) {
			if err := removeAll(n.o.FS, filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("remove unfinished replica %s: %w", name, err)
			}
		}
	}
	return nil
}

const newSuffix = ".new"

func removeAll(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := filepath.Join(dir, name)
		if info, err := fs.Stat(p); err != nil {
			return err
		} else if info.IsDir {
			if err := removeAll(fs, p); err != nil {
				return err
			}
		} else if err := fs.Remove(p); err != nil {
			return err
		}
	}
	return fs.Remove(dir)
}
