package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// securityFlags are those of everything that listens or talks to our own processes.
func securityFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "secret", Usage: "the cluster's `SECRET`; better put it into a file"},
		&cli.StringFlag{Name: "secret-file", Usage: "`FILE` with the cluster's secret"},
		&cli.BoolFlag{Name: "insecure", Usage: "listen beyond this machine although there is no secret"},
	}
}

func securityOf(c *cli.Context) (security, error) {
	secret, err := readSecret(c.String("secret"), c.String("secret-file"))
	return security{secret: secret, insecure: c.Bool("insecure")}, err
}

// processFlags are those of a process that runs roles; http is where its HTTP listener is by default.
func processFlags(http string) []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringFlag{Name: "http", Value: http, Usage: "`HOST:PORT` of /metrics, /healthz and /readyz; empty: none"},
		&cli.BoolFlag{Name: "pprof", Usage: "serve Go profiles below /debug/pprof on the --http address"},
		// Set by dev: the process ends when nobody holds this file's lock any more, so that a killed dev leaves nothing behind.
		&cli.StringFlag{Name: "while-locked", Hidden: true, Usage: "`FILE`"},
	}, securityFlags(), logFlags())
}

// The flags of each role. In `server` each name gets the role as prefix: --broker-listen.

func namesrvFlags(prefix string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: prefix + "listen", Value: "127.0.0.1:9876", Usage: "`HOST:PORT` for clients and brokers"},
	}
}

func controllerFlags(prefix string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: prefix + "id", Value: "c1", Usage: "this member's `NAME`"},
		&cli.StringFlag{Name: prefix + "listen", Value: "127.0.0.1:9878", Usage: "`HOST:PORT` for nodes, tools and the other members"},
		&cli.StringFlag{Name: prefix + "advertise", Usage: "`HOST[:PORT]` that others dial; default: the listening address"},
		&cli.StringFlag{Name: prefix + "peers", Usage: "all members as `ID=HOST:PORT,…`, 1, 3 or 5; default: this one alone"},
		&cli.BoolFlag{Name: prefix + "join", Usage: "let an empty data folder wait until admin controller add takes it into a cluster that lives; --" + prefix + "peers has this one and one of the others at least"},
		&cli.BoolFlag{Name: prefix + "recover", Usage: "let an empty data folder wait until admin controller recover makes it the first controller of a cluster whose controllers are lost"},
		&cli.BoolFlag{Name: prefix + "bootstrap", Usage: "let an empty data folder found a cluster; for the first start only"},
	}
}

func brokerFlags(prefix string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: prefix + "id", Usage: "this node's `NAME`, bound to its data folder for ever"},
		&cli.StringFlag{Name: prefix + "listen", Value: "127.0.0.1:10911-10942", Usage: "`HOST:FIRST-LAST` for clients, one port per replica"},
		&cli.StringFlag{Name: prefix + "advertise", Usage: "`HOST` that clients dial; default: the listening one"},
		&cli.StringFlag{Name: prefix + "peer-listen", Value: "127.0.0.1:10950", Usage: "`HOST:PORT` for replication"},
		&cli.StringFlag{Name: prefix + "peer-advertise", Usage: "`HOST[:PORT]` that other nodes dial; default: the listening one"},
		&cli.StringFlag{Name: prefix + "zone", Usage: "`NAME` of the place where this node is; of masters that could be, one in the zone of the preferred one is chosen"},
		&cli.StringFlag{Name: prefix + "cluster-name", Value: "DefaultCluster", Usage: "RocketMQ's cluster `NAME`"},
		&cli.BoolFlag{Name: prefix + "auto-create-topic", Value: true, Usage: "a first send creates its topic"},
		&cli.BoolFlag{Name: prefix + "auto-create-group", Value: true, Usage: "a first heartbeat creates its consumer group"},
		&cli.DurationFlag{Name: prefix + "drain", Value: 35 * time.Second, Usage: "how long SIGTERM lets requests be forwarded to new masters; stock clients look every 30 s"},
		&cli.DurationFlag{Name: prefix + "retention-age", Value: 72 * time.Hour, Usage: "how long messages are kept at least, unless --" + prefix + "retention-bytes gives them up sooner; negative: for ever"},
		&cli.Int64Flag{Name: prefix + "retention-bytes", Usage: "size of a group's log above which old segments are given up, in `BYTES`; 0: no bound"},
		&cli.DurationFlag{Name: prefix + "timer-max-delay", Value: 72 * time.Hour, Usage: "how far away the time of a delayed message may be; delay levels are not bound by it"},
	}
}

func clusterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "controllers", Usage: "`HOST:PORT,…` of the controllers"},
		&cli.StringFlag{Name: "namesrv", Usage: "`HOST:PORT,…` of the name servers"},
	}
}

func dataFlag() cli.Flag {
	return &cli.StringFlag{Name: "data", Usage: "data `FOLDER`"}
}

func (t *tool) namesrvCommand() *cli.Command {
	return t.roleCommand("namesrv", "run a name server", "127.0.0.1:9877",
		namesrvFlags(""), []cli.Flag{&cli.StringFlag{Name: "controllers", Usage: "`HOST:PORT,…` of the controllers"}})
}

func (t *tool) controllerCommand() *cli.Command {
	return t.roleCommand("controller", "run a controller", "127.0.0.1:9879", controllerFlags(""), []cli.Flag{dataFlag()})
}

func (t *tool) brokerCommand() *cli.Command {
	return t.roleCommand("broker", "run a broker node", "127.0.0.1:10960", brokerFlags(""), clusterFlags(), []cli.Flag{dataFlag()})
}

// roleCommand is a command that runs one role with unprefixed flags.
func (t *tool) roleCommand(name, usage, http string, flags ...[]cli.Flag) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Flags: withEnv(slices.Concat(append(flags, processFlags(http))...)...),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 0, 0, "no argument"); err != nil {
				return err
			}
			return t.runRoles(c, []string{name}, func(string) string { return "" })
		}),
	}
}

func (t *tool) serverCommand() *cli.Command {
	flags := slices.Concat(
		[]cli.Flag{&cli.StringFlag{Name: "roles", Value: "namesrv,controller,broker", Usage: "what to run: namesrv, controller, broker"}},
		namesrvFlags("namesrv-"), controllerFlags("controller-"), brokerFlags("broker-"), clusterFlags(), []cli.Flag{dataFlag()}, processFlags("127.0.0.1:10960"))
	return &cli.Command{
		Name: "server", Usage: "run any set of roles in one process", Flags: withEnv(flags...),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 0, 0, "no argument"); err != nil {
				return err
			}
			var roles []string
			for _, r := range strings.Split(c.String("roles"), ",") {
				r = strings.TrimSpace(r)
				if !slices.Contains([]string{"namesrv", "controller", "broker"}, r) {
					return usagef("--roles %s: %q is not a role; use namesrv, controller and broker", c.String("roles"), r)
				}
				if slices.Contains(roles, r) {
					return usagef("--roles %s: %s is named twice", c.String("roles"), r)
				}
				roles = append(roles, r)
			}
			return t.runRoles(c, roles, func(role string) string { return role + "-" })
		}),
	}
}

