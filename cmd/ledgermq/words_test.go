package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
)

// TestMessagesAreForPeople holds that what a command prints of an error does not name packages.
func TestMessagesAreForPeople(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"raftlog: parked: the log could not be read: raftlog: read the log: commitlog: bad frame at offset 7: its checksum": "parked: the log could not be read: read the log: bad frame at offset 7: its checksum",
		"broker: commitlog: x\nvfs: y":              "x; y",
		"--port-base: controller listen 1: in use":  "--port-base: controller listen 1: in use",
		"group g1: the broker: gone; message: none": "group g1: the broker: gone; none",
	} {
		if got := oneLine(errors.New(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestProduceSkipsEmptyLines feeds produce lines that are none, for which it must not even look for a name server.
func TestProduceSkipsEmptyLines(t *testing.T) {
	t.Parallel()
	oneRun.Lock()
	defer oneRun.Unlock()
	for in, want := range map[string]int{"\n\r\n\n": 0, "\nx\n": 1} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"ledgermq", "produce", "T", "--namesrv", "127.0.0.1:1", "--timeout", "1ms"},
			streams{in: strings.NewReader(in), out: &out, err: &errs})
		if code != want {
			t.Errorf("%q: exit code %d: %s", in, code, errs.String())
		}
	}
}

// TestObserverListsItsEndpoints holds what / of the HTTP address shows.
func TestObserverListsItsEndpoints(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := newObserver(l, false, func() error { return nil }, zerolog.Nop())
	defer o.Close()
	for path, code := range map[string]int{"/": http.StatusOK, "/nowhere": http.StatusNotFound, "/healthz": http.StatusOK} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != code || strings.Contains(string(body), "/readyz") != (path != "/healthz") || strings.Contains(string(body), "pprof") {
			t.Errorf("%s: %s %v\n%s", path, resp.Status, err, body)
		}
	}
}

// TestResetPlaces holds what --to of consumer reset means.
func TestResetPlaces(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]resetTarget{
		"first": {end: "first"}, "earliest": {end: "first"}, "last": {end: "last"}, "latest": {end: "last"},
		"0": {isOffset: true}, "999999999999": {isOffset: true, offset: 999999999999},
		"1795946400000": {at: at}, "2026-11-29T10:00:00Z": {at: at}, "2026-11-29T12:00:00+02:00": {at: at},
	} {
		got, err := parseResetTarget(text)
		if err != nil || got.end != want.end || got.isOffset != want.isOffset || got.offset != want.offset || !got.at.Equal(want.at) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1", "yesterday", "2026-11-29", "1e3"} {
		if got, err := parseResetTarget(text); err == nil {
			t.Errorf("%s is taken: %+v", text, got)
		}
	}
}

// TestFailuresAreToldOnce holds that a change which every broker group refuses for one reason is not told that often.
func TestFailuresAreToldOnce(t *testing.T) {
	t.Parallel()
	no := func(addr string) error { return &client.CodeError{Op: "X", Addr: addr, Code: 29, Remark: "no"} }
	var out bytes.Buffer
	tool := &tool{streams: streams{out: &out}}
	err := tool.reportGroups(cli.NewContext(cli.NewApp(), flag.NewFlagSet("", flag.ContinueOnError), nil),
		[]client.GroupResult{{Group: "g1", Err: no("a:1")}, {Group: "g2"}, {Group: "g3", Err: no("a:3")}, {Group: "g4", Err: client.ErrNoMaster}}, errors.New("all"))
	want := "failed in 3 of 4 broker groups: no (code 29); the broker group has no master"
	if err == nil || err.Error() != want || strings.Count(out.String(), "no (code 29)") != 2 {
		t.Errorf("got %v, want %s\n%s", err, want, out.String())
	}
}

// TestWaitingIsToldOnce holds what consume says while a group cannot be read: one line per change.
func TestWaitingIsToldOnce(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	tool := &tool{streams: streams{err: &errs}}
	told := map[string]string{}
	for _, w := range []map[string]error{
		{}, {"g1": client.ErrNoMaster}, {"g1": client.ErrNoMaster}, {"g1": fmt.Errorf("x: %w", client.ErrNoMaster), "g2": errors.New("broken")},
		{"g2": errors.New("broken")}, {}, {},
	} {
		told = tool.tellChanges(told, w)
	}
	want := "waiting: group g1 has no master\nwaiting: group g2: broken\ngoing on: group g1 is there again\ngoing on: group g2 is there again\n"
	if errs.String() != want {
		t.Errorf("got\n%swant\n%s", errs.String(), want)
	}
}
