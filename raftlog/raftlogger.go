package raftlog

import (
	"fmt"

	"github.com/rs/zerolog"
	"go.etcd.io/raft/v3"
)

// RaftLogger passes what the Raft library says to l, also for the controllers' own Raft group: its chatter and its warnings,
// which are about messages that come late, as debug; what it calls an error as such. What the library takes for the end of the
// process is a panic, which the caller recovers: here it parks the replica.
func RaftLogger(l zerolog.Logger) raft.Logger { return raftLogger{l} }

type raftLogger struct{ l zerolog.Logger }

func (g raftLogger) Debug(...any)                {}
func (g raftLogger) Debugf(string, ...any)       {}
func (g raftLogger) Info(v ...any)               { g.say(zerolog.DebugLevel, v) }
func (g raftLogger) Infof(f string, v ...any)    { g.sayf(zerolog.DebugLevel, f, v) }
func (g raftLogger) Warning(v ...any)            { g.say(zerolog.DebugLevel, v) }
func (g raftLogger) Warningf(f string, v ...any) { g.sayf(zerolog.DebugLevel, f, v) }
func (g raftLogger) Error(v ...any)              { g.say(zerolog.ErrorLevel, v) }
func (g raftLogger) Errorf(f string, v ...any)   { g.sayf(zerolog.ErrorLevel, f, v) }
func (g raftLogger) Fatal(v ...any)              { panic(raftPanic(fmt.Sprint(v...))) }
func (g raftLogger) Fatalf(f string, v ...any)   { panic(raftPanic(fmt.Sprintf(f, v...))) }
func (g raftLogger) Panic(v ...any)              { panic(raftPanic(fmt.Sprint(v...))) }
func (g raftLogger) Panicf(f string, v ...any)   { panic(raftPanic(fmt.Sprintf(f, v...))) }

func (g raftLogger) say(level zerolog.Level, v []any) {
	if e := g.l.WithLevel(level); g.l.GetLevel() <= level {
		e.Msg("raft: " + fmt.Sprint(v...))
	}
}

func (g raftLogger) sayf(level zerolog.Level, f string, v []any) {
	if g.l.GetLevel() <= level {
		g.l.WithLevel(level).Msg("raft: " + fmt.Sprintf(f, v...))
	}
}
