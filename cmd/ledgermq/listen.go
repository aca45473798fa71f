package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/ledgermq/ledgermq/internal/vfs"
)

// security is what every listener and every connection between our own processes needs to know.
type security struct {
	secret   []byte
	insecure bool
}

// check refuses an address that other machines can reach when nothing keeps strangers out.
func (s security) check(flag, host, addr string) error {
	if len(s.secret) > 0 || s.insecure || isLoopback(host) {
		return nil
	}
	return usagef("--%s %s: other machines can reach it and there is no cluster secret; give one with --secret-file, "+
		"listen on 127.0.0.1, or allow it with --insecure", flag, addr)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isWildcard tells whether host means every address of this machine, which nobody can dial.
func isWildcard(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// listen opens a TCP listener for the setting flag.
func listen(flag, addr string, s security) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usagef("--%s %q: want HOST:PORT", flag, addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return nil, usagef("--%s %q: the port is not a number from 0 to 65535", flag, addr)
	}
	if err := s.check(flag, host, addr); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--%s %s: the port is in use; end the process that has it, or choose another port", flag, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, addr, err)
	}
	return l, nil
}

// advertised completes the address that others dial: what the operator says, else that of the listener.
func advertised(flag, advertise string, l net.Listener) (string, error) {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	switch {
	case advertise == "" && isWildcard(host):
		return "", usagef("--%s: the listener takes every address of this machine; say which one others shall dial", flag)
	case advertise == "":
		return l.Addr().String(), nil
	case strings.Contains(advertise, ":") && !strings.HasPrefix(advertise, "[") && strings.Count(advertise, ":") == 1,
		strings.Contains(advertise, "]:"):
		return advertise, nil
	default:
		return net.JoinHostPort(strings.Trim(advertise, "[]"), port), nil
	}
}

// clientPorts gives each replica of a node a client port of its own, from a range, and the same one after each restart: stock
// clients hold a broker's address for up to 30 s. The choice is kept in ports.json in the data folder.
type clientPorts struct {
	prefix    string // of the flags listen and advertise
	host      string
	advertise string // HOST, or "": the listening one
	file      string
	security  security

	mu          sync.Mutex
	first, last int            // both 0: any free port
	ports       map[string]int // group name to port
}

// newClientPorts parses HOST:PORT or HOST:FIRST-LAST, the value of the flag listen behind prefix.
func newClientPorts(prefix, addr, advertise, dir string, s security) (*clientPorts, error) {
	flag := prefix + "listen"
	host, ports, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usagef("--%s %q: want HOST:PORT or HOST:FIRST-LAST", flag, addr)
	}
	from, to, isRange := strings.Cut(ports, "-")
	first, err1 := strconv.Atoi(from)
	last := first
	var err2 error
	if isRange {
		last, err2 = strconv.Atoi(to)
	}
	if err1 != nil || err2 != nil || first < 0 || last < first || last > 65535 || (isRange && first == 0) {
		return nil, usagef("--%s %q: want ports from 1 to 65535, the first not above the last", flag, addr)
	}
	if err := s.check(flag, host, addr); err != nil {
		return nil, err
	}
	if advertise == "" && isWildcard(host) {
		return nil, usagef("--%s %s takes every address of this machine; say with --%sadvertise which one clients shall dial", flag, addr, prefix)
	}
	if strings.Contains(advertise, ":") && isRange && !strings.HasPrefix(advertise, "[") {
		return nil, usagef("--%sadvertise %s: with a range of ports give the host alone", prefix, advertise)
	}
	p := &clientPorts{
		prefix: prefix, host: host, advertise: advertise, security: s, first: first, last: last,
		file: filepath.Join(dir, "ports.json"), ports: make(map[string]int),
	}
	data, err := os.ReadFile(p.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &p.ports); err != nil {
			return nil, fmt.Errorf("%s is damaged (%w): remove it, then each replica gets a new client port", p.file, err)
		}
	}
	return p, nil
}

// Listen opens the client port of the node's replica of a group.
func (p *clientPorts) Listen(group string) (net.Listener, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.open(group)
	if err != nil {
		return nil, "", err
	}
	addr, err := advertised(p.prefix+"advertise", p.advertise, l)
	if err != nil {
		l.Close()
		return nil, "", err
	}
	if port := l.Addr().(*net.TCPAddr).Port; p.ports[group] != port {
		p.ports[group] = port
		if err := p.save(); err != nil {
			l.Close()
			return nil, "", err
		}
	}
	return l, addr, nil
}

func (p *clientPorts) open(group string) (net.Listener, error) {
	at := func(port int) (net.Listener, error) {
		return listen(p.prefix+"listen", net.JoinHostPort(p.host, strconv.Itoa(port)), p.security)
	}
	if port, ok := p.ports[group]; ok && (p.first == 0 || p.first <= port && port <= p.last) {
		return at(port)
	}
	if p.first == 0 {
		return at(0)
	}
	taken := make(map[int]bool, len(p.ports))
	for _, port := range p.ports {
		taken[port] = true
	}
	var busy error
	for port := p.first; port <= p.last; port++ {
		if taken[port] {
			continue
		}
		l, err := at(port)
		if err == nil {
			return l, nil
		}
		busy = err
	}
	if busy != nil {
		return nil, fmt.Errorf("group %s: no free client port left of --%slisten %s:%d-%d: %w", group, p.prefix, p.host, p.first, p.last, busy)
	}
	return nil, fmt.Errorf("group %s: every client port of --%slisten %s:%d-%d belongs to another group; widen the range",
		group, p.prefix, p.host, p.first, p.last)
}

func (p *clientPorts) save() error {
	data, err := json.MarshalIndent(p.ports, "", "  ")
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(vfs.OS, p.file, append(data, '\n'))
}
