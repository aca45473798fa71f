package jepsen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// The names of a cluster's parts: nodes are n1, n2, …, and broker groups beside the first one g2, g3, …
const (
	Group      = "g1"
	Controller = "c1"
	NameServer = "ns1"
	Clients    = "" // whoever is no member, in the rules of the network
)

// ClusterOptions says what cluster to start.
type ClusterOptions struct {
	Binary string // path of ledgermq
	Dir    string // an empty folder for data and logs
	Mode   Mode
	Groups int // default 1. Group k has its preferred master on node k; at most as many as there are nodes
	// Look, if given, returns what `admin group list --json` prints of name, epoch, activeEpoch, stuck, master and replicas. Without it that
	// command is run each time, which costs tens of milliseconds of a processor. The address is the same in each call.
	Look func(ctx context.Context, controller string) ([]byte, error)
}

// Mode is A-M: M replicas, a send is answered OK when A of them have it.
type Mode struct{ Answers, Members int }

func (m Mode) String() string { return fmt.Sprintf("%d-%d", m.Answers, m.Members) }

var modeForm = regexp.MustCompile(`^([1-5])-([1-5])$`)

// ParseMode is the opposite of String. It wants 2 replicas or more.
func ParseMode(text string) (Mode, error) {
	if d := modeForm.FindStringSubmatch(text); d != nil {
		m := Mode{Answers: int(d[1][0] - '0'), Members: int(d[2][0] - '0')}
		if m.Answers <= m.Members && m.Members >= 2 {
			return m, nil
		}
	}
	return Mode{}, fmt.Errorf("no mode %q: want A-M, such as 2-3, with 2 to 5 replicas of which A answer", text)
}

// voters is how many there are when all is well.
func (m Mode) voters() int { return min(m.Members, 2*m.Answers-1) }

// Cluster is a broker group, or some, on as many nodes as one has replicas, a controller and a name server, each a process of its own.
// Everybody dials everybody else through Net.
//
// It has two addresses of the loopback network to itself: the processes listen at the first one, the proxies at the second one
// with the same ports. So a port is free after a restart, and a client's port is the same on both sides.
type Cluster struct {
	Net *Network

	o        ClusterOptions
	host     string // where processes listen
	proxied  string // where they are dialed
	lock     io.Closer
	waiters  sync.WaitGroup // one per process that was started
	mu       sync.Mutex     // guards what processes there are: the proxies ask
	members  []*member
	stopOnce sync.Once
	stopErr  error
}

// member is one process, or the place of one that has ended.
type member struct {
	id, role string
	args     []string
	pid      int           // 0: it never ran
	ended    chan struct{} // closed when the process has ended
	err      error         // of its end; valid after ended is closed
	wanted   bool          // its end was
}

// The ports of a cluster, on addresses of its own.
const (
	namesrvPort    = 9876
	controllerPort = 9878
	clientPort     = 11000 // and ten times the node's number: the first one of its replicas
	peerPort       = 10950 // and the node's number
)

// Nodes returns the ids of the broker nodes.
func (c *Cluster) Nodes() []string {
	ids := make([]string, c.o.Mode.Members)
	for i := range ids {
		ids[i] = "n" + strconv.Itoa(i+1)
	}
	return ids
}

// Everybody returns the ids of all members.
func (c *Cluster) Everybody() []string { return append(c.Nodes(), Controller, NameServer) }

// Namesrv is where clients find the name server.
func (c *Cluster) Namesrv() []string { return []string{address(c.proxied, namesrvPort)} }

// Client returns where clients reach a node, in a cluster of one group.
func (c *Cluster) Client(node string) string { return address(c.proxied, firstPort(node)) }

func firstPort(node string) int { return clientPort + 10*number(node) }

// groups returns the names of the groups.
func (c *Cluster) groups() []string {
	names := []string{Group}
	for k := 2; k <= c.o.Groups; k++ {
		names = append(names, "g"+strconv.Itoa(k))
	}
	return names
}

// NodeAt is the opposite of Client. It returns "" for an address that is no node's.
func (c *Cluster) NodeAt(addr string) string {
	for _, node := range c.Nodes() {
		if c.Client(node) == addr {
			return node
		}
	}
	return ""
}