// runRoles opens the roles, serves until the context ends or the lock of --while-locked is free, and closes in reverse order.
func (t *tool) runRoles(c *cli.Context, roles []string, prefix func(role string) string) (failed error) {
	log, err := t.logger(c)
	if err != nil {
		return err
	}
	s, err := securityOf(c)
	if err != nil {
		return err
	}
	controllers, err := addressList("controllers", c.String("controllers"))
	if err != nil {
		return err
	}
	namesrvs, err := addressList("namesrv", c.String("namesrv"))
	if err != nil {
		return err
	}
	shared, opened, drain := len(roles) > 1, false, time.Duration(0)
	data := c.String("data")
	if data == "" && (slices.Contains(roles, "controller") || slices.Contains(roles, "broker")) {
		return usagef("no data folder: give one with --data")
	}
	folder := func(role string) string {
		if shared {
			return filepath.Join(data, role)
		}
		return data
	}
	// In one process the roles know each other without being told; where the controller is turns out below.
	if shared && len(namesrvs) == 0 && slices.Contains(roles, "namesrv") {
		namesrvs = []string{c.String("namesrv-listen")}
	}

	for _, role := range roles {
		if role == "namesrv" {
			continue
		}
		_, err := os.Lstat(folder(role))
		fresh := errors.Is(err, os.ErrNotExist)
		unmake := unmakeFolder(folder(role))
		defer func() {
			stranger := fresh && role == "broker" && errors.Is(failed, controller.ErrNodeConflict)
			if stranger {
				dropStranger(folder(role))
			}
			if stranger || !opened {
				unmake()
			}
		}()
	}
	p := newProcess(log)
	defer p.close()
	if err := p.observe("http", c.String("http"), c.Bool("pprof"), s); err != nil {
		return err
	}
	for _, role := range []string{"controller", "namesrv", "broker"} { // each may need those before it
		if !slices.Contains(roles, role) {
			continue
		}
		pre := prefix(role)
		var next *part
		switch role {
		case "controller":
			f := controllerConfig{ID: c.String(pre + "id"), Dir: folder(role), Addr: c.String(pre + "listen"),
				Advertise: c.String(pre + "advertise"), Bootstrap: c.Bool(pre + "bootstrap"), Join: c.Bool(pre + "join"), Recover: c.Bool(pre + "recover")}
			if f.Peers, err = memberList(pre+"peers", c.String(pre+"peers")); err != nil {
				return err
			}
			if next, err = f.open(pre, s, log); err == nil && len(controllers) == 0 {
				controllers = []string{next.address}
			}
		case "namesrv":
			next, err = namesrvConfig{Listen: c.String(pre + "listen"), Controllers: controllers}.open(pre+"listen", s, log)
		case "broker":
			f := brokerConfig{
				ID: c.String(pre + "id"), Dir: folder(role), ClusterName: c.String(pre + "cluster-name"), Zone: c.String(pre + "zone"),
				Listen: c.String(pre + "listen"), Advertise: c.String(pre + "advertise"),
				PeerListen: c.String(pre + "peer-listen"), PeerAdvertise: c.String(pre + "peer-advertise"), HTTP: c.String("http"),
				Controllers: controllers, Namesrv: namesrvs,
				NoCreateTopic: !c.Bool(pre + "auto-create-topic"), NoCreateGroup: !c.Bool(pre + "auto-create-group"),
				RetentionAge: c.Duration(pre + "retention-age"), RetentionBytes: c.Int64(pre + "retention-bytes"),
				TimerMaxDelay: c.Duration(pre + "timer-max-delay"),
			}
			if err := checkBroker(pre, f); err != nil {
				return err
			}
			if drain = c.Duration(pre + "drain"); drain < 0 {
				return usagef("--%sdrain %v is negative", pre, drain)
			}
			next, err = f.open(pre, s, log)
		}
		if err != nil {
			return err
		}
		p.add(next)
	}
	opened = true
	log.Info().Strs("roles", roles).Int("pid", os.Getpid()).Msg("started")
	err = p.wait(c.Context, c.String("while-locked"))
	if err == nil && terminated(c.Context) {
		log.Info().Msg("SIGTERM: handing over; a second signal ends this process at once")
		err = p.drain(drain, c.String("while-locked"))
	}
	err = errors.Join(err, p.close())
	if err == nil {
		log.Info().Strs("roles", roles).Msg("stopped")
	}
	return err
}

