package broker

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// answerTimes counts how long sends took from their frame to their answer, in RocketMQ's steps.
type answerTimes struct {
	steps [len(answerSteps) + 1]atomic.Int64
	most  atomic.Int64 // milliseconds
}

// answerSteps are the upper bounds of the steps in milliseconds; what took longer is in the last one.
var answerSteps = [...]int64{1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000}

var answerStepNames = [...]string{"<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"}

func (a *answerTimes) add(took time.Duration, n int) {
	ms := took.Milliseconds()
	i := 0
	for i < len(answerSteps) && ms >= answerSteps[i] {
		i++
	}
	a.steps[i].Add(int64(n))
	if ms > a.most.Load() { // of the loop alone
		a.most.Store(ms)
	}
}

func (a *answerTimes) text() string {
	var b []byte
	for i, name := range answerStepNames {
		b = fmt.Appendf(b, "[%s]:%d ", name, a.steps[i].Load())
	}
	return string(b)
}

// quantile is the upper bound, in milliseconds, of what share of the sends took.
func (a *answerTimes) quantile(share float64) int64 {
	var all int64
	for i := range a.steps {
		all += a.steps[i].Load()
	}
	var n int64
	for i, bound := range answerSteps {
		if n += a.steps[i].Load(); float64(n) >= share*float64(all) {
			return min(bound, a.most.Load())
		}
	}
	return a.most.Load()
}

// versionName is how RocketMQ calls remoting.Version.
const versionName = "V5_3_3"

// runtimeInfo takes GET_BROKER_RUNTIME_INFO (28), of any replica about itself. mqadmin and the dashboard read several of the keys
// without looking whether they are there, so those of threads and pools that do not exist here are there too, with nothing in them.
func (r *Replica) runtimeInfo(*remoting.Command) (*remoting.Command, error) {
	table := map[string]string{}
	number := func(key string, v int64) { table[key] = strconv.FormatInt(v, 10) }
	now, st := r.now(), r.raft.Status()
	table["brokerActive"] = strconv.FormatBool(st.Parked == "" && st.Master != 0)
	number("brokerVersion", int64(remoting.Version))
	table["brokerVersionDesc"] = versionName
	number("bootTimestamp", r.stats.began.UnixMilli())
	table["runtime"] = spell(now.Sub(r.stats.began))

	s := r.totalsNow()
	r.stats.mu.RLock()
	t := r.stats.totals
	r.stats.mu.RUnlock()
	number("msgPutTotalTodayNow", s.put)
	number("msgPutTotalTodayMorning", t.putToday)
	number("msgPutTotalYesterdayMorning", t.putYesterday)
	number("msgGetTotalTodayNow", s.get)
	number("msgGetTotalTodayMorning", t.getToday)
	number("msgGetTotalYesterdayMorning", t.getYesterday)
	rates := func(of func(totalSample) int64) string {
		return fmt.Sprintf("%.2f %.2f %.2f", t.rate(now, s, 10*time.Second, of), t.rate(now, s, time.Minute, of), t.rate(now, s, 10*time.Minute, of))
	}
	table["putTps"] = rates(func(s totalSample) int64 { return s.put })
	table["getFoundTps"] = rates(func(s totalSample) int64 { return s.found })
	table["getMissTps"] = rates(func(s totalSample) int64 { return s.missed })
	table["getTotalTps"] = rates(func(s totalSample) int64 { return s.found + s.missed })
	table["getTransferredTps"] = rates(func(s totalSample) int64 { return s.get })
	table["getTransferedTps"] = table["getTransferredTps"] // as older tools spell it

	c := &r.counters
	number("putMessageTimesTotal", s.put)
	number("putMessageSizeTotal", s.putBytes)
	number("putMessageFailedTimes", c.sendsFailed.Load()+c.unknown.Load())
	table["putMessageAverageSize"] = fmt.Sprintf("%.2f", float64(s.putBytes)/float64(max(1, s.put)))
	number("putMessageEntireTimeMax", c.answers.most.Load())
	table["putMessageDistributeTime"] = c.answers.text()
	number("putLatency99", c.answers.quantile(.99))
	number("putLatency999", c.answers.quantile(.999))

	number("commitLogMaxOffset", int64(st.End))
	number("commitLogMinOffset", int64(r.clog.FirstOffset()))
	number("dispatchBehindBytes", max(0, int64(st.End)-r.appliedEnd.Load()))
	table["remainHowManyDataToFlush"] = fmt.Sprintf("%d B", r.clog.Unsynced())
	earliest, err := r.earliestTime()
	if err != nil {
		return nil, err
	}
	number("earliestMessageTimeStamp", earliest)
	if err := r.diskInfo(table); err != nil {
		return nil, err
	}
	r.poolInfo(table, number, now, st)
	return jsonAnswer(struct {
		Table map[string]string `json:"table"`
	}{table})
}

