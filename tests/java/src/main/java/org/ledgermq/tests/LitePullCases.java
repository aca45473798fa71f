package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Harness.Env;

/** DefaultLitePullConsumer: by subscription, by assignment, and moved about by seek. */
final class LitePullCases {
    private LitePullCases() {}

    /** Reads the topic from the start with a new group and fails unless it gets exactly the wanted bodies. */
    static void expectAll(Env env, String topic, String group, Collection<String> want) throws Exception {
        DefaultLitePullConsumer c = Clients.lite(env, group);
        c.subscribe(topic, "*");
        c.start();
        List<String> got = new ArrayList<>();
        Harness.await(60, want.size() + " messages of " + topic, () -> {
            c.poll().forEach(m -> got.add(Clients.body(m)));
            return got.size() >= want.size();
        });
        c.shutdown();
        Harness.check(new TreeSet<>(got).equals(new TreeSet<>(want)), "got " + missing(got, want));
    }

    private static String missing(Collection<String> got, Collection<String> want) {
        Set<String> lost = new TreeSet<>(want);
        lost.removeAll(got);
        Set<String> foreign = new TreeSet<>(got);
        foreign.removeAll(want);
        return got.size() + " of " + want.size() + ", without " + lost + ", with " + foreign;
    }

    static void subscribe(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        int count = env.number("count", 100);
        Clients.fill(p, env.topic(), "m", count);
        DefaultLitePullConsumer first = Clients.lite(env, env.group("sub"));
        first.setAutoCommit(false);
        first.subscribe(env.topic(), "A");
        first.start();
        Set<String> got = new HashSet<>();
        Harness.await(60, "half of the messages", () -> {
            for (MessageExt m : first.poll()) {
                Harness.check("A".equals(m.getTags()), "tag " + m.getTags() + " came through the filter");
                got.add(Clients.body(m));
            }
            return got.size() == count / 2;
        });
        first.commitSync();
        // The commit was waited for: another member of the group, which never met the first one, reads on from there.
        first.shutdown();
        Clients.fill(p, env.topic(), "n", 10);
        DefaultLitePullConsumer second = Clients.lite(env, env.group("sub"));
        second.subscribe(env.topic(), "A");
        second.start();
        Set<String> rest = new HashSet<>();
        Harness.await(60, "the later messages", () -> {
            second.poll().forEach(m -> rest.add(Clients.body(m)));
            return rest.size() >= 5;
        });
        Harness.check(rest.equals(Set.of("n0", "n2", "n4", "n6", "n8")), "the second consumer got " + rest);
    }

    static void assign(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        int count = env.number("count", 100);
        Clients.fill(p, env.topic(), "m", count);
        DefaultLitePullConsumer c = Clients.lite(env, env.group("assigned"));
        c.start();
        Collection<MessageQueue> queues = c.fetchMessageQueues(env.topic());
        c.assign(queues);
        for (MessageQueue q : queues) {
            c.seekToBegin(q);
        }
        Set<String> got = new HashSet<>();
        Harness.await(60, "all messages of the assigned queues", () -> {
            c.poll().forEach(m -> got.add(Clients.body(m)));
            return got.size() == count;
        });
    }

    static void seek(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        int count = env.number("count", 60);
        MessageQueue[] one = new MessageQueue[1];
        long[] times = new long[count];
        for (int i = 0; i < count; i++) {
            one[0] = p.send(Clients.message(env.topic(), "A", "m" + i, "m" + i), (queues, m, arg) -> queues.get(0), null)
                .getMessageQueue();
        }
        DefaultLitePullConsumer c = Clients.lite(env, env.group("seeker"));
        c.start();
        c.assign(List.of(one[0]));
        c.seekToBegin(one[0]);
        List<MessageExt> all = new ArrayList<>();
        Harness.await(60, "the whole queue", () -> all.addAll(c.poll()) && all.size() >= count || all.size() >= count);
        for (int i = 0; i < count; i++) {
            Harness.check(all.get(i).getQueueOffset() == i && Clients.body(all.get(i)).equals("m" + i), "place " + i + " has " + all.get(i));
            times[i] = all.get(i).getStoreTimestamp();
        }
        c.seek(one[0], 10);
        expectFrom(c, 10);
        c.seekToEnd(one[0]);
        p.send(Clients.message(env.topic(), "A", "last", "last"), (queues, m, arg) -> queues.get(0), null);
        expectFrom(c, count);
        Long byTime = c.offsetForTimestamp(one[0], times[count / 2]);
        Harness.check(byTime != null && byTime <= count / 2 && times[byTime.intValue()] == times[count / 2]
            && (byTime == 0 || times[byTime.intValue() - 1] < times[count / 2]),
            "offset for the store time of message " + count / 2 + " is " + byTime);
        c.seek(one[0], byTime);
        expectFrom(c, byTime);
        Long committed = c.committed(one[0]);
        Harness.check(committed == null || committed <= count + 1, "committed offset " + committed);
    }

    private static void expectFrom(DefaultLitePullConsumer c, long offset) throws Exception {
        List<MessageExt> got = new ArrayList<>();
        Harness.await(60, "the message at " + offset, () -> {
            got.addAll(c.poll());
            return !got.isEmpty();
        });
        Harness.check(got.get(0).getQueueOffset() == offset, "after the seek to " + offset + " came " + got.get(0).getQueueOffset());
    }
}
