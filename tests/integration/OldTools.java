import kafka.cluster.Broker;
import kafka.utils.ZKStringSerializer$;
import kafka.utils.ZkUtils;
import org.I0Itec.zkclient.ZkClient;
import scala.collection.JavaConversions;

/**
 * What Kafka 0.8's own classes find in ZooKeeper, a line each: its brokers, and of each partition of
 * the offsets the leader, its epoch, and who is in sync.
 */
public final class OldTools {
    private static final String TOPIC = "__consumer_offsets";
    private static final int PATIENCE_MS = 30_000;

    public static void main(String[] arguments) {
        ZkClient client =
                new ZkClient(
                        arguments[0], PATIENCE_MS, PATIENCE_MS, ZKStringSerializer$.MODULE$);
        int partitions = Integer.parseInt(arguments[1]);
        for (Broker broker :
                JavaConversions.seqAsJavaList(ZkUtils.getAllBrokersInCluster(client))) {
            System.out.printf("broker %d %s:%d%n", broker.id(), broker.host(), broker.port());
        }
        for (int partition = 0; partition < partitions; partition++) {
            System.out.printf(
                    "partition %d leader %s epoch %d isr %s%n",
                    partition,
                    ZkUtils.getLeaderForPartition(client, TOPIC, partition).get(),
                    ZkUtils.getEpochForPartition(client, TOPIC, partition),
                    JavaConversions.seqAsJavaList(
                            ZkUtils.getInSyncReplicasForPartition(client, TOPIC, partition)));
        }
        client.close();
    }
}
