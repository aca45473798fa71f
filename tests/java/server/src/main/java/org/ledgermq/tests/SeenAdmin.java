package org.ledgermq.tests;

import java.io.BufferedReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;
import org.apache.rocketmq.remoting.exception.RemotingSendRequestException;
import org.apache.rocketmq.remoting.exception.RemotingTimeoutException;
import org.apache.rocketmq.remoting.protocol.body.BrokerReplicasInfo.ReplicasInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.ledgermq.tests.Conformance.Seen;
import org.ledgermq.tests.Harness.Env;

/** Cases of the admin client of RocketMQ's tools, beside clients that it looks at: what the dashboard calls, and resets of offsets. */
public final class SeenAdmin {
    private static final Map<String, Conformance.Case> CASES = new LinkedHashMap<>();

    static {
        for (String half : new String[] {"", " through a failover"}) {
            CASES.put("dashboard" + half, SeenAdmin::dashboard);
            CASES.put("resets of a group that is away" + half, SeenAdmin::resetsAway);
            CASES.put("resets of a group that consumes" + half, SeenAdmin::resetsRunning);
            CASES.put("skips of a group that consumes" + half, SeenAdmin::skipsRunning);
        }
        CASES.put("write protection through a failover", SeenAdmin::writeProtection);
        CASES.put("controllers", SeenAdmin::controllers);
    }

    private SeenAdmin() {}

    /** Runs a case; what it prints is as in {@link Conformance}. */
    public static void run(String name, String id, String namesrv, String controller, PrintStream out, BufferedReader in) throws Exception {
        Env env = new Env(namesrv, "c", Map.of("id", id, "controller", controller));
        try {
            Conformance.Case c = CASES.get(name);
            Harness.check(c != null, "there is no case " + name);
            c.run(new Seen(env, name.endsWith(" through a failover"), out, in));
        } finally {
            env.close();
        }
    }

    /** Sends so many messages to the first queue of a topic. */
    public static void send(String namesrv, String topic, int count) throws Exception {
        Env env = new Env(namesrv, "c", Map.of());
        try {
            DefaultMQProducer p = Clients.producer(env);
            for (int i = 0; i < count; i++) {
                p.send(Clients.message(topic, "A", "k" + i, "m" + i), SeenSends.queue(p, topic, 0));
            }
        } finally {
            env.close();
        }
    }

    /** Lets a member of a group consume a topic's messages, of which there are so many, and leave; then the broker has its offsets. */
    public static void consume(String namesrv, String topic, String group, int count) throws Exception {
        Env env = new Env(namesrv, "c", Map.of());
        try {
            DefaultMQAdminExt a = admin(env);
            Set<String> got = Collections.synchronizedSet(new TreeSet<>()); // a message may come twice
            DefaultMQPushConsumer c = listen(env, group, topic, m -> got.add(m.getQueueId() + " @" + m.getQueueOffset()));
            c.setAwaitTerminationMillisWhenShutdown(10_000);
            Harness.await(60, count + " messages of " + topic, () -> got.size() >= count);
            c.shutdown();
            Harness.await(60, "the offsets of " + group, () -> {
                try {
                    return a.examineConsumeStats(group, topic).computeTotalDiff() == 0;
                } catch (org.apache.rocketmq.client.exception.MQClientException | org.apache.rocketmq.client.exception.MQBrokerException
                    | org.apache.rocketmq.remoting.exception.RemotingException e) {
                    return false; // none yet, or a broker that is busy
                }
            });
        } finally {
            env.close();
        }
    }

    private static DefaultMQAdminExt admin(Seen seen) throws Exception {
        return admin(seen.env);
    }

    private static DefaultMQAdminExt admin(Env env) throws Exception {
        DefaultMQAdminExt a = new DefaultMQAdminExt(10_000);
        a.setNamesrvAddr(env.namesrv);
        a.setInstanceName("a" + System.nanoTime());
        a.start();
        env.atEnd(a::shutdown);
        return a;
    }

    private static String master(DefaultMQAdminExt a) throws Exception {
        String[] found = new String[1];
        Harness.await(60, "a master", () -> {
            found[0] = a.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
            return found[0] != null;
        });
        return found[0];
    }

    /** Fills the one queue of a topic in two halves and returns a time between them. */
    private static long fill(Seen seen, DefaultMQProducer p, String topic) throws Exception {
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        long between = 0;
        for (int i = 0; i < 10; i++) {
            if (i == 5) {
                Thread.sleep(20); // the times of the two halves differ
                between = System.currentTimeMillis();
                Thread.sleep(20);
            }
            p.send(Clients.message(topic, "A", "k" + i, "m" + i), q);
        }
        return between;
    }

