package broker_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

// TestRefusedRegistration registers a group as somebody else would who uses its name, with a term that it will never have: its own replicas say
// that they are refused, once they were so for a round.
func TestRefusedRegistration(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.Logger = zerolog.New(&log).Level(zerolog.WarnLevel) }, "g1")
	c.master("g1")
	ns, err := remoting.Dial(t.Context(), c.nsAt, remoting.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	w := &wire{t, ns}
	b := namesrv.RegisterBody{Version: namesrv.DataVersion{StateVersion: 1, Timestamp: 1, Counter: 1}}
	body := b.Encode()
	const term = "9000000000000000000"
	w.ok(remoting.RegisterBroker, body, "brokerName", "g1", "brokerAddr", "127.0.0.1:1", "clusterName", "DefaultCluster", "haServerAddr", "127.0.0.1:2", "brokerId", "0",
		"bodyCrc32", strconv.Itoa(int(namesrv.BodyCRC(body))), "compressed", "false", namesrv.FieldGroupTerm, term)
	eventually(t, time.Minute, func() error {
		if text := log.String(); !strings.Contains(text, "refuses this replica's registrations") || !strings.Contains(text, `"newest_term":"`+term+`"`) {
			return fmt.Errorf("logged: %s", text)
		}
		return nil
	})
}
