import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.config.ConfigResource.Type;

public class MakeTopics {
    static NewTopic topic(String name, String... kv) {
        Map<String, String> c = new HashMap<>();
        for (int i = 0; i < kv.length; i += 2) c.put(kv[i], kv[i + 1]);
        return new NewTopic(name, 1, (short) 1).configs(c);
    }
    static void set(Admin a, Type type, String res, String k, String v) throws Exception {
        AlterConfigOp op = new AlterConfigOp(new ConfigEntry(k, v), v == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET);
        a.incrementalAlterConfigs(Map.of(new ConfigResource(type, res), List.of(op))).all().get();
    }
    public static void main(String[] args) throws Exception {
        try (Admin a = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            if (args[1].equals("first")) {
                a.createTopics(List.of(
                    topic("compacted", "cleanup.policy", "compact", "delete.retention.ms", "1000"),
                    topic("both", "cleanup.policy", "compact,delete"),
                    topic("deleted-policy", "cleanup.policy", "delete"),
                    topic("plain"),
                    topic("changed", "cleanup.policy", "delete"),
                    topic("unset", "cleanup.policy", "compact"),
                    topic("recreated", "cleanup.policy", "compact"),
                    topic("removed", "cleanup.policy", "compact"))).all().get();
                set(a, Type.BROKER, "", "log.cleaner.delete.retention.ms", "7000");
                set(a, Type.BROKER, "1", "log.cleaner.min.cleanable.ratio", "0.25");
            } else {
                set(a, Type.TOPIC, "changed", "cleanup.policy", "compact");
                set(a, Type.TOPIC, "unset", "cleanup.policy", null);
                a.deleteTopics(List.of("recreated", "removed")).all().get();
                Thread.sleep(1500);
                a.createTopics(List.of(topic("recreated"), topic("later", "cleanup.policy", "compact", "min.compaction.lag.ms", "60000"))).all().get();
            }
        }
        System.out.println("done " + args[1]);
    }
}
