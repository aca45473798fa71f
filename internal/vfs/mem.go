package vfs

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
)

// sector is the unit in which a power cut tears a write.
const sector = 512

// ErrCrashed is returned by everything on a Mem after its Crash or KillProcess.
var ErrCrashed = errors.New("vfs: the machine of this file system has crashed")

// Mem is a file system in memory that knows what a power cut would leave. It is safe for use from many goroutines.
//
// Invariants:
//  1. node.data is what a reader sees; node.durable with node.pending applied in order equals it, unless a sync was lost.
//  2. names is what a reader sees; durable names with the pending name operations applied in order equal it.
type Mem struct {
	mu          sync.Mutex
	dead        bool
	names       map[string]*memNode
	durable     map[string]*memNode
	pending     []memNameOp
	locks       map[string]bool
	free, total uint64
}

// memNode is one inode.
type memNode struct {
	dir     bool
	data    []byte
	durable []byte
	pending []memWrite
}

// memWrite is one write, or a truncation to off when data is nil.
type memWrite struct {
	off  int64
	data []byte
}

// memNameOp sets names[to] = node and removes from; either may be "".
type memNameOp struct {
	from, to string
	node     *memNode
}

// NewMem returns an empty file system with 1 TiB of free space.
func NewMem() *Mem {
	root := &memNode{dir: true}
	m := &Mem{names: map[string]*memNode{}, durable: map[string]*memNode{}, locks: map[string]bool{}, free: 1 << 40, total: 1 << 40}
	for _, d := range []string{"/", "."} {
		m.names[d], m.durable[d] = root, root
	}
	return m
}

// SetSpace sets what Space answers. Writes do not use it up.
func (m *Mem) SetSpace(free, total uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free, m.total = free, total
}

// Crash returns the file system as it is after a power cut. Each write since the last SyncData of its file is kept, lost, or
// kept in some of its sectors only; each change of a name since the last SyncDir is kept or lost. m itself refuses all
// further use. Equal contents and equal r give equal results.
func (m *Mem) Crash(r *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	c := NewMem()
	c.free, c.total = m.free, m.total
	names := clone(m.durable)
	for _, op := range m.pending {
		if r.IntN(2) == 0 {
			op.apply(names)
		}
	}
	made := map[*memNode]*memNode{}
	for _, name := range sorted(names) { // sorted, so that r is used in the same order each time
		n := names[name]
		if made[n] == nil {
			data := append([]byte(nil), n.durable...)
			for _, w := range n.pending {
				data = w.crash(data, r)
			}
			made[n] = &memNode{dir: n.dir, data: data, durable: append([]byte(nil), data...)}
		}
	}
	c.adopt(names, made)
	return c
}

// KillProcess returns the file system as another process finds it after a kill -9: with everything that was written, though
// not durable yet, and without locks. m itself refuses all further use.
func (m *Mem) KillProcess() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	c := &Mem{names: m.names, durable: m.durable, pending: m.pending, locks: map[string]bool{}, free: m.free, total: m.total}
	m.names, m.durable = nil, nil
	return c
}

// adopt takes over names whose directories are reachable.
func (m *Mem) adopt(names map[string]*memNode, made map[*memNode]*memNode) {
	reachable := func(name string) bool {
		for d := filepath.Dir(name); ; d = filepath.Dir(d) {
			if n := names[d]; n == nil || !n.dir {
				return false
			}
			if d == filepath.Dir(d) {
				return true
			}
		}
	}
	for name, n := range names {
		if reachable(name) {
			m.names[name], m.durable[name] = made[n], made[n]
		}
	}
}

// apply performs the write on data.
func (w memWrite) apply(data []byte) []byte {
	if w.data == nil {
		return resize(data, w.off)
	}
	if end := w.off + int64(len(w.data)); int64(len(data)) < end {
		data = resize(data, end)
	}
	copy(data[w.off:], w.data)
	return data
}

// crash performs what a power cut leaves of the write.
func (w memWrite) crash(data []byte, r *rand.Rand) []byte {
	switch r.IntN(3) {
	case 0: // lost
		return data
	case 1: // kept
		return w.apply(data)
	}
	if w.data == nil {
		return data
	}
	for at := 0; at < len(w.data); { // torn
		n := min(sector-int(w.off+int64(at))%sector, len(w.data)-at)
		if r.IntN(2) == 0 {
			data = memWrite{w.off + int64(at), w.data[at : at+n]}.apply(data)
		}
		at += n
	}
	return data
}

func (op memNameOp) apply(names map[string]*memNode) {
	if op.from != "" {
		delete(names, op.from)
	}
	if op.to != "" {
		names[op.to] = op.node
	}
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size:size] // the cut capacity makes a later growth start from zeros
	}
	if size <= int64(cap(b)) {
		n := len(b)
		b = b[:size]
		clear(b[n:])
		return b
	}
	grown := make([]byte, size, size+size/4)
	copy(grown, b)
	return grown
}

