package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// devPlan is what `dev` is going to run: members, their ports and folders, and the groups. It follows from the options alone,
// so that it can be kept in DIR/dev.json and a member can be started again from it.
type devPlan struct {
	Version     int         `json:"version"`
	PortBase    int         `json:"portBase"`       // 0: RocketMQ's usual ports
	Host        string      `json:"host,omitempty"` // "": devHost
	Nodes       int         `json:"nodes"`
	Groups      int         `json:"groups"`
	Controllers int         `json:"controllers"`
	Namesrvs    int         `json:"namesrvs"`
	Mode        string      `json:"mode"`
	MinISR      int         `json:"minISR"` // 0: by mode
	SegmentSize int64       `json:"segmentSize"`
	Async       bool        `json:"async,omitempty"` // groups flush asynchronously
	Extra       []string    `json:"extra,omitempty"` // flags that every broker gets: each of autoCreateFlags that is false
	Members     []devMember `json:"members"`
}

// devMember is one member of the plan. Ports of a broker's replicas are not in it: the node gives them from Clients.
type devMember struct {
	ID      string         `json:"id"`
	Role    string         `json:"role"`
	Data    string         `json:"data,omitempty"`
	Ports   map[string]int `json:"ports"`
	Clients [2]int         `json:"clients,omitempty"` // first and last client port of a broker
}

const (
	devPlanVersion = 1
	devHost        = "127.0.0.1" // without --host
	// The usual ports of RocketMQ's name server and broker, kept without --port-base.
	usualNamesrvPort = 9876
	usualBrokerPort  = 10911
	maxDevNodes      = 16
	maxDevGroups     = 64
)

// fill lays out the members. Each has its ports in a block of its own:
//
//	base      name servers: remoting, HTTP, 2 each
//	then      controllers: gRPC, HTTP, 2 each
//	then      nodes: as many client ports as there can be groups, replication, HTTP
func (p *devPlan) fill(dir string) error {
	answers, members, err := parseMode(p.Mode)
	host, hostErr := netip.ParseAddr(p.host())
	switch {
	case hostErr != nil || !host.IsLoopback():
		return usagef("--host %s: use an address of this machine alone, 127.0.0.1 to 127.255.255.254 or ::1: a dev cluster has no access control; for others to reach it, run `ledgermq server`", p.Host)
	case err != nil:
		return usagef("--mode %s: %v", p.Mode, err)
	case p.Nodes < 1 || p.Nodes > maxDevNodes:
		return usagef("--nodes %d: use 1 to %d", p.Nodes, maxDevNodes)
	case members > p.Nodes:
		return usagef("--mode %s needs %d nodes and --nodes is %d; raise --nodes or choose a smaller mode", p.Mode, members, p.Nodes)
	case p.Groups < 1 || p.Groups > maxDevGroups:
		return usagef("--groups %d: use 1 to %d", p.Groups, maxDevGroups)
	case p.MinISR < 0 || p.MinISR > controller.Voters(answers, members): // the others only learn
		return usagef("--min-isr %d: mode %s allows 1 to %d", p.MinISR, p.Mode, controller.Voters(answers, members))
	case p.Controllers != 1 && p.Controllers != 3:
		return usagef("--controller-count %d: use 1 or 3", p.Controllers)
	case p.Namesrvs < 1 || p.Namesrvs > 5:
		return usagef("--namesrv-count %d: use 1 to 5", p.Namesrvs)
	case ids.CheckSegmentSize(p.SegmentSize, ids.MinSegmentSize) != nil:
		return usagef("--segment-size %d: use a power of two from %d to %d bytes", p.SegmentSize, ids.MinSegmentSize, int64(ids.MaxSegmentSize))
	}
	p.Version = devPlanVersion
	p.Members = nil
	next, brokers := p.PortBase, 0
	if p.PortBase == 0 {
		next, brokers = usualNamesrvPort, usualBrokerPort
	}
	take := func() int { next++; return next - 1 }
	for i := 1; i <= p.Namesrvs; i++ {
		p.Members = append(p.Members, devMember{ID: fmt.Sprintf("ns%d", i), Role: "namesrv",
			Ports: map[string]int{"remoting": take(), "http": take()}})
	}
	for i := 1; i <= p.Controllers; i++ {
		id := fmt.Sprintf("c%d", i)
		p.Members = append(p.Members, devMember{ID: id, Role: "controller", Data: filepath.Join(dir, id),
			Ports: map[string]int{"grpc": take(), "http": take()}})
	}
	if brokers != 0 {
		next = brokers
	}
	room := max(16, 2*p.Groups) // for groups that are created later
	for i := 1; i <= p.Nodes; i++ {
		id := fmt.Sprintf("n%d", i)
		m := devMember{ID: id, Role: "broker", Data: filepath.Join(dir, id), Clients: [2]int{next, next + room - 1}}
		next += room
		m.Ports = map[string]int{"peer": take(), "http": take()}
		p.Members = append(p.Members, m)
	}
	if p.PortBase < 0 || next > 65536 {
		return usagef("--port-base %d: the cluster needs %d ports from there; use 1 to %d", p.PortBase, next-p.PortBase, 65536-(next-p.PortBase))
	}
	return nil
}

