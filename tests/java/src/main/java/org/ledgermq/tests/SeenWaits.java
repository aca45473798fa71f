package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Conformance.Seen;

/** What comes later than it was sent: repetitions, dead letters, delays, transactions. */
final class SeenWaits {
    private SeenWaits() {}

    static DefaultMQPushConsumer listen(Seen seen, String group, String topic, List<MessageExt> got) throws Exception {
        DefaultMQPushConsumer c = Clients.push(seen.env, group);
        c.setConsumeThreadMin(1);
        c.setConsumeThreadMax(1);
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        return c;
    }

    /** Fails a message until it is dead, with maxima of 0, 1 and 3 repetitions, a second apart. */
    static void retries(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        for (int max : new int[] {0, 1, 3}) {
            String topic = seen.env.topic() + "-" + max;
            String group = seen.env.group("max" + max);
            SeenSends.create(seen, p, topic, 1);
            Message m = Clients.message(topic, "A", "k1", "bad");
            m.putUserProperty("colour", "red");
            p.send(m, SeenSends.queue(p, topic, 0));
            Map<Integer, MessageExt> tries = new ConcurrentSkipListMap<>();
            CountDownLatch go = new CountDownLatch(max == 1 ? 1 : 0); // the last try of this one takes as long as a failover
            DefaultMQPushConsumer c = Clients.push(seen.env, group);
            c.setMaxReconsumeTimes(max);
            c.subscribe(topic, "*");
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                // A client that got no answer when it sent one back counts on, and tries again by itself.
                messages.forEach(t -> tries.putIfAbsent(t.getReconsumeTimes(), t));
                context.setDelayLevelWhenNextConsume(1);
                if (messages.get(0).getReconsumeTimes() == 1) {
                    try {
                        go.await();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                }
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            c.start();
            Harness.await(90, (max + 1) + " tries", () -> tries.size() >= max + 1);
            if (max == 1) {
                seen.pauseIf();
                go.countDown();
            }
            String dead = "%DLQ%" + group;
            Harness.await(60, dead, () -> {
                try {
                    return !Clients.subscribeQueues(seen.env, dead).isEmpty();
                } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                    return false;
                }
            });
            MessageQueue q = Clients.subscribeQueues(seen.env, dead).iterator().next();
            MessageExt letter = SeenSends.read(seen, p, q, 1).get(0);
            for (int i = 0; i <= max; i++) {
                seen.message("maximum " + max + ": try " + i, tries.get(i));
            }
            seen.message("maximum " + max + ": dead letter", letter);
            c.shutdown();
        }
    }

    /** Each of the shortest levels, and what is no level. */
    static void levels(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        Map<String, Long> sent = new ConcurrentHashMap<>();
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        listen(seen, seen.env.group("later"), topic, got);
        for (int level : new int[] {0, 1, 2}) {
            Message m = Clients.message(topic, "A", "k", "level" + level);
            m.setDelayTimeLevel(level);
            sent.put("level" + level, System.currentTimeMillis());
            SendResult r = p.send(m, q);
            seen.print("level " + level, r.getSendStatus());
        }
        seen.pauseIf();
        Harness.await(60, "three messages", () -> got.size() >= 3);
        show(seen, got, sent, new long[] {0, 1000, 5000});
        Message below = Clients.message(topic, "A", "k", "below");
        below.setDelayTimeLevel(-1);
        seen.outcome("level -1", () -> p.send(below, q).getSendStatus() != null);
    }

    private static void show(Seen seen, List<MessageExt> got, Map<String, Long> sent, long[] due) {
        Map<String, MessageExt> first = new TreeMap<>();
        synchronized (got) {
            got.forEach(m -> first.putIfAbsent(Clients.body(m), m));
        }
        int i = 0;
        for (Map.Entry<String, MessageExt> e : first.entrySet()) {
            seen.message(e.getKey(), e.getValue());
            seen.print(e.getKey() + ": early", e.getValue().getStoreTimestamp() < sent.get(e.getKey()) + due[i++]);
        }
    }

