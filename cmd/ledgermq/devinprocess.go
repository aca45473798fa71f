package main

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
)

// devInProcess runs every member inside this process. One HTTP listener, the first name server's, serves for all of them.
type devInProcess struct {
	plan     devPlan
	dir      string
	log      zerolog.Logger
	profiles bool

	process *process
	broken  chan struct{}
	once    sync.Once
	why     error
	stopped chan struct{}
	watch   sync.WaitGroup
}

func (d *devInProcess) start() error {
	d.broken, d.stopped = make(chan struct{}), make(chan struct{})
	d.process = newProcess(d.log)
	if err := d.process.observe("port-base: http", d.plan.addr(d.plan.Members[0].Ports["http"]), d.profiles, security{}); err != nil {
		return err
	}
	for _, role := range []string{"controller", "namesrv", "broker"} {
		for _, m := range d.plan.Members {
			if m.Role != role {
				continue
			}
			p, err := d.open(m)
			if err != nil {
				return err
			}
			d.process.add(p)
			if p.failed == nil {
				continue
			}
			d.watch.Go(func() {
				select {
				case <-p.failed:
					d.once.Do(func() { d.why = p.err(); close(d.broken) })
				case <-d.stopped:
				}
			})
		}
	}
	d.process.serving.Store(&d.process.parts)
	return nil
}

func (d *devInProcess) open(m devMember) (*part, error) {
	switch m.Role {
	case "controller":
		return controllerConfig{ID: m.ID, Dir: m.Data, Peers: d.plan.peers(), Addr: d.plan.addr(m.Ports["grpc"]), Bootstrap: d.plan.isNew()}.
			open("port-base: controller ", security{}, d.log)
	case "namesrv":
		return namesrvConfig{Listen: d.plan.addr(m.Ports["remoting"]), Controllers: d.plan.controllers()}.
			open("port-base: name server", security{}, d.log)
	}
	return brokerConfig{
		ID: m.ID, Dir: filepath.Clean(m.Data), Listen: d.plan.clients(m), PeerListen: d.plan.addr(m.Ports["peer"]),
		HTTP: d.plan.addr(d.plan.Members[0].Ports["http"]), Controllers: d.plan.controllers(), Namesrv: d.plan.namesrvs(),
		NoCreateTopic: !d.plan.creates("auto-create-topic"), NoCreateGroup: !d.plan.creates("auto-create-group"),
	}.open("port-base: ", security{}, d.log)
}

func (d *devInProcess) ready() error            { return d.process.ready() }
func (d *devInProcess) failed() <-chan struct{} { return d.broken }
func (d *devInProcess) err() error              { return d.why }
func (d *devInProcess) served(string) error     { return nil }

func (d *devInProcess) stop() error {
	close(d.stopped)
	d.watch.Wait()
	if d.process == nil {
		return errors.New("never started")
	}
	return d.process.close()
}
