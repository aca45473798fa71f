package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// observer serves /metrics, /healthz and /readyz of one process, and /debug/pprof when asked to. Healthy means: the process
// answers. Ready means: every part that runs here serves its clients; otherwise the answer is 503 and says what is missing:
// "not ready: ", then "no-master: " or "lost: " when that is all, then text for people.
type observer struct {
	registry *prometheus.Registry
	server   *http.Server
	done     chan struct{}
}

// newObserver takes the listener over. It answers "starting" until the parts are set.
func newObserver(l net.Listener, profiles bool, ready func() error, log zerolog.Logger) *observer {
	o := &observer{registry: prometheus.NewRegistry(), done: make(chan struct{})}
	o.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ledgermq_ready", Help: "1 when every part of this process serves its clients, else 0.",
		}, func() float64 {
			if ready() == nil {
				return 1
			}
			return 0
		}),
	)
	mux := http.NewServeMux()
	endpoints := "/metrics   what is counted and measured, for Prometheus\n" +
		"/healthz   whether the process answers\n/readyz    whether every part serves, else what is missing\n"
	if profiles {
		endpoints += "/debug/pprof/   Go's profiles\n"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, endpoints)
	})
	mux.Handle("/metrics", promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, notReady(err), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	if profiles {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() { // ends with Close
		defer close(o.done)
		if err := o.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error().Err(err).Msg("the HTTP listener ended")
		}
	}()
	return o
}

func (o *observer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := o.server.Shutdown(ctx)
	if err != nil {
		err = o.server.Close()
	}
	<-o.done
	return err
}

const (
	notReadyWord = "not ready: "
	noMasterWord = "no-master: "
	lostWord     = "lost: "
)

// elsewhereError tells that what a part lacks it cannot bring about itself: a group's master, for which other members may have to come
// back, or a new replica in the place of one that is given up for ever.
type elsewhereError struct {
	word string // noMasterWord or lostWord
	err  error
}

func (e *elsewhereError) Error() string { return e.err.Error() }
func (e *elsewhereError) Unwrap() error { return e.err }

// elsewhere returns the word for what is missing when nothing of it can be brought about here, else "".
func elsewhere(err error) string {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		words := make(map[string]bool)
		for _, e := range all.Unwrap() {
			words[elsewhere(e)] = true
		}
		switch {
		case words[""]:
			return ""
		case words[lostWord]:
			return lostWord
		}
		return noMasterWord
	}
	var e *elsewhereError
	if !errors.As(err, &e) {
		return ""
	}
	return e.word
}

// notReady is the answer of /readyz; readyAnswer is the reverse.
func notReady(err error) string { return notReadyWord + elsewhere(err) + oneLine(err) }

func readyAnswer(body string) error {
	text := strings.TrimPrefix(strings.TrimSpace(body), notReadyWord)
	for _, word := range []string{noMasterWord, lostWord} {
		if rest, ok := strings.CutPrefix(text, word); ok {
			return &elsewhereError{word, errors.New(rest)}
		}
	}
	return errors.New(text)
}
