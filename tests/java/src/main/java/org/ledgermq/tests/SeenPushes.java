package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Conformance.Seen;

/** What listeners see. */
final class SeenPushes {
    private SeenPushes() {}

    static void push(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        for (int i = 0; i < 5; i++) {
            p.send(Clients.message(topic, i % 2 == 0 ? "A" : "B", "k", "m" + i), q);
        }
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = Clients.push(seen.env, seen.env.group("push"));
        c.setConsumeThreadMin(1);
        c.setConsumeThreadMax(1);
        c.subscribe(topic, "A");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        Harness.await(60, "three messages", () -> got.size() >= 3);
        for (int i = 0; i < 3; i++) {
            seen.message("message" + i, got.get(i));
        }
        c.shutdown();
        // The next one of the group starts where this one ended.
        got.clear();
        p.send(Clients.message(topic, "A", "k", "later"), q);
        DefaultMQPushConsumer next = Clients.push(seen.env, seen.env.group("push"));
        next.subscribe(topic, "A");
        next.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        next.start();
        Harness.await(60, "the later message", () -> !got.isEmpty());
        for (MessageExt m : got) {
            seen.print("next consumer", Clients.body(m) + " @" + m.getQueueOffset());
        }
    }

    static void orderly(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 2);
        ordered(p, topic, 0);
        Map<Integer, List<String>> got = new ConcurrentHashMap<>();
        DefaultMQPushConsumer c = Clients.push(seen.env, seen.env.group("ordered"));
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                List<String> list = got.computeIfAbsent(m.getQueueId(), k -> Collections.synchronizedList(new ArrayList<>()));
                String one = Clients.body(m) + "/" + m.getReconsumeTimes();
                if (!list.contains(one)) { // a member that lost the queue's owner may get some again
                    list.add(one);
                }
                if (Clients.body(m).equals("m4") && m.getReconsumeTimes() < 2) {
                    context.setSuspendCurrentQueueTimeMillis(10);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        Harness.await(90, "the first half", () -> got.size() == 2 && got.values().stream().allMatch(l -> l.contains("m4/2")));
        seen.pauseIf();
        ordered(p, topic, 5);
        Harness.await(90, "all ordered messages", () -> got.values().stream().allMatch(l -> l.contains("m9/0")));
        new TreeMap<>(got).forEach((queue, list) -> seen.print("queue " + queue, list));
    }

    /** Sends five messages to each of two queues. One that was not taken is sent again. */
    private static void ordered(DefaultMQProducer p, String topic, int from) throws Exception {
        for (int i = from; i < from + 5; i++) {
            for (int q = 0; q < 2; q++) {
                Clients.sendUntilTaken(p, Clients.message(topic, "A", "k", "m" + i), SeenSends.queue(p, topic, q));
            }
        }
    }

    static void broadcast(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 1);
        MessageQueue q = SeenSends.queue(p, topic, 0);
        for (int i = 0; i < 5; i++) {
            p.send(Clients.message(topic, "A", "k", "m" + i), q);
        }
        List<List<String>> got = new ArrayList<>();
        for (int k = 0; k < 2; k++) {
            List<String> mine = Collections.synchronizedList(new ArrayList<>());
            got.add(mine);
            DefaultMQPushConsumer c = Clients.push(seen.env, seen.env.group("everybody"));
            c.setConsumeThreadMin(1);
            c.setConsumeThreadMax(1);
            // MessageModel.BROADCASTING, whose package differs between the two clients.
            c.setMessageModel(Enum.valueOf(c.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            c.subscribe(topic, "*");
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.stream().map(Clients::body).filter(b -> !mine.contains(b)).forEach(mine::add);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
        }
        Harness.await(60, "every message at each consumer", () -> got.stream().allMatch(l -> l.size() >= 5));
        seen.pauseIf();
        for (int i = 5; i < 8; i++) {
            Clients.sendUntilTaken(p, Clients.message(topic, "A", "k", "m" + i), q);
        }
        Harness.await(90, "every later message at each consumer", () -> got.stream().allMatch(l -> l.size() >= 8));
        got.forEach(l -> seen.print("consumer", l));
    }
}
