package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/namesrv"
)

// part is one running piece of a cluster inside this process.
type part struct {
	name      string // for messages: "broker n1"
	address   string // that others dial, of a controller
	ready     func() error
	close     func() error
	drain     func(ctx context.Context, forward time.Duration) // before close, while everything serves; nil: nothing to do
	failed    <-chan struct{}                                  // closed when it cannot go on; nil: it never says so
	err       func() error                                     // why, after failed is closed
	collector prometheus.Collector
	labels    prometheus.Labels // tell this part from others of its kind in one process
}

// namesrvConfig is what a name server needs to know.
type namesrvConfig struct {
	Listen      string
	Controllers []string
}

func (f namesrvConfig) open(flag string, s security, log zerolog.Logger) (*part, error) {
	l, err := listen(flag, f.Listen, s)
	if err != nil {
		return nil, err
	}
	o := namesrv.Options{Listener: l, Controllers: f.Controllers, Logger: log.With().Str("role", "namesrv").Logger()}
	var controllers *controller.Client
	if len(f.Controllers) > 0 {
		if controllers, err = controller.Dial(f.Controllers, s.secret); err != nil {
			l.Close()
			return nil, err
		}
		o.Cluster = controlledCluster{controllers}
		o.Known = func(ctx context.Context) ([]string, error) {
			if _, err := controllers.Members(ctx); err != nil { // who they are may change
				return nil, err
			}
			groups, err := controllers.ListGroups(ctx)
			if err != nil {
				return nil, err
			}
			var names []string
			for _, g := range groups {
				if g.GetState() == pb.GroupState_GROUP_STATE_READY {
					names = append(names, g.GetName())
				}
			}
			return names, nil
		}
	}
	srv, err := namesrv.New(o)
	if err != nil {
		l.Close()
		if controllers != nil {
			controllers.Close()
		}
		return nil, err
	}
	srv.Start()
	return &part{
		name: "name server",
		ready: func() error {
			if !srv.Ready() {
				return errors.New("name server: not every group has registered yet")
			}
			return nil
		},
		close: func() error {
			err := srv.Close()
			if controllers != nil {
				err = errors.Join(err, controllers.Close())
			}
			return err
		},
		collector: newNamesrvCollector(srv), labels: prometheus.Labels{"namesrv": l.Addr().String()},
	}, nil
}

// controllerConfig is what a controller needs to know.
type controllerConfig struct {
	ID        string
	Dir       string
	Peers     map[string]string // empty: this one alone
	Addr      string            // to listen on
	Advertise string            // HOST[:PORT] of this one when Peers is empty; "": the listening one
	// Bootstrap lets an empty folder found a cluster. Always allowing it would make a new, empty cluster of a lost folder.
	Bootstrap bool
	// Join lets an empty folder wait until it is added to a cluster that lives.
	Join bool
	// Recover lets an empty folder wait until it is made the first controller of a cluster whose controllers are lost.
	Recover bool
}

func (f controllerConfig) open(prefix string, s security, log zerolog.Logger) (*part, error) {
	l, err := listen(prefix+"listen", f.Addr, s)
	if err != nil {
		return nil, err
	}
	if len(f.Peers) == 0 {
		addr, err := advertised(prefix+"advertise", f.Advertise, l)
		if err != nil {
			l.Close()
			return nil, err
		}
		f.Peers = map[string]string{f.ID: addr}
	}
	srv, err := controller.Open(controller.Options{
		Dir: f.Dir, ID: f.ID, Listener: l, Peers: f.Peers, Bootstrap: f.Bootstrap, Join: f.Join, Recover: f.Recover, FlagPrefix: prefix, Secret: s.secret, Insecure: s.insecure,
		Logger: log.With().Str("role", "controller").Logger(),
	})
	if err != nil {
		l.Close()
		return nil, err
	}
	srv.Start()
	self, err := controller.Dial([]string{l.Addr().String()}, s.secret)
	if err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	return &part{
		name: "controller " + f.ID, address: f.Peers[f.ID],
		ready: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			answers, err := self.Status(ctx)
			switch {
			case err != nil:
				return err
			case answers[0].Err != nil:
				return fmt.Errorf("controller %s: %w", f.ID, answers[0].Err)
			case answers[0].Status.GetFailure() != "":
				return fmt.Errorf("controller %s: %s", f.ID, answers[0].Status.GetFailure())
			case answers[0].Status.GetLeaderId() == "":
				return fmt.Errorf("controller %s knows no leader", f.ID)
			}
			return nil
		},
		close:     func() error { return errors.Join(self.Close(), srv.Close()) },
		collector: srv, labels: prometheus.Labels{"controller": f.ID},
	}, nil
}

