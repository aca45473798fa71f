package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// mqadminVariable lets TestJavaMqadmin write docs/mqadmin.md anew instead of comparing it.
const mqadminVariable = "LEDGERMQ_TEST_WRITE"

// mqadminCommand is one command of RocketMQ's mqadmin with arguments that make it do its thing. Words in braces are replaced: {ns} the name
// server, {b} and {s} master and slave of group g1, {tmp} a folder, {key}, {id} and {client} what the runner tells.
type mqadminCommand struct {
	name, args string
	works      string // pattern in what it prints when it does what it is for
	refused    string // pattern in what it prints when it does not apply here
	why        string // of one that does not apply
	seconds    int    // limit, when the usual one does not do
}

const (
	noContainer = "there is no container of brokers: a process hosts any number of replicas"
	noACL       = "access control is not there yet"
	noCold      = "reads of cold data are not throttled, they go to slaves; the log is not mapped into memory"
	noLite      = "lite topics are not there"
	noRocks     = "nothing is kept in RocksDB"
	noStatic    = "static topics are not there: a group keeps its queues through failovers"
	noPop       = "pop consumption is not there yet"
)

var mqadminCommands = []mqadminCommand{
	{name: "updateTopic", args: "-n {ns} -c DefaultCluster -t Made -r 4 -w 4 -o true", works: "create topic to .* success(?s:.*)set cluster orderConf"},
	{name: "updateTopicList", args: "-n {ns} -b {b} -f {tmp}/topics.json", works: "submit batch of topic config to .* success"},
	{name: "updateTopicPerm", args: "-n {ns} -b {b} -t ListedA -p 4", works: "update topic perm from 6 to 4"},
	{name: "updateOrderConf", args: "-n {ns} -t Made -m get", works: "orderConf"},
	{name: "deleteTopic", args: "-n {ns} -c DefaultCluster -t ListedB", works: "delete topic .* success"},
	{name: "topicRoute", args: "-n {ns} -t MqadminTopic", works: `"brokerName":"g1"`},
	{name: "topicStatus", args: "-n {ns} -t MqadminTopic", works: "(?m)^g1 +0 +0"},
	{name: "topicClusterList", args: "-n {ns} -t MqadminTopic", works: "DefaultCluster"},
	{name: "topicList", args: "-n {ns}", works: "MqadminTopic"},
	{name: "allocateMQ", args: "-n {ns} -t MqadminTopic -i 10.0.0.1,10.0.0.2", works: `"10\.0\.0\.1"`},
	{name: "updateSubGroup", args: "-n {ns} -c DefaultCluster -g OtherGroup -r 3", works: "create subscription group to .* success"},
	{name: "updateSubGroupList", args: "-n {ns} -b {b} -f {tmp}/groups.json", works: "submit batch of group config to .* success"},
	{name: "deleteSubGroup", args: "-n {ns} -b {b} -g ListedGroup", works: "delete subscription group .* success"},
	{name: "getConsumerConfig", args: "-n {ns} -g OtherGroup", works: "retryMaxTimes +=  3"},
	{name: "setConsumeMode", args: "-n {ns} -b {b} -t MqadminTopic -g OtherGroup -m PULL", refused: "401", why: noPop},

	{name: "clusterList", args: "-n {ns}", works: "DefaultCluster +g1 +0 +127[.]"},
	{name: "brokerStatus", args: "-n {ns} -b {b}", works: "putMessageDistributeTime"},
	{name: "getBrokerConfig", args: "-n {ns} -b {b}", works: "brokerName +=  g1"},
	{name: "updateBrokerConfig", args: "-n {ns} -b {b} -k fileReservedTime -v 48", works: "update broker config success"},
	{name: "haStatus", args: "-n {ns} -b {b}", works: "#InSyncSlaveNum"},
	{name: "getBrokerEpoch", args: "-n {ns} -b g1", works: "#Epoch: EpochEntry"},
	{name: "cleanExpiredCQ", args: "-n {ns} -b {b}", works: "success"},
	{name: "cleanUnusedTopic", args: "-n {ns} -b {b}", works: "success"},
	{name: "deleteExpiredCommitLog", args: "-n {ns} -b {b}", works: "success"},
	{name: "brokerConsumeStats", args: "-n {ns} -b {b}", works: "Diff Total"},
	{name: "statsAll", args: "-n {ns} -t MqadminTopic", works: "MqadminTopic +MqadminGroup"},
	{name: "wipeWritePerm", args: "-n {ns} -b g1", works: "wipe write perm of broker.* OK"},
	{name: "addWritePerm", args: "-n {ns} -b g1", works: "add write perm of broker.* OK"},
	{name: "resetMasterFlushOffset", args: "-n {ns} -b {b} -o 0", refused: "908", why: "a replica acknowledges what it has durably, entry by entry: there is no such offset"},
	{name: "addBroker", args: "-n {ns} -c {b} -b {tmp}/broker.conf", refused: "902", why: noContainer},
	{name: "removeBroker", args: "-n {ns} -c {b} -b DefaultCluster:g1:1", refused: "903", why: noContainer},

	{name: "getNamesrvConfig", args: "-n {ns}", works: "brokerExpiredTimeMillis"},
	{name: "updateNamesrvConfig", args: "-n {ns} -k listenPort -v 1", refused: "is set when it starts", why: "a name server has nothing that can be changed from afar"},
	{name: "updateKvConfig", args: "-n {ns} -s ns -k k -v v", refused: "keep no key-value configuration", why: "the one namespace, ORDER_TOPIC_CONFIG, follows from the ordered topics"},
	{name: "deleteKvConfig", args: "-n {ns} -s ORDER_TOPIC_CONFIG -k None", works: "delete kv config from namespace success"},

	{name: "getControllerMetaData", args: "-n {ns} -a {ns}", works: "ControllerLeaderId"},
	{name: "getSyncStateSet", args: "-n {ns} -a {ns} -b g1", works: "(?i)syncStateSet(?s:.*)InSyncReplica"},
	{name: "getControllerConfig", args: "-n {ns} -a {ns}", works: "controllerDLegerPeers"},
	{name: "updateControllerConfig", args: "-n {ns} -a {ns} -k a -v b", refused: "1009", why: "controllers have no settings to change while they run"},
	{name: "cleanBrokerMetadata", args: "-n {ns} -a {ns} -b 3 -bn g1 -c DefaultCluster", refused: "1011", why: "`ledgermq admin group remove-replica` takes a replica out of its group, `ledgermq admin node remove` forgets a node"},

	{name: "sendMessage", args: "-n {ns} -t MqadminTopic -p body -k key2 -b g1 -i 0", works: "SEND_OK"},
	{name: "sendMsgStatus", args: "-n {ns} -b g1 -c 2", works: "SEND_OK"},
	{name: "checkMsgSendRT", args: "-n {ns} -t MqadminTopic -a 2", works: "Avg RT"},
	{name: "clusterRT", args: "-n {ns} -a 2 -c DefaultCluster", works: "DefaultCluster +g1", seconds: 6},
	{name: "consumeMessage", args: "-n {ns} -t MqadminTopic -b g1 -i 0 -o 0 -c 1", works: "MSGID"},
	{name: "printMsg", args: "-n {ns} -t MqadminTopic", works: "MSGID"},
	{name: "printMsgByQueue", args: "-n {ns} -t MqadminTopic -a g1 -i 0 -p true", works: "MSGID"},
	{name: "queryMsgByOffset", args: "-n {ns} -t MqadminTopic -b g1 -i 0 -o 0", works: "OffsetID"},
	{name: "queryMsgById", args: "-n {ns} -t MqadminTopic -i {id}", works: "OffsetID: +{id}"},
	{name: "queryMsgByKey", args: "-n {ns} -t MqadminTopic -k key1", works: "{key}"},
	{name: "queryMsgByUniqueKey", args: "-n {ns} -t MqadminTopic -i {key}", works: `Keys: +\[key1\]`},
	{name: "queryMsgTraceById", args: "-n {ns} -i {key}", works: "(?i)pub|sub"},
	{name: "queryCq", args: "-n {ns} -t MqadminTopic -q 0 -i 0 -b {b}", works: "max: [0-9]+, min: 0"},

	{name: "producer", args: "-n {ns} -b {b}", works: "MqadminProducer"},
	{name: "producerConnection", args: "-n {ns} -g MqadminProducer -t MqadminTopic", works: "JAVA"},
	{name: "consumerConnection", args: "-n {ns} -g MqadminGroup", works: "JAVA(?s:.*)MqadminTopic"},
	{name: "consumerProgress", args: "-n {ns} -g MqadminGroup", works: "Consume Diff Total|Diff Total"},
	{name: "consumerStatus", args: "-n {ns} -g MqadminGroup", works: "(?i){client}|success"},
	{name: "cloneGroupOffset", args: "-n {ns} -s MqadminGroup -d OtherGroup -t MqadminTopic -o false", works: "clone group offset success"},
	{name: "resetOffsetByTime", args: "-n {ns} -g OtherGroup -t MqadminTopic -s now", works: "(?m)^g1 "},
	{name: "skipAccumulatedMessage", args: "-n {ns} -g OtherGroup -t MqadminTopic", works: "(?m)^g1 "},
	{name: "startMonitoring", args: "-n {ns}", works: "(?s:.*)", seconds: 3}, // it prints nothing but its troubles

	{name: "exportMetadata", args: "-n {ns} -c DefaultCluster -f {tmp}", works: "export .* success"},
	{name: "exportConfigs", args: "-n {ns} -c DefaultCluster -f {tmp}", works: "export .* success"},
	{name: "exportMetrics", args: "-n {ns} -c DefaultCluster -f {tmp}", works: "export .* success"},
	{name: "exportMetadataInRocksDB", args: "-p {tmp} -t topics -j true", refused: "(?i)not.*exist|invalid|RocksDB|fail|error", why: noRocks},
	{name: "exportPopRecord", args: "-n {ns} -b {b} -d true", refused: "200056|(?i)not support|fail|error", why: noPop},
	{name: "dumpCompactionLog", args: "-f {tmp}/none", refused: "none not exist", why: "compacted topics are not there; `ledgermq log dump` shows a log"},

	{name: "updateStaticTopic", args: "-n {ns} -c DefaultCluster -t Static -qn 4", refused: "513", why: noStatic},
	{name: "remappingStaticTopic", args: "-n {ns} -c DefaultCluster -t Static", refused: "No topic route to do the remapping", why: noStatic},
	{name: "getColdDataFlowCtrInfo", args: "-n {ns} -b {b}", refused: "2003", why: noCold},
	{name: "updateColdDataFlowCtrGroupConfig", args: "-n {ns} -b {b} -g OtherGroup -v 1", refused: "2001", why: noCold},
	{name: "removeColdDataFlowCtrGroupConfig", args: "-n {ns} -b {b} -g OtherGroup", refused: "2002", why: noCold},
	{name: "setCommitLogReadAheadMode", args: "-n {ns} -b {b} -m 1", refused: "2004", why: noCold},
	{name: "createUser", args: "-n {ns} -b {b} -u u -p p", refused: "3001", why: noACL},
	{name: "updateUser", args: "-n {ns} -b {b} -u u -p p", refused: "3002", why: noACL},
	{name: "deleteUser", args: "-n {ns} -b {b} -u u", refused: "3003", why: noACL},
	{name: "getUser", args: "-n {ns} -b {b} -u u", refused: "3004", why: noACL},
	{name: "listUser", args: "-n {ns} -b {b}", refused: "3005", why: noACL},
	{name: "copyUser", args: "-n {ns} -f {b} -t {s} -u u", refused: "3004", why: noACL},
	{name: "createAcl", args: "-n {ns} -b {b} -s User:u -r Topic:* -a Pub -d Allow", refused: "3006", why: noACL},
	{name: "updateAcl", args: "-n {ns} -b {b} -s User:u -r Topic:* -a Pub -d Allow", refused: "3007", why: noACL},
	{name: "deleteAcl", args: "-n {ns} -b {b} -s User:u", refused: "3008", why: noACL},
	{name: "getAcl", args: "-n {ns} -b {b} -s User:u", refused: "3009", why: noACL},
	{name: "listAcl", args: "-n {ns} -b {b}", refused: "3010", why: noACL},
	{name: "copyAcl", args: "-n {ns} -f {b} -t {s} -s User:u", refused: "3009", why: noACL},
	{name: "rocksDBConfigToJson", args: "-n {ns} -c DefaultCluster -t topics", refused: "355", why: noRocks},
	{name: "checkRocksdbCqWriteProgress", args: "-c DefaultCluster -n {ns} -t MqadminTopic -cf 0", refused: "354|(?i)error|fail", why: noRocks},
	{name: "switchTimerEngine", args: "-n {ns} -b {b} -e F", refused: "5001", why: "there is one timer engine"},
	{name: "getBrokerLiteInfo", args: "-n {ns} -b {b}", refused: "200074|(?i)error|fail", why: noLite},
	{name: "getParentTopicInfo", args: "-n {ns} -p MqadminTopic", refused: "\\[g1\\] error", why: noLite},
	{name: "getLiteTopicInfo", args: "-n {ns} -p MqadminTopic -l x", refused: "\\[g1\\] error", why: noLite},
	{name: "getLiteClientInfo", args: "-n {ns} -p MqadminTopic -g OtherGroup -c x", refused: "\\[g1\\] error", why: noLite},
	{name: "getLiteGroupInfo", args: "-n {ns} -p MqadminTopic -g OtherGroup", refused: "\\[g1\\] error", why: noLite},
	{name: "triggerLiteDispatch", args: "-n {ns} -p MqadminTopic -g OtherGroup -b g1", refused: "200079|(?i)error|fail", why: noLite},

	// The last one: clients tell a new master of themselves with their next heartbeat, up to 30 s later.
	{name: "electMaster", args: "-n {ns} -a {ns} -b {slot} -bn g1 -c DefaultCluster", works: "Elect master for brokerName.* success|ClusterName(?s:.*)BrokerMasterAddr"},
}

