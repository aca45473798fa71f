package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A disk loses bits that nobody reads. So each replica reads its sealed segments through once a day, slowly, one replica of the node at a
// time, and compares every frame with its checksum and its neighbours. What is bad poisons the log, as with any read, and is repaired from
// another replica: see repair.go. The segment that is being written is left out: it was just written, and becomes a sealed one.
const (
	scrubName  = "scrub.json"
	scrubDelay = 10 * time.Second // after a start, when one is due: recovery has the disk first
)

// scrubResult is what the last whole scrub of a replica found: nothing bad. It is kept in the replica's folder, so that a start does not
// begin another one.
type scrubResult struct {
	Version  int   `json:"version"`
	Finished int64 `json:"finished"` // ms since 1970
	Bytes    int64 `json:"bytes"`
	TookMS   int64 `json:"tookMs"`
}

const scrubVersion = 1

func loadScrub(fs vfs.FS, dir string) (scrubResult, error) {
	name := filepath.Join(dir, scrubName)
	b, err := vfs.ReadFile(fs, name)
	if errors.Is(err, os.ErrNotExist) {
		return scrubResult{}, nil
	}
	var s scrubResult
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err == nil && s.Version != scrubVersion {
		err = fmt.Errorf("version %d", s.Version)
	}
	if err != nil {
		return scrubResult{}, fmt.Errorf("%s cannot be used, the log is scrubbed anew: %w", name, err)
	}
	return s, nil
}

func (s scrubResult) save(fs vfs.FS, dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(fs, filepath.Join(dir, scrubName), append(b, '\n'))
}

// scrub is the loop of one replica. It ends with it, or with the first damage, which closes it.
func (r *Replica) scrub() {
	o := &r.node.o
	last, err := loadScrub(o.FS, r.dir)
	if err != nil {
		r.log.Warn().Err(err).Msg("when the log was scrubbed last is not known")
	}
	r.scrubbed.Store(&last)
	due := max(time.UnixMilli(last.Finished).Add(o.ScrubEvery).Sub(r.now()), min(scrubDelay, o.ScrubEvery))
	for r.pause(min(due, o.ScrubEvery), nil) {
		select {
		case r.node.scrubbing <- struct{}{}:
		case <-r.ctx.Done():
			return
		}
		res, err := r.scrubOnce()
		<-r.node.scrubbing
		switch {
		case r.ctx.Err() != nil:
			return
		case err != nil:
			r.log.Error().Err(err).Msg("the scrub of the log found damage")
			return // the log is poisoned, and housekeeping has it repaired
		}
		r.scrubbed.Store(&res)
		r.log.Info().Int64("bytes", res.Bytes).Int64("took_ms", res.TookMS).Msg("the log was scrubbed: all sealed segments are good")
		if err := res.save(o.FS, r.dir); err != nil {
			r.log.Warn().Err(err).Msg("cannot keep when the log was scrubbed: the next start does it again")
		}
		due = o.ScrubEvery
	}
}

// scrubOnce reads all segments that are sealed now.
func (r *Replica) scrubOnce() (scrubResult, error) {
	began, bytes := r.now(), int64(0)
	pace := func(n int) error {
		bytes += int64(n)
		r.counters.scrubbed.Add(int64(n))
		early := time.Duration(bytes*int64(time.Second)/r.node.o.ScrubRate) - r.now().Sub(began)
		if early > 100*time.Millisecond && !r.pause(early, nil) {
			return r.ctx.Err()
		}
		return r.ctx.Err()
	}
	for _, s := range r.clog.Segments() {
		if !s.Sealed {
			continue
		}
		err := r.clog.CheckSegment(s.Base, pace)
		if err != nil && !errors.Is(err, commitlog.ErrUnavailable) { // that one went meanwhile
			return scrubResult{}, err
		}
	}
	return scrubResult{Version: scrubVersion, Finished: r.now().UnixMilli(), Bytes: bytes, TookMS: r.now().Sub(began).Milliseconds()}, nil
}