func clone(m map[string]*memNode) map[string]*memNode {
	c := make(map[string]*memNode, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func sorted(m map[string]*memNode) []string {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	sort.Strings(names)
	return names
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// change performs a change of names; m.mu is held.
func (m *Mem) change(op memNameOp) {
	op.apply(m.names)
	m.pending = append(m.pending, op)
}

// lookup returns the cleaned name and its node, nil when it is absent; m.mu is held.
func (m *Mem) lookup(op, name string) (string, *memNode, error) {
	name = filepath.Clean(name)
	if m.dead {
		return name, nil, pathError(op, name, ErrCrashed)
	}
	return name, m.names[name], nil
}

// parent checks that the directory of name exists; m.mu is held.
func (m *Mem) parent(op, name string) error {
	if d := m.names[filepath.Dir(name)]; d == nil {
		return pathError(op, name, os.ErrNotExist)
	} else if !d.dir {
		return pathError(op, name, syscall.ENOTDIR)
	}
	return nil
}

// Create is FS.Create.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, n, err := m.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if n != nil && n.dir {
		return nil, pathError("open", name, syscall.EISDIR)
	}
	if n == nil {
		if err := m.parent("open", name); err != nil {
			return nil, err
		}
		n = &memNode{}
		m.change(memNameOp{to: name, node: n})
	} else {
		n.write(memWrite{off: 0})
	}
	return &memFile{m: m, n: n, name: name, writable: true}, nil
}

// Open is FS.Open.
func (m *Mem) Open(name string) (File, error) { return m.open(name, false) }

// OpenReadWrite is FS.OpenReadWrite.
func (m *Mem) OpenReadWrite(name string) (File, error) { return m.open(name, true) }

func (m *Mem) open(name string, writable bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, n, err := m.lookup("open", name)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return nil, pathError("open", name, os.ErrNotExist)
	case n.dir && writable:
		return nil, pathError("open", name, syscall.EISDIR)
	}
	return &memFile{m: m, n: n, name: name, writable: writable}, nil
}

// Rename is FS.Rename. It does not move directories.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, n, err := m.lookup("rename", from)
	if err != nil {
		return err
	}
	if n == nil {
		return pathError("rename", from, os.ErrNotExist)
	}
	if n.dir {
		return pathError("rename", from, syscall.EISDIR)
	}
	to, old, _ := m.lookup("rename", to)
	if err := m.parent("rename", to); err != nil {
		return err
	}
	if old != nil && old.dir {
		return pathError("rename", to, syscall.EEXIST)
	}
	m.change(memNameOp{from: from, to: to, node: n})
	return nil
}

// Remove is FS.Remove.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, n, err := m.lookup("remove", name)
	if err != nil {
		return err
	}
	if n == nil {
		return pathError("remove", name, os.ErrNotExist)
	}
	if n.dir {
		for other := range m.names {
			if other != name && filepath.Dir(other) == name {
				return pathError("remove", name, syscall.ENOTEMPTY)
			}
		}
	}
	m.change(memNameOp{from: name})
	return nil
}

// MkdirAll is FS.MkdirAll.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, _, err := m.lookup("mkdir", dir)
	if err != nil {
		return err
	}
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		if n := m.names[d]; n != nil {
			if !n.dir {
				return pathError("mkdir", d, syscall.ENOTDIR)
			}
			break
		}
		missing = append(missing, d)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		m.change(memNameOp{to: missing[i], node: &memNode{dir: true}})
	}
	return nil
}

// List is FS.List.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, n, err := m.lookup("open", dir)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, pathError("open", dir, os.ErrNotExist)
	}
	if !n.dir {
		return nil, pathError("readdir", dir, syscall.ENOTDIR)
	}
	names := []string{}
	for name := range m.names {
		if name != dir && name != "." && filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	sort.Strings(names)
	return names, nil
}

// Stat is FS.Stat.
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, n, err := m.lookup("stat", name)
	if err != nil {
		return Info{}, err
	}
	if n == nil {
		return Info{}, pathError("stat", name, os.ErrNotExist)
	}
	return Info{Size: int64(len(n.data)), IsDir: n.dir}, nil
}

// SyncDir is FS.SyncDir. A rename between two directories becomes durable with either of them.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, n, err := m.lookup("sync", dir)
	if err != nil {
		return err
	}
	if n == nil {
		return pathError("sync", dir, os.ErrNotExist)
	}
	in := func(name string) bool { return name != "" && filepath.Dir(name) == dir }
	left := m.pending[:0]
	for _, op := range m.pending {
		if in(op.from) || in(op.to) {
			op.apply(m.durable)
		} else {
			left = append(left, op)
		}
	}
	m.pending = left
	return nil
}

// Lock is FS.Lock. Crash and KillProcess release it.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, n, err := m.lookup("lock", name)
	if err != nil {
		return nil, err
	}
	if n == nil {
		if err := m.parent("lock", name); err != nil {
			return nil, err
		}
		m.change(memNameOp{to: name, node: &memNode{}})
	}
	if m.locks[name] {
		return nil, pathError("lock", name, ErrLocked)
	}
	m.locks[name] = true
	return &memLock{m: m, name: name}, nil
}

// Space is FS.Space.
func (m *Mem) Space(dir string) (free, total uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, n, err := m.lookup("statfs", dir); err != nil {
		return 0, 0, err
	} else if n == nil {
		return 0, 0, pathError("statfs", dir, os.ErrNotExist)
	}
	return m.free, m.total, nil
}

type memLock struct {
	m    *Mem
	name string
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		delete(l.m.locks, l.name)
	})
	return nil
}
