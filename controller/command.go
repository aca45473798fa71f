package controller

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// A command is the data of one entry of the controllers' Raft log: a header of 18 bytes and a JSON body in canonical form.
//
//	0 version u8 (1) | 1 type u8 | 2 request: member u64, number u64 | 18 body …
//
// The request says who waits for the result; it does not matter to the state. Unknown versions and types stop the member:
// going on without them would let states differ. docs/format/controller.md shows the bytes.
const (
	commandVersion    = 1
	commandHeaderSize = 18
	maxCommand        = 1 << 20 // bytes

	typeFound       = 1
	typeRegister    = 2
	typeReport      = 3
	typeCreateGroup = 4
	typeIssueEpoch  = 5
	typeGiveUp      = 6
	typeRenew       = 7
	typeRaiseLevel  = 8
	typeSetMode     = 9
	typeKeepLearner = 10
	typePrefer      = 11
	typeRemoveNode  = 12
	// 13 to 15 belong to nothing and are never given out.
	typeUnclean     = 16
	typeNamesrv     = 17
	typeRemoveGroup = 18
)

// requestID names one proposal of one life of a member.
type requestID struct{ Member, Number uint64 }

// Command is what changes a State: one of the *…Command types.
type Command interface{ commandType() byte }

// foundCommand draws the cluster id. It is the first command of the first leader; later ones change nothing.
type foundCommand struct {
	Cluster hexID `json:"cluster"`
	Level   Level `json:"level,omitempty"` // feature level; 0: 1
}

// registerCommand binds a node id to its check code and makes a process the one that speaks for it.
type registerCommand struct {
	Node      ids.NodeID `json:"node"`
	CheckCode hexID      `json:"checkCode"`
	Session   hexID      `json:"session"`
	Replaces  hexID      `json:"replaces"` // session that the leader saw silent: compare-and-set
}

// reportCommand is what of a node's heartbeat must survive: only what differs from the state that the leader saw.
type reportCommand struct {
	Node      ids.NodeID     `json:"node"`
	Session   hexID          `json:"session"`
	Addresses *addresses     `json:"addresses,omitempty"`
	Replicas  []replicaFacts `json:"replicas,omitempty"`
	Masters   []masterFacts  `json:"masters,omitempty"`
}

type replicaFacts struct {
	Group       hexID         `json:"group"`
	Replica     ids.ReplicaID `json:"replica"`
	Incarnation hexID         `json:"incarnation"` // zero: not told
	Missing     bool          `json:"missing,omitempty"`
	Starts      uint64        `json:"starts"`         // 0: not told
	Lost        bool          `json:"lost,omitempty"` // the replica says itself that its identity is lost
	Revived     ids.Epoch     `json:"revived,omitempty"`
}

type masterFacts struct {
	Group   hexID         `json:"group"`
	Replica ids.ReplicaID `json:"replica"`
	Term    ids.Term      `json:"term"`
}

// createGroupCommand makes a group. The id was drawn by the proposer.
type createGroupCommand struct {
	ID          hexID        `json:"id"`
	Name        string       `json:"name"`
	Answers     int          `json:"answers"`
	Members     int          `json:"members"`
	Nodes       []ids.NodeID `json:"nodes"`
	MinISR      int          `json:"minISR"`
	SegmentSize int64        `json:"segmentSize"`
	Async       bool         `json:"async,omitempty"`    // replicas acknowledge before they sync
	Learners    []ids.NodeID `json:"learners,omitempty"` // those of Nodes whose replicas are kept learners
}

func (*foundCommand) commandType() byte       { return typeFound }
func (*registerCommand) commandType() byte    { return typeRegister }
func (*reportCommand) commandType() byte      { return typeReport }
func (*createGroupCommand) commandType() byte { return typeCreateGroup }

func (c *reportCommand) needs() (Level, string) {
	if c.Addresses != nil && c.Addresses.Zone != "" {
		return 2, "the zone of a node"
	}
	return 1, ""
}

func (c *createGroupCommand) needs() (Level, string) {
	if c.Async {
		return 2, "asynchronous flush"
	}
	if len(c.Learners) > 0 {
		return 2, "a replica that is kept a learner"
	}
	return 1, ""
}

// UnknownCommandError stops a member that meets a command it does not know: a newer version wrote it.
type UnknownCommandError struct{ Version, Type byte }

func (e *UnknownCommandError) Error() string {
	return fmt.Sprintf("controller command of version %d, type %d is not known: run this member with the version of the others", e.Version, e.Type)
}

// encodeCommand returns the bytes of c.
func encodeCommand(id requestID, c Command) []byte {
	body, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("controller: a command cannot be encoded: %v", err))
	}
	b := make([]byte, commandHeaderSize, commandHeaderSize+len(body))
	b[0], b[1] = commandVersion, c.commandType()
	binary.BigEndian.PutUint64(b[2:], id.Member)
	binary.BigEndian.PutUint64(b[10:], id.Number)
	return append(b, body...)
}

// decodeCommand reads what encodeCommand wrote, and nothing else. It returns *UnknownCommandError for another version or type, and
// *LevelError for one that sets a feature level that this program does not understand.
func decodeCommand(b []byte) (requestID, Command, error) {
	if len(b) < commandHeaderSize || len(b) > maxCommand {
		return requestID{}, nil, fmt.Errorf("controller command of %d bytes: want %d to %d", len(b), commandHeaderSize, maxCommand)
	}
	id := requestID{binary.BigEndian.Uint64(b[2:]), binary.BigEndian.Uint64(b[10:])}
	if b[0] != commandVersion {
		return id, nil, &UnknownCommandError{b[0], b[1]}
	}
	var c Command
	switch b[1] {
	case typeFound:
		c = &foundCommand{}
	case typeRegister:
		c = &registerCommand{}
	case typeReport:
		c = &reportCommand{}
	case typeCreateGroup:
		c = &createGroupCommand{}
	case typeIssueEpoch:
		c = &issueEpochCommand{}
	case typeGiveUp:
		c = &giveUpCommand{}
	case typeRenew:
		c = &renewCommand{}
	case typeRaiseLevel:
		c = &raiseLevelCommand{}
	case typeSetMode:
		c = &setModeCommand{}
	case typeKeepLearner:
		c = &keepLearnerCommand{}
	case typePrefer:
		c = &preferCommand{}
	case typeRemoveNode:
		c = &removeNodeCommand{}
	case typeNamesrv:
		c = &namesrvCommand{}
	case typeUnclean:
		c = &uncleanCommand{}
	case typeRemoveGroup:
		c = &removeGroupCommand{}
	default:
		return id, nil, &UnknownCommandError{b[0], b[1]}
	}
	body := b[commandHeaderSize:]
	if len(body) == 0 || body[0] != '{' {
		return id, nil, errors.New("controller command: its body is not an object")
	}
	if err := strictJSON(body, c); err != nil {
		return id, nil, fmt.Errorf("controller command of type %d: %w", b[1], err)
	}
	if err := checkLevel(c); err != nil {
		return id, nil, err
	}
	return id, c, nil
}
