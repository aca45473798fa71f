package org.ledgermq.admin;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.ledgermq.tests.SeenAdmin;

/**
 * RocketMQ's own mqadmin, many commands in one process.
 *
 * <p>The arguments are the addresses of a name server and of a controller. It takes lines {@code run CASE ID COMMAND…} on standard input, with tabs between, and
 * prints for each command what mqadmin printed, one {@code line COMMAND TEXT} for each line of it, or {@code line COMMAND: NAME VALUE}
 * for one like that, with blanks made one and with words in the place of addresses, times and decimals, and with the remark of
 * a refusal, which is words, by itself: {@code line COMMAND: DESC REMARK}; then {@code end}, or {@code
 * failed WHY}. A command with {@code await} before it is repeated while it prints an exception, for a minute; the word {@code
 * pause} is printed, and then a line {@code go} awaited; {@code send TOPIC COUNT} sends so many messages to the first queue, which
 * mqadmin's own sendMessage does once in a process; {@code consume TOPIC GROUP COUNT} lets a member of a group consume so many
 * messages and leave; {@code mark} notes a time between what was before and what comes, which commands call {@code MARK}. A case
 * without commands is one of {@link SeenAdmin}.
 */
public final class Mqadmin {
    private Mqadmin() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        PrintStream err = System.err;
        System.setOut(err); // the client's own words
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            long mark = 0;
            try {
                if (words.length == 3) {
                    SeenAdmin.run(words[1], words[2], args[0], args[1], out, in);
                }
                for (int i = 3; i < words.length; i++) {
                    if (words[i].equals("pause")) {
                        out.println("pause");
                        if (!"go".equals(in.readLine())) {
                            throw new IllegalStateException("the second half was not asked for");
                        }
                        continue;
                    }
                    if (words[i].equals("mark")) {
                        Thread.sleep(20);
                        mark = System.currentTimeMillis();
                        Thread.sleep(20);
                        continue;
                    }
                    String[] what = words[i].split(" ");
                    if (what[0].equals("send")) {
                        SeenAdmin.send(args[0], what[1], Integer.parseInt(what[2]));
                        continue;
                    }
                    if (what[0].equals("consume")) {
                        SeenAdmin.consume(args[0], what[1], what[2], Integer.parseInt(what[3]));
                        continue;
                    }
                    boolean repeat = words[i].startsWith("await ");
                    String shown = repeat ? words[i].substring(6) : words[i];
                    String command = shown.replace("MARK", Long.toString(mark));
                    String text = run(command, err);
                    for (long end = System.nanoTime() + 60_000_000_000L; repeat && text.contains("Exception") && System.nanoTime() < end;) {
                        Thread.sleep(200);
                        text = run(command, err);
                    }
                    show(out, shown, text);
                }
                out.println("end");
            } catch (Throwable e) {
                e.printStackTrace(err);
                out.println("failed\t" + e.toString().replaceAll("\\s+", " "));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** Runs one command and returns what it printed. */
    private static String run(String command, PrintStream err) throws Exception {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(said, true, "UTF-8");
        System.setOut(capture);
        System.setErr(capture);
        try {
            MQAdminStartup.main0(command.split(" "), null);
        } finally {
            System.setOut(err);
            System.setErr(err);
        }
        String text = said.toString("UTF-8");
        err.println("mqadmin " + command + "\n" + text);
        return text;
    }

    private static void show(PrintStream out, String command, String text) {
        for (String line : text.split("\n")) {
            line = line.replaceAll("\\s+", " ").trim()
                .replaceAll("(\\d{1,3}\\.){3}\\d{1,3}(:\\d+)?", "ADDR")
                .replaceAll("\\d{4}-\\d\\d-\\d\\d[ _]\\d\\d:\\d\\d:\\d\\d([.,#:]\\d+)?", "TIME")
                .replaceAll("\\b1[6-9]\\d{11}\\b", "TIME")
                .replaceAll("\\b[0-9A-F]{32,}\\b", "ID")
                .replaceAll("\\b\\d+\\.\\d+\\b", "DECIMAL");
            line = line.replaceAll("(commitLogOffset|storeSize)=\\d+", "$1=N").replaceAll("(CommitLog Offset:) \\d+", "$1 N")
                .replaceAll("(physicOffset|physicSize)=\\d+", "$1=N").replaceAll("(@K@.*@)\\d+$", "$1N");
            // Neither is how many replicas a group has, nor what only a broker of RocketMQ stores with each message.
            line = line.replaceAll("^0:\"ADDR\",$", "0:\"ADDR\"").replaceAll("(CLUSTER=DefaultCluster|TRACE_ON=true)(, )?", "")
                .replace(", }", "}");
            if (command.startsWith("consumerProgress ")) { // what of a queue is on its way to a member (#Inflight) is in the total too
                line = line.replaceAll("^(\\S+ \\S+ \\d+ \\d+ \\d+ \\d+) \\d+ (TIME|N/A)$", "$1 N $2");
            }
            // The frames of a stack and the words of the logging library are no behaviour, and whether a member has got the queue of its retry
            // topic before it leaves is chance.
            if (line.isEmpty() || line.startsWith("%RETRY%") || line.startsWith("at ") || line.startsWith("... ") || line.contains(" |-") || line.contains("06FAQ")
                || line.matches("[1-9]\\d*:\"ADDR\",?")) {
                continue;
            }
            int desc = line.indexOf(" DESC: ");
            if (desc > 0 && line.substring(0, desc).matches(".*\\bCODE: \\d+")) {
                out.println("line\t" + command + ": DESC\t" + line.substring(desc + 7));
                line = line.substring(0, desc);
            }
            int colon = line.indexOf(": ");
            if (colon > 0 && colon < 40 && line.indexOf('[') < 0) {
                out.println("line\t" + command + ": " + line.substring(0, colon) + "\t" + line.substring(colon + 2));
            } else {
                out.println("line\t" + command + "\t" + line);
            }
        }
    }
}
