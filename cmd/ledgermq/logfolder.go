package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// replicaFolder is one replica found on disk.
type replicaFolder struct {
	Node  string // name of the folder that holds it
	Group string
	Dir   string
	file  replicaJSON
}

// replicaJSON is what this tool reads of a replica's replica.json.
type replicaJSON struct {
	Group       string `json:"group"`
	GroupID     string `json:"groupID"`
	Cluster     string `json:"cluster"`
	Replica     uint64 `json:"replica"`
	SegmentSize int64  `json:"segmentSize"`
}

// findReplicas looks for replicas below each folder: a replica's own, a node's data folder, or the folder of a dev cluster. Those
// that were given up are passed over, unless theirs is the folder that is named: what is wrong with them harms nobody.
func findReplicas(folders []string) ([]replicaFolder, error) {
	var found []replicaFolder
	for _, folder := range folders {
		n := len(found)
		err := filepath.WalkDir(filepath.Clean(folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == broker.LostFolder && path != filepath.Clean(folder) {
				return fs.SkipDir
			}
			if d.IsDir() || d.Name() != "replica.json" {
				return nil
			}
			r, err := readReplicaFolder(filepath.Dir(path))
			if err == nil {
				found = append(found, r)
			}
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usagef("folder %s does not exist", folder)
		}
		if err != nil {
			return nil, err
		}
		if len(found) == n {
			return nil, usagef("no replica below %s; give a node's data folder or that of a dev cluster", folder)
		}
	}
	slices.SortFunc(found, func(a, b replicaFolder) int {
		return strings.Compare(a.Group+"\x00"+a.Dir, b.Group+"\x00"+b.Dir)
	})
	return slices.CompactFunc(found, func(a, b replicaFolder) bool { return a.Dir == b.Dir }), nil
}

func readReplicaFolder(dir string) (replicaFolder, error) {
	name := filepath.Join(dir, "replica.json")
	data, err := os.ReadFile(name)
	if err != nil {
		return replicaFolder{}, err
	}
	r := replicaFolder{Dir: dir}
	if err := json.Unmarshal(data, &r.file); err != nil {
		return r, fmt.Errorf("%s is damaged: %w", name, err)
	}
	r.Group = r.file.Group
	r.Node = filepath.Base(dir)
	if filepath.Base(filepath.Dir(dir)) == "groups" { // NODE/groups/ID
		r.Node = filepath.Base(filepath.Dir(filepath.Dir(dir)))
	}
	return r, nil
}

// open opens the replica's log for reading. A running node does not mind.
func (r replicaFolder) open() (*commitlog.Log, raftlog.Owner, error) {
	cluster, err1 := ids.ParseUUID(r.file.Cluster)
	group, err2 := ids.ParseUUID(r.file.GroupID)
	if err := errors.Join(err1, err2); err != nil {
		return nil, raftlog.Owner{}, fmt.Errorf("%s: %w", filepath.Join(r.Dir, "replica.json"), err)
	}
	l, err := commitlog.Open(commitlog.Options{
		Dir: filepath.Join(r.Dir, "log"), Cluster: ids.ClusterID(cluster), Group: ids.GroupID(group),
		SegmentSize: r.file.SegmentSize, SmallSegments: true, ReadOnly: true,
	})
	if err != nil {
		return nil, raftlog.Owner{}, err
	}
	owner, err := raftlog.DecodeOwner(l.Meta().Owner)
	if err != nil {
		return nil, owner, errors.Join(err, l.Close(false))
	}
	return l, owner, nil
}