// groupNodes returns the nodes of group k, from 1: neighbours, each group starting one node further.
func (p *devPlan) groupNodes(k int) []string {
	_, members, _ := parseMode(p.Mode)
	nodes := make([]string, members)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", (k-1+i)%p.Nodes+1)
	}
	return nodes
}

// parseMode parses A-M: M replicas, a send is answered when A of them have it.
func parseMode(mode string) (answers, members int, err error) {
	a, m, ok := strings.Cut(mode, "-")
	answers, err1 := strconv.Atoi(a)
	members, err2 := strconv.Atoi(m)
	if !ok || err1 != nil || err2 != nil || controller.CheckMode(answers, members) != nil {
		return 0, 0, errors.New("want A-M with 1 ≤ A ≤ M ≤ 5, for instance 2-3")
	}
	return answers, members, nil
}

func (p *devPlan) host() string { return cmp.Or(p.Host, devHost) }

func (p *devPlan) addr(port int) string { return net.JoinHostPort(p.host(), strconv.Itoa(port)) }

// clients is where a broker's replicas listen.
func (p *devPlan) clients(m devMember) string {
	return net.JoinHostPort(p.host(), fmt.Sprintf("%d-%d", m.Clients[0], m.Clients[1]))
}

// autoCreateFlags are the flags of brokers that dev passes on. Their default is true.
var autoCreateFlags = []string{"auto-create-topic", "auto-create-group"}

// creates tells whether one of autoCreateFlags is in force.
func (p *devPlan) creates(flag string) bool { return !slices.Contains(p.Extra, "--"+flag+"=false") }

func (p *devPlan) setCreates(flag string, on bool) {
	if on != p.creates(flag) {
		if on {
			p.Extra = slices.DeleteFunc(p.Extra, func(e string) bool { return e == "--"+flag+"=false" })
		} else {
			p.Extra = append(p.Extra, "--"+flag+"=false")
		}
	}
}

func (p *devPlan) addresses(role, port string) []string {
	var out []string
	for _, m := range p.Members {
		if m.Role == role {
			out = append(out, p.addr(m.Ports[port]))
		}
	}
	return out
}

func (p *devPlan) namesrvs() []string    { return p.addresses("namesrv", "remoting") }
func (p *devPlan) controllers() []string { return p.addresses("controller", "grpc") }

func (p *devPlan) peers() map[string]string {
	out := make(map[string]string)
	for _, m := range p.Members {
		if m.Role == "controller" {
			out[m.ID] = p.addr(m.Ports["grpc"])
		}
	}
	return out
}

// args is the command line that runs a member as a process of its own.
func (p *devPlan) args(m devMember, dir string) []string {
	http := p.addr(m.Ports["http"])
	controllers := strings.Join(p.controllers(), ",")
	common := []string{"--http", http, "--while-locked", filepath.Join(dir, devLockName), "--log-format", "json"}
	switch m.Role {
	case "namesrv":
		return append([]string{"namesrv", "--listen", p.addr(m.Ports["remoting"]), "--controllers", controllers}, common...)
	case "controller":
		var peers []string
		for _, id := range sortedKeys(p.peers()) {
			peers = append(peers, id+"="+p.peers()[id])
		}
		args := append([]string{"controller", "--id", m.ID, "--listen", p.addr(m.Ports["grpc"]), "--data", m.Data,
			"--peers", strings.Join(peers, ",")}, common...)
		if p.isNew() {
			args = append(args, "--bootstrap")
		}
		return args
	}
	args := append([]string{"broker", "--id", m.ID, "--data", m.Data,
		"--listen", p.clients(m), "--peer-listen", p.addr(m.Ports["peer"]),
		"--controllers", controllers, "--namesrv", strings.Join(p.namesrvs(), ",")}, common...)
	return append(args, p.Extra...)
}

