import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Kafka's LocalTieredStorage, which is final, behind a wait before each request of the broker.
 *
 * <p>{@code slow.ms} says how long, {@code slow.requests} names the file that gets a byte each time.
 */
public class SlowStorage implements RemoteStorageManager {
    private final LocalTieredStorage storage = new LocalTieredStorage();
    private long millis;
    private Path requests;

    @Override
    public void configure(Map<String, ?> configs) {
        millis = Long.parseLong(String.valueOf(configs.get("slow.ms")));
        requests = Path.of(String.valueOf(configs.get("slow.requests")));
        storage.configure(configs);
    }

    private synchronized void note() throws RemoteStorageException {
        try {
            Files.write(requests, new byte[1], StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    private void waitBefore() throws RemoteStorageException {
        note();
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(
            RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
        waitBefore();
        return storage.copyLogSegmentData(segment, data);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start)
            throws RemoteStorageException {
        waitBefore();
        return storage.fetchLogSegment(segment, start);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        waitBefore();
        return storage.fetchLogSegment(segment, start, end);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type)
            throws RemoteStorageException {
        waitBefore();
        return storage.fetchIndex(segment, type);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment)
            throws RemoteStorageException {
        waitBefore();
        storage.deleteLogSegmentData(segment);
    }

    @Override
    public void close() {
        storage.close();
    }
}
