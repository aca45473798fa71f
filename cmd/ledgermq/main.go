// Command ledgermq is the whole of LedgerMQ in one binary: the roles of a cluster (broker, controller, namesrv, or any set of
// them in one process), a development cluster (dev), and the tools of an operator (admin, produce, consume, log, bench,
// jepsen).
//
// Flags, environment, the configuration file and the wiring between packages live here and nowhere else. Nothing in this
// package is called by another one. Exit codes: 0 ok, 1 refused or failed, 2 usage.
//
// Where to read first: app.go lists the commands; settings.go tells where a value comes from; roles.go opens the parts of a
// cluster; dev.go puts them together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
)

func main() {
	// A broker keeps little in memory and makes garbage fast: at the runtime's default of 100 it would collect 14 times a second
	// under load. Measured with 64 senders: a tenth less processor time for 15 MiB more.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the process; after the first signal the second one has its default effect: it ends us at once
		s := <-signals
		signal.Stop(signals)
		cancel(&signalError{s})
	}()
	os.Exit(run(ctx, os.Args, streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// signalError is the cause of the end of a command's context.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return e.signal.String() }

// terminated tells whether ctx was ended by SIGTERM, on which a broker hands over. Ctrl-C ends it at once.
func terminated(ctx context.Context) bool {
	var s *signalError
	return errors.As(context.Cause(ctx), &s) && s.signal == syscall.SIGTERM
}

// streams are the three ends that a command may use. Results go to out, what is said about them to err.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is returned when a command line, an environment variable or the configuration file makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// run runs one command line and returns the exit code. An error is told in one line on s.err.
func run(ctx context.Context, args []string, s streams) int {
	app := newApp(s, false)
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil {
		return exitOK
	}
	if absentFlags.MatchString(err.Error()) { // the library's; its type has no name
		err = usagef("%s; see --help", usageText(nil, err))
	}
	fmt.Fprintf(s.err, "ledgermq: %s\n", strings.TrimPrefix(oneLine(err), "ledgermq ")) // a usage error begins with its command
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// oneLine is what people get to see of an error: without line breaks, and without the names of the packages that it came
// through, which are for those who read logs.
func oneLine(err error) string { return plain(err.Error()) }

func plain(text string) string {
	return packageNames.ReplaceAllString(strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "), "$1")
}

var packageNames = regexp.MustCompile(
	`(^|[:;] )(?:(?:broker|client|commitlog|controller|index|message|namesrv|peer|raftlog|remoting|state|vfs): )+`)
