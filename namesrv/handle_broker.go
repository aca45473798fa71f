package namesrv

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// maxTimeout bounds what a broker may ask for as its own expiry, so that none stays for ever.
const maxTimeout = time.Hour

// names are the fields that say which broker a request is about.
type names struct {
	cluster, group, addr string
	id                   ids.BrokerID
}

// readNames copies the fields out of the connection's buffer.
func readNames(cmd *remoting.Command) (n names, err error) {
	for _, f := range []struct {
		key   string
		at    *string
		limit int
	}{{"clusterName", &n.cluster, 255}, {"brokerName", &n.group, 255}, {"brokerAddr", &n.addr, 255}} {
		v, err := cmd.MustString(f.key)
		if err != nil {
			return n, err
		}
		if err := checkName("field "+f.key, v, f.limit); err != nil {
			return n, err
		}
		*f.at = strings.Clone(v)
	}
	if strings.ContainsAny(n.addr, `,"{}\`) {
		return n, fmt.Errorf("the field brokerAddr %q is no host:port", n.addr)
	}
	id, err := cmd.MustInt64("brokerId")
	if err != nil {
		return n, err
	}
	if id < 0 {
		return n, fmt.Errorf("the field brokerId is %d, it must not be negative", id)
	}
	n.id = ids.BrokerID(id)
	return n, nil
}

// term reads the field that our own brokers add.
func readTerm(cmd *remoting.Command) (term ids.Term, ok bool, err error) {
	text, ok := cmd.Get(FieldGroupTerm)
	if !ok || text == "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("the field %s is no term: %q", FieldGroupTerm, strings.Clone(text))
	}
	return ids.Term(n), true, nil
}

// 103 REGISTER_BROKER. Java brokers send neither groupTerm nor controllers; their term is the state version of the body,
// which is the epoch of their controller, or 0 without one. They may send a part of their topics, ours always send all.
func (s *Server) registerBroker(r request) (*remoting.Command, error) {
	n, err := readNames(r.cmd)
	if err != nil {
		return nil, err
	}
	body, err := readBody(r.cmd)
	if err != nil {
		return nil, err
	}
	term, ours, err := readTerm(r.cmd)
	if err != nil {
		return nil, err
	}
	if !ours {
		term = body.Version.Term()
	}
	reg := Registration{
		Cluster: n.cluster, Group: n.group, Addr: n.addr, BrokerID: n.id, Term: term,
		HAAddr: strings.Clone(r.cmd.GetOr("haServerAddr", "")), Zone: strings.Clone(r.cmd.GetOr("zoneName", "")),
		Version: body.Version, Topics: body.Topics, Whole: ours, Conn: r.conn.id,
		ClusterID: strings.Clone(r.cmd.GetOr(FieldClusterID, "")),
	}
	if reg.Acting, err = r.cmd.BoolOr("enableActingMaster", false); err != nil {
		return nil, err
	}
	millis, err := r.cmd.Int64Or("heartbeatTimeoutMillis", 0)
	if err != nil {
		return nil, err
	}
	if millis > 0 {
		reg.Timeout = min(time.Duration(min(millis, int64(maxTimeout/time.Millisecond)))*time.Millisecond, maxTimeout)
	}
	for addr := range strings.SplitSeq(strings.Clone(r.cmd.GetOr(FieldControllers, "")), ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			reg.Controllers = append(reg.Controllers, addr)
		}
	}

	r.conn.registered = true
	s.mu.Lock()
	done, err := s.routes.Register(s.o.Clock(), reg)
	s.mu.Unlock()
	if err != nil {
		return s.registerRefused(reg, err)
	}
	if done.New {
		s.o.Logger.Info().Str("group", reg.Group).Uint64("epoch", uint64(reg.Term.Epoch())).Stringer("term", reg.Term).
			Str("addr", reg.Addr).Int64("brokerID", int64(reg.BrokerID)).Msg("a broker registered")
	}
	select {
	case s.poke <- struct{}{}:
	default:
	}
	resp := remoting.NewResponse(remoting.Success, "")
	if reg.BrokerID != ids.MasterBrokerID && done.MasterAddr != "" {
		resp.Set("masterAddr", done.MasterAddr)
		resp.Set("haServerAddr", done.HAAddr)
	}
	resp.Set(FieldGroupTerm, strconv.FormatUint(uint64(done.Term), 10))
	return resp, nil
}

func (s *Server) registerRefused(reg Registration, err error) (*remoting.Command, error) {
	var stale *StaleError
	if !errors.As(err, &stale) {
		return nil, err
	}
	s.o.Logger.Info().Str("group", reg.Group).Uint64("epoch", uint64(reg.Term.Epoch())).Stringer("term", reg.Term).
		Stringer("newest", stale.Newest).Str("addr", reg.Addr).Int64("brokerID", int64(reg.BrokerID)).
		Msg("a registration was refused: a newer term is known")
	resp := remoting.NewResponse(remoting.SystemError, err.Error())
	resp.Set(FieldGroupTerm, strconv.FormatUint(uint64(stale.Newest), 10))
	if stale.MasterAddr != "" {
		resp.Set("masterAddr", stale.MasterAddr)
	}
	return resp, nil
}

func readBody(cmd *remoting.Command) (RegisterBody, error) {
	crc, err := cmd.Int32Or("bodyCrc32", 0)
	if err != nil {
		return RegisterBody{}, err
	}
	if crc != 0 && crc != BodyCRC(cmd.Body) {
		return RegisterBody{}, fmt.Errorf("%w: its checksum is %d, the field bodyCrc32 says %d", ErrBody, BodyCRC(cmd.Body), crc)
	}
	compressed, err := cmd.BoolOr("compressed", false)
	if err != nil {
		return RegisterBody{}, err
	}
	return DecodeRegisterBody(cmd.Body, compressed)
}

// 104 UNREGISTER_BROKER. It is answered with SUCCESS also when it changed nothing, as RocketMQ does.
func (s *Server) unregisterBroker(r request) (*remoting.Command, error) {
	n, err := readNames(r.cmd)
	if err != nil {
		return nil, err
	}
	term, ours, err := readTerm(r.cmd)
	if err != nil {
		return nil, err
	}
	u := Unregistration{Group: n.group, Addr: n.addr, BrokerID: n.id, Term: term, HasTerm: ours, Conn: r.conn.id}
	s.mu.Lock()
	gone := s.routes.Unregister(s.o.Clock(), u)
	s.mu.Unlock()
	if gone {
		s.logGone([]Removed{{Group: n.group, Addr: n.addr, BrokerID: n.id, Term: term}}, leftUnregistered)
	}
	return remoting.NewResponse(remoting.Success, ""), nil
}

// 322 QUERY_DATA_VERSION: does the broker have to register its topics again? The body of the answer is the version that it
// registered last. The question counts as a sign of life.
func (s *Server) queryDataVersion(r request) (*remoting.Command, error) {
	n, err := readNames(r.cmd)
	if err != nil {
		return nil, err
	}
	var asked DataVersion
	text, err := laxjson.Standard(r.cmd.Body)
	if err == nil {
		err = json.Unmarshal(text, &asked)
	}
	if err != nil {
		return nil, fmt.Errorf("the body is no data version: %w", err)
	}
	s.mu.Lock()
	have, known := s.routes.Version(n.group, n.addr)
	s.routes.Touch(s.o.Clock(), n.addr)
	s.mu.Unlock()
	resp := remoting.NewResponse(remoting.Success, "")
	resp.SetBool("changed", !known || have != asked)
	if known {
		if resp.Body, err = json.Marshal(have); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// 904 BROKER_HEARTBEAT: a sign of life. A broker that is not in the table gets SUCCESS too, as RocketMQ does; it comes back
// with its next registration.
func (s *Server) brokerHeartbeat(r request) (*remoting.Command, error) {
	addr, err := r.cmd.MustString("brokerAddr")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.routes.Touch(s.o.Clock(), addr)
	s.mu.Unlock()
	return remoting.NewResponse(remoting.Success, ""), nil
}
