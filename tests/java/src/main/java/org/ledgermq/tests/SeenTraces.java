package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.ledgermq.tests.Conformance.Seen;

/** What clients that trace leave in the topic of traces. */
final class SeenTraces {
    private static final String TOPIC = "RMQ_SYS_TRACE_TOPIC";

    private SeenTraces() {}

    static void traces(Seen seen) throws Exception {
        DefaultMQProducer plain = Clients.producer(seen.env);
        String topic = seen.env.topic();
        SeenSends.create(seen, plain, topic, 1);
        DefaultMQProducer p = new DefaultMQProducer(seen.env.group("traced"), true, null);
        p.setNamesrvAddr(seen.env.namesrv);
        p.setInstanceName("p" + System.nanoTime());
        p.start();
        seen.env.atEnd(p::shutdown);
        long begin = System.currentTimeMillis() - 1000;
        SendResult now = p.send(Clients.message(topic, "A", "key1", "now"), SeenSends.queue(p, topic, 0));
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(seen.env.group("reader"), true, null);
        c.setNamesrvAddr(seen.env.namesrv);
        c.setInstanceName("c" + System.nanoTime());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        seen.env.atEnd(c::shutdown);
        Harness.await(60, "the first message", () -> got.size() >= 1);
        traces(plain, "now", now.getMsgId(), begin); // a client may drop what it could not send
        seen.pauseIf();
        show(seen, "now", traces(plain, "now", now.getMsgId(), begin));
        Message later = Clients.message(topic, "A", "key2 key3", "later");
        later.setDelayTimeLevel(1);
        Clients.sendUntilTaken(p, later, SeenSends.queue(p, topic, 0));
        String id = MessageClientIDSetter.getUniqID(later);
        show(seen, "later", traces(plain, "later", id, begin));
    }

    /** Returns the records of a message that was sent and consumed, once all three are there. */
    private static Map<String, String[]> traces(DefaultMQProducer p, String name, String id, long begin) throws Exception {
        Map<String, String[]> records = new TreeMap<>();
        long end = begin + 600_000;
        Harness.await(60, "the traces of " + name, () -> {
            try {
                for (MessageExt m : p.queryMessage(TOPIC, id, 32, begin, end).getMessageList()) {
                    for (String record : Clients.body(m).split("\u0002")) {
                        String[] fields = record.split("\u0001", -1);
                        if (record.contains(id) && !(fields[0].equals("Pub") && fields[13].equals("false"))) { // not of a send that failed
                            records.put(fields[0], fields);
                        }
                    }
                }
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false; // nothing is found yet
            }
            return records.containsKey("Pub") && records.containsKey("SubBefore") && records.containsKey("SubAfter");
        });
        return records;
    }

    private static void show(Seen seen, String name, Map<String, String[]> records) {
        records.forEach((type, fields) -> {
            for (int i = 0; i < fields.length; i++) {
                boolean cost = type.equals("Pub") && i == 10 || type.equals("SubAfter") && i == 3;
                seen.print(name + ": " + type + " " + i, cost ? "milliseconds" : fields[i]);
            }
        });
    }
}
