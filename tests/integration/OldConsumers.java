import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.Blacklist;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.javaapi.consumer.ZookeeperConsumerConnector;

/**
 * Consumers of Kafka 0.8, in one process, as lines on standard input say.
 *
 * <p>"join NAME static|white_list|black_list WHAT THREADS", "leave NAME"; each is answered by a
 * line when it is done: "ok", or what was thrown. One that leaves while it rebalances goes on with
 * all of its tries first.
 */
public final class OldConsumers {
    private static final Map<String, ConsumerConnector> CONSUMERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ok");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                run(line.split(" "), arguments[0], arguments[1]);
                System.out.println("ok");
            } catch (RuntimeException error) {
                System.out.println(error);
            }
        }
        System.exit(0);
    }

    private static void run(String[] words, String zookeeper, String group) {
        String name = words[1];
        if (words[0].equals("leave")) {
            CONSUMERS.remove(name).shutdown();
            return;
        }
        Properties settings = new Properties();
        settings.put("zookeeper.connect", zookeeper);
        settings.put("group.id", group);
        settings.put("consumer.id", name);
        settings.put("auto.commit.enable", "false");
        // Half the patience of the defaults, and looked at more often.
        settings.put("rebalance.backoff.ms", "100");
        settings.put("rebalance.max.retries", "40");
        // Without what fetches rows: there is no broker, and each rebalance would wait for it.
        ConsumerConnector consumer =
                new ZookeeperConsumerConnector(new ConsumerConfig(settings), false);
        CONSUMERS.put(name, consumer);
        int threads = Integer.parseInt(words[4]);
        switch (words[2]) {
            case "white_list" ->
                    consumer.createMessageStreamsByFilter(new Whitelist(words[3]), threads);
            case "black_list" ->
                    consumer.createMessageStreamsByFilter(new Blacklist(words[3]), threads);
            default -> consumer.createMessageStreams(Collections.singletonMap(words[3], threads));
        }
    }
}