// isNew tells whether no node has a replica yet: only then may an empty controller folder found a cluster.
func (p *devPlan) isNew() bool {
	for _, m := range p.Members {
		if m.Role != "broker" {
			continue
		}
		groups := filepath.Join(m.Data, "groups")
		found, err := os.ReadDir(groups)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		for _, g := range found {
			if _, err := os.Stat(filepath.Join(groups, g.Name(), "replica.json")); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				return false
			}
		}
	}
	return true
}

const (
	devPlanName = "dev.json"
	devLockName = "dev.lock"
	devLogName  = "log" // folder with the logs of processes
)

// loadDevPlan returns fs.ErrNotExist when the folder has none.
func loadDevPlan(dir string) (devPlan, error) {
	var p devPlan
	name := filepath.Join(dir, devPlanName)
	data, err := os.ReadFile(name)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("%s is damaged: %w; use another --data folder", name, err)
	}
	if p.Version != devPlanVersion {
		return p, fmt.Errorf("%s has version %d, this program knows %d; use another --data folder", name, p.Version, devPlanVersion)
	}
	return p, nil
}

// settle compares the plan with the one that the folder was made with. A cluster keeps its shape: what the user did not give
// comes from the folder, what contradicts it is refused. isSet tells which flags were given.
func (p *devPlan) settle(dir string, isSet func(flag string) bool) error {
	old, err := loadDevPlan(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := checkForeign(dir); err != nil {
			return err
		}
		return p.fill(dir)
	}
	if err != nil {
		return err
	}
	type setting struct {
		flag     string
		now, was any
		keep     func()
	}
	settings := []setting{
		{"nodes", p.Nodes, old.Nodes, func() { p.Nodes = old.Nodes }},
		{"groups", p.Groups, old.Groups, func() { p.Groups = old.Groups }},
		{"mode", p.Mode, old.Mode, func() { p.Mode = old.Mode }},
		{"min-isr", p.MinISR, old.MinISR, func() { p.MinISR = old.MinISR }},
		{"segment-size", p.SegmentSize, old.SegmentSize, func() { p.SegmentSize = old.SegmentSize }},
		{"flush", flushName(p.Async), flushName(old.Async), func() { p.Async = old.Async }},
		{"controller-count", p.Controllers, old.Controllers, func() { p.Controllers = old.Controllers }},
		{"namesrv-count", p.Namesrvs, old.Namesrvs, func() { p.Namesrvs = old.Namesrvs }},
	}
	for _, flag := range autoCreateFlags {
		settings = append(settings, setting{flag, p.creates(flag), old.creates(flag), func() { p.setCreates(flag, old.creates(flag)) }})
	}
	for _, f := range settings {
		if f.now == f.was {
			continue
		}
		if isSet(f.flag) {
			return usagef("--%s %v: the cluster in %s was made with %v; leave the flag out, or use another --data folder", f.flag, f.now, dir, f.was)
		}
		f.keep()
	}
	if !isSet("port-base") {
		p.PortBase = old.PortBase
	}
	if !isSet("host") {
		p.Host = old.Host
	}
	return p.fill(dir)
}

// checkForeign refuses a folder without a plan that holds anything but what a dev cluster that never served leaves.
func checkForeign(dir string) error {
	found, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	var others []string
	for _, f := range found {
		if f.Name() != devLockName && f.Name() != devLogName {
			others = append(others, f.Name())
		}
	}
	if len(others) == 0 {
		return nil
	}
	if more := len(others) - 3; more > 0 {
		others = append(others[:3], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("data folder %s is not that of a dev cluster and is not empty: it has %s; use another --data folder", dir, strings.Join(others, ", "))
}

func (p *devPlan) save(dir string) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(vfs.OS, filepath.Join(dir, devPlanName), append(data, '\n'))
}
