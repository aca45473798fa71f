package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/tests/cluster"
	real "github.com/ledgermq/ledgermq/tests/rocketmq"
)

// This file runs docs/migrate.md against Apache RocketMQ. See operate_test.go for how a page is run.

const migrateVariable = "LEDGERMQ_TEST_CONFORMANCE"

func TestMigrate(t *testing.T) {
	t.Parallel()
	if os.Getenv(migrateVariable) == "" {
		t.Skipf("needs Maven and a JDK: run `make conformance`, which sets %s", migrateVariable)
	}
	sections := pageSections(t, "docs/migrate.md")
	for title, old := range map[string]string{"From RocketMQ to LedgerMQ": "broker-a", "Back from LedgerMQ to RocketMQ": "g1"} {
		steps, ok := sections[title]
		if !ok {
			t.Errorf("docs/migrate.md has no section %q", title)
			continue
		}
		delete(sections, title)
		t.Run(title, func(t *testing.T) { newMigration(t, old).run(steps) }) // not at the same time: each has two clusters and their clients
	}
	for title := range sections {
		t.Errorf("docs/migrate.md: the commands of %q are run by no test", title)
	}
}

// migration is both systems, and a load that uses RocketMQ's name server all the time.
type migration struct {
	*walker
	theirs *real.Cluster
	load   *load

	mu       sync.Mutex
	sent     map[string]int // answered OK, by broker
	consumed map[string]int // by broker
	bodies   map[string]int
}

const migrateTopic, migrateGroup = "Orders", "orders"

// newMigration starts both systems. The old one, broker-a or g1, is the only one that has the topic.
func newMigration(t *testing.T, old string) *migration {
	m := &migration{sent: make(map[string]int), consumed: make(map[string]int), bodies: make(map[string]int)}
	c := start(t, cluster.Options{Groups: 1})
	m.walker = &walker{t: t, c: c, dir: c.Dir, walk: walk{marks: m.marks()}}
	theirs, err := real.Start(t.Context(), real.Options{Dir: t.TempDir(), NamesrvOnly: old == "g1", Ready: 5 * time.Minute})
	m.must(err)
	m.theirs = theirs
	t.Cleanup(func() { m.theirs.Stop() })
	m.env = append(m.shellEnv(), "LEDGERMQ_NAMESRV="+strings.Join(c.Namesrv, ","))
	m.must(theirs.Mqadmin(filepath.Dir(m.path("ledgermq")), t.TempDir()))
	if old == "g1" {
		_, err := c.Admin(within(t, 20*time.Second), "namesrv", "set", c.Namesrv[0], theirs.Namesrv[0])
		m.must(err)
	}
	k, err := client.New(theirs.Namesrv)
	m.must(err)
	defer k.Close()
	m.must(jepsen.Await(within(t, time.Minute), "the topic", func() (bool, error) {
		_, err := k.CreateTopic(t.Context(), client.TopicSpec{Name: migrateTopic, ReadQueues: 4, Groups: []string{old}})
		return err == nil, nil
	}))
	for range 2 {
		m.consume()
	}
	m.produce()
	m.await("messages of "+old, func() bool { return m.consumed[old] > 100 })
	return m
}

// path returns where the shell of the walk finds a program.
func (m *migration) path(name string) string {
	for _, v := range m.env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			return filepath.Join(strings.SplitN(path, ":", 2)[0], name)
		}
	}
	m.t.Fatal("no PATH")
	return ""
}

func (m *migration) run(steps []step) {
	translate(steps, func(text string) string {
		return strings.NewReplacer("10.0.0.1:9876", m.c.Namesrv[0], "10.0.0.9:9876", m.theirs.Namesrv[0]).Replace(text)
	})
	m.steps(steps)
	m.check()
}