    private static DefaultMQPushConsumer listen(Env env, String group, String topic, List<String> bodies) throws Exception {
        return listen(env, group, topic, m -> bodies.add(Clients.body(m)));
    }

    private static DefaultMQPushConsumer listen(Env env, String group, String topic, Consumer<MessageExt> got) throws Exception {
        DefaultMQPushConsumer c = Clients.push(env, group);
        c.setConsumeThreadMin(1);
        c.setConsumeThreadMax(1);
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(got);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        return c;
    }

    private static void progress(Seen seen, DefaultMQAdminExt a, String key, String group, String topic) {
        seen.outcome(key, () -> {
            Map<String, String> all = new TreeMap<>();
            var stats = a.examineConsumeStats(group, topic);
            stats.getOffsetTable().forEach((q, o) -> {
                if (q.getTopic().equals(topic)) {
                    all.put("queue " + q.getQueueId(), o.getConsumerOffset() + " of " + o.getBrokerOffset());
                }
            });
            seen.print(key + ".offsets", all);
            return true;
        });
    }

    private static Map<String, String> plain(Map<MessageQueue, Long> offsets) {
        Map<String, String> all = new TreeMap<>();
        offsets.forEach((q, o) -> all.put("queue " + q.getQueueId(), o.toString()));
        return all;
    }

