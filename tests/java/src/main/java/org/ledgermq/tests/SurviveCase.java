package org.ledgermq.tests;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.ledgermq.tests.Harness.Env;

/**
 * Sends and consumes while somebody else breaks the cluster. It prints {@code ACK name} for each send that was answered OK and
 * {@code GOT name} for each message that was consumed, sends until a line comes in on standard input, and passes when every
 * acknowledged message has been consumed. Repetitions are allowed: a stock client sends again what had no answer.
 */
final class SurviveCase {
    private SurviveCase() {}

    static void run(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        Set<String> acked = ConcurrentHashMap.newKeySet();
        Set<String> got = ConcurrentHashMap.newKeySet();
        Clients.send(p, Clients.message(topic, "A", "first", "first"));
        acked.add("first");

        DefaultMQPushConsumer c = Clients.push(env, env.group("c"));
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> {
                if (got.add(Clients.body(m))) {
                    System.out.println("GOT " + Clients.body(m));
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();

        AtomicBoolean stop = new AtomicBoolean();
        AtomicInteger failures = new AtomicInteger();
        int senders = env.number("senders", 4);
        Thread[] threads = new Thread[senders];
        for (int t = 0; t < senders; t++) {
            int sender = t;
            threads[t] = new Thread(() -> {
                for (int i = 0; !stop.get(); i++) {
                    String name = "s" + sender + "-" + i;
                    try {
                        SendResult r = p.send(Clients.message(topic, "A", name, name), 1000);
                        if (r.getSendStatus() == SendStatus.SEND_OK) {
                            acked.add(name);
                            System.out.println("ACK " + name);
                        }
                    } catch (Exception e) {
                        failures.incrementAndGet();
                        System.out.println("FAILED " + name + " " + e.getClass().getSimpleName());
                    }
                }
            });
            threads[t].start();
        }
        System.out.println("RUNNING");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        stop.set(true);
        for (Thread t : threads) {
            t.join();
        }
        System.out.println("SENT " + acked.size() + " FAILURES " + failures.get());
        Harness.check(acked.size() > 10, "only " + acked.size() + " sends were answered OK");
        Harness.await(90, "every acknowledged message", () -> got.containsAll(acked));
        Set<String> lost = new TreeSet<>(acked);
        lost.removeAll(got);
        Harness.check(lost.isEmpty(), "lost: " + lost);
    }
}
