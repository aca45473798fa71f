package org.ledgermq.tests;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs commands of RocketMQ's mqadmin in one JVM, beside a producer and a consumer for them to see. The first line that it prints names
 * each command that mqadmin has; the second the unique key and the offset id of a message, and the client id of the consumer. Then it
 * reads lines: a limit in seconds and the arguments, separated by tabs. Each is answered with a line "== STATUS BYTES" and what the
 * command printed: STATUS is "done" or "late".
 */
public final class Mqadmin {
    static final String TOPIC = "MqadminTopic";

    private Mqadmin() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        MQAdminStartup.initCommand();
        Field list = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        list.setAccessible(true);
        StringBuilder names = new StringBuilder();
        for (Object c : (List<?>) list.get(null)) {
            names.append(((SubCommand) c).commandName()).append(' ');
        }
        out.println(names.toString().trim());

        DefaultMQProducer producer = new DefaultMQProducer("MqadminProducer");
        producer.setEnableTrace(true);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("MqadminGroup");
        consumer.setEnableTrace(true);
        consumer.setNamesrvAddr(args[0]);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        SendResult sent = producer.send(new Message(TOPIC, "tag", "key1", "body".getBytes(StandardCharsets.UTF_8)), 10_000);
        got.await();
        // A trace is sent a moment later than what it is of.
        out.printf("%s\t%s\t%s%n", sent.getMsgId(), sent.getOffsetMsgId(), consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        out.flush();

        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            String[] command = new String[words.length - 1];
            System.arraycopy(words, 1, command, 0, command.length);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream to = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(to);
            System.setErr(to);
            Thread run = new Thread(() -> {
                try {
                    MQAdminStartup.main0(command, null);
                } catch (Throwable t) {
                    t.printStackTrace();
                }
            });
            run.setDaemon(true);
            run.start();
            run.join(Long.parseLong(words[0]) * 1000);
            String status = run.isAlive() ? "late" : "done";
            byte[] text = printed.toByteArray();
            out.printf("== %s %d%n", status, text.length);
            out.write(text, 0, text.length);
            out.flush();
        }
        System.exit(0);
    }
}