func checkBroker(prefix string, f brokerConfig) error {
	if f.ID == "" {
		return usagef("no node id: give one with --%sid, for instance n1", prefix)
	}
	if len(f.Controllers) == 0 {
		return usagef("no controller: give its address with --controllers HOST:PORT")
	}
	if len(f.Namesrv) == 0 {
		return usagef("no name server: give its address with --namesrv HOST:PORT")
	}
	return nil
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// process is what runs inside this process: its parts and, if asked for, the HTTP listener.
type process struct {
	log      zerolog.Logger
	parts    []*part
	observer *observer
	serving  atomic.Pointer[[]*part] // what ready looks at; nil while opening
	draining bool                    // set before wait is called again
	closed   bool
}

func newProcess(log zerolog.Logger) *process { return &process{log: log} }

func (p *process) observe(flag, addr string, profiles bool, s security) error {
	if addr == "" {
		return nil
	}
	l, err := listen(flag, addr, s)
	if err != nil {
		return err
	}
	p.observer = newObserver(l, profiles, p.ready, p.log)
	return nil
}

func (p *process) add(opened *part) {
	p.parts = append(p.parts, opened)
	if p.observer != nil {
		prometheus.WrapRegistererWith(opened.labels, p.observer.registry).MustRegister(opened.collector)
	}
}

// ready says what is missing until every part serves.
func (p *process) ready() error {
	parts := p.serving.Load()
	if parts == nil {
		return errors.New("starting")
	}
	var missing []error
	for _, part := range *parts {
		if err := part.ready(); err != nil {
			missing = append(missing, err)
		}
	}
	return errors.Join(missing...)
}

// unserved is how long a process may not serve until its log says what is missing.
const unserved = 5 * time.Second

// wait lets ready look at the parts, and says in the log once when they serve. It returns when ctx ends, when nobody holds the
// lock of file any more, or when a part cannot go on, which is an error.
func (p *process) wait(ctx context.Context, file string) error {
	p.serving.Store(&p.parts)
	began, told := time.Now(), false
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	if p.draining {
		look.Stop()
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	failed := make(chan *part)
	ended := make(chan struct{})
	defer close(ended)
	for _, part := range p.parts {
		if part.failed == nil {
			continue
		}
		go func() { // ends with this function
			select {
			case <-part.failed:
				select {
				case failed <- part:
				case <-ended:
				}
			case <-ended:
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case part := <-failed:
			return fmt.Errorf("%s: %w", part.name, part.err())
		case <-look.C:
			if err := p.ready(); err == nil {
				p.log.Info().Msg("serving")
				look.Stop()
			} else if !told && time.Since(began) > unserved {
				told = true
				p.log.Info().Str("missing", oneLine(err)).Msg("not serving yet")
			}
		case <-ticker.C:
			if file != "" && !isLocked(file) {
				p.log.Info().Str("file", file).Msg("the dev process that started this one has ended")
				return nil
			}
		}
	}
}

// drain lets the parts hand over what they lead while all of them still serve. It ends early like wait.
func (p *process) drain(forward time.Duration, file string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	drained, end := context.WithCancel(ctx)
	p.draining = true
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() {
		defer end()
		for _, part := range p.parts {
			if part.drain != nil {
				part.drain(ctx, forward)
			}
		}
	})
	return p.wait(drained, file)
}

// unmakeFolder returns what removes dir, and its parents that are not there now, as far as they are empty: a start that was
// refused leaves no folder behind.
func unmakeFolder(dir string) (unmake func()) {
	var made []string
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	return func() {
		for _, d := range made {
			os.Remove(d) // not when something is in it
		}
	}
}

// dropStranger removes what a node that no cluster took has made in its new folder: it would bind the folder to an id that
// another node has. A folder that belongs to a cluster by now, or has replicas, stays as it is.
func dropStranger(dir string) {
	var node struct {
		Cluster string `json:"cluster"`
	}
	name := filepath.Join(dir, "node.json")
	data, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(data, &node) != nil || node.Cluster != "" || os.Remove(filepath.Join(dir, "groups")) != nil {
		return
	}
	os.Remove(name)
	os.Remove(filepath.Join(dir, "LOCK"))
}

// isLocked tells whether a process holds the lock of file. Without the file, or its folder, nobody does.
func isLocked(file string) bool {
	if _, err := os.Stat(file); err != nil {
		return false
	}
	lock, err := vfs.OS.Lock(file)
	if err != nil {
		return errors.Is(err, vfs.ErrLocked)
	}
	lock.Close()
	return false
}

// close stops the parts in reverse order, then the listener. The second call does nothing.
func (p *process) close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.serving.Store(nil)
	var failed []error
	for _, part := range slices.Backward(p.parts) {
		if err := part.close(); err != nil {
			failed = append(failed, fmt.Errorf("stopping the %s: %w", part.name, err))
		}
	}
	if p.observer != nil {
		failed = append(failed, p.observer.Close())
	}
	return errors.Join(failed...)
}
