// Runs Apache Kafka's real log cleaner on a copy of a partition directory, with a fixed clock.
//   CleanOracle <in/topic-0> <out/topic-0> key=value ...        one round (or rounds=N / until_done=true)
//   CleanOracle --batch requests.jsonl                          many requests in one JVM, one JSON result line each;
//                                                               "-" reads them from standard input and answers each at once
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import java.io.*;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.nio.file.attribute.FileTime;
import java.util.*;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class CleanOracle {
    static final ObjectMapper M = new ObjectMapper();

    static class FixedTime implements Time {
        long now;
        FixedTime(long now) { this.now = now; }
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1000000L; }
        public void sleep(long ms) { }
        public void waitObject(Object o, Supplier<Boolean> c, long d) { }
    }
    static final ScheduledFuture<?> NEVER = (ScheduledFuture<?>) java.lang.reflect.Proxy.newProxyInstance(CleanOracle.class.getClassLoader(),
        new Class<?>[]{ScheduledFuture.class}, (o, m, x) -> m.getReturnType() == boolean.class ? Boolean.TRUE : m.getReturnType() == long.class ? 0L : null);
    /** Nothing runs by itself; strip() removes the files a broker would remove after file.delete.delay.ms. */
    static class NoScheduler implements Scheduler {
        public void startup() { }
        public void shutdown() { }
        public void resizeThreadPool(int n) { }
        public ScheduledFuture<?> schedule(String name, Runnable r, long delay, long period) { return NEVER; }
    }
    static LogConfig config(JsonNode... layers) {
        Properties p = new Properties();
        p.put("cleanup.policy", "compact");
        p.put("file.delete.delay.ms", "0");
        for (JsonNode l : layers)
            for (Iterator<Map.Entry<String, JsonNode>> it = l.fields(); it.hasNext(); ) {
                Map.Entry<String, JsonNode> e = it.next();
                String k = e.getKey().equals("segment.bytes") ? "internal.segment.bytes" : e.getKey(); // 4.x: segment.bytes >= 1 MiB
                p.put(k, e.getValue().asText());
            }
        return new LogConfig(p);
    }
    static UnifiedLog open(Path dir, LogConfig cfg, long logStart, Time time, int expireMs) throws Exception { return open(dir, cfg, logStart, time, expireMs, true); }
    static UnifiedLog open(Path dir, LogConfig cfg, long logStart, Time time, int expireMs, boolean clean) throws Exception {
        UnifiedLog log = UnifiedLog.create(dir.toFile(), cfg, logStart, 0L, new NoScheduler(), new BrokerTopicStats(), time,
            60 * 60 * 1000, new ProducerStateManagerConfig(expireMs, false), 600000, new LogDirFailureChannel(10), clean, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return log;
    }
    static void strip(Path dir) throws IOException {
        for (String s : new String[]{".deleted", ".cleaned", ".swap"}) for (Path p : LogDump.files(dir, s)) Files.delete(p);
    }
    static void copy(Path in, Path out) throws IOException {
        Files.createDirectories(out);
        for (Path p : LogDump.files(out, "")) Files.delete(p);
        for (Path p : LogDump.files(in, "")) if (Files.isRegularFile(p)) Files.copy(p, out.resolve(p.getFileName()), StandardCopyOption.COPY_ATTRIBUTES);
    }
    static Object call(Class<?> c, String name, Object... args) throws Exception {
        for (Method m : c.getDeclaredMethods()) if (m.getName().equals(name) && m.getParameterCount() == args.length) {
            m.setAccessible(true);
            return m.invoke(null, args);
        }
        throw new NoSuchMethodException(name);
    }
    static ArrayNode listing(UnifiedLog log) throws Exception {
        ArrayNode a = M.createArrayNode();
        for (LogSegment s : log.logSegments())
            a.addObject().put("base", s.baseOffset()).put("size", s.size()).put("next", s.readNextOffset()).put("largest_ts", s.largestTimestamp())
                .put("mtime", s.lastModified()).put("index", s.offsetIndex().entries()).put("timeindex", s.timeIndex().entries())
                .put("aborted", s.txnIndex().allAbortedTxns().size());
        return a;
    }

    /** req: in (absent: "out" is cleaned where it is), out, params{config, log_start, checkpoint, producer_id_expiration_ms, mtimes{file: ms}, rounds[...]},
     *  dumps(optional prefix), no_digest(optional: for logs too large to dump) */
    static ObjectNode clean(JsonNode req) throws Exception {
        Path out = Path.of(req.get("out").asText());
        if (req.has("in")) copy(Path.of(req.get("in").asText()), out);
        JsonNode p = req.get("params");
        for (Iterator<Map.Entry<String, JsonNode>> it = p.path("mtimes").fields(); it.hasNext(); ) {
            Map.Entry<String, JsonNode> e = it.next();
            if (Files.exists(out.resolve(e.getKey()))) Files.setLastModifiedTime(out.resolve(e.getKey()), FileTime.fromMillis(e.getValue().asLong()));
        }
        ObjectNode res = M.createObjectNode().put("id", req.path("id").asText());
        ArrayNode rounds = res.putArray("rounds");
        Long checkpoint = p.hasNonNull("checkpoint") ? p.get("checkpoint").asLong() : null;
        int n = 0;
        for (JsonNode r : p.get("rounds")) {
            int repeat = r.path("until_done").asBoolean(false) ? 10000 : r.path("repeat").asInt(1);
            for (int i = 0; i < repeat; i++) {
                ObjectNode o = rounds.addObject();
                boolean more = round(out, p, r, checkpoint, o);
                if (o.has("end_offset")) checkpoint = o.get("end_offset").asLong();
                if (req.has("dumps")) {
                    n++;
                    try (Writer w = Files.newBufferedWriter(Path.of(req.get("dumps").asText() + "." + n + ".jsonl"))) { o.put("dump_sha256", LogDump.dump(out, w, false)); }
                } else if (!req.path("no_digest").asBoolean(false)) o.put("dump_sha256", LogDump.dump(out, null, false));
                if (!more) break;
            }
        }
        if (checkpoint == null) res.putNull("checkpoint"); else res.put("checkpoint", checkpoint);
        return res;
    }
    /** One grab-and-clean of a freshly opened log; true if the round cleaned something and did not reach its bound. */
    static boolean round(Path dir, JsonNode p, JsonNode r, Long checkpoint, ObjectNode o) throws Exception {
        FixedTime time = new FixedTime(r.has("now") ? r.get("now").asLong() : p.get("now").asLong());
        LogConfig cfg = config(p.path("config"), r.path("config"));
        UnifiedLog log = open(dir, cfg, p.path("log_start").asLong(0), time, p.path("producer_id_expiration_ms").asInt(86400000));
        log.removeExpiredProducers(time.now);
        if (r.has("high_watermark")) log.updateHighWatermark(r.get("high_watermark").asLong());
        o.put("now", time.now).put("log_start", log.logStartOffset()).put("log_end", log.logEndOffset()).put("lso", log.lastStableOffset());
        Object offs;
        try { offs = call(LogCleanerManager.class, "cleanableOffsets", log, Optional.ofNullable(checkpoint), time.now); }
        catch (java.lang.reflect.InvocationTargetException e) { return failed(o, e.getCause(), "eligibility", log, dir); }
        Method fd = offs.getClass().getDeclaredMethod("firstDirtyOffset"), fu = offs.getClass().getDeclaredMethod("firstUncleanableDirtyOffset");
        Method fc = offs.getClass().getDeclaredMethod("forceUpdateCheckpoint");
        for (Method m : List.of(fd, fu, fc)) m.setAccessible(true);
        long dirty = r.hasNonNull("first_dirty") ? r.get("first_dirty").asLong() : (Long) fd.invoke(offs);
        long uncl = r.hasNonNull("uncleanable") ? r.get("uncleanable").asLong() : (Long) fu.invoke(offs);
        long delay;
        try { delay = (Long) call(LogCleanerManager.class, "maxCompactionDelay", log, dirty, time.now); }
        catch (java.lang.reflect.InvocationTargetException e) { return failed(o, e.getCause(), "eligibility", log, dir); }
        LogToClean ltc = new LogToClean(log, dirty, uncl, delay > 0);
        o.put("first_dirty", dirty).put("uncleanable", uncl).put("bound", ltc.firstUncleanableOffset()).put("force_checkpoint", (Boolean) fc.invoke(offs))
            .put("clean_bytes", ltc.cleanBytes()).put("cleanable_bytes", ltc.cleanableBytes()).put("ratio", ltc.totalBytes() == 0 ? 0.0 : ltc.cleanableRatio())
            .put("compaction_delay", delay);
        boolean selected = (delay > 0 && ltc.cleanableBytes() > 0) || (ltc.totalBytes() > 0 && ltc.cleanableRatio() > cfg.minCleanableRatio);
        o.put("selected", selected);
        if (ltc.cleanableBytes() == 0 || (r.path("honour_ratio").asBoolean(false) && !selected)) {
            o.put("skipped", true);
            if ((Boolean) fc.invoke(offs)) o.put("end_offset", dirty); // the manager rewrites the checkpoint during the grab
            log.close();
            strip(dir);
            o.put("files", LogDump.files(dir, ".log").size());
            return false;
        }
        SkimpyOffsetMap map = new SkimpyOffsetMap(r.path("map_bytes").asInt(p.path("map_bytes").asInt(4 << 20)));
        int io = r.path("io_buffer").asInt(p.path("io_buffer").asInt(256 << 10));
        int maxIo = r.path("max_io_buffer").asInt(p.path("max_io_buffer").asInt(1048588));
        Cleaner c = new Cleaner(0, map, io, maxIo, r.path("load_factor").asDouble(p.path("load_factor").asDouble(0.9)),
            new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", time), time, (TopicPartition tp) -> { });
        boolean more = false;
        try {
            long started = System.nanoTime();
            Map.Entry<Long, CleanerStats> e = c.clean(ltc);
            long took = System.nanoTime() - started;
            CleanerStats s = e.getValue();
            if (p.path("timed").asBoolean(false)) // stats run on the system's clock; only asked for where results need not repeat
                o.put("total_seconds", took / 1e9).put("index_seconds", s.elapsedIndexSecs());
            o.put("end_offset", e.getKey());
            java.lang.reflect.Field mb = CleanerStats.class.getDeclaredField("mapBytesRead");
            mb.setAccessible(true);
            o.putObject("stats").put("map_messages_read", s.mapMessagesRead()).put("map_bytes_read", mb.getLong(s)).put("messages_read", s.messagesRead())
                .put("bytes_read", s.bytesRead()).put("messages_written", s.messagesWritten()).put("bytes_written", s.bytesWritten())
                .put("invalid_messages_read", s.invalidMessagesRead());
            o.put("map_slots", map.slots()).put("map_size", map.size()).put("map_latest", map.latestOffset()).put("map_utilization", s.bufferUtilization());
            more = e.getKey() < ltc.firstUncleanableOffset();
        } catch (Throwable t) { // a broker would mark the partition uncleanable (or retry, for LogCleaningAborted)
            return failed(o, t, "clean", log, dir);
        }
        o.set("segments", listing(log));
        log.close();
        strip(dir);
        return more;
    }
    static boolean failed(ObjectNode o, Throwable t, String where, UnifiedLog log, Path dir) throws Exception {
        o.put("error", t.getClass().getName()).put("message", String.valueOf(t.getMessage()).replace(dir.toString(), "<dir>")).put("where", where);
        try { log.close(); } catch (Throwable x) { log.closeHandlers(); }
        strip(dir);
        return false;
    }
    /** Damages a segment file: edits [{batch, at, x(hex)}] relative to a batch, append(hex), truncate(bytes to cut). */
    static void patch(JsonNode req) throws Exception {
        Path f = Path.of(req.get("file").asText());
        FileTime mt = Files.getLastModifiedTime(f);
        byte[] raw = Files.readAllBytes(f);
        List<Integer> pos = new ArrayList<>();
        for (int q = 0; q + 12 <= raw.length; q += 12 + java.nio.ByteBuffer.wrap(raw).getInt(q + 8)) pos.add(q);
        for (JsonNode e : req.path("edits")) {
            byte[] x = LogWriter.val(e);
            System.arraycopy(x, 0, raw, pos.get(e.path("batch").asInt(0)) + e.get("at").asInt(), x.length);
        }
        byte[] tail = req.has("append") ? LogWriter.val(req.get("append")) : new byte[0];
        byte[] r = Arrays.copyOf(raw, raw.length - req.path("truncate").asInt(0) + tail.length);
        System.arraycopy(tail, 0, r, r.length - tail.length, tail.length);
        Files.write(f, r);
        Files.setLastModifiedTime(f, mt);
    }
    static ObjectNode handle(JsonNode req) {
        try {
            switch (req.path("op").asText("clean")) {
                case "clean": return clean(req).put("ok", true);
                case "write": LogWriter.write(req); return M.createObjectNode().put("id", req.path("id").asText()).put("ok", true);
                case "patch": patch(req); return M.createObjectNode().put("id", req.path("id").asText()).put("ok", true);
                case "accept": return LogAccept.accept(req);
                case "expire": return LogExpire.expire(req).put("ok", true);
                case "select": return LogExpire.select(req).put("ok", true);
                case "dump":
                    try (Writer w = Files.newBufferedWriter(Path.of(req.get("out").asText()))) {
                        return M.createObjectNode().put("id", req.path("id").asText()).put("ok", true)
                            .put("dump_sha256", LogDump.dump(Path.of(req.get("dir").asText()), w, req.path("indexes").asBoolean(false)));
                    }
                default: throw new IllegalArgumentException("op");
            }
        } catch (Throwable t) {
            StringWriter sw = new StringWriter();
            t.printStackTrace(new PrintWriter(sw));
            return M.createObjectNode().put("id", req.path("id").asText()).put("ok", false).put("error", t.toString()).put("trace", sw.toString().lines().limit(12).reduce("", (a, b) -> a + "\n" + b));
        }
    }
    public static void main(String[] a) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        if (a[0].equals("--batch")) {
            boolean ok = true;
            try (BufferedReader r = a[1].equals("-") ? new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)) : Files.newBufferedReader(Path.of(a[1]))) {
                for (String line; (line = r.readLine()) != null; ) if (!line.isBlank()) {
                    ObjectNode n = handle(M.readTree(line));
                    ok &= n.get("ok").asBoolean();
                    out.println(M.writeValueAsString(n));
                }
            }
            System.exit(ok ? 0 : 1);
        }
        ObjectNode req = M.createObjectNode().put("op", "clean").put("in", a[0]).put("out", a[1]), p = req.putObject("params"), r = p.putArray("rounds").addObject(), cfg = p.putObject("config");
        Set<String> round = Set.of("now", "first_dirty", "uncleanable", "map_bytes", "io_buffer", "max_io_buffer", "load_factor", "until_done", "repeat", "high_watermark", "honour_ratio");
        Set<String> top = Set.of("log_start", "checkpoint", "producer_id_expiration_ms");
        r.put("now", System.currentTimeMillis());
        for (String kv : Arrays.asList(a).subList(2, a.length)) {
            String k = kv.substring(0, kv.indexOf('=')), v = kv.substring(kv.indexOf('=') + 1);
            JsonNode val;
            try { val = M.readTree(v); } catch (IOException e) { val = TextNode.valueOf(v); }
            (round.contains(k) ? r : top.contains(k) ? p : cfg).set(k, val);
        }
        ObjectNode n = handle(req);
        out.println(M.writeValueAsString(n));
        System.exit(n.get("ok").asBoolean() ? 0 : 1);
    }
}