// TestJavaMqadmin runs each command that mqadmin 5.5.0 has, and compares what came of it with docs/mqadmin.md.
func TestJavaMqadmin(t *testing.T) {
	t.Parallel()
	needJava(t)
	c := start(t, cluster.Options{Groups: 1})
	javaSlots <- struct{}{}
	defer func() { <-javaSlots }()
	tmp := t.TempDir()
	for name, text := range map[string]string{
		"topics.json": `[{"topicName":"ListedA","readQueueNums":1,"writeQueueNums":1,"perm":6},{"topicName":"ListedB","readQueueNums":1,"writeQueueNums":1,"perm":6}]`,
		"groups.json": `[{"groupName":"ListedGroup"}]`, "broker.conf": "brokerName=x\n",
	} {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := startMqadmin(t, c.Namesrv[0])
	var have []string
	for _, m := range mqadminCommands {
		have = append(have, m.name)
	}
	for _, name := range run.names {
		if !slices.Contains(have, name) {
			t.Errorf("mqadmin has a command %s, which is not tried", name)
		}
	}
	master := masterOf(t, c, "g1")
	port := func(node string) string {
		m, err := c.Member(node)
		if err != nil {
			t.Fatal(err)
		}
		return c.At(m.Ports["client:g1"])
	}
	slave := "n2"
	if master == slave {
		slave = "n1"
	}
	words := strings.NewReplacer("{ns}", c.Namesrv[0], "{b}", port(master), "{s}", port(slave), "{slot}", strings.TrimPrefix(slave, "n"), "{tmp}", tmp,
		"{key}", run.key, "{id}", run.id, "{client}", regexp.QuoteMeta(run.client))
	var page bytes.Buffer
	page.WriteString(mqadminHead)
	rows := map[string]string{}
	for _, m := range mqadminCommands {
		out := run.do(t, m, words)
		shown := strings.NewReplacer("{ns}", "NAMESRV", "{b}", "MASTER", "{s}", "SLAVE", "{slot}", "2", "{tmp}", "FOLDER", "{key}", "KEY", "{id}", "ID").Replace(m.args)
		switch {
		case m.works != "" && !trouble.MatchString(out) && regexp.MustCompile(words.Replace(m.works)).MatchString(out):
			rows[m.name] = fmt.Sprintf("| `%s` | works | `%s` |  |\n", m.name, shown)
		case m.why != "" && regexp.MustCompile(m.refused).MatchString(out):
			rows[m.name] = fmt.Sprintf("| `%s` | does not apply | `%s` | %s |\n", m.name, shown, m.why)
		default:
			rows[m.name] = fmt.Sprintf("| `%s` | does not work yet | `%s` |  |\n", m.name, shown)
			t.Logf("%s %s:\n%s", m.name, words.Replace(m.args), tail(out, 1500))
		}
	}
	slices.Sort(have)
	for _, name := range have {
		page.WriteString(rows[name])
	}
	path := filepath.Join("..", "docs", "mqadmin.md")
	if os.Getenv(mqadminVariable) != "" {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	is, was := strings.Split(page.String(), "\n"), strings.Split(string(committed), "\n")
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("not in docs/mqadmin.md: %s", line)
		}
	}
	if len(is) != len(was) {
		t.Errorf("docs/mqadmin.md has %d lines, the commands make %d", len(was), len(is))
	}
	if t.Failed() {
		t.Logf("%s=1 make mqadmin writes the page anew", mqadminVariable)
	}
}

