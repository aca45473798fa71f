package org.ledgermq.tests;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Conformance.Seen;

/** What a consumer that pulls sees, and where it stands. */
final class SeenPulls {
    private SeenPulls() {}

    private static void result(Seen seen, String key, PullResult r) {
        seen.print(key, r.getPullStatus() + " next " + r.getNextBeginOffset() + ", holds " + r.getMinOffset() + " to " + r.getMaxOffset());
        if (r.getMsgFoundList() != null) {
            StringBuilder b = new StringBuilder();
            for (MessageExt m : r.getMsgFoundList()) {
                b.append(m.getQueueOffset()).append('=').append(Clients.body(m)).append(' ');
            }
            seen.print(key + ".messages", b.toString().trim());
        }
    }

    static void pull(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 2);
        MessageQueue full = SeenSends.queue(p, topic, 0);
        MessageQueue empty = SeenSends.queue(p, topic, 1);
        for (int i = 0; i < 40; i++) {
            p.send(Clients.message(topic, "A", "k", "m" + i), full);
        }
        SeenSends.read(seen, p, full, 40);
        DefaultMQPullConsumer c = Clients.pull(seen.env, seen.env.group("pulls"));
        result(seen, "from 0", c.pull(full, "*", 0, 5));
        result(seen, "from 38", c.pull(full, "*", 38, 32));
        result(seen, "at the end", c.pull(full, "*", 40, 32));
        result(seen, "behind the end", c.pull(full, "*", 1000, 32));
        result(seen, "empty at 0", c.pull(empty, "*", 0, 32));
        result(seen, "empty at 7", c.pull(empty, "*", 7, 32));
        seen.outcome("queue 99", () -> c.pull(new MessageQueue(topic, full.getBrokerName(), 99), "*", 0, 32) != null);
        seen.print("32 at most", c.pull(full, "*", 0, 1000).getMsgFoundList().size());
    }

    static void tags(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        String[] tags = {"A", "B", null, "Aa", "BB", "A"}; // the hashes of Aa and BB are the same
        for (int i = 0; i < tags.length; i++) {
            p.send(Clients.message(topic, tags[i], "k", "m" + i), q);
        }
        SeenSends.read(seen, p, q, tags.length);
        DefaultMQPullConsumer c = Clients.pull(seen.env, seen.env.group("pulls"));
        for (String expression : new String[] {"*", "A", "A || B", "Aa", "nobody", "A||Aa || ", ""}) {
            result(seen, "[" + expression + "]", c.pull(q, expression, 0, 32));
        }
    }

    static void offsets(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 2);
        MessageQueue full = SeenSends.queue(p, topic, 0);
        MessageQueue empty = SeenSends.queue(p, topic, 1);
        long before = System.currentTimeMillis() - 60_000;
        for (int i = 0; i < 5; i++) {
            p.send(Clients.message(topic, "A", "k", "m" + i), full);
        }
        SeenSends.read(seen, p, full, 5);
        DefaultMQPullConsumer c = Clients.pull(seen.env, seen.env.group("offsets"));
        for (MessageQueue q : new MessageQueue[] {full, empty}) {
            String name = "queue " + q.getQueueId();
            seen.print(name + " min", c.minOffset(q));
            seen.print(name + " max", c.maxOffset(q));
            seen.print(name + " before all", c.searchOffset(q, before));
            seen.print(name + " after all", c.searchOffset(q, System.currentTimeMillis() + 60_000));
            seen.outcome(name + " earliest", () -> c.earliestMsgStoreTime(q) > before);
            seen.print(name + " consumed by a new group", c.fetchConsumeOffset(q, true));
        }
        c.updateConsumeOffset(full, 3);
        c.getDefaultMQPullConsumerImpl().getOffsetStore().persist(full);
        Harness.await(20, "the offset that was written", () -> c.fetchConsumeOffset(full, true) == 3);
        seen.print("written", c.fetchConsumeOffset(full, true));
    }
}