func (m *migration) marks() map[string]func(*walker, []string) {
	return map[string]func(*walker, []string){
		`messages are consumed`: func(*walker, []string) {
			n := m.count()
			m.await("more messages", func() bool { return len(m.bodies) > n+200 })
		},
		`messages are consumed from both`: func(*walker, []string) {
			m.mu.Lock()
			from := make(map[string]int)
			for group, n := range m.consumed {
				from[group] = n
			}
			m.mu.Unlock()
			m.await("messages of two groups", func() bool {
				grown := 0
				for group, n := range m.consumed {
					if n > from[group]+50 {
						grown++
					}
				}
				return grown == 2
			})
		},
		`nothing is sent to (\S+) any more`: func(w *walker, a []string) { m.quiet(a[0]) },
		`everything on (\S+) is consumed`: func(w *walker, a []string) {
			m.await("the messages of "+a[0], func() bool { return m.consumed[a[0]] >= m.sent[a[0]] })
			m.drained(a[0])
		},
		`broker-a is stopped`: func(*walker, []string) {
			p, err := m.theirs.Process("broker-a-0")
			m.must(err)
			m.must(p.Stop())
		},
		`broker-b is started`: func(*walker, []string) {
			b, err := real.Start(m.t.Context(), real.Options{Dir: m.t.TempDir(), Group: "broker-b", Namesrv: m.theirs.Namesrv, Ready: 5 * time.Minute})
			m.must(err)
			m.t.Cleanup(func() { b.Stop() })
		},
		`the LedgerMQ cluster is stopped`: func(*walker, []string) { m.must(m.c.Stop()) },
	}
}

// produce sends numbered messages with the official Go client as it is by default, but that it asks for routes every 30 s anyway.
func (m *migration) produce() {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver(m.theirs.Namesrv)), producer.WithGroupName("migrators"),
		producer.WithInstanceName(fmt.Sprintf("m%d", instances.Add(1))), producer.WithRetry(3))
	if err == nil {
		err = p.Start()
	}
	m.must(err)
	m.load = runLoad(m.t, migrateTopic, 2, pace, func(body string) string {
		r, err := p.SendSync(context.Background(), primitive.NewMessage(migrateTopic, []byte(body)))
		if err != nil || r.Status != primitive.SendOK {
			return reason(r, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sent[r.MessageQueue.BrokerName]++
		return ""
	}, func() { p.Shutdown() })
}

func (m *migration) consume() {
	k, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(primitive.NewPassthroughResolver(m.theirs.Namesrv)), consumer.WithGroupName(migrateGroup),
		consumer.WithInstance(fmt.Sprintf("m%d", instances.Add(1))), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err == nil {
		err = k.Subscribe(migrateTopic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, msg := range messages {
				m.consumed[msg.Queue.BrokerName]++
				m.bodies[string(msg.Body)]++
			}
			return consumer.ConsumeSuccess, nil
		})
	}
	if err == nil {
		err = k.Start()
	}
	m.must(err)
	m.t.Cleanup(func() { k.Shutdown() })
}

func (m *migration) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.bodies)
}

// await waits until the counts are so. Stock clients read routes, and share queues anew, every 20 to 30 seconds.
func (m *migration) await(what string, holds func() bool) {
	m.t.Helper()
	eventually(m.t, 3*time.Minute, what, func() (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return holds(), nil
	})
}

// quiet waits until no producer has used a group while 300 messages went to another one.
func (m *migration) quiet(group string) {
	m.t.Helper()
	total := func() (all int) {
		for _, n := range m.sent {
			all += n
		}
		return all
	}
	last, since := -1, 0
	m.await("nothing sent to "+group, func() bool {
		if m.sent[group] != last {
			last, since = m.sent[group], total()
		}
		return total() >= since+300
	})
}

// drained waits until the group's consumers have committed everything there, as an operator sees it.
func (m *migration) drained(group string) {
	m.t.Helper()
	k, err := client.New(m.theirs.Namesrv)
	m.must(err)
	defer k.Close()
	eventually(m.t, 2*time.Minute, "offsets of "+group, func() (bool, error) {
		for q := range int32(4) {
			ref := client.QueueRef{Topic: migrateTopic, Group: group, Queue: ids.QueueID(q)}
			end, err := k.MaxOffset(m.t.Context(), ref)
			if err != nil {
				return false, nil
			}
			at, _, err := k.CommittedOffset(m.t.Context(), migrateGroup, ref)
			if err != nil || at < end {
				return false, nil
			}
		}
		return true, nil
	})
}

// check ends the load and demands that everything that was answered OK is consumed.
func (m *migration) check() {
	m.t.Helper()
	m.load.end()
	lost := func() (list []string) {
		for body := range m.load.acked {
			if m.bodies[body] == 0 {
				list = append(list, body)
			}
		}
		return list
	}
	m.await("the last messages", func() bool { return len(lost()) == 0 })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.t.Logf("%d sends answered OK, %v by broker; consumed %v; %d sends failed: %v", len(m.load.acked), m.sent, m.consumed, m.load.failed.Load(), m.load.why)
}
