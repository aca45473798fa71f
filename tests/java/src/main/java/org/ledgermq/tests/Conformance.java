package org.ledgermq.tests;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.rocketmq.common.message.MessageExt;
import org.ledgermq.tests.Harness.Env;

/**
 * Cases that print what the official Java client sees, so that two systems can be compared. They judge nothing.
 *
 * <p>The argument is the name server's address. It takes lines {@code run CASE ID} on standard input, one after the other, and
 * prints lines, all with tabs between the words: {@code line KEY VALUE} for what was seen; {@code pause}, and then it waits for a line
 * {@code go}; at the end of a case {@code end}, or {@code failed WHY}. What differs from run to run is not printed, or as a word.
 */
public final class Conformance {
    /** One case. */
    interface Case {
        void run(Seen seen) throws Exception;
    }

    private static final Map<String, Case> CASES = new LinkedHashMap<>();

    static {
        CASES.put("send", SeenSends::send);
        CASES.put("properties", SeenSends::properties);
        CASES.put("compressed", SeenSends::compressed);
        CASES.put("batch", SeenSends::batch);
        CASES.put("auto-create", SeenSends::autoCreate);
        CASES.put("pull", SeenPulls::pull);
        CASES.put("tags", SeenPulls::tags);
        CASES.put("offsets", SeenPulls::offsets);
        CASES.put("push", SeenPushes::push);
        for (String half : new String[] {"", " through a failover"}) {
            CASES.put("orderly" + half, SeenPushes::orderly);
            CASES.put("broadcast" + half, SeenPushes::broadcast);
            CASES.put("retries" + half, SeenWaits::retries);
            CASES.put("levels" + half, SeenWaits::levels);
            CASES.put("timers" + half, SeenWaits::timers);
            CASES.put("recalls" + half, SeenWaits::recalls);
            CASES.put("transactions" + half, SeenWaits::transactions);
            CASES.put("queries" + half, SeenWaits::queries);
            CASES.put("traces" + half, SeenTraces::traces);
            CASES.put("survival" + half, SeenSurvivals::survival);
        }
    }

    public static void main(String[] args) throws Exception {
        // The client's own words go to standard error.
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            Env env = new Env(args[0], "c", Map.of("id", words[2]));
            try {
                Case c = CASES.get(words[1]);
                Harness.check(c != null, "there is no case " + words[1]);
                c.run(new Seen(env, words[1].endsWith(" through a failover"), out, in));
                env.close();
                out.println("end");
            } catch (Throwable e) {
                e.printStackTrace();
                env.close();
                out.println("failed\t" + e.toString().replaceAll("\\s+", " "));
            }
        }
        // Not exit(): a client's shutdown hook may wait for a thread that a case left behind.
        Runtime.getRuntime().halt(0);
    }

    /** Where a case writes what it sees. */
    static final class Seen {
        private static final Pattern ADDRESS = Pattern.compile("(\\d{1,3}\\.){3}\\d{1,3}(:\\d+)?");
        private static final Pattern TIME = Pattern.compile("\\b1[6-9]\\d{11}\\b");
        private static final Pattern ID = Pattern.compile("\\b[0-9A-F]{32}\\b");
        private static final Pattern LONG_ID = Pattern.compile("\\b[0-9A-F]{40,}\\b");

        final Env env;
        private final boolean failover;
        private final PrintStream out;
        private final BufferedReader in;

        Seen(Env env, boolean failover, PrintStream out, BufferedReader in) {
            this.env = env;
            this.failover = failover;
            this.out = out;
            this.in = in;
        }

        synchronized void print(String key, Object value) {
            String text = String.valueOf(value);
            text = LONG_ID.matcher(text).replaceAll("LONGID");
            text = ID.matcher(text).replaceAll("ID");
            text = ADDRESS.matcher(text).replaceAll("ADDR");
            text = TIME.matcher(text).replaceAll("TIME");
            out.println("line\t" + key + "\t" + text.replaceAll("[\\t\\n\\r]", " "));
        }

        /** Prints all that a consumer can see of a message. */
        void message(String key, MessageExt m) {
            print(key + ".topic", m.getTopic());
            print(key + ".queue", m.getQueueId() + " @" + m.getQueueOffset());
            print(key + ".flag", m.getFlag());
            print(key + ".sysFlag", m.getSysFlag());
            print(key + ".reconsumeTimes", m.getReconsumeTimes());
            print(key + ".preparedTransactionOffset", m.getPreparedTransactionOffset() > 0 ? "an offset" : 0);
            print(key + ".body", m.getBody() == null ? "null" : m.getBody().length < 100 ? Clients.body(m) : m.getBody().length + " bytes");
            print(key + ".msgId", m.getMsgId());
            for (Map.Entry<String, String> p : new TreeMap<>(m.getProperties()).entrySet()) {
                // How far the queue went when the message was pulled is chance.
                print(key + ".property." + p.getKey(), p.getKey().equals("MAX_OFFSET") ? "there" : p.getValue());
            }
        }

        /** Runs a call that is to fail, or not, and prints which. */
        void outcome(String key, Harness.Condition call) {
            String was;
            try {
                was = String.valueOf(call.holds());
            } catch (Throwable e) {
                was = e.getClass().getSimpleName() + " " + code(e);
            }
            print(key, was);
        }

        private static String code(Throwable e) {
            if (e instanceof org.apache.rocketmq.client.exception.MQBrokerException) {
                return "code " + ((org.apache.rocketmq.client.exception.MQBrokerException) e).getResponseCode();
            }
            if (e instanceof org.apache.rocketmq.client.exception.MQClientException) {
                return "code " + ((org.apache.rocketmq.client.exception.MQClientException) e).getResponseCode();
            }
            return "";
        }

        /** Ends the first half of a case, where it is run through a failover. */
        void pauseIf() throws Exception {
            if (!failover) {
                return;
            }
            out.println("pause");
            Harness.check("go".equals(in.readLine()), "the second half was not asked for");
        }
    }
}
