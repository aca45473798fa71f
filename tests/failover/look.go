package main

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/ledgermq/ledgermq/controller"
)

// look asks a controller for the groups in this process: a process for each question would take a processor from what is measured. It answers
// with the fields of `admin group list --json` that a measurement reads.
type look struct {
	mu  sync.Mutex
	ctl *controller.Client
}

func (l *look) groups(ctx context.Context, addr string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctl == nil {
		ctl, err := controller.Dial([]string{addr}, nil)
		if err != nil {
			return nil, err
		}
		l.ctl = ctl
	}
	groups, err := l.ctl.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	type master struct {
		Node string `json:"node"`
		Live bool   `json:"live"`
	}
	type replica struct {
		Node  string `json:"node"`
		Voter bool   `json:"voter"`
		Live  bool   `json:"live"`
	}
	type group struct {
		Name        string    `json:"name"`
		Epoch       uint32    `json:"epoch"`
		ActiveEpoch uint32    `json:"activeEpoch"`
		Stuck       string    `json:"stuck"`
		Master      *master   `json:"master"`
		Replicas    []replica `json:"replicas"`
	}
	all := []group{}
	for _, g := range groups {
		v := group{Name: g.GetName(), Epoch: g.GetEpoch(), ActiveEpoch: g.GetActiveEpoch(), Stuck: g.GetStuck()}
		if m := g.GetMaster(); m != nil {
			v.Master = &master{m.GetNodeId(), m.GetLive()}
		}
		for _, r := range g.GetReplicas() {
			v.Replicas = append(v.Replicas, replica{r.GetNodeId(), r.GetVoter(), r.GetLive()})
		}
		all = append(all, v)
	}
	return json.Marshal(all)
}

func (l *look) close() {
	if l.ctl != nil {
		l.ctl.Close()
	}
}
