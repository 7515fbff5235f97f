// Retention, DeleteRecords and the choice of a log, by Kafka's own classes on copies of partition directories.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.log.*;

public class LogExpire {
    /** req: in, out, now, config, log_start, high_watermark, delete_before (absent: none), times (how often, default 1) */
    static ObjectNode expire(JsonNode req) throws Exception {
        Path out = Path.of(req.get("out").asText());
        CleanOracle.copy(Path.of(req.get("in").asText()), out);
        CleanOracle.FixedTime time = new CleanOracle.FixedTime(req.get("now").asLong());
        UnifiedLog log = CleanOracle.open(out, CleanOracle.config(req.path("config")), req.path("log_start").asLong(0), time, 86400000);
        ObjectNode res = CleanOracle.M.createObjectNode().put("id", req.path("id").asText());
        if (req.has("high_watermark")) log.updateHighWatermark(req.get("high_watermark").asLong());
        res.put("high_watermark", log.highWatermark()).put("log_start_before", log.logStartOffset());
        if (req.has("delete_before")) {
            try {
                log.maybeIncrementLogStartOffset(req.get("delete_before").asLong(), LogStartOffsetIncrementReason.ClientRecordDeletion);
            } catch (org.apache.kafka.common.errors.OffsetOutOfRangeException e) {
                res.put("out_of_range", true);
            }
        }
        ArrayNode deleted = res.putArray("deleted");
        for (int i = 0; i < req.path("times").asInt(1); i++) deleted.add(log.deleteOldSegments());
        res.put("log_start", log.logStartOffset()).put("log_end", log.logEndOffset()).put("last_stable", log.lastStableOffset());
        ArrayNode segments = res.putArray("segments"), epochs = res.putArray("epochs"), snapshots = res.putArray("snapshots");
        for (LogSegment s : log.logSegments()) segments.addArray().add(s.baseOffset()).add(s.size());
        log.leaderEpochCache().epochEntries().forEach(e -> epochs.addArray().add(e.epoch()).add(e.startOffset()));
        log.close();
        for (Path p : LogDump.files(out, ".snapshot")) snapshots.add(Long.parseLong(p.getFileName().toString().split("\\.")[0]));
        CleanOracle.strip(out);
        return res;
    }
    /** req: root (a data directory with its checkpoint), now, logs [{partition, config, log_start, high_watermark}]: what the manager would grab */
    static ObjectNode select(JsonNode req) throws Exception {
        Path root = Path.of(req.get("root").asText());
        CleanOracle.FixedTime time = new CleanOracle.FixedTime(req.get("now").asLong());
        ConcurrentHashMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
        for (JsonNode l : req.get("logs")) {
            Path dir = root.resolve(l.get("partition").asText());
            UnifiedLog log = CleanOracle.open(dir, CleanOracle.config(l.path("config")), l.path("log_start").asLong(0), time, 86400000);
            if (l.has("high_watermark")) log.updateHighWatermark(l.get("high_watermark").asLong());
            logs.put(log.topicPartition(), log);
        }
        LogCleanerManager manager = new LogCleanerManager(List.of(root.toFile()), logs, new LogDirFailureChannel(10));
        PreCleanStats stats = new PreCleanStats();
        ObjectNode res = CleanOracle.M.createObjectNode().put("id", req.path("id").asText());
        ArrayNode grabbed = res.putArray("grabbed");
        for (int i = 0; i <= logs.size(); i++) { // what is grabbed is in progress, so the next one is the next filthiest
            Optional<LogToClean> next = manager.grabFilthiestCompactedLog(time, stats);
            if (next.isEmpty()) break;
            grabbed.addObject().put("partition", next.get().topicPartition().toString()).put("ratio", next.get().cleanableRatio());
        }
        for (UnifiedLog log : logs.values()) log.close();
        return res;
    }
}
