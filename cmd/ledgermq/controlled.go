package main

import (
	"context"
	"fmt"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/namesrv"
)

// controlledCluster lets a name server answer for the controllers.
type controlledCluster struct{ c *controller.Client }

func (c controlledCluster) Controllers(ctx context.Context) (peers []namesrv.ControllerPeer, leader string, err error) {
	members, err := c.c.Members(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, m := range members.GetMembers() {
		peers = append(peers, namesrv.ControllerPeer{ID: m.GetId(), Addr: m.GetAddress()})
		if m.GetLeader() {
			leader = m.GetId()
		}
	}
	return peers, leader, nil
}

func (c controlledCluster) Groups(ctx context.Context) ([]namesrv.ControlledGroup, error) {
	groups, err := c.c.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	var out []namesrv.ControlledGroup
	for _, g := range groups {
		m := g.GetMaster()
		one := namesrv.ControlledGroup{Name: g.GetName(), Epoch: ids.Epoch(g.GetEpoch()),
			MasterLive: m.GetLive(), MasterAddr: m.GetClientAddress(), MasterTerm: ids.Term(m.GetTerm())}
		for _, r := range g.GetReplicas() {
			if m != nil && r.GetReplicaId() == m.GetReplicaId() {
				one.Master = ids.Slot(r.GetSlot())
			}
			one.Replicas = append(one.Replicas, namesrv.ControlledReplica{Slot: ids.Slot(r.GetSlot()), Addr: r.GetClientAddress(), Live: r.GetLive(), Voter: r.GetVoter()})
		}
		out = append(out, one)
	}
	return out, nil
}

func (c controlledCluster) Elect(ctx context.Context, group string, slot ids.Slot) error {
	g, err := c.c.GetGroup(ctx, group)
	if err != nil {
		return err
	}
	for _, r := range g.GetReplicas() {
		if ids.Slot(r.GetSlot()) == slot {
			_, err := c.c.Elect(ctx, group, r.GetNodeId())
			return err
		}
	}
	return fmt.Errorf("group %s has no replica with broker id %d", group, slot)
}
