package main

import (
	"net"
	"testing"

	"github.com/ledgermq/ledgermq/namesrv"
	"github.com/ledgermq/ledgermq/remoting"
)

// startCluster is a name server and the master of group g1, which answers as answer tells; where that is nil, that it does not know.
// The name server knows topics of one queue.
func startCluster(t *testing.T, answer func(req *remoting.Command) *remoting.Command, topics ...string) (ns string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := remoting.NewServer(remoting.ServerOptions{Listener: l, Handler: func(c *remoting.Conn, req *remoting.Command) {
		if resp := answer(req); resp != nil {
			c.Reply(req, resp)
		} else {
			c.ReplyError(req, remoting.RequestCodeNotSupported, remoting.RequestName(req.Code))
		}
	}})
	s.Start()
	t.Cleanup(func() { _ = s.Close() })
	ns, register := startNamesrv(t)
	var configs []namesrv.TopicConfig
	for _, name := range topics {
		configs = append(configs, namesrv.TopicConfig{Name: name, ReadQueues: 1, WriteQueues: 1, Perm: 6})
	}
	register("g1", "0", l.Addr().String(), configs...)
	return ns
}

func jsonAnswer(body string) *remoting.Command {
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = []byte(body)
	return resp
}

// An end of transactions that are not there says that nothing matches, and is no failure.
func TestResolveOfNothing(t *testing.T) {
	t.Parallel()
	ns := startCluster(t, func(req *remoting.Command) *remoting.Command {
		if req.Code == remoting.ListTransactions {
			return jsonAnswer(`{"found":0,"transactions":[]}`)
		}
		return nil
	}, "Orders")
	for _, flag := range []string{"--yes", "--dry-run", "--gave-up"} {
		code, out, errs := runTool(t, "admin", "tx", "resolve", "commit", "--producer-group", "nobody", flag, "--json", "--namesrv", ns)
		if code != 0 || out != "[]\n" || errs != "nothing matches: no such transaction is pending\n" {
			t.Errorf("%s: exit code %d, %q and %q", flag, code, out, errs)
		}
	}
}