func number(node string) int {
	n, _ := strconv.Atoi(strings.TrimLeft(node, "n"))
	return n
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// StartCluster starts a cluster and waits until its group has all its voters. On an error nothing is left running.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	c := &Cluster{o: o}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for _, id := range append([]string{Controller, NameServer}, c.Nodes()...) {
		if err := c.start(id); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	var err error
	for k, name := range c.groups() {
		on := append(c.Nodes()[k:], c.Nodes()[:k]...)
		err = errors.Join(err, Await(ctx, "the creation of "+name, func() (bool, error) {
			_, err := c.Run(ctx, "admin", "group", "create", name, "--mode", o.Mode.String(), "--on", strings.Join(on, ","),
				"--segment-size", strconv.Itoa(64<<20), "--namesrv", c.Namesrv()[0])
			return err == nil, c.crashed()
		}))
	}
	if err == nil {
		err = c.AwaitHealthy(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, errors.New(c.Logs()), c.Close())
	}
	return c, nil
}

// open makes folders and proxies, and lays out the members.
func (c *Cluster) open() (err error) {
	if c.o.Dir, err = filepath.Abs(c.o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.logs(), 0o755); err != nil {
		return err
	}
	lock := filepath.Join(c.o.Dir, "lock")
	if c.lock, err = vfs.OS.Lock(lock); err != nil {
		return err
	}
	for range 20 { // somebody else may have the address
		network := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
		c.host, c.proxied = network+"1", network+"2"
		c.Net = NewNetwork(c.ownerOf)
		if err = c.proxies(); err == nil {
			break
		}
		c.Net.Close()
	}
	if err != nil {
		return err
	}
	common := []string{"--http=", "--while-locked", lock, "--log-format", "json", "--log-level", "info"}
	controllers := []string{"--controllers", address(c.proxied, controllerPort)}
	c.members = []*member{
		{id: Controller, role: "controller", args: append([]string{"controller", "--id", Controller, "--data", c.folder(Controller), "--bootstrap",
			"--listen", address(c.host, controllerPort), "--advertise", address(c.proxied, controllerPort)}, common...)},
		{id: NameServer, role: "namesrv", args: append(append([]string{"namesrv", "--listen", address(c.host, namesrvPort)}, controllers...), common...)},
	}
	for _, node := range c.Nodes() {
		port := firstPort(node)
		c.members = append(c.members, &member{id: node, role: "broker", args: append(append([]string{
			"broker", "--id", node, "--data", c.folder(node), "--namesrv", c.Namesrv()[0],
			"--listen", fmt.Sprintf("%s:%d-%d", c.host, port, port+len(c.groups())-1), "--advertise", c.proxied,
			"--peer-listen", address(c.host, peerPort+number(node)), "--peer-advertise", address(c.proxied, peerPort+number(node))},
			controllers...), common...)})
	}
	return nil
}

