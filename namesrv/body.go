package namesrv

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
)

// Names of the ext fields that our own brokers add to a registration. Java name servers ignore them.
const (
	FieldControllers = "controllers" // of 103: addresses of the controllers, separated by commas
	FieldGroupTerm   = "groupTerm"   // of 103 and 104: the term, as a decimal number. Of an answer to 103: the newest known
	FieldClusterID   = "clusterID"   // of 103: the id that the controller drew for the cluster
	FieldTerms       = "ledgermqTerms"
	// FieldTerms of an answer to 105 and 106 lists group=term, separated by commas. A client keeps what it knows of a group
	// when an answer carries a lower term.
)

// DataVersion is the version of a broker's topic table. StateVersion is the term in which its master writes it. Counter must
// grow with each change inside a term: a registration with a lower one is taken for a late packet.
type DataVersion struct {
	StateVersion int64 `json:"stateVersion"`
	Timestamp    int64 `json:"timestamp"` // of the last change, milliseconds
	Counter      int64 `json:"counter"`
}

func (v DataVersion) olderThan(w DataVersion) bool {
	return v.Counter < w.Counter && v.Timestamp <= w.Timestamp
}

// TopicConfig is a topic as its broker has it.
type TopicConfig struct {
	Name        string
	ReadQueues  int32
	WriteQueues int32
	Perm        int32 // 4 read, 2 write, 1 inherit
	SysFlag     int32
	Order       bool
	Attributes  map[string]string
}

// RegisterBody is the body of a registration (103): RocketMQ's TopicConfigAndMappingSerializeWrapper and an empty list of
// filter servers. Docs/format/namesrv.md shows its two forms.
type RegisterBody struct {
	Version DataVersion
	Topics  []TopicConfig
}

// Bounds of a compressed body: all of it, and one text in it, when unpacked.
const (
	maxInflated = 32 << 20
	maxItem     = 1 << 20
)

// ErrBody is returned for a body that cannot be read.
var ErrBody = errors.New("bad registration body")

// The shapes of the JSON form. Fields that we neither write nor read have no place here.
type (
	bodyJSON struct {
		Wrapper       wrapperJSON `json:"topicConfigSerializeWrapper"`
		FilterServers []string    `json:"filterServerList"`
	}
	wrapperJSON struct {
		Topics         map[string]topicJSON `json:"topicConfigTable"`
		Version        DataVersion          `json:"dataVersion"`
		MappingVersion *DataVersion         `json:"mappingDataVersion,omitempty"`
		MappingInfo    map[string]struct{}  `json:"topicQueueMappingInfoMap"`
		MappingDetail  map[string]struct{}  `json:"topicQueueMappingDetailMap"`
	}
	topicJSON struct {
		Name        string            `json:"topicName"`
		ReadQueues  int32             `json:"readQueueNums"`
		WriteQueues int32             `json:"writeQueueNums"`
		Perm        int32             `json:"perm"`
		FilterType  string            `json:"topicFilterType"`
		SysFlag     int32             `json:"topicSysFlag"`
		Order       bool              `json:"order"`
		Attributes  map[string]string `json:"attributes"`
	}
)

// Encode returns the JSON form, which every name server reads. Topics are in the order of their names.
func (b RegisterBody) Encode() []byte {
	w := wrapperJSON{
		Topics: make(map[string]topicJSON, len(b.Topics)), Version: b.Version, MappingVersion: &DataVersion{},
		MappingInfo: map[string]struct{}{}, MappingDetail: map[string]struct{}{},
	}
	for _, t := range b.Topics {
		attributes := t.Attributes
		if attributes == nil {
			attributes = map[string]string{}
		}
		w.Topics[t.Name] = topicJSON{
			Name: t.Name, ReadQueues: t.ReadQueues, WriteQueues: t.WriteQueues, Perm: t.Perm, FilterType: "SINGLE_TAG",
			SysFlag: t.SysFlag, Order: t.Order, Attributes: attributes,
		}
	}
	text, err := json.Marshal(bodyJSON{Wrapper: w, FilterServers: []string{}})
	if err != nil {
		panic(fmt.Sprintf("namesrv: a registration body of plain values cannot be written: %v", err))
	}
	return text
}

func parseTopicText(text string) (TopicConfig, error) {
	// The attributes may hold spaces, so they are what remains after five words.
	words := strings.SplitN(text, " ", 6)
	if len(words) < 5 {
		return TopicConfig{}, fmt.Errorf("%w: topic %.100q has %d words", ErrBody, text, len(words))
	}
	t := TopicConfig{Name: words[0]}
	for i, dst := range []*int32{&t.ReadQueues, &t.WriteQueues, &t.Perm} {
		n, err := strconv.ParseInt(words[i+1], 10, 32)
		if err != nil {
			return TopicConfig{}, fmt.Errorf("%w: topic %.100q: %w", ErrBody, text, err)
		}
		*dst = int32(n)
	}
	if len(words) == 6 {
		// Java ignores attributes that it cannot read; a topic without them still works.
		_ = json.Unmarshal([]byte(words[5]), &t.Attributes)
	}
	return t, nil
}

