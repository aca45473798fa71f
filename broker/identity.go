package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// nodeFile is node.json in the data folder: who this node is, bound to the folder for ever, and what it last heard of its
// cluster, so that it can serve again when it starts while no controller lives.
type nodeFile struct {
	Version   int               `json:"version"`
	Node      ids.NodeID        `json:"node"`
	CheckCode string            `json:"checkCode"`
	Cluster   string            `json:"cluster,omitempty"`
	Peers     map[string]string `json:"peers,omitempty"` // node id to replication address
	Level     controller.Level  `json:"level,omitempty"` // the cluster's feature level, when it is above 1
}

// Version 2 of node.json has the cluster's feature level, which is above 1: programs that know of no levels refuse the folder.
const (
	nodeFileVersion    = 1
	nodeFileLevels     = 2
	replicaFileVersion = 1
)

// loadNodeFile reads node.json, or makes it when the folder is empty. A folder of another node or another format is refused.
func loadNodeFile(fs vfs.FS, dir string, id ids.NodeID) (nodeFile, error) {
	name := filepath.Join(dir, "node.json")
	b, err := vfs.ReadFile(fs, name)
	if errors.Is(err, os.ErrNotExist) {
		if names, err := fs.List(filepath.Join(dir, "groups")); err == nil && len(names) > 0 {
			return nodeFile{}, fmt.Errorf("data folder %s has replicas but no node.json: restore that file, or use an empty folder", dir)
		}
		f := nodeFile{Version: nodeFileVersion, Node: id, CheckCode: ids.NewUUID(nil).String()}
		return f, f.save(fs, dir)
	}
	if err != nil {
		return nodeFile{}, fmt.Errorf("read %s: %w", name, err)
	}
	var f nodeFile
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s is damaged (%w): restore it, or use an empty folder and replace the node", name, err)
	}
	if f.Version != nodeFileVersion && f.Version != nodeFileLevels {
		return f, fmt.Errorf("%s has format version %d, this program knows %d and %d: use a program of that version", name, f.Version, nodeFileVersion, nodeFileLevels)
	}
	if err := controller.OwnLevels().Check(f.Level); err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	if f.Node != id {
		return f, fmt.Errorf("data folder %s belongs to node %s, not to %s: give it its own folder, or start it as %s", dir, f.Node, id, f.Node)
	}
	if _, err := ids.ParseUUID(f.CheckCode); err != nil {
		return f, fmt.Errorf("%s: check code: %w", name, err)
	}
	return f, nil
}

func (f nodeFile) save(fs vfs.FS, dir string) error {
	if f.Level > 1 {
		f.Version = nodeFileLevels
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := vfs.WriteFileAtomic(fs, filepath.Join(dir, "node.json"), append(b, '\n')); err != nil {
		return fmt.Errorf("write node.json: %w", err)
	}
	return nil
}

// replicaFile is replica.json in the folder of a replica: what must be known to open it without a controller.
type replicaFile struct {
	Version     int           `json:"version"`
	Group       string        `json:"group"` // name
	GroupID     string        `json:"groupID"`
	Cluster     string        `json:"cluster"`
	Replica     ids.ReplicaID `json:"replica"`
	Slot        ids.Slot      `json:"slot"`
	Incarnation string        `json:"incarnation"`
	SegmentSize int64         `json:"segmentSize"`
	Async       bool          `json:"async,omitempty"` // the group acknowledges before it syncs
	Lost        string        `json:"lost,omitempty"`  // why the identity was given up for ever; the replica is never opened again
}

func loadReplicaFile(fs vfs.FS, dir string) (replicaFile, error) {
	var f replicaFile
	name := filepath.Join(dir, "replica.json")
	b, err := vfs.ReadFile(fs, name)
	if err != nil {
		return f, fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s is damaged: %w", name, err)
	}
	if f.Version != replicaFileVersion {
		return f, fmt.Errorf("%s has format version %d, this program knows %d", name, f.Version, replicaFileVersion)
	}
	return f, nil
}

func (f replicaFile) save(fs vfs.FS, dir string) error {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(fs, filepath.Join(dir, "replica.json"), append(b, '\n'))
}
