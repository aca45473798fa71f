package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.ledgermq.tests.Harness.Env;

/** DefaultMQPushConsumer: concurrent, orderly, broadcasting, and the way to the dead letters. */
final class PushCases {
    private PushCases() {}

    static void concurrent(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        int count = env.number("count", 200);
        Clients.fill(p, topic, "before", count);

        Set<String> all = ConcurrentHashMap.newKeySet();
        Set<String> onlyA = ConcurrentHashMap.newKeySet();
        List<String> foreign = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer everything = Clients.push(env, env.group("all"));
        everything.subscribe(topic, "*");
        everything.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> all.add(Clients.body(m)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        everything.start();
        DefaultMQPushConsumer filtered = Clients.push(env, env.group("a"));
        filtered.subscribe(topic, "A || C");
        filtered.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                if (!"A".equals(m.getTags())) {
                    foreign.add(m.toString());
                }
                onlyA.add(Clients.body(m));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        filtered.start();

        Harness.await(60, "the messages sent before", () -> all.size() == count && onlyA.size() == count / 2);
        // Now the consumers hold a pull at the end of each queue: these wake it.
        Clients.fill(p, topic, "after", count);
        Harness.await(30, "the messages sent after", () -> all.size() == 2 * count && onlyA.size() == count);
        Harness.check(foreign.isEmpty(), "delivered although the tag does not match: " + foreign);

        // Offsets outlive the consumer: the next one of the group starts where this one ended.
        everything.shutdown();
        Clients.fill(p, topic, "later", 10);
        List<String> again = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer next = Clients.push(env, env.group("all"));
        next.subscribe(topic, "*");
        next.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> again.add(Clients.body(m)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        next.start();
        Harness.await(60, "the messages sent later", () -> again.size() >= 10);
        Harness.check(new TreeSet<>(again).equals(new TreeSet<>(Clients.names("later", 10))), "the next consumer got " + again);
    }

    static void orderly(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        int keys = 8;
        int each = env.number("count", 50);
        // The first message makes the topic, so that all consumers see the same queues.
        Clients.send(p, Clients.message(topic, "first", "first", "first"));
        Map<String, AtomicInteger> next = new ConcurrentHashMap<>();
        AtomicInteger got = new AtomicInteger();
        AtomicInteger suspended = new AtomicInteger();
        AtomicReference<String> wrong = new AtomicReference<>();
        for (int c = 0; c < 2; c++) {
            DefaultMQPushConsumer consumer = Clients.push(env, env.group("ordered"));
            consumer.subscribe(topic, "ordered");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt m : messages) {
                    String[] keyAndNumber = Clients.body(m).split(":");
                    int number = Integer.parseInt(keyAndNumber[1]);
                    AtomicInteger want = next.computeIfAbsent(keyAndNumber[0], k -> new AtomicInteger());
                    // Each tenth message fails once: an orderly consumer waits and gets the same one again.
                    if (number % 10 == 9 && number == want.get() && m.getReconsumeTimes() == 0) {
                        suspended.incrementAndGet();
                        context.setSuspendCurrentQueueTimeMillis(10);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    if (number > want.get()) {
                        wrong.compareAndSet(null, "key " + keyAndNumber[0] + ": got " + number + ", want " + want.get());
                    } else if (number == want.get()) {
                        // A smaller one is a repetition, which a change of owner may bring.
                        want.incrementAndGet();
                        got.incrementAndGet();
                    }
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
        }
        for (int i = 0; i < each; i++) {
            for (int k = 0; k < keys; k++) {
                p.send(Clients.message(topic, "ordered", "k" + k, "k" + k + ":" + i),
                    (queues, m, arg) -> queues.get((Integer) arg % queues.size()), k);
            }
        }
        Harness.await(120, "all ordered messages", () -> got.get() == keys * each || wrong.get() != null);
        Harness.check(wrong.get() == null, "out of order: " + wrong.get());
        Harness.check(suspended.get() > 0, "no queue was suspended");
    }

    static void broadcast(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        int count = env.number("count", 100);
        // To a queue of every group, so that each creates the topic now: a consumer looks for new queues only every 30 s.
        for (int i = 0; i < 12; i++) {
            p.send(Clients.message(topic, "first", "first", "first"), (queues, m, arg) -> queues.get((Integer) arg % queues.size()), i);
        }
        List<Set<String>> got = new ArrayList<>();
        for (int c = 0; c < 3; c++) {
            Set<String> mine = ConcurrentHashMap.newKeySet();
            got.add(mine);
            DefaultMQPushConsumer consumer = Clients.push(env, env.group("everybody"));
            // MessageModel.BROADCASTING, whose package differs between the two clients.
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> mine.add(Clients.body(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        Harness.await(60, "the first message at each consumer", () -> got.stream().allMatch(s -> s.contains("first")));
        Clients.fill(p, topic, "m", count);
        Harness.await(30, "every message at each consumer", () -> got.stream().allMatch(s -> s.size() == count + 1));
    }

    static void deadLetters(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        String group = env.group("picky");
        int max = 3;
        Map<String, List<Integer>> tries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = Clients.push(env, group);
        consumer.setMaxReconsumeTimes(max);
        consumer.subscribe(topic, "*");
        Clients.send(p, Clients.message(topic, "good", "good", "good"));
        Clients.send(p, Clients.message(topic, "bad", "bad1", "bad1"));
        Clients.send(p, Clients.message(topic, "bad", "bad2", "bad2"));
        Set<String> topics = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean bad = false;
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt m : messages) {
                tries.computeIfAbsent(Clients.body(m), k -> Collections.synchronizedList(new ArrayList<>()))
                    .add(m.getReconsumeTimes());
                topics.add(m.getTopic());
                bad |= "bad".equals(m.getTags());
            }
            return bad ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Harness.await(120, "three repetitions of each bad message",
            () -> tries.getOrDefault("bad1", List.of()).size() >= max + 1 && tries.getOrDefault("bad2", List.of()).size() >= max + 1);

        DefaultLitePullConsumer reader = Clients.lite(env, env.group("undertaker"));
        reader.start();
        Set<String> dead = new HashSet<>();
        Harness.await(60, "the dead letters", () -> {
            if (reader.assignment().isEmpty()) {
                try {
                    reader.assign(reader.fetchMessageQueues("%DLQ%" + group));
                } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                    return false; // the topic is not published yet
                }
                for (org.apache.rocketmq.common.message.MessageQueue q : reader.assignment()) {
                    reader.seekToBegin(q);
                }
            }
            reader.poll().forEach(m -> dead.add(Clients.body(m)));
            return dead.size() == 2;
        });
        Harness.check(dead.equals(Set.of("bad1", "bad2")), "dead letters: " + dead);
        Harness.check(tries.get("bad1").equals(List.of(0, 1, 2, 3)), "retry counts of bad1: " + tries.get("bad1"));
        Harness.check(tries.get("bad2").equals(List.of(0, 1, 2, 3)), "retry counts of bad2: " + tries.get("bad2"));
        Harness.check(tries.get("good").equals(List.of(0)), "the good message came " + tries.get("good"));
        Harness.check(topics.equals(Set.of(topic)), "the listener saw the topics " + topics);
    }
}