    /** Moves a group without members: by time, to an offset, to the end, in the old style and the broker's; and another one to where it is. */
    static void resetsAway(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String topic = seen.env.topic();
        String group = seen.env.group("away");
        long between = fill(seen, p, topic);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        for (String suffix : new String[] {"away", "clone", "other"}) {
            config.setGroupName(seen.env.group(suffix));
            a.createAndUpdateSubscriptionGroupConfig(master(a), config);
        }
        SeenSends.create(seen, p, topic + "-aside", 1);
        for (String suffix : new String[] {"away", "clone", "other"}) { // RocketMQ's tools find a group by its retry topic, which a member makes
            DefaultMQPushConsumer once = listen(seen.env, seen.env.group(suffix), topic + "-aside", new ArrayList<>());
            Harness.await(60, "the retry topic of " + suffix, () -> {
                try {
                    return a.examineTopicRouteInfo("%RETRY%" + seen.env.group(suffix)) != null;
                } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                    return false;
                }
            });
            once.shutdown();
        }
        a.updateConsumeOffset(master(a), group, q, 8);
        progress(seen, a, "at first", group, topic);
        seen.outcome("by time, the broker's style", () -> {
            seen.print("by time, the broker's style.answer", plain(a.resetOffsetByTimestamp(topic, group, between, true)));
            return true;
        });
        progress(seen, a, "after it", group, topic);
        seen.outcome("by time, the old style", () -> {
            a.updateConsumeOffset(master(a), group, q, 8);
            a.resetOffsetByTimestampOld(group, topic, between, true).forEach(r ->
                seen.print("by time, the old style.answer", "queue " + r.getQueueId() + " from " + r.getConsumerOffset() + " of " + r.getBrokerOffset()
                    + " to " + r.getRollbackOffset() + ", by time " + r.getTimestampOffset()));
            return true;
        });
        progress(seen, a, "after the old style", group, topic);
        seen.outcome("forward, without force, the old style", () -> {
            a.updateConsumeOffset(master(a), group, q, 2);
            a.resetOffsetByTimestampOld(group, topic, between, false);
            return true;
        });
        progress(seen, a, "after forward, without force", group, topic);
        seen.outcome("forward, with force, the old style", () -> {
            a.resetOffsetByTimestampOld(group, topic, between, true);
            return true;
        });
        progress(seen, a, "after forward, with force", group, topic);
        seen.outcome("to an offset", () -> {
            a.resetOffsetByQueueId(master(a), group, topic, 0, 7);
            return true;
        });
        progress(seen, a, "after to an offset", group, topic);
        for (int bad : new int[] {99, -5}) {
            seen.outcome("to offset " + bad, () -> {
                a.resetOffsetByQueueId(master(a), group, topic, 0, bad);
                return true;
            });
            progress(seen, a, "after to offset " + bad, group, topic);
        }
        seen.outcome("skip", () -> {
            seen.print("skip.answer", plain(a.resetOffsetByTimestamp(topic, group, -1, true)));
            return true;
        });
        progress(seen, a, "after the skip", group, topic);
        seen.outcome("to the start", () -> {
            seen.print("to the start.answer", plain(a.resetOffsetByTimestamp(topic, group, 0, true)));
            return true;
        });
        progress(seen, a, "after to the start", group, topic);
        seen.outcome("of no topic", () -> !a.resetOffsetByTimestamp(topic + "x", group, 0, true).isEmpty());
        seen.outcome("of no group", () -> {
            seen.print("of no group.answer", plain(a.resetOffsetByTimestamp(topic, seen.env.group("nobody"), between, true)));
            return true;
        });
        seen.outcome("clone", () -> {
            a.updateConsumeOffset(master(a), group, q, 6);
            a.cloneGroupOffset(group, seen.env.group("clone"), topic, true);
            return true;
        });
        progress(seen, a, "the clone", seen.env.group("clone"), topic);
        seen.outcome("clone of nothing", () -> {
            a.cloneGroupOffset(seen.env.group("other"), seen.env.group("clone"), topic, true);
            return true;
        });
        progress(seen, a, "the clone of nothing", seen.env.group("clone"), topic);
        a.updateConsumeOffset(master(a), group, q, 6);
        seen.pauseIf();
        progress(seen, a, "in the end", group, topic);
        // Who comes then begins where the group was moved to.
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        listen(seen.env, group, topic, got);
        Harness.await(60, "what is behind the offset", () -> got.contains("m9"));
        seen.print("consumed", got);
    }

    /** Moves a group back while a member consumes. */
    static void resetsRunning(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String topic = seen.env.topic();
        String group = seen.env.group("running");
        long between = fill(seen, p, topic);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = listen(seen.env, group, topic, got);
        Harness.await(60, "ten messages", () -> got.size() >= 10);
        seen.print("at first", got);
        persist(p, topic, c);
        got.clear();
        seen.outcome("by time", () -> {
            seen.print("by time.answer", plain(a.resetOffsetByTimestamp(topic, group, between, true)));
            return true;
        });
        seen.pauseIf();
        Harness.await(90, "five messages again", () -> got.contains("m9"));
        seen.print("came again", new TreeSet<>(got));
        persist(p, topic, c);
        got.clear();
        a.resetOffsetByQueueId(master(a), group, topic, 0, 8);
        Harness.await(90, "two messages again", () -> got.contains("m9"));
        seen.print("came again after the offset", new TreeSet<>(got));
        persist(p, topic, c);
        Harness.await(60, "the offset of all", () -> a.examineConsumeStats(group, topic).getOffsetTable().get(SeenSends.queue(p, topic, 0)).getConsumerOffset() == 10);
        progress(seen, a, "in the end", group, topic);
        status(seen, a, group, topic, c);
    }

    private static void persist(DefaultMQProducer p, String topic, DefaultMQPushConsumer c) throws Exception {
        c.getDefaultMQPushConsumerImpl().getOffsetStore().persistAll(Set.of(SeenSends.queue(p, topic, 0)));
    }

    private static void status(Seen seen, DefaultMQAdminExt a, String group, String topic, DefaultMQPushConsumer c) {
        seen.outcome("consumer status", () -> {
            String id = c.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
            seen.print("consumer status.answer", plain(a.getConsumeStatus(topic, group, id).get(id)));
            return true;
        });
    }

    /** Skips what a member has not got to yet. */
    static void skipsRunning(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String topic = seen.env.topic();
        String group = seen.env.group("skipping");
        fill(seen, p, topic);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = Clients.push(seen.env, group);
        c.setConsumeThreadMin(1);
        c.setConsumeThreadMax(1);
        c.setPullBatchSize(1);
        c.setPullThresholdForQueue(1);
        c.subscribe(topic, "*");
        java.util.concurrent.CountDownLatch free = new java.util.concurrent.CountDownLatch(1);
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> got.add(Clients.body(m)));
            try {
                free.await();
            } catch (InterruptedException e) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        Harness.await(60, "the first message", () -> !got.isEmpty());
        seen.outcome("skip", () -> {
            seen.print("skip.answer", plain(a.resetOffsetByTimestamp(topic, group, -1, true)));
            return true;
        });
        seen.pauseIf();
        p.send(Clients.message(topic, "A", "k", "after"), SeenSends.queue(p, topic, 0));
        free.countDown();
        Harness.await(90, "the message after the skip", () -> got.contains("after"));
        seen.print("skipped m9", !got.contains("m9"));
    }

    /** Takes the broker's writability away while it runs, and gives it back. */
    static void writeProtection(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        Clients.sendUntilTaken(p, Clients.message(topic, "A", "k", "before"), q);
        try {
            settings(a, "4", "71");
            awaitPermission(a, topic, 4);
            seen.pauseIf();
            awaitPermission(a, topic, 4);
            showSettings(seen, a, "settings while protected");
            seen.outcome("send while protected", () -> p.send(Clients.message(topic, "A", "k", "while"), q) != null);
            DefaultMQPullConsumer c = Clients.pull(seen.env, seen.env.group("reader"));
            seen.print("read while protected", Clients.body(c.pull(q, "*", 0, 1).getMsgFoundList().get(0)));
        } finally {
            settings(a, "6", "72");
        }
        awaitPermission(a, topic, 6);
        showSettings(seen, a, "settings in the end");
        Clients.sendUntilTaken(p, Clients.message(topic, "A", "k", "after"), q);
    }

    private static void settings(DefaultMQAdminExt a, String permission, String hours) throws Exception {
        java.util.Properties values = new java.util.Properties();
        values.setProperty("brokerPermission", permission);
        values.setProperty("fileReservedTime", hours);
        a.updateBrokerConfig(master(a), values);
    }

    private static void showSettings(Seen seen, DefaultMQAdminExt a, String key) throws Exception {
        java.util.Properties values = a.getBrokerConfig(master(a));
        seen.print(key, values.getProperty("brokerPermission") + " " + values.getProperty("fileReservedTime"));
    }

    private static void awaitPermission(DefaultMQAdminExt a, String topic, int permission) throws Exception {
        Harness.await(60, "a route with permission " + permission, () -> {
            try {
                return a.examineTopicRouteInfo(topic).getQueueDatas().stream().allMatch(d -> d.getPerm() == permission);
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false; // a name server that has just started
            }
        });
    }

    /** Asks a controller who is there, lets it make another replica master, and asks again. */
    static void controllers(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String controller = seen.env.text("controller");
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        for (int i = 0; i < 3; i++) {
            p.send(Clients.message(topic, "A", "k", "before" + i), q);
        }
        seen.outcome("metadata", () -> {
            var m = a.getControllerMetaData(controller);
            seen.print("metadata.peers", m.getPeers().replace(m.getControllerLeaderId(), "LEADER").replaceAll(";$", ""));
            seen.print("metadata.leader", (m.getControllerLeaderAddress() != null) + " " + m.isLeader() + " " + !m.getGroup().isEmpty());
            return true;
        });
        seen.outcome("configuration", () -> {
            var all = a.getControllerConfig(List.of(controller));
            seen.print("configuration.unclean elections", all.values().iterator().next().getProperty("enableElectUncleanMaster"));
            return all.size() == 1;
        });
        Harness.await(90, "three replicas in sync", () -> {
            try {
                return inSync(a, controller).getInSyncReplicas().size() == 3;
            } catch (org.apache.rocketmq.remoting.exception.RemotingException e) {
                return false; // a controller that is busy
            }
        });
        var before = inSync(a, controller);
        Map<Long, String> members = new TreeMap<>();
        before.getInSyncReplicas().forEach(r -> members.put(r.getBrokerId(), r.getBrokerName() + ", alive " + r.getAlive() + ", at " + r.getBrokerAddress()));
        seen.print("at first: in sync", members);
        seen.print("at first: not in sync", before.getNotInSyncReplicas());
        master(seen, a, "at first", before);
        epochs(seen, a, "at first", before.getMasterEpoch(), 3);
        seen.outcome("of a group that is not there", () -> !a.getInSyncStateData(controller, List.of("nobody")).getReplicasInfoTable().isEmpty());
        seen.outcome("elected: one that is not there", () -> a.electMaster(controller, "DefaultCluster", "g1", 9L) != null);
        seen.outcome("elected: in a group that is not there", () -> a.electMaster(controller, "DefaultCluster", "nobody", 1L) != null);

        long other = before.getInSyncReplicas().stream().map(r -> r.getBrokerId()).filter(id -> !id.equals(before.getMasterBrokerId())).min(Long::compare).get();
        elect(seen, a, controller, other);
        // RocketMQ's others are out of sync then, and come back one by one: so there is no look at them.
        Harness.await(60, "the new master", () -> {
            try {
                var now = inSync(a, controller);
                return now.getMasterBrokerId() == other && now.getMasterAddress().equals(master(a));
            } catch (org.apache.rocketmq.remoting.exception.RemotingException e) {
                return false;
            }
        });
        Clients.sendUntilTaken(p, Clients.message(topic, "A", "k", "after"), q);
        var after = inSync(a, controller);
        master(seen, a, "after the election", after);
        seen.print("epoch of the new master", after.getMasterEpoch() > before.getMasterEpoch() ? "another one" : "the same");
        epochs(seen, a, "after the election", after.getMasterEpoch(), 1);
        List<String> bodies = new ArrayList<>();
        SeenSends.read(seen, p, q, 4).forEach(m -> bodies.add(Clients.body(m)));
        seen.print("messages", bodies);
    }

    /** Lets the controller make a replica master, and prints what became of its answer. */
    private static void elect(Seen seen, DefaultMQAdminExt a, String controller, long id) throws Exception {
        boolean[] again = new boolean[1];
        Harness.await(60, "an answer to the election", () -> {
            try {
                a.electMaster(controller, "DefaultCluster", "g1", id);
                seen.print("elected", "taken");
                return true;
            } catch (com.alibaba.fastjson2.JSONException e) {
                e.printStackTrace();
                seen.print("elected", "its body cannot be read");
                return true;
            } catch (RemotingConnectException | RemotingSendRequestException | RemotingTimeoutException e) {
                e.printStackTrace(); // a controller that is busy: it is asked again
                again[0] = true;
                return false;
            } catch (MQBrokerException e) {
                if (!again[0] || inSync(a, controller).getMasterBrokerId() != id) {
                    throw e;
                }
                seen.print("elected", "its answer is lost");
                return true;
            }
        });
    }

    private static ReplicasInfo inSync(DefaultMQAdminExt a, String controller) throws Exception {
        return a.getInSyncStateData(controller, List.of("g1")).getReplicasInfoTable().get("g1");
    }

    private static void master(Seen seen, DefaultMQAdminExt a, String key, ReplicasInfo g) throws Exception {
        seen.print(key + ": master", g.getMasterBrokerId() + ", in the set: " + g.isExistInSync("g1", g.getMasterBrokerId(), g.getMasterAddress())
            + ", as the name server says: " + g.getMasterAddress().equals(master(a)));
    }

    /** Prints the epochs of the master's log, or of three replicas' logs, once they reach to the newest one. */
    private static void epochs(Seen seen, DefaultMQAdminExt a, String key, int newest, int count) throws Exception {
        Map<Long, String> all = new TreeMap<>();
        Harness.await(60, "the epochs", () -> {
            all.clear();
            for (Map.Entry<Long, String> broker : a.examineBrokerClusterInfo().getBrokerAddrTable().get("g1").getBrokerAddrs().entrySet()) {
                if (count == 1 && broker.getKey() != 0) {
                    continue;
                }
                var cache = a.getBrokerEpochCache(broker.getValue());
                var list = cache.getEpochList();
                boolean rising = true;
                for (int i = 1; i < list.size(); i++) {
                    rising &= list.get(i).getEpoch() > list.get(i - 1).getEpoch() && list.get(i).getStartOffset() == list.get(i - 1).getEndOffset();
                }
                all.put(cache.getBrokerId(), cache.getClusterName() + " " + cache.getBrokerName() + ", rising without gaps: " + rising + ", up to the newest: "
                    + (!list.isEmpty() && list.get(list.size() - 1).getEpoch() == newest));
            }
            return all.size() == count && all.values().stream().allMatch(s -> s.endsWith("true"));
        });
        all.forEach((id, what) -> seen.print(key + ": epochs of broker " + id, what));
    }

    /** What the dashboard asks for, page by page. */
    static void dashboard(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        DefaultMQAdminExt a = admin(seen);
        String topic = seen.env.topic();
        String group = seen.env.group("shown");
        seen.outcome("topic made", () -> {
            a.createAndUpdateTopicConfig(master(a), new TopicConfig(topic, 2, 2, 6));
            return true;
        });
        Harness.await(60, "the route of " + topic, () -> {
            try {
                return p.fetchPublishMessageQueues(topic).size() == 2;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(5);
        seen.outcome("group made", () -> {
            a.createAndUpdateSubscriptionGroupConfig(master(a), config);
            return true;
        });
        long begin = System.currentTimeMillis() - 1000;
        List<SendResult> sent = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            sent.add(p.send(Clients.message(topic, "A", "order" + i, "m" + i), SeenSends.queue(p, topic, i % 2)));
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = listen(seen.env, group, topic, got);
        Harness.await(60, "six messages", () -> got.size() >= 6);
        String client = c.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        seen.pauseIf();
        c.getDefaultMQPushConsumerImpl().getOffsetStore().persistAll(Set.copyOf(p.fetchPublishMessageQueues(topic)));
        c.getDefaultMQPushConsumerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        Harness.await(60, "the producer", () -> { // whose client learns the new master's address with the route
            p.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
            p.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
            try {
                return !a.examineProducerConnectionInfo(p.getProducerGroup(), topic).getConnectionSet().isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQBrokerException e) {
                return false;
            }
        });
        Harness.await(60, "the offsets", () -> {
            try {
                return a.examineConsumeStats(group, topic).computeTotalDiff() == 0;
            } catch (org.apache.rocketmq.client.exception.MQClientException | org.apache.rocketmq.client.exception.MQBrokerException e) {
                return false;
            }
        });
        String broker = master(a);

        // A broker of RocketMQ that has just begun has no rates yet.
        Harness.await(60, "rates", () -> !a.fetchBrokerRuntimeStats(broker).getTable().getOrDefault("putTps", "").trim().isEmpty());

        // The page of the cluster, and the collector that asks once a minute.
        seen.outcome("cluster", () -> {
            var info = a.examineBrokerClusterInfo();
            seen.print("cluster.clusters", new TreeMap<>(info.getClusterAddrTable()));
            info.getBrokerAddrTable().values().forEach(b -> seen.print("cluster.broker", b.getCluster() + " " + b.getBrokerName() + " has a master: "
                + b.getBrokerAddrs().containsKey(0L)));
            return true;
        });
        seen.outcome("runtime", () -> {
            var table = a.fetchBrokerRuntimeStats(broker).getTable();
            for (String key : new String[] {"brokerVersionDesc", "bootTimestamp", "putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps",
                "msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning",
                "msgGetTotalYesterdayMorning", "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
                "queryThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio", "timerReadBehind",
                "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "runtime"}) {
                String value = table.get(key);
                seen.print("runtime." + key, value == null ? "missing" : value.trim().replaceAll("[0-9]+([.][0-9]+)?(E-?[0-9]+)?", "N")
                    .replaceAll("^N( N)*$", "N"));
            }
            return true;
        });
        seen.outcome("configuration", () -> "g1".equals(a.getBrokerConfig(broker).getProperty("brokerName")));
        seen.outcome("name servers", () -> a.getNameServerAddressList().size() >= 1);
        seen.outcome("topic's sends", () -> {
            var stats = a.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic);
            return stats.getStatsMinute().getTps() >= 0 && stats.getStatsDay().getSum() >= 0;
        });
        seen.outcome("group's gets", () -> a.viewBrokerStatsData(broker, "GROUP_GET_NUMS", topic + "@" + group).getStatsMinute().getTps() >= 0);
        seen.outcome("gets of nobody", () -> a.viewBrokerStatsData(broker, "GROUP_GET_NUMS", topic + "@nobody").getStatsMinute().getTps() >= 0);

        // The page of topics.
        seen.outcome("topics", () -> {
            Set<String> all = a.fetchAllTopicList().getTopicList();
            return all.contains(topic) && all.contains("%RETRY%" + group);
        });
        seen.outcome("topics of the cluster", () -> a.fetchTopicsByCLuster("DefaultCluster").getTopicList().contains(topic));
        seen.outcome("cluster of the topic", () -> a.getTopicClusterList(topic).contains("DefaultCluster"));
        seen.outcome("route", () -> {
            a.examineTopicRouteInfo(topic).getQueueDatas().forEach(q -> seen.print("route.queues", q.getBrokerName() + " " + q.getReadQueueNums() + " "
                + q.getWriteQueueNums() + " " + q.getPerm() + " " + q.getTopicSysFlag()));
            return true;
        });
        seen.outcome("topic's queues", () -> {
            Map<String, String> all = new TreeMap<>();
            a.examineTopicStats(topic).getOffsetTable().forEach((q, o) ->
                all.put("queue " + q.getQueueId(), o.getMinOffset() + " to " + o.getMaxOffset() + ", written: " + (o.getLastUpdateTimestamp() > begin)));
            seen.print("topic's queues.all", all);
            return true;
        });
        seen.outcome("topic's consumers", () -> {
            seen.print("topic's consumers.all", new TreeSet<>(a.queryTopicConsumeByWho(topic).getGroupList()));
            return true;
        });
        seen.outcome("topic's configuration", () -> {
            TopicConfig t = a.examineTopicConfig(broker, topic);
            seen.print("topic's configuration.fields", t.getTopicName() + " " + t.getReadQueueNums() + " " + t.getWriteQueueNums() + " " + t.getPerm() + " "
                + t.getTopicFilterType() + " " + t.getTopicSysFlag() + " " + t.isOrder() + " " + t.getTopicMessageType());
            return true;
        });
        seen.outcome("all configurations", () -> a.getUserTopicConfig(broker, true, 5000).getTopicConfigTable().containsKey(topic));

        // The page of consumers.
        seen.outcome("groups", () -> a.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey(group));
        seen.outcome("user's groups", () -> {
            Set<String> all = a.getUserSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().keySet();
            return all.contains(group) && !all.contains("CID_ONSAPI_PULL");
        });
        seen.outcome("group's configuration", () -> {
            SubscriptionGroupConfig g = a.examineSubscriptionGroupConfig(broker, group);
            seen.print("group's configuration.fields", g.getGroupName() + " " + g.isConsumeEnable() + " " + g.isConsumeFromMinEnable() + " "
                + g.isConsumeBroadcastEnable() + " " + g.isConsumeMessageOrderly() + " " + g.getRetryQueueNums() + " " + g.getRetryMaxTimes() + " "
                + g.getBrokerId() + " " + g.getWhichBrokerWhenConsumeSlowly() + " " + g.isNotifyConsumerIdsChangedEnable() + " " + g.getGroupSysFlag() + " "
                + g.getConsumeTimeoutMinute());
            return true;
        });
        seen.outcome("progress of all topics", () -> {
            var stats = a.examineConsumeStats(group);
            Map<String, String> all = new TreeMap<>();
            stats.getOffsetTable().forEach((q, o) -> all.put(q.getTopic() + " " + q.getQueueId(), o.getConsumerOffset() + " of " + o.getBrokerOffset() + ", pulled "
                + (o.getPullOffset() >= o.getConsumerOffset()) + ", at a time " + (o.getLastTimestamp() > begin)));
            all.forEach((q, o) -> seen.print("progress of all topics." + q, o));
            seen.print("progress of all topics.behind", stats.computeTotalDiff() + ", rate " + (stats.getConsumeTps() >= 0));
            return true;
        });
        seen.outcome("progress of nobody", () -> a.examineConsumeStats(seen.env.group("nobody")) != null);
        seen.outcome("members", () -> {
            var members = a.examineConsumerConnectionInfo(group);
            members.getConnectionSet().forEach(m -> seen.print("members.one", m.getClientId().equals(client) + " " + m.getLanguage() + " " + m.getVersion() + " "
                + m.getClientAddr()));
            seen.print("members.how", members.getConsumeType() + " " + members.getMessageModel() + " " + members.getConsumeFromWhere());
            new TreeMap<>(members.getSubscriptionTable()).forEach((t, s) -> seen.print("members.subscription " + t, s.getSubString() + " " + s.getTagsSet() + " "
                + s.getExpressionType()));
            return true;
        });
        seen.outcome("members of nobody", () -> a.examineConsumerConnectionInfo(seen.env.group("nobody")) != null);
        seen.outcome("a member's state", () -> {
            var info = a.getConsumerRunningInfo(group, client, false);
            // When a member gets the queue of its retry topic is chance.
            info.getMqTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).map(q -> q.getTopic() + " " + q.getQueueId()).sorted().forEach(q -> seen.print("a member's state.queue", q));
            info.getSubscriptionSet().forEach(s -> seen.print("a member's state.subscription", s.getTopic() + " " + s.getSubString()));
            seen.print("a member's state.type", info.getProperties().getProperty("PROP_CONSUME_TYPE"));
            return true;
        });
        seen.outcome("state of nobody", () -> a.getConsumerRunningInfo(group, "nobody", false) != null);
        seen.outcome("time spans", () -> {
            a.queryConsumeTimeSpan(topic, group).stream().sorted((x, y) -> x.getMessageQueue().compareTo(y.getMessageQueue())).forEach(s ->
                seen.print("time spans.queue " + s.getMessageQueue().getQueueId(), (s.getMinTimeStamp() > begin) + " " + (s.getMaxTimeStamp() >= s.getMinTimeStamp()) + " "
                    + (s.getConsumeTimeStamp() >= s.getMinTimeStamp()) + " " + (s.getDelayTime() >= 0)));
            return true;
        });
        seen.outcome("topics of the group", () -> {
            return a.queryTopicsByConsumer(group).getTopicList().contains(topic);
        });
        seen.outcome("subscription", () -> a.querySubscription(group, topic).getSubString().equals("*"));
        seen.outcome("all progress", () -> a.fetchConsumeStatsInBroker(broker, false, 5000).getConsumeStatsList().stream().anyMatch(m -> m.containsKey(group)));
        seen.outcome("status", () -> {
            seen.print("status.offsets", plain(a.getConsumeStatus(topic, group, client).get(client)));
            return true;
        });

        // The page of producers.
        seen.outcome("producers", () -> {
            a.examineProducerConnectionInfo(p.getProducerGroup(), topic).getConnectionSet().forEach(m ->
                seen.print("producers.one", m.getLanguage() + " " + m.getVersion() + " " + m.getClientAddr()));
            return true;
        });
        seen.outcome("producers of nobody", () -> a.examineProducerConnectionInfo("nobody", topic) != null);
        seen.outcome("all producers", () -> a.getAllProducerInfo(broker).getData().containsKey(p.getProducerGroup()));

        // The page of messages.
        MessageQueue first = SeenSends.queue(p, topic, 0);
        seen.print("offsets", a.minOffset(first) + " to " + a.maxOffset(first) + ", at the begin " + a.searchOffset(first, begin) + ", later "
            + a.searchOffset(first, System.currentTimeMillis() + 60_000) + ", the first's time " + (a.earliestMsgStoreTime(first) > begin));
        DefaultMQPullConsumer tools = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        tools.setNamesrvAddr(seen.env.namesrv);
        tools.setInstanceName("t" + System.nanoTime());
        tools.start();
        seen.env.atEnd(tools::shutdown);
        seen.outcome("messages of a time", () -> {
            var r = tools.pull(first, "*", 0, 32);
            List<String> bodies = new ArrayList<>();
            r.getMsgFoundList().forEach(m -> bodies.add(Clients.body(m)));
            seen.print("messages of a time.found", r.getPullStatus() + " " + bodies);
            return true;
        });
        Harness.await(60, "the index", () -> {
            try {
                return a.queryMessage(topic, "order5", 64, 0, Long.MAX_VALUE).getMessageList().size() == 1;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        seen.outcome("message by key", () -> Clients.body(a.queryMessage(topic, "order3", 64, begin, System.currentTimeMillis()).getMessageList().get(0)).equals("m3"));
        seen.outcome("message by id", () -> Clients.body(a.viewMessage(topic, sent.get(2).getMsgId())).equals("m2"));
        seen.outcome("message by offset id", () -> Clients.body(a.viewMessage(topic, sent.get(2).getOffsetMsgId())).equals("m2"));
        seen.outcome("message by no id", () -> a.viewMessage(topic, "7F0000010000000000000000FFFFFFFF") != null);
        MessageExt one = a.viewMessage(topic, sent.get(1).getMsgId());
        seen.outcome("who had it", () -> {
            a.messageTrackDetail(one).forEach(t -> seen.print("who had it.group", t.getConsumerGroup() + " " + t.getTrackType() + " " + t.getExceptionDesc()));
            return true;
        });
        seen.outcome("consumed directly", () -> {
            var r = a.consumeMessageDirectly(group, client, topic, sent.get(4).getMsgId());
            seen.print("consumed directly.result", r.getConsumeResult() + " " + r.isOrder() + " " + r.isAutoCommit() + " " + r.getRemark());
            return true;
        });
        seen.print("consumed directly: times", Collections.frequency(got, "m4") >= 2);

        // Dead letters.
        tools.sendMessageBack(one, -1, "g1", group);
        Harness.await(60, "the dead letter", () -> {
            try {
                return !tools.fetchSubscribeMessageQueues("%DLQ%" + group).isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        MessageQueue dead = tools.fetchSubscribeMessageQueues("%DLQ%" + group).iterator().next();
        List<MessageExt> letters = new ArrayList<>();
        Harness.await(60, "the dead letter's message", () -> {
            var r = tools.pull(dead, "*", 0, 32);
            if (r.getMsgFoundList() != null) {
                letters.addAll(r.getMsgFoundList());
            }
            return !letters.isEmpty();
        });
        seen.outcome("dead letter by id", () -> a.viewMessage("%DLQ%" + group, letters.get(0).getMsgId()) != null);
        seen.outcome("dead letter consumed", () -> {
            String origin = letters.get(0).getProperty("ORIGIN_MESSAGE_ID");
            seen.print("dead letter's origin", origin);
            seen.print("dead letter consumed.result", a.consumeMessageDirectly(group, client, "%DLQ%" + group, letters.get(0).getMsgId()).getConsumeResult());
            return true;
        });

        // Changes.
        seen.outcome("topic changed", () -> {
            a.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 4, 4, 4));
            TopicConfig t = a.examineTopicConfig(broker, topic);
            seen.print("topic changed.fields", t.getReadQueueNums() + " " + t.getWriteQueueNums() + " " + t.getPerm());
            return true;
        });
        c.shutdown();
        seen.outcome("group deleted", () -> {
            a.deleteSubscriptionGroup(broker, group, true);
            return !a.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey(group);
        });
        seen.outcome("topic deleted", () -> {
            Set<String> addresses = new TreeSet<>(Arrays.asList(broker));
            a.deleteTopicInBroker(addresses, topic);
            a.deleteTopicInNameServer(new TreeSet<>(a.getNameServerAddressList()), "DefaultCluster", topic);
            return !a.fetchAllTopicList().getTopicList().contains(topic);
        });
        seen.outcome("route of the deleted topic", () -> a.examineTopicRouteInfo(topic) != null);
    }
}
