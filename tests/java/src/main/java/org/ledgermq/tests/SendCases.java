package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Harness.Env;

/** Producers: every way to send an ordinary message, and what the broker must refuse. */
final class SendCases {
    private SendCases() {}

    static void send(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        int count = env.number("count", 200);

        // Synchronous: queue offsets are dense per queue and every id is new.
        Map<MessageQueue, Long> next = new HashMap<>();
        Set<String> ids = new HashSet<>();
        for (int i = 0; i < count; i++) {
            SendResult r = Clients.send(p, Clients.message(topic, "A", "sync" + i, "sync" + i));
            Harness.check(ids.add(r.getMsgId()) && ids.add(r.getOffsetMsgId()), "an id was given twice: " + r);
            long want = next.getOrDefault(r.getMessageQueue(), 0L);
            Harness.check(r.getQueueOffset() == want, "queue offset " + r.getQueueOffset() + ", want " + want + " in " + r);
            next.put(r.getMessageQueue(), want + 1);
        }

        // To one queue, chosen by the application.
        MessageQueue chosen = p.fetchPublishMessageQueues(topic).get(0);
        for (int i = 0; i < 10; i++) {
            SendResult r = p.send(Clients.message(topic, "A", "chosen" + i, "chosen" + i), (queues, m, arg) -> chosen, null);
            Harness.check(r.getMessageQueue().equals(chosen), "sent to " + r.getMessageQueue() + ", want " + chosen);
        }

        // Asynchronous: each call gets exactly one answer.
        AtomicInteger ok = new AtomicInteger();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        for (int i = 0; i < count; i++) {
            p.send(Clients.message(topic, "B", "async" + i, "async" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    if (r.getSendStatus() == SendStatus.SEND_OK) {
                        ok.incrementAndGet();
                    }
                }

                @Override
                public void onException(Throwable e) {
                    failed.set(e);
                }
            });
        }
        Harness.await(20, count + " asynchronous answers", () -> ok.get() == count || failed.get() != null);
        Harness.check(failed.get() == null, "asynchronous send: " + failed.get());

        // One-way: no answer, but the messages arrive.
        for (int i = 0; i < 10; i++) {
            p.sendOneway(Clients.message(topic, "A", "oneway" + i, "oneway" + i));
        }
        List<String> want = new ArrayList<>(Clients.names("sync", count));
        want.addAll(Clients.names("chosen", 10));
        want.addAll(Clients.names("async", count));
        want.addAll(Clients.names("oneway", 10));
        LitePullCases.expectAll(env, topic, env.group("reader"), want);

        // A time that is too far away is refused, never delivered at once.
        Message late = Clients.message(topic, "A", "late", "late");
        MessageAccessor.putProperty(late, "TIMER_DELAY_SEC", "99999999");
        try {
            p.send(late);
            Harness.check(false, "a message of in three years was accepted");
        } catch (MQBrokerException e) {
            Harness.check(e.getResponseCode() == 13, "a message of in three years was refused with " + e.getResponseCode() + ", want 13");
        } catch (MQClientException e) {
            Harness.check(e.getResponseCode() == 13, "a message of in three years was refused with " + e.getResponseCode() + ", want 13");
        }
    }

    static void batch(Env env) throws Exception {
        DefaultMQProducer p = Clients.producer(env);
        String topic = env.topic();
        List<String> want = new ArrayList<>();
        for (int b = 0; b < 20; b++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 16; i++) {
                String name = "b" + b + "-" + i;
                batch.add(Clients.message(topic, "A", name, name));
                want.add(name);
            }
            SendResult r = p.send(batch);
            Harness.check(r.getSendStatus() == SendStatus.SEND_OK, "batch " + b + " was answered " + r);
            Harness.check(r.getMsgId().split(",").length == 16, "batch " + b + " got the ids " + r.getMsgId());
            Harness.check(r.getOffsetMsgId().split(",").length == 16, "batch " + b + " got the ids " + r.getOffsetMsgId());
        }
        LitePullCases.expectAll(env, topic, env.group("reader"), want);
    }
}
