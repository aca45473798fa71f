package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// ClusterName is RocketMQ's name of the cluster, which is that of ours too.
const ClusterName = "DefaultCluster"

// Options says what to start. The zero value but for Dir is a name server and one broker with RocketMQ's own defaults.
type Options struct {
	Dir string // data folder; must be given
	// Replicated starts three brokers of one group and a controller: an answer means that all of the sync-state set have the message, and
	// that each has synced it.
	Replicated bool
	// NamesrvOnly starts no broker.
	NamesrvOnly bool
	Group       string            // the brokers' name. Default broker-a
	Heap        string            // of each broker's JVM. Default 512m
	Broker      map[string]string // more properties of the brokers
	// Namesrv are name servers that run already, of either kind; then none is started.
	Namesrv []string
	// Ready bounds the wait until the cluster serves. Default 2 minutes: a JVM takes long on a busy machine.
	Ready time.Duration
}

// Cluster is a running RocketMQ.
type Cluster struct {
	Dir     string
	Group   string
	Namesrv []string
	// Controller is the address of the controller of a replicated one.
	Controller string

	at        cluster.Place
	next      int
	processes []*Process
	stop      sync.Once
}

// Start starts a cluster and waits until it serves. On an error nothing is left running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Group == "" {
		o.Group = "broker-a"
	}
	if o.Heap == "" {
		o.Heap = "512m"
	}
	if o.Ready == 0 {
		o.Ready = 2 * time.Minute
	}
	at, err := cluster.NewPlaceOnLocalhost()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: o.Dir, Group: o.Group, Namesrv: o.Namesrv, at: at}
	ready, cancel := context.WithTimeoutCause(ctx, o.Ready, fmt.Errorf("RocketMQ does not serve within %v", o.Ready))
	defer cancel()
	if err := c.start(ready, o); err != nil {
		text := c.Logs()
		return nil, errors.Join(err, c.Stop(), errors.New(text))
	}
	return c, nil
}

// ports gives out ports in steps of 10: a broker takes the ones beside its own too.
func (c *Cluster) port() int {
	c.next += 10
	return c.at.Base + c.next
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	if len(c.Namesrv) == 0 {
		port := c.port()
		if err := c.launch("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", "256m", map[string]string{
			"listenPort": strconv.Itoa(port), "bindAddress": "127.0.0.1", "kvConfigPath": filepath.Join(o.Dir, "namesrv", "kv.json"),
		}); err != nil {
			return err
		}
		c.Namesrv = []string{fmt.Sprintf("127.0.0.1:%d", port)}
	}
	if o.NamesrvOnly {
		return c.awaitBrokers(ctx, 0)
	}
	brokers := 1
	shared := map[string]string{
		"brokerClusterName": ClusterName, "brokerName": o.Group, "namesrvAddr": strings.Join(c.Namesrv, ";"),
		"brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "bindAddress": "127.0.0.1",
		// Files of a size for tests. A disk that others fill must not make it refuse sends.
		"mappedFileSizeCommitLog": strconv.Itoa(64 << 20), "mappedFileSizeTimerLog": strconv.Itoa(16 << 20),
		"maxHashSlotNum": "100000", "maxIndexNum": "400000", "diskMaxUsedSpaceRatio": "98", "deleteWhen": "04",
		// A new topic is known to the name server at once, not half a minute later.
		"forceRegister": "true",
	}
	if o.Replicated {
		brokers = 3
		port := c.port()
		if err := c.launch("controller", "org.apache.rocketmq.controller.ControllerStartup", "256m", map[string]string{
			"controllerDLegerGroup": "group1", "controllerDLegerSelfId": "n0", "controllerDLegerPeers": fmt.Sprintf("n0-127.0.0.1:%d", port),
			"controllerStorePath": filepath.Join(o.Dir, "controller", "store"), "mappedFileSize": strconv.Itoa(16 << 20),
			"bindAddress": "127.0.0.1",
		}); err != nil {
			return err
		}
		c.Controller = fmt.Sprintf("127.0.0.1:%d", port)
		maps.Copy(shared, map[string]string{
			"enableControllerMode": "true", "controllerAddr": c.Controller, "brokerId": "-1",
			"allAckInSyncStateSet": "true", "flushDiskType": "SYNC_FLUSH", "brokerRole": "SYNC_MASTER",
		})
	} else {
		shared["brokerId"] = "0"
	}
	maps.Copy(shared, o.Broker)
	for i := range brokers {
		name := fmt.Sprintf("%s-%d", o.Group, i)
		port, store := c.port(), filepath.Join(o.Dir, name, "store")
		properties := maps.Clone(shared)
		maps.Copy(properties, map[string]string{
			"listenPort": strconv.Itoa(port), "haListenPort": strconv.Itoa(port + 1),
			"storePathRootDir": store, "storePathCommitLog": filepath.Join(store, "commitlog"),
		})
		if err := c.launch(name, "org.apache.rocketmq.broker.BrokerStartup", o.Heap, properties); err != nil {
			return err
		}
	}
	return c.awaitBrokers(ctx, brokers)
}

