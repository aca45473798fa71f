package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Conformance.Seen;

/** What a producer sees, and what then lies in the queue. */
final class SeenSends {
    private SeenSends() {}

    /** Creates the case's topic with so many queues, and waits until this client can send to it. */
    static void create(Seen seen, DefaultMQProducer p, String topic, int queues) throws Exception {
        Harness.await(60, "the topic " + topic, () -> {
            try {
                Clients.createTopic(p, topic, queues);
                return true;
            } catch (java.lang.reflect.InvocationTargetException e) {
                return false; // the client has no connection yet
            }
        });
        Harness.await(60, "the route of " + topic, () -> {
            try {
                return p.fetchPublishMessageQueues(topic).size() == queues;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
    }

    static MessageQueue queue(DefaultMQProducer p, String topic, int number) throws Exception {
        for (MessageQueue q : p.fetchPublishMessageQueues(topic)) {
            if (q.getQueueId() == number) {
                return q;
            }
        }
        throw new AssertionError(topic + " has no queue " + number);
    }

    static void result(Seen seen, String key, SendResult r) {
        seen.print(key, r.getSendStatus() + " queue " + r.getMessageQueue().getQueueId() + " @" + r.getQueueOffset() + " of "
            + r.getMessageQueue().getBrokerName() + ", msgId " + r.getMsgId() + ", offsetMsgId " + r.getOffsetMsgId() + ", region "
            + r.getRegionId() + ", trace " + r.isTraceOn() + ", transaction " + r.getTransactionId());
    }

    static void send(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        create(seen, p, topic, 2);
        MessageQueue first = queue(p, topic, 0);
        for (int i = 0; i < 3; i++) {
            result(seen, "sync", p.send(Clients.message(topic, "A", "k" + i, "sync" + i), first));
        }
        CountDownLatch answered = new CountDownLatch(3);
        for (int i = 0; i < 3; i++) {
            CountDownLatch one = new CountDownLatch(1);
            p.send(Clients.message(topic, "A", "k" + i, "async" + i), first, new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    result(seen, "async", r);
                    answered.countDown();
                    one.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    seen.print("async", e);
                    answered.countDown();
                    one.countDown();
                }
            });
            Harness.check(one.await(20, TimeUnit.SECONDS), "no answer to an asynchronous send");
        }
        for (int i = 0; i < 3; i++) {
            p.sendOneway(Clients.message(topic, "A", "k" + i, "oneway" + i), first);
        }
        List<MessageExt> stored = read(seen, p, first, 9);
        for (MessageExt m : stored.subList(0, 6)) {
            seen.print("stored", m.getQueueOffset() + " " + Clients.body(m));
        }
        java.util.Set<String> oneways = new java.util.TreeSet<>(); // nobody waits for one: so their order is open
        stored.subList(6, 9).forEach(m -> oneways.add(Clients.body(m)));
        seen.print("stored one-way", oneways);
        seen.outcome("empty body", () -> p.send(new Message(topic, new byte[0]), first) != null);
        p.setMaxMessageSize(8 << 20);
        p.setCompressMsgBodyOverHowmuch(8 << 20);
        seen.outcome("5 MiB", () -> p.send(new Message(topic, new byte[5 << 20]), first) != null);
        seen.outcome("queue 99", () -> p.send(Clients.message(topic, "A", "k", "b"),
            new MessageQueue(topic, first.getBrokerName(), 99)) != null);
    }

    static void properties(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        create(seen, p, topic, 1);
        MessageQueue q = queue(p, topic, 0);
        Message plain = new Message(topic, "plain".getBytes("UTF-8"));
        p.send(plain, q);
        Message rich = new Message(topic, "A", "k1 k2", 7, "rich".getBytes("UTF-8"), false);
        rich.putUserProperty("colour", "green blue");
        rich.setBuyerId("buyer");
        p.send(rich, q);
        List<Message> batch = new ArrayList<>();
        batch.add(Clients.message(topic, "B", "b1", "b1"));
        batch.add(Clients.message(topic, "C", "b2", "b2"));
        p.send(batch, q);
        Message waits = Clients.message(topic, "A", "w", "waits");
        waits.setInstanceId("i");
        p.send(waits, q);
        String[] names = {"plain", "rich", "batch1", "batch2", "instance"};
        List<MessageExt> got = read(seen, p, q, names.length);
        for (int i = 0; i < names.length; i++) {
            seen.message(names[i], got.get(i));
        }
    }

    static void compressed(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        create(seen, p, topic, 1);
        MessageQueue q = queue(p, topic, 0);
        byte[] body = new byte[20000];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (i % 7);
        }
        p.send(new Message(topic, "A", "k", body), q);
        for (MessageExt m : read(seen, p, q, 1)) {
            seen.message("compressed", m);
            seen.print("store size", m.getStoreSize() < 1000 ? "small" : "large");
            seen.print("equal", java.util.Arrays.equals(body, m.getBody()));
        }
    }

    static void batch(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        create(seen, p, topic, 1);
        MessageQueue q = queue(p, topic, 0);
        for (int b = 0; b < 2; b++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                batch.add(Clients.message(topic, "A", "k" + i, b + "-" + i));
            }
            result(seen, "result", p.send(batch, q));
        }
        for (MessageExt m : read(seen, p, q, 6)) {
            seen.print("stored", m.getQueueOffset() + " " + Clients.body(m) + " sysFlag " + m.getSysFlag());
        }
        List<Message> delayed = new ArrayList<>();
        delayed.add(Clients.message(topic, "A", "k", "d"));
        delayed.get(0).setDelayTimeLevel(1);
        seen.outcome("delayed in a batch", () -> p.send(delayed, q) != null);
    }

    static void autoCreate(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        seen.print("first", p.send(Clients.message(topic, "A", "k", "first")).getSendStatus());
        Harness.await(60, "the queues of " + topic, () -> {
            try {
                return !p.fetchPublishMessageQueues(topic).isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        seen.print("queues", p.fetchPublishMessageQueues(topic).size());
        seen.outcome("reserved name", () -> p.send(Clients.message("TBW102", "A", "k", "b")) != null);
        seen.outcome("schedule topic", () -> p.send(Clients.message("SCHEDULE_TOPIC_XXXX", "A", "k", "b")) != null);
        seen.outcome("transaction topic", () -> p.send(Clients.message("RMQ_SYS_TRANS_HALF_TOPIC", "A", "k", "b")) != null);
    }

    /** Reads a queue from its start until it has so many messages, in the order of the queue. */
    static List<MessageExt> read(Seen seen, DefaultMQProducer p, MessageQueue q, int count) throws Exception {
        DefaultMQPullConsumer c = Clients.pull(seen.env, seen.env.group("reader"));
        List<MessageExt> got = new ArrayList<>();
        Harness.await(60, count + " messages of " + q, () -> {
            org.apache.rocketmq.client.consumer.PullResult r = c.pull(q, "*", got.size(), 32);
            if (r.getMsgFoundList() != null) {
                got.addAll(r.getMsgFoundList());
            }
            return got.size() >= count;
        });
        c.shutdown();
        Harness.check(got.size() == count, "got " + got.size() + " messages of " + q + ", want " + count);
        return got;
    }
}