// trouble is what mqadmin prints when it failed.
var trouble = regexp.MustCompile(`Exception|command failed|CODE: \d+`)

const mqadminHead = `# mqadmin

Each command that ` + "`mqadmin`" + ` of Apache RocketMQ 5.5.0 has, and what came of running it against LedgerMQ. The page is written by the test that runs them (` + "`LEDGERMQ_TEST_WRITE=1 make mqadmin`" + `);
it fails when a result is another one. Where mqadmin asks for a controller's address (` + "`-a`" + `), give a name server's: it passes on what is asked.

| command | | tried with | why |
|---|---|---|---|
`

// mqadminRun is the JVM that runs the commands.
type mqadminRun struct {
	in              io.Writer
	out             *bufio.Reader
	names           []string
	key, id, client string
}

func startMqadmin(t *testing.T, namesrv string) *mqadminRun {
	t.Helper()
	target, home := filepath.Join(cluster.Root(), "tests", "java", "admin", "target"), t.TempDir()
	cmd := exec.Command("java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-Duser.home="+home, "-Drocketmq.client.logRoot="+home,
		"-cp", filepath.Join(target, "classes")+string(os.PathListSeparator)+filepath.Join(target, "lib", "*"), "org.ledgermq.tests.Mqadmin", namesrv)
	cmd.Dir = home // some commands write where they run
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(9*time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		defer watchdog.Stop() // of the end too
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the JVM: %v\n%s", err, tail(stderr.String(), 2000))
		}
	})
	r := &mqadminRun{in: in, out: bufio.NewReaderSize(out, 1<<20)}
	r.names = strings.Fields(r.line(t))
	ids := strings.Split(r.line(t), "\t")
	if len(ids) != 3 {
		t.Fatalf("the JVM told %q", ids)
	}
	r.key, r.id, r.client = ids[0], ids[1], ids[2]
	return r
}

func (r *mqadminRun) line(t *testing.T) string {
	t.Helper()
	line, err := r.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the JVM ended: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// do runs one command and returns what it printed.
func (r *mqadminRun) do(t *testing.T, m mqadminCommand, words *strings.Replacer) string {
	t.Helper()
	seconds := m.seconds
	if seconds == 0 {
		seconds = 40
	}
	line := append([]string{strconv.Itoa(seconds), m.name}, strings.Fields(words.Replace(m.args))...)
	if _, err := fmt.Fprintln(r.in, strings.Join(line, "\t")); err != nil {
		t.Fatal(err)
	}
	for {
		head := r.line(t)
		fields := strings.Fields(head)
		if len(fields) != 3 || fields[0] != "==" {
			continue // a library printed
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(r.out, text); err != nil {
			t.Fatal(err)
		}
		if fields[1] == "late" && m.seconds == 0 {
			t.Logf("%s took more than %d s", m.name, seconds)
		}
		return string(text)
	}
}
