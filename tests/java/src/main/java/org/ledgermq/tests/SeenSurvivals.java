package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Conformance.Seen;

/** Sends and consumption that never stop. */
final class SeenSurvivals {
    private SeenSurvivals() {}

    /** One consumer takes, one takes in order, one hands each tenth back once, while two threads send. */
    static void survival(Seen seen) throws Exception {
        DefaultMQProducer p = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, p, topic, 2);
        Set<String> taken = ConcurrentHashMap.newKeySet();
        Set<String> concurrent = ConcurrentHashMap.newKeySet();
        Set<String> ordered = ConcurrentHashMap.newKeySet();
        Set<String> again = ConcurrentHashMap.newKeySet();
        Set<String> handedBack = ConcurrentHashMap.newKeySet();
        List<String> disorder = Collections.synchronizedList(new ArrayList<>());

        DefaultMQPushConsumer plain = Clients.push(seen.env, seen.env.group("concurrent"));
        plain.subscribe(topic, "*");
        plain.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> concurrent.add(Clients.body(m)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        plain.start();

        Map<Integer, Long> next = new ConcurrentHashMap<>();
        DefaultMQPushConsumer orderly = Clients.push(seen.env, seen.env.group("ordered"));
        orderly.subscribe(topic, "*");
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                long want = next.getOrDefault(m.getQueueId(), 0L);
                if (m.getQueueOffset() > want) { // a smaller one is a repetition
                    disorder.add(m.getQueueId() + " @" + m.getQueueOffset() + " after @" + (want - 1));
                }
                next.put(m.getQueueId(), Math.max(want, m.getQueueOffset() + 1));
                ordered.add(Clients.body(m));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        orderly.start();

        DefaultMQPushConsumer picky = Clients.push(seen.env, seen.env.group("picky"));
        picky.subscribe(topic, "*");
        picky.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt m : messages) {
                if (m.getReconsumeTimes() == 0 && Clients.body(m).endsWith("0")) {
                    handedBack.add(Clients.body(m));
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                again.add(Clients.body(m));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        picky.start();

        AtomicBoolean stop = new AtomicBoolean();
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            int sender = t;
            MessageQueue q = SeenSends.queue(p, topic, t);
            threads[t] = new Thread(() -> {
                for (int i = 0; !stop.get(); i++) {
                    String name = sender + "-" + i;
                    try {
                        if (p.send(Clients.message(topic, "A", name, name), q, 1000).getSendStatus() == SendStatus.SEND_OK) {
                            taken.add(name);
                        }
                        Thread.sleep(5); // not a wait: the rate of the load
                    } catch (Exception e) {
                        System.err.println(name + ": " + e); // not taken, or nobody knows
                    }
                }
            });
            threads[t].start();
        }
        try {
            Harness.await(60, "200 sends", () -> taken.size() >= 200 && concurrent.size() > 0 && ordered.size() > 0 && again.size() > 0);
            seen.pauseIf();
            int so = taken.size();
            Harness.await(90, "200 more sends", () -> taken.size() >= so + 200);
        } finally {
            stop.set(true);
            for (Thread t : threads) {
                t.join();
            }
        }
        Harness.await(120, "every message that was taken", () -> concurrent.containsAll(taken) && ordered.containsAll(taken) && again.containsAll(taken));
        seen.print("lost", missing(taken, concurrent) + " " + missing(taken, ordered) + " " + missing(taken, again));
        seen.print("out of order", disorder);
        seen.print("handed back", !handedBack.isEmpty());
    }

    private static Set<String> missing(Set<String> all, Set<String> found) {
        Set<String> lost = new TreeSet<>(all);
        lost.removeAll(found);
        return lost;
    }
}
