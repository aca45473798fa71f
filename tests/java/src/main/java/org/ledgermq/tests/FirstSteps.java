package org.ledgermq.tests;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.ledgermq.tests.Harness.Env;

/** The first steps that README.md shows. A test compares the lines between the two marks with the README. */
final class FirstSteps {
    private FirstSteps() {}

    static void run(Env env) throws Exception {
        String namesrv = env.namesrv;
        // README begin
        DefaultMQProducer producer = new DefaultMQProducer("my-producers");
        producer.setNamesrvAddr(namesrv); // "127.0.0.1:9876"
        producer.start();
        SendResult sent = producer.send(new Message("Orders", "paid", "order-1", "hello".getBytes()));
        System.out.println(sent.getSendStatus() + " " + sent.getMessageQueue() + " " + sent.getQueueOffset());

        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("my-consumers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("Orders", "paid");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> System.out.println(m.getKeys() + " " + new String(m.getBody())));
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await(30, TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        // README end
        Harness.check(received.getCount() == 0, "the first message did not come back");
    }
}
