package main

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

func init() { zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" }

func logFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
		&cli.StringFlag{Name: "log-format", Value: "auto", Usage: "json, text, or auto: text on a terminal"},
	}
}

// logger makes the logger of a process from its flags. Lines go to standard error.
func (t *tool) logger(c *cli.Context) (zerolog.Logger, error) {
	return newLogger(t.err, c.String("log-level"), c.String("log-format"))
}

func newLogger(w io.Writer, level, format string) (zerolog.Logger, error) {
	var at zerolog.Level
	switch level {
	case "debug", "info", "warn", "error":
		at, _ = zerolog.ParseLevel(level)
	default:
		return zerolog.Nop(), usagef("--log-level %q: use debug, info, warn or error", level)
	}
	switch format {
	case "json":
	case "text":
		w = consoleWriter(w, false)
	case "auto":
		if f, ok := w.(*os.File); ok && isTerminal(f) {
			w = consoleWriter(w, true)
		}
	default:
		return zerolog.Nop(), usagef("--log-format %q: use auto, json or text", format)
	}
	// Many goroutines log; a line must not be torn, whatever w is.
	return zerolog.New(zerolog.SyncWriter(w)).Level(at).With().Timestamp().Logger(), nil
}

func consoleWriter(w io.Writer, colour bool) io.Writer {
	return zerolog.ConsoleWriter{Out: w, NoColor: !colour, TimeFormat: time.TimeOnly}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
