package org.ledgermq.tests;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.ledgermq.tests.Harness.Env;

/** Builds the clients that the cases use, all with the defaults of RocketMQ unless a case needs another value. */
final class Clients {
    private static int instances;

    private Clients() {}

    private static synchronized String instance() {
        return "i" + ProcessHandle.current().pid() + "-" + ++instances;
    }

    static DefaultMQProducer producer(Env env) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(env.group("producer"));
        p.setNamesrvAddr(env.namesrv);
        p.setInstanceName(instance());
        p.start();
        env.atEnd(p::shutdown);
        return p;
    }

    /** A push consumer that reads a new group from the first message. It is not started yet. */
    static DefaultMQPushConsumer push(Env env, String group) {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(env.namesrv);
        c.setInstanceName(instance());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        env.atEnd(c::shutdown);
        return c;
    }

    static DefaultLitePullConsumer lite(Env env, String group) {
        DefaultLitePullConsumer c = new DefaultLitePullConsumer(group);
        c.setNamesrvAddr(env.namesrv);
        c.setInstanceName(instance());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPollTimeoutMillis(500);
        env.atEnd(c::shutdown);
        return c;
    }

    /** A consumer that pulls queues by hand. It is started. */
    static DefaultMQPullConsumer pull(Env env, String group) throws Exception {
        DefaultMQPullConsumer c = new DefaultMQPullConsumer(group);
        c.setNamesrvAddr(env.namesrv);
        c.setInstanceName(instance());
        c.start();
        env.atEnd(c::shutdown);
        return c;
    }

    /** The queues of a topic that can be read. */
    static java.util.Set<MessageQueue> subscribeQueues(Env env, String topic) throws Exception {
        DefaultMQPullConsumer c = pull(env, env.group("routes"));
        try {
            return c.fetchSubscribeMessageQueues(topic);
        } finally {
            c.shutdown();
        }
    }

    /** Creates a topic by the default topic's brokers. The two clients have different methods for it. */
    static void createTopic(DefaultMQProducer p, String topic, int queues) throws Exception {
        try {
            p.getClass().getMethod("createTopic", String.class, String.class, int.class, Map.class)
                .invoke(p, "TBW102", topic, queues, Map.of());
        } catch (NoSuchMethodException e) {
            p.getClass().getMethod("createTopic", String.class, String.class, int.class).invoke(p, "TBW102", topic, queues);
        }
    }

    static Message message(String topic, String tag, String key, String body) {
        return new Message(topic, tag, key, body.getBytes(java.nio.charset.StandardCharsets.UTF_8));
    }

    static String body(Message m) {
        return new String(m.getBody(), java.nio.charset.StandardCharsets.UTF_8);
    }

    static SendResult send(DefaultMQProducer p, Message m) throws Exception {
        SendResult r = p.send(m);
        Harness.check(r.getSendStatus() == SendStatus.SEND_OK, "send of " + m.getKeys() + " was answered " + r);
        return r;
    }

    /** Sends to a queue, again and again when it was not taken. */
    static void sendUntilTaken(DefaultMQProducer p, Message m, MessageQueue q) throws Exception {
        Harness.await(60, "the send of " + body(m), () -> {
            try {
                return p.send(m, q).getSendStatus() == SendStatus.SEND_OK;
            } catch (org.apache.rocketmq.client.exception.MQClientException | org.apache.rocketmq.client.exception.MQBrokerException
                | org.apache.rocketmq.remoting.exception.RemotingException e) {
                return false;
            }
        });
    }

    /** Sends count messages named prefix0, prefix1, … with alternating tags A and B. */
    static void fill(DefaultMQProducer p, String topic, String prefix, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            send(p, message(topic, i % 2 == 0 ? "A" : "B", prefix + i, prefix + i));
        }
    }

    static List<String> names(String prefix, int count) {
        List<String> all = new java.util.ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(prefix + i);
        }
        return all;
    }
}