// brokerConfig is what a broker node needs to know.
type brokerConfig struct {
	ID             string
	Dir            string
	ClusterName    string
	Zone           string
	Listen         string // HOST:FIRST-LAST, one port per replica
	Advertise      string // HOST
	PeerListen     string
	PeerAdvertise  string
	HTTP           string // told to the controller, for operators
	Controllers    []string
	Namesrv        []string
	NoCreateTopic  bool
	NoCreateGroup  bool
	RetentionAge   time.Duration
	RetentionBytes int64
	TimerMaxDelay  time.Duration
}

func (f brokerConfig) open(prefix string, s security, log zerolog.Logger) (*part, error) {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	clients, err := newClientPorts(prefix, f.Listen, f.Advertise, f.Dir, s)
	if err != nil {
		return nil, err
	}
	peers, err := listen(prefix+"peer-listen", f.PeerListen, s)
	if err != nil {
		return nil, err
	}
	advertise, err := advertised(prefix+"peer-advertise", f.PeerAdvertise, peers)
	if err != nil {
		peers.Close()
		return nil, err
	}
	node, err := broker.OpenNode(broker.NodeOptions{
		ID: ids.NodeID(f.ID), Dir: f.Dir, ClusterName: f.ClusterName, Zone: f.Zone,
		Controllers: f.Controllers, Namesrv: f.Namesrv,
		PeerListener: peers, PeerAdvertise: advertise, MetricsAdvertise: f.HTTP,
		ClientListener: clients.Listen,
		Secret:         s.secret, Insecure: s.insecure,
		NoAutoCreateTopic: f.NoCreateTopic, NoAutoCreateGroup: f.NoCreateGroup,
		RetentionAge: f.RetentionAge, RetentionBytes: f.RetentionBytes, TimerMaxDelay: f.TimerMaxDelay,
		Logger: log.With().Str("role", "broker").Logger(),
	})
	if err != nil {
		peers.Close()
		if errors.Is(err, vfs.ErrLocked) {
			err = fmt.Errorf("data folder %s is in use by another process; stop that one first, or use another folder", f.Dir)
		}
		return nil, err
	}
	node.Start()
	return &part{
		name: "broker " + f.ID, ready: func() error { return typedReady(node.Ready()) }, close: node.Close, drain: node.Drain,
		failed: node.Failed(), err: node.Err,
		collector: node, labels: prometheus.Labels{"node": f.ID},
	}, nil
}

// typedReady gives the answers of a node that others act upon their type.
func typedReady(err error) error {
	switch {
	case errors.Is(err, broker.ErrLost):
		return &elsewhereError{lostWord, err}
	case errors.Is(err, broker.ErrNoMaster):
		return &elsewhereError{noMasterWord, err}
	}
	return err
}

// addressList splits a comma-separated list of HOST:PORT.
func addressList(flag, text string) ([]string, error) {
	var out []string
	for _, a := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ';' || r == ' ' }) {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return nil, usagef("--%s %q: %q is not HOST:PORT", flag, text, a)
		}
		out = append(out, a)
	}
	return out, nil
}

// memberList parses id=HOST:PORT pairs.
func memberList(flag, text string) (map[string]string, error) {
	out := make(map[string]string)
	for _, pair := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		id, addr, ok := strings.Cut(pair, "=")
		host, _, err := net.SplitHostPort(addr)
		if !ok || id == "" || err != nil {
			return nil, usagef("--%s %q: want ID=HOST:PORT, comma separated", flag, text)
		}
		if isWildcard(host) {
			return nil, usagef("--%s %q: nobody can dial %s of %s; say which address of its machine others shall dial", flag, text, addr, id)
		}
		if _, twice := out[id]; twice {
			return nil, usagef("--%s %q: %s is named twice", flag, text, id)
		}
		out[id] = addr
	}
	return out, nil
}

// readSecret returns the cluster secret of --secret or --secret-file.
func readSecret(value, file string) ([]byte, error) {
	switch {
	case value != "" && file != "":
		return nil, usagef("--secret and --secret-file are both given; keep one")
	case file == "":
		return []byte(value), nil
	}
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, fmt.Errorf("--secret-file: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return nil, usagef("--secret-file %s is empty", file)
	}
	return []byte(text), nil
}