// awaitBrokers waits until the name server knows a master of the group and as many addresses as there are brokers.
func (c *Cluster) awaitBrokers(ctx context.Context, brokers int) error {
	k, err := client.New(c.Namesrv)
	if err != nil {
		return err
	}
	defer k.Close()
	return jepsen.Await(ctx, "RocketMQ's brokers", func() (bool, error) {
		for _, p := range c.processes {
			if err := p.ended(); err != nil {
				return false, err
			}
		}
		now, err := k.Cluster(ctx)
		if err != nil || brokers == 0 {
			return err == nil, nil
		}
		for _, g := range now.Groups {
			if g.Group == c.Group {
				return g.Master() != "" && len(g.Replicas) == brokers && hasRates(ctx, g.Master()), nil
			}
		}
		return false, nil
	})
}

// hasRates tells whether a broker answers what it does (28): one that has just begun refuses that, or tells no rates, for some seconds.
func hasRates(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	broker, err := remoting.Dial(ctx, addr, remoting.ClientOptions{})
	if err != nil {
		return false
	}
	defer broker.Close()
	resp, err := broker.Call(ctx, remoting.NewRequest(remoting.GetBrokerRuntimeInfo))
	if err != nil || resp.Code != remoting.Success {
		return false
	}
	var body struct {
		Table map[string]string `json:"table"`
	}
	return json.Unmarshal(resp.Body, &body) == nil && strings.TrimSpace(body.Table["putTps"]) != ""
}

// launch starts one process with a file of properties.
func (c *Cluster) launch(name, class, heap string, properties map[string]string) error {
	dir := filepath.Join(c.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&text, "%s=%s\n", key, properties[key])
	}
	file := filepath.Join(dir, "conf.properties")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return err
	}
	p, err := newProcess(name, dir, class, heap, file)
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return p.Start()
}

// Mqadmin writes a script of this name into a folder, which is RocketMQ's mqadmin. Its own files go to home.
func (c *Cluster) Mqadmin(folder, home string) error {
	jars, err := Jars()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("#!/bin/sh\nexec java -Xmx128m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.home='%s' -Drocketmq.home.dir='%s' -cp '%s/*' "+
		"org.apache.rocketmq.tools.command.MQAdminStartup \"$@\"\n", home, home, jars)
	return os.WriteFile(filepath.Join(folder, "mqadmin"), []byte(text), 0o755)
}

// Process returns the process of a name: namesrv, controller, or the group's name and a number.
func (c *Cluster) Process(name string) (*Process, error) {
	for _, p := range c.processes {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no process %s of RocketMQ", name)
}

// CPU returns the processor time that all processes which run have taken so far.
func (c *Cluster) CPU() (time.Duration, error) {
	var sum time.Duration
	for _, p := range c.processes {
		used, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Logs returns the end of what each process has printed.
func (c *Cluster) Logs() string {
	var text strings.Builder
	for _, p := range c.processes {
		fmt.Fprintf(&text, "=== %s\n%s\n", p.Name, p.Output())
	}
	return text.String()
}

// Stop ends all processes, the brokers first, and waits for them. It may be called more than once.
func (c *Cluster) Stop() error {
	var failed error
	c.stop.Do(func() {
		for _, p := range slices.Backward(c.processes) {
			failed = errors.Join(failed, p.Stop())
		}
		c.at.Release()
	})
	return failed
}
