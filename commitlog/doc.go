// Package commitlog is one append-only log of frames in segment files: what a broker group replicates, and what everything
// else is computed from. It knows nothing of Raft but terms and indexes, and nothing of messages but that records have types.
//
// Guarantees:
//
//   - A frame that Sync covered is there, byte for byte, after any crash; or Open and reads tell of it by name
//     (*DamageError, *CorruptionError, ErrMetaLost). With Options.Async that holds for one that Append took, as long as the
//     machine runs; afterwards Open returns a *LostTailError. Never is it silently gone or different. Open after a crash alone, a kill -9
//     or a power cut at any moment, goes well.
//   - What TruncateAfter removed never comes back.
//   - The bytes of a log follow from its frames alone: replicas that appended equal frames are byte-equal from the first frame of
//     each segment on (the header blocks differ).
//   - The first failed write, sync, read or checksum poisons the log: every change fails from then on, reads go on.
//
// Concurrency: Append, Sync, TruncateAfter, CutFront and Checkpoint are the writer's; they wait for each other. FillAhead and
// SyncBehind are each called by one background loop. Reset replaces a closed log, and a Repair mends one. SaveMeta waits only for other writers of meta. Everything that reads may be called by any
// goroutine at any time and waits for no I/O of others. The package has no goroutine.
//
// Files in the folder of one log:
//
//	meta                         two slots: counters, durable bound, the owner's data         meta.go
//	00000000000000000000.log     segment: header block, frames, pad marker                    segment.go, frame.go
//	00000000000000000000.idx     its sidecar, derived: tables up to the last checkpoint       sidecar.go
//	….next, ….spare              the next segment, filled with zeros; a cut one, kept         fill.go, cut.go
//	lock                         held while the log is open for writing
//
// One segment, and what is known of it:
//
//	|header|frame|frame|frame|frame|frame|frame|0000000000000000|             |
//	       ^                 ^           ^     ^                ^             ^
//	     base+4096     durable bound   synced  tail          filled      base+SegmentSize
//
//	[.., bound)     a start demands it: less is a lost tail
//	[bound, tail)   after an unclean stop it is written again in place, then synced
//	[tail, ..)      after an unclean stop bytes that are no frame here, and that no valid frame follows, are a torn tail;
//	                within a batch that was not synced, which meta names, valid frames may follow
//
// Read docs/format/commitlog.md for the bytes, then log.go, append.go and recover.go.
package commitlog