    /** Any time, by each of the three properties, and what is too far or is taken back. */
    static void timers(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        Map<String, Long> sent = new ConcurrentHashMap<>();
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        listen(seen, seen.env.group("timed"), topic, got);
        String[][] timed = {{"a", "TIMER_DELAY_MS", "2500"}, {"b", "TIMER_DELAY_SEC", "3"},
            {"c", "TIMER_DELIVER_MS", "a time"}};
        for (String[] t : timed) {
            Message m = Clients.message(topic, "A", "k", t[0]);
            MessageAccessor.putProperty(m, t[1], t[2].equals("a time") ? Long.toString(System.currentTimeMillis() + 8000) : t[2]);
            sent.put(t[0], System.currentTimeMillis());
            seen.print(t[1], p.send(m, q).getSendStatus());
        }
        SeenSends.create(seen, p, topic + "-aside", 1);
        MessageQueue aside = SeenSends.queue(p, topic + "-aside", 0);
        Message past = Clients.message(topic, "A", "k", "d");
        MessageAccessor.putProperty(past, "TIMER_DELIVER_MS", Long.toString(System.currentTimeMillis() - 1000));
        sent.put("d", 0L);
        seen.print("in the past", p.send(past, q).getSendStatus());
        for (String[] bad : new String[][] {{"TIMER_DELAY_MS", "x"}, {"TIMER_DELAY_SEC", "-1"}, {"TIMER_DELAY_SEC", Long.toString(4 * 24 * 3600)},
            {"TIMER_DELIVER_MS", "9223372036854775807"}}) {
            Message m = Clients.message(topic + "-aside", "A", "k", "bad");
            MessageAccessor.putProperty(m, bad[0], bad[1]);
            seen.outcome(bad[0] + " " + bad[1], () -> p.send(m, aside).getSendStatus() != null);
        }
        seen.pauseIf();
        Harness.await(60, "four messages", () -> got.size() >= 4);
        show(seen, got, sent, new long[] {2500, 3000, 0, 0});
        seen.print("all", got.size());
    }

    /** Takes a message back that waits. Only newer clients can. */
    static void recalls(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        java.lang.reflect.Method recall = p.getClass().getMethod("recallMessage", String.class, String.class);
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        listen(seen, seen.env.group("timed"), topic, got);
        String[] handles = new String[2];
        for (int i = 0; i < 2; i++) {
            Message m = Clients.message(topic, "A", "k", i == 0 ? "taken back" : "stays");
            MessageAccessor.putProperty(m, "TIMER_DELAY_SEC", Integer.toString(4 + 2 * i));
            handles[i] = (String) SendResult.class.getMethod("getRecallHandle").invoke(p.send(m, q));
        }
        SeenSends.create(seen, p, topic + "-other", 1);
        recalled(seen, "of another topic", () -> recall.invoke(p, topic + "-other", handles[0]));
        recalled(seen, "altered", () -> recall.invoke(p, topic, handles[0].substring(0, 4) + handles[0].substring(8)));
        recalled(seen, "right", () -> recall.invoke(p, topic, handles[0]));
        recalled(seen, "right again", () -> recall.invoke(p, topic, handles[0]));
        seen.pauseIf();
        Harness.await(60, "the other message", () -> !got.isEmpty());
        got.forEach(m -> seen.print("delivered", Clients.body(m)));
        recalled(seen, "delivered already", () -> recall.invoke(p, topic, handles[1]));
    }

    private static void recalled(Seen seen, String key, java.util.concurrent.Callable<Object> call) {
        seen.outcome(key, () -> {
            try {
                seen.print(key + ".id", call.call());
            } catch (java.lang.reflect.InvocationTargetException e) {
                throw (Exception) e.getCause();
            }
            return true;
        });
    }

