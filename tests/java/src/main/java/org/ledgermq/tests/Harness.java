package org.ledgermq.tests;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs one case of the official Java client against a running cluster.
 *
 * <p>Arguments: the name server's address, the name of the case, and then name=value pairs. Exit code 0: the case passed; 1: it
 * failed, and the last line of standard error says why; 2: the arguments make no sense. Each case uses topics and groups of its
 * own, so that many can run against one cluster; {@code id=…} keeps the names of two runs apart.
 *
 * <p>A case never waits for a time, only for a condition, with a deadline.
 */
public final class Harness {
    /** One case. It throws when what it saw is not what RocketMQ promises. */
    interface Case {
        void run(Env env) throws Exception;
    }

    private static final Map<String, Case> CASES = new LinkedHashMap<>();

    static {
        CASES.put("send", SendCases::send);
        CASES.put("batch", SendCases::batch);
        CASES.put("push", PushCases::concurrent);
        CASES.put("orderly", PushCases::orderly);
        CASES.put("broadcast", PushCases::broadcast);
        CASES.put("dlq", PushCases::deadLetters);
        CASES.put("lite-subscribe", LitePullCases::subscribe);
        CASES.put("lite-assign", LitePullCases::assign);
        CASES.put("lite-seek", LitePullCases::seek);
        CASES.put("survive", SurviveCase::run);
        CASES.put("load", LoadCase::run);
        CASES.put("first-steps", FirstSteps::run);
    }

    public static void main(String[] args) {
        if (args.length < 2 || !CASES.containsKey(args[1])) {
            System.err.println("usage: Harness NAMESRV CASE [name=value …]; cases: " + String.join(" ", CASES.keySet()));
            System.exit(2);
        }
        Map<String, String> values = new LinkedHashMap<>();
        for (int i = 2; i < args.length; i++) {
            int eq = args[i].indexOf('=');
            if (eq < 1) {
                System.err.println("argument " + args[i] + ": want name=value");
                System.exit(2);
            }
            values.put(args[i].substring(0, eq), args[i].substring(eq + 1));
        }
        Env env = new Env(args[0], args[1], values);
        int code = 0;
        try {
            CASES.get(args[1]).run(env);
            System.out.println("PASS " + args[1]);
        } catch (Throwable e) {
            e.printStackTrace();
            System.err.println("FAIL " + args[1] + ": " + e);
            code = 1;
        }
        env.close();
        System.out.flush();
        System.err.flush();
        // Not exit(): a client's shutdown hook may wait for a thread that this case left behind.
        Runtime.getRuntime().halt(code);
    }

    /** What a case is given: addresses, names of its own, and the clients to shut down at its end. */
    static final class Env {
        final String namesrv;
        private final String prefix;
        private final Map<String, String> values;
        private final List<Runnable> closers = new ArrayList<>();

        Env(String namesrv, String name, Map<String, String> values) {
            this.namesrv = namesrv;
            this.values = values;
            this.prefix = "java-" + name + "-" + values.getOrDefault("id", Long.toString(System.nanoTime(), 36));
        }

        String topic() {
            return values.getOrDefault("topic", prefix);
        }

        String group(String suffix) {
            return prefix + "-" + suffix;
        }

        String text(String name) {
            return values.get(name);
        }

        int number(String name, int otherwise) {
            return Integer.parseInt(values.getOrDefault(name, Integer.toString(otherwise)));
        }

        void atEnd(Runnable close) {
            closers.add(0, close);
        }

        void close() {
            for (Runnable c : closers) {
                try {
                    c.run();
                } catch (RuntimeException e) {
                    System.err.println("while closing: " + e);
                }
            }
        }
    }

    /** A condition that is polled. */
    interface Condition {
        boolean holds() throws Exception;
    }

    /** Polls until the condition holds. It fails when that takes longer than the given number of seconds. */
    static void await(int seconds, String what, Condition c) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!c.holds()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("waited " + seconds + " s in vain for: " + what);
            }
            Thread.sleep(20);
        }
    }

    static void check(boolean ok, String what) {
        if (!ok) {
            throw new AssertionError(what);
        }
    }
}