// poolInfo fills in what RocketMQ tells of its thread pools and buffers: here sends wait in the inbox of their group, and nothing else
// has a queue of its own.
func (r *Replica) poolInfo(table map[string]string, number func(string, int64), now time.Time, st raftlog.Status) {
	waiting, since := r.inbox.waiting()
	number("sendThreadPoolQueueSize", int64(waiting))
	number("sendThreadPoolQueueHeadWaitTimeMills", 0)
	if waiting > 0 {
		number("sendThreadPoolQueueHeadWaitTimeMills", max(0, now.Sub(since).Milliseconds()))
	}
	number("heldPulls", int64(r.holds.count()))
	for _, pool := range []string{"pull", "litePull", "query", "ack"} {
		number(pool+"ThreadPoolQueueSize", 0)
		number(pool+"ThreadPoolQueueHeadWaitTimeMills", 0)
	}
	for _, pool := range []string{"send", "pull", "litePull", "query", "ack"} {
		number(pool+"ThreadPoolQueueCapacity", workerQueue)
	}
	number("EndTransactionQueueSize", 0)
	number("EndTransactionThreadPoolQueueCapacity", workerQueue)
	for _, key := range []string{"pageCacheLockTimeMills", "startAcceptSendRequestTimeStamp", "remainTransientStoreBufferNumbs", "dispatchMaxBuffer",
		"getMessageEntireTimeMax", "timerReadBehind", "timerOffsetBehind"} {
		if _, said := table[key]; !said {
			number(key, 0)
		}
	}
	pending, _, _ := r.st.TimersPending()
	number("timerCongestNum", int64(pending))
	table["timerEnqueueTps"], table["timerDequeueTps"] = "0.0", "0.0"
	table["remainHowManyDataToCommit"] = "0 B"
}

func (r *Replica) diskInfo(table map[string]string) error {
	free, total, err := r.node.o.FS.Space(r.node.o.Dir)
	if err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	ratio := "-1"
	if total > 0 {
		ratio = strconv.FormatFloat(float64(total-min(free, total))/float64(total), 'f', 4, 64)
	}
	table["commitLogDiskRatio"], table["commitLogDiskRatio_"+r.dir], table["consumeQueueDiskRatio"] = ratio, ratio, ratio
	table["commitLogDirCapacity"] = fmt.Sprintf("Total : %s, Free : %s.", size(total), size(free))
	return nil
}

// size writes bytes as RocketMQ's tools do.
func size(n uint64) string {
	for _, u := range []struct {
		bytes uint64
		name  string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

func spell(d time.Duration) string {
	s := int64(d.Seconds())
	return fmt.Sprintf("[ %d days, %d hours, %d minutes, %d seconds ]", s/86400, s/3600%24, s/60%60, s%60)
}

// earliestTime is the time of the first frame of the log that has anything in it; -1 when none has.
func (r *Replica) earliestTime() (int64, error) {
	first := r.clog.FirstIndex()
	if e := r.earliest.Load(); e != nil && e.first == first {
		return e.time, nil
	}
	for f, err := range r.clog.Frames(first) {
		if err != nil {
			return 0, fmt.Errorf("read the front of the log: %w", err)
		}
		if !f.Empty() {
			r.earliest.Store(&earliestFrame{first, f.Time()})
			return f.Time(), nil
		}
	}
	return -1, nil
}