    /** Commit, rollback, and a check that commits. */
    static void transactions(Seen seen) throws Exception {
        String topic = seen.env.topic();
        DefaultMQProducer plain = Clients.producer(seen.env);
        SeenSends.create(seen, plain, topic, 1);
        TransactionMQProducer p = new TransactionMQProducer(seen.env.group("transactions"));
        p.setNamesrvAddr(seen.env.namesrv);
        p.setInstanceName("t" + System.nanoTime());
        List<MessageExt> checked = Collections.synchronizedList(new ArrayList<>());
        p.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                return (LocalTransactionState) arg;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                checked.add(m);
                return Clients.body(m).equals("checked") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        p.start();
        seen.env.atEnd(p::shutdown);
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        listen(seen, seen.env.group("reader"), topic, got);
        Object[][] all = {{"committed", LocalTransactionState.COMMIT_MESSAGE}, {"rolled back", LocalTransactionState.ROLLBACK_MESSAGE},
            {"checked", LocalTransactionState.UNKNOW}, {"refused", LocalTransactionState.UNKNOW}};
        for (Object[] one : all) {
            Message m = Clients.message(topic, "A", "k", (String) one[0]);
            MessageAccessor.putProperty(m, "CHECK_IMMUNITY_TIME_IN_SECONDS", "1");
            seen.print("half " + one[0], p.sendMessageInTransaction(m, one[1]).getSendStatus());
        }
        seen.pauseIf();
        // A check of one that has ended comes too, where its end is not looked at yet: it is not shown.
        Harness.await(90, "two checks", () -> {
            java.util.Set<String> asked = new java.util.HashSet<>();
            synchronized (checked) {
                checked.forEach(m -> asked.add(Clients.body(m)));
            }
            return asked.contains("checked") && asked.contains("refused");
        });
        Harness.await(60, "two messages", () -> got.size() >= 2);
        Map<String, MessageExt> byBody = new TreeMap<>();
        got.forEach(m -> byBody.put(Clients.body(m), m));
        byBody.forEach((body, m) -> seen.message(body, m));
        Map<String, MessageExt> asked = new TreeMap<>();
        synchronized (checked) {
            checked.forEach(m -> asked.putIfAbsent(Clients.body(m), m));
        }
        asked.keySet().retainAll(List.of("checked", "refused"));
        asked.forEach((body, m) -> seen.message("check of " + body, m));
    }

    /** By key, by unique id, by offset id, in a window of time. */
    static void queries(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        long begin = System.currentTimeMillis() - 1000;
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            results.add(p.send(Clients.message(topic, "A", i < 3 ? "order-1 k" + i : "k" + i, "m" + i), q));
        }
        seen.pauseIf();
        long end = System.currentTimeMillis() + 60_000;
        Harness.await(60, "the index", () -> {
            try {
                return p.queryMessage(topic, "k4", 10, begin, end).getMessageList().size() == 1;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        for (String key : new String[] {"order-1", "k0", "k4", "nothing", "order"}) {
            seen.outcome("key " + key, () -> {
                List<String> bodies = new ArrayList<>();
                p.queryMessage(topic, key, 10, begin, end).getMessageList().forEach(m -> bodies.add(Clients.body(m)));
                Collections.sort(bodies);
                seen.print("key " + key + ": messages", bodies);
                return true;
            });
        }
        seen.outcome("two at most", () -> p.queryMessage(topic, "order-1", 2, begin, end).getMessageList().size() == 2);
        seen.outcome("a window before", () -> p.queryMessage(topic, "order-1", 10, 0, begin).getMessageList().isEmpty());
        seen.outcome("another topic", () -> p.queryMessage(topic + "x", "order-1", 10, begin, end).getMessageList().isEmpty());
        seen.outcome("by unique id", () -> Clients.body(p.viewMessage(topic, results.get(1).getMsgId())).equals("m1"));
        seen.outcome("by offset id", () -> Clients.body(p.viewMessage(topic, results.get(2).getOffsetMsgId())).equals("m2"));
        seen.outcome("by an id of nothing", () -> p.viewMessage(topic, "7F0000010000000000000000FFFFFFFF") != null);
    }
}
