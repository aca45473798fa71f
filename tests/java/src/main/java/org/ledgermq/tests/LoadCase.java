package org.ledgermq.tests;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.ledgermq.tests.Harness.Env;

/**
 * Sends with a producer of the client's defaults, one for each sender, until a line comes in on standard input. It prints {@code ACK
 * name} for each send that was answered OK and {@code FAILED name reason} for each that was not.
 */
final class LoadCase {
    private LoadCase() {}

    static void run(Env env) throws Exception {
        AtomicBoolean stop = new AtomicBoolean();
        Thread[] threads = new Thread[env.number("senders", 4)];
        int pause = env.number("pause", 5);
        for (int t = 0; t < threads.length; t++) {
            int sender = t;
            DefaultMQProducer p = Clients.producer(env);
            threads[t] = new Thread(() -> {
                for (int i = 0; !stop.get(); i++) {
                    String name = sender + ":" + i;
                    try {
                        SendResult r = p.send(Clients.message(env.topic(), "A", name, name));
                        boolean ok = r.getSendStatus() == SendStatus.SEND_OK;
                        System.out.println(ok ? "ACK " + name : "FAILED " + name + " " + r.getSendStatus());
                        Thread.sleep(pause);
                    } catch (Exception e) {
                        System.out.println("FAILED " + name + " " + e.toString().replace('\n', ' '));
                    }
                }
            });
            threads[t].start();
        }
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        stop.set(true);
        for (Thread t : threads) {
            t.join();
        }
    }
}
