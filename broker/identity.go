package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	// Controllers are the addresses that the leading controller told last.
	Controllers []string `json:"controllers,omitempty"`
	// Namesrv is the list of name servers that the controllers keep; none: that of the configuration counts.
	Namesrv []string `json:"namesrv,omitempty"`
	// FormerControllers are those that it told before, the newest ones: a list that has one of them is only old.
	FormerControllers []string         `json:"formerControllers,omitempty"`
	Level             controller.Level `json:"level,omitempty"` // the cluster's feature level, when it is above 1
	// Recovery is the recovery of the controllers that this node holds to: what those of before it say counts no more.
	Recovery *recoveryFile `json:"recovery,omitempty"`
}

// recoveryFile names a recovery of the controllers.
type recoveryFile struct {
	Number uint32 `json:"number"`
	Token  string `json:"token"`
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
	if f.Recovery != nil {
		if _, err := ids.ParseUUID(f.Recovery.Token); err != nil {
			return f, fmt.Errorf("%s: recovery: %w", name, err)
		}
	}
	return f, nil
}

// controllers are the addresses at which the node looks for controllers: those given, and those that it was told. A list that has none
// of those that it was told is another cluster's.
func (f nodeFile) controllers(given []string) ([]string, error) {
	if len(f.Controllers) == 0 {
		return given, nil
	}
	known := slices.Concat(f.Controllers, f.FormerControllers)
	common := slices.ContainsFunc(given, func(a string) bool { return slices.Contains(known, a) })
	if !common { // names and addresses may be mixed
		told := resolved(known)
		common = slices.ContainsFunc(resolved(given), func(a string) bool { return slices.Contains(told, a) })
	}
	if !common {
		return nil, fmt.Errorf("the list of controllers, %s, has none of those that this node knows, %s: correct it, or, when all of them have moved, take \"controllers\" out of node.json",
			strings.Join(given, ", "), strings.Join(f.Controllers, ", "))
	}
	all := slices.Clone(given)
	for _, a := range f.Controllers {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all, nil
}

// tell takes over who the controllers are now, and tells whether that is new.
func (f *nodeFile) tell(now []string) bool {
	if slices.Equal(now, f.Controllers) {
		return false
	}
	former := slices.DeleteFunc(slices.Clone(f.FormerControllers), func(a string) bool { return slices.Contains(now, a) })
	for _, a := range f.Controllers {
		if !slices.Contains(now, a) && !slices.Contains(former, a) {
			former = append(former, a)
		}
	}
	f.Controllers, f.FormerControllers = slices.Clone(now), former[max(0, len(former)-maxFormer):]
	return true
}

const maxFormer = 32

// resolved returns the addresses that names stand for now. One that cannot be looked up stands for itself.
func resolved(list []string) (out []string) {
	for _, a := range list {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		hosts, err := net.DefaultResolver.LookupHost(ctx, host)
		cancel()
		if err != nil {
			hosts = []string{host}
		}
		for _, h := range hosts {
			out = append(out, net.JoinHostPort(h, port))
		}
	}
	return out
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
	Async       bool          `json:"async,omitempty"`    // the group acknowledges before it syncs
	Revived     ids.Epoch     `json:"revived,omitempty"`  // the unclean election that it won though it was lost
	Reviving    bool          `json:"reviving,omitempty"` // … and its log was not opened since
	Lost        string        `json:"lost,omitempty"`     // why the identity was given up for ever; the replica is never opened again
	Removed     bool          `json:"removed,omitempty"`  // the whole group was removed
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