func (c *Cluster) proxies() error {
	listeners := map[int]string{namesrvPort: NameServer, controllerPort: Controller}
	for _, node := range c.Nodes() {
		listeners[peerPort+number(node)] = node
		for k := range c.groups() {
			listeners[firstPort(node)+k] = node
		}
	}
	for port, id := range listeners {
		if _, err := c.Net.Proxy(address(c.proxied, port), id, address(c.host, port)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) folder(id string) string { return filepath.Join(c.o.Dir, id) }

// ownerOf names the member that dialed a connection; "" is a client.
func (c *Cluster) ownerOf(local, remote netip.AddrPort) string {
	pids := map[string]int{}
	c.mu.Lock()
	for _, m := range c.members {
		if m.running() {
			pids[m.id] = m.pid
		}
	}
	c.mu.Unlock()
	return ownerOf(local, remote, pids)
}

func (m *member) running() bool {
	if m.pid == 0 {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

func (c *Cluster) member(id string) *member {
	return c.members[slices.IndexFunc(c.members, func(m *member) bool { return m.id == id })]
}

// start starts a member that does not run.
func (c *Cluster) start(id string) error {
	out, err := os.OpenFile(filepath.Join(c.logs(), id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close() // the child has its own
	c.mu.Lock()       // until its pid is known, so that its first connection finds its owner
	defer c.mu.Unlock()
	m := c.member(id)
	cmd := exec.Command(c.o.Binary, m.args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches only this process
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", id, err)
	}
	up := c.Net.Up(id)
	ended := make(chan struct{})
	m.pid, m.ended, m.wanted = cmd.Process.Pid, ended, false
	c.waiters.Go(func() {
		err := cmd.Wait()
		c.Net.Down(id)
		c.mu.Lock()
		m.err = err
		c.mu.Unlock()
		close(ended)
	})
	return up
}

// environment leaves out our own variables: a member's settings are all on its command line.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LEDGERMQ_") })
}

func (c *Cluster) logs() string { return filepath.Join(c.o.Dir, "log") }

// signal sends a signal to a member that runs; wanted tells that it may end of it.
func (c *Cluster) signal(id string, s syscall.Signal, wanted bool) (ended <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.member(id)
	if !m.running() {
		return nil, fmt.Errorf("%s does not run", id)
	}
	m.wanted = m.wanted || wanted
	return m.ended, syscall.Kill(m.pid, s)
}

// Kill ends a member with SIGKILL and waits for its end.
func (c *Cluster) Kill(id string) error {
	ended, err := c.signal(id, syscall.SIGKILL, true)
	if err == nil {
		<-ended
	}
	return err
}

// Terminate asks a member to end with SIGTERM. It does not wait.
func (c *Cluster) Terminate(id string) error {
	_, err := c.signal(id, syscall.SIGTERM, true)
	return err
}

// Pause stops a member with SIGSTOP: its connections stay open and nothing answers.
func (c *Cluster) Pause(id string) error {
	_, err := c.signal(id, syscall.SIGSTOP, false)
	return err
}

// Resume lets a paused member go on.
func (c *Cluster) Resume(id string) error {
	_, err := c.signal(id, syscall.SIGCONT, false)
	return err
}

// Heal undoes every fault: rules are lifted, paused members go on, dead ones are started again. It does not wait for the cluster.
func (c *Cluster) Heal() error {
	c.Net.Heal()
	var failed []error
	for _, m := range c.members {
		c.mu.Lock()
		running, wanted, ended := m.running(), m.wanted, m.ended
		c.mu.Unlock()
		switch {
		case running && wanted: // by SIGTERM, and not gone yet: a second signal ends it at once
			c.signal(m.id, syscall.SIGINT, true)
			<-ended
			failed = append(failed, c.start(m.id))
		case running:
			failed = append(failed, c.Resume(m.id))
		case wanted:
			failed = append(failed, c.start(m.id))
		default:
			failed = append(failed, c.crashed())
		}
	}
	return errors.Join(failed...)
}

// crashed tells of members that have ended although nobody wanted that.
func (c *Cluster) crashed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed []error
	for _, m := range c.members {
		if m.pid != 0 && !m.running() && !m.wanted {
			failed = append(failed, fmt.Errorf("%s ended by itself: %v", m.id, m.err))
		}
	}
	return errors.Join(failed...)
}

// groupState is what is read of `admin group list --json`.
type groupState struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Epoch       uint32 `json:"epoch"`
	ActiveEpoch uint32 `json:"activeEpoch"`
	Stuck       string `json:"stuck"`
	Master      *struct {
		Node string `json:"node"`
		Live bool   `json:"live"`
	} `json:"master"`
	Replicas []struct {
		Node  string `json:"node"`
		Voter bool   `json:"voter"`
		Live  bool   `json:"live"`
	} `json:"replicas"`
	Notes []string `json:"notes"`
}

// Master returns the node that leads the first group, as the controller knows it; "" when it knows none.
func (c *Cluster) Master(ctx context.Context) (string, error) {
	list, err := c.states(ctx)
	for _, g := range list {
		if g.Name == Group && g.Master != nil && g.Master.Live && g.Epoch == g.ActiveEpoch {
			return g.Master.Node, nil
		}
	}
	return "", err
}

// Voters returns how many voters the first group has in an epoch in which a master leads; 0 when it has none.
func (c *Cluster) Voters(ctx context.Context) (n int, err error) {
	list, err := c.states(ctx)
	for _, g := range list {
		if g.Name == Group && g.Master != nil && g.Master.Live && g.Epoch == g.ActiveEpoch {
			n = g.voters()
		}
	}
	return n, err
}

func (c *Cluster) states(ctx context.Context) (list []groupState, err error) {
	var out []byte
	if c.o.Look != nil {
		out, err = c.o.Look(ctx, address(c.proxied, controllerPort))
	} else {
		out, err = c.Run(ctx, "admin", "group", "list", "--json", "--namesrv", c.Namesrv()[0])
	}
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	return list, err
}

func (g groupState) voters() (n int) {
	for _, r := range g.Replicas {
		if r.Voter {
			n++
		}
	}
	return n
}

func (g groupState) live() (n int) {
	for _, r := range g.Replicas {
		if r.Live {
			n++
		}
	}
	return n
}

// healthyFor is for how long a group must be healthy: the controller believes a process that has just ended for a second.
const healthyFor = 1500 * time.Millisecond

// AwaitHealthy waits until in every group all replicas live, as many vote as the mode has voters, and one of them leads, and all that
// stays so for a moment.
func (c *Cluster) AwaitHealthy(ctx context.Context) error {
	var last error
	var since time.Time
	err := Await(ctx, "a healthy cluster", func() (bool, error) {
		if err := c.crashed(); err != nil {
			return false, err
		}
		list, err := c.states(ctx)
		if err == nil && len(list) != len(c.groups()) {
			err = fmt.Errorf("%d groups of %d", len(list), len(c.groups()))
		}
		for _, g := range list {
			if g.voters() != c.o.Mode.voters() || g.live() != c.o.Mode.Members || g.Master == nil || !g.Master.Live || g.Epoch != g.ActiveEpoch {
				err = fmt.Errorf("group %s: state %s, epoch %d of %d, %d voters, %d of %d replicas live; %s %v", g.Name, g.State, g.ActiveEpoch, g.Epoch, g.voters(), g.live(), len(g.Replicas), g.Stuck, g.Notes)
			}
		}
		if err != nil {
			last, since = err, time.Time{}
			return false, nil
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= healthyFor, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// Run runs one command of the binary and returns its standard output. The error has its standard error.
func (c *Cluster) Run(ctx context.Context, args ...string) ([]byte, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, c.o.Binary, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &said, environment()
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("ledgermq %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}

// Verify runs `log verify` over the nodes' folders.
func (c *Cluster) Verify(ctx context.Context) error {
	args := []string{"log", "verify"}
	for _, node := range c.Nodes() {
		args = append(args, c.folder(node))
	}
	if out, err := c.Run(ctx, args...); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// endLimit is how long a member may take to end after SIGINT.
const endLimit = 20 * time.Second

// Close ends every member, the brokers first, and waits. The error tells who ended by himself, or had to be killed.
func (c *Cluster) Close() error {
	c.stopOnce.Do(func() {
		failed := []error{c.crashed()}
		if c.Net != nil {
			c.Net.Heal()
		}
		for _, role := range []string{"broker", "namesrv", "controller"} {
			failed = append(failed, c.end(role))
		}
		c.waiters.Wait()
		if c.Net != nil {
			c.Net.Close()
		}
		if c.lock != nil {
			failed = append(failed, c.lock.Close())
		}
		c.stopErr = errors.Join(failed...)
	})
	return c.stopErr
}

func (c *Cluster) end(role string) error {
	var failed []error
	waits := map[string]<-chan struct{}{}
	for _, m := range c.members {
		if m.role != role {
			continue
		}
		if ended, err := c.signal(m.id, syscall.SIGINT, true); err == nil {
			waits[m.id] = ended
			c.signal(m.id, syscall.SIGCONT, true) // a paused one cannot end
		}
	}
	limit := time.After(endLimit)
	for id, ended := range waits {
		select {
		case <-ended:
		case <-limit:
			limit = time.After(0) // for the others too
			failed = append(failed, fmt.Errorf("%s did not end within %v of SIGINT", id, endLimit), c.Kill(id))
		}
	}
	return errors.Join(failed...)
}

// Logs returns the end of each member's log.
func (c *Cluster) Logs() string { return LogEnds(c.logs()) }

// Trouble returns what the members' logs say of panics and data races.
func (c *Cluster) Trouble() string { return LogTrouble(c.logs()) }