// DecodeRegisterBody reads both forms. An empty body stands for an empty table. The error is ErrBody.
func DecodeRegisterBody(body []byte, compressed bool) (RegisterBody, error) {
	switch {
	case len(body) == 0:
		return RegisterBody{}, nil
	case compressed:
		return decodeCompressed(body)
	}
	text, err := laxjson.Standard(body)
	if err != nil {
		return RegisterBody{}, fmt.Errorf("%w: %w", ErrBody, err)
	}
	var in struct {
		Wrapper struct {
			Topics  map[string]topicJSON `json:"topicConfigTable"`
			Version DataVersion          `json:"dataVersion"`
		} `json:"topicConfigSerializeWrapper"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return RegisterBody{}, fmt.Errorf("%w: %w", ErrBody, err)
	}
	b := RegisterBody{Version: in.Wrapper.Version}
	for _, name := range slices.Sorted(maps.Keys(in.Wrapper.Topics)) {
		t := in.Wrapper.Topics[name]
		if t.Name == "" {
			t.Name = name
		}
		b.Topics = append(b.Topics, TopicConfig{
			Name: t.Name, ReadQueues: t.ReadQueues, WriteQueues: t.WriteQueues, Perm: t.Perm, SysFlag: t.SysFlag, Order: t.Order, Attributes: t.Attributes,
		})
	}
	return b, b.check()
}

func decodeCompressed(body []byte) (RegisterBody, error) {
	z, err := zlib.NewReader(bytes.NewReader(body))
	if err != nil {
		return RegisterBody{}, fmt.Errorf("%w: %w", ErrBody, err)
	}
	r := items{in: bufio.NewReader(z), left: maxInflated}
	var b RegisterBody
	if text := r.item(); r.err == nil {
		if err := json.Unmarshal(text, &b.Version); err != nil {
			return RegisterBody{}, fmt.Errorf("%w: data version: %w", ErrBody, err)
		}
	}
	for n := r.number(MaxTopicsOfGroup); n > 0 && r.err == nil; n-- {
		text := r.item()
		if r.err != nil {
			break
		}
		t, err := parseTopicText(string(text))
		if err != nil {
			return RegisterBody{}, err
		}
		b.Topics = append(b.Topics, t)
	}
	// The filter servers and the mapping of static topics follow. Nobody has used the first for years, the second is not
	// served here, and old brokers end before it.
	if r.err != nil {
		return RegisterBody{}, r.err
	}
	return b, b.check()
}

// items reads the numbers and the counted texts of the compressed form as they are unpacked, so that a body which would
// unpack to very much is refused at its first lie. After an error it returns zero values.
type items struct {
	in   *bufio.Reader
	left int // bytes that may still be unpacked
	buf  []byte
	err  error
}

func (r *items) read(n int) []byte {
	if r.err != nil {
		return nil
	}
	if r.left -= n; r.left < 0 {
		r.err = fmt.Errorf("%w: more than %d bytes when unpacked", ErrBody, maxInflated)
		return nil
	}
	r.buf = slices.Grow(r.buf[:0], n)[:n]
	if _, err := io.ReadFull(r.in, r.buf); err != nil {
		r.err = fmt.Errorf("%w: %w", ErrBody, err)
		return nil
	}
	return r.buf
}

// number reads a count or a length of at most limit.
func (r *items) number(limit int) int {
	four := r.read(4)
	if r.err != nil {
		return 0
	}
	n := int32(binary.BigEndian.Uint32(four))
	if n < 0 || int(n) > limit {
		r.err = fmt.Errorf("%w: a count of %d, at most %d is allowed", ErrBody, n, limit)
		return 0
	}
	return int(n)
}

// item reads one text. It is valid until the next call.
func (r *items) item() []byte { return r.read(r.number(maxItem)) }

// check refuses names and numbers that no broker can mean.
func (b RegisterBody) check() error {
	for _, t := range b.Topics {
		if err := checkName("topic", t.Name, 255); err != nil {
			return fmt.Errorf("%w: %w", ErrBody, err)
		}
		if t.ReadQueues < 0 || t.WriteQueues < 0 || t.Perm < 0 {
			return fmt.Errorf("%w: topic %s has a negative number", ErrBody, t.Name)
		}
	}
	return nil
}

// checkName refuses what could not stand in an answer or a log line.
func checkName(what, name string, limit int) error {
	if name == "" {
		return fmt.Errorf("the %s is empty", what)
	}
	if len(name) > limit {
		return fmt.Errorf("the %s has %d bytes, at most %d are allowed", what, len(name), limit)
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] == 0x7f {
			return fmt.Errorf("the %s %q holds a space or a control character", what, name)
		}
	}
	return nil
}

// BodyCRC is the value of the field bodyCrc32: CRC-32 (IEEE) without its highest bit, as Java reckons it.
func BodyCRC(body []byte) int32 { return int32(crc32.ChecksumIEEE(body) & 0x7fffffff) }

// Term returns the state version as a term.
func (v DataVersion) Term() ids.Term { return ids.Term(v.StateVersion) }
