"""The side of the logs: a compacted topic for each table, and one of points.

A record is a row: the key is the primary key as JSON, the value the whole row, and no value is a
row that is gone. The header ``lsn`` says at which commit it became so. A record of the topic
``checkpoints`` is a point: the offsets of all topics at one commit, as ``keeplast export
--checkpoint`` takes them.

What a reader must not break:

1. A point is written behind what it names, which is on stable storage by then.
2. A point is written only while the topics hold nothing of a later commit. What comes a second
   time, after a crash, lies behind records that were written before it, and no offset is the state
   of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from source import lsn_number, lsn_text

import keeplast
from keeplast.config.sources import read_settings
from keeplast.errors import InvalidError, RefusedError
from keeplast.format.record import Header, Record
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.truncation import cut_torn_tail

CHECKPOINTS = "checkpoints"
PARTITIONS = 2
BATCH_BYTES = 256 << 10
LSN, SOURCE, SETTINGS_FILE = b"lsn", b"source", "keeplast.toml"
Rows = Mapping[bytes, bytes | None]
"""What becomes of keys: the row, or None where it is gone."""
Step = Callable[[str], None]
"""Is told of each step that was done; a test ends the process there."""


class Topics:
    """What is in the logs of a data directory, whose lock is held."""

    def __init__(self, data: Path, topics: Sequence[str], source: str, step: Step) -> None:
        """Read the logs there are, which are short as they are compacted, and make none.

        RefusedError when they are of another database than ``source``.
        """
        self._data = data
        self._files = LocalFiles()
        self._source = source
        self._step = step
        self.alive: dict[str, set[bytes]] = {topic: set() for topic in topics}
        """The keys that have a row, by topic."""
        self.reached = 0
        """The last commit of which a record was written."""
        self.noted = 0
        """The last point: all commits up to it were written, and are on stable storage."""
        self.written = 0
        for topic in topics:
            for number in range(PARTITIONS):
                for record in self._records(topic, number):
                    keys = self.alive[topic]
                    (keys.discard if record.is_tombstone else keys.add)(record.key or b"")
                    self.reached = max(self.reached, _lsn_of(record.headers))
        self._ends: dict[str, dict[str, int]] = {}
        for point in self._records(CHECKPOINTS, 0):
            self._require_same_source(point)
            self.noted, self._ends = _lsn_of(point.headers), json.loads(point.value or b"{}")
        self.reached = max(self.reached, self.noted)

    def _records(self, topic: str, number: int) -> Iterator[Record]:
        directory = self._data / f"{topic}-{number}"
        if directory.is_dir():
            yield from keeplast.open_log(directory).records()

    def _require_same_source(self, point: Record) -> None:
        found = next((value for name, value in point.headers if name == SOURCE), b"") or b""
        if found.decode() != self._source:
            raise RefusedError(
                "the topics were captured from another database or server, whose positions are "
                f"not this one's; choose another directory. source={self._source} "
                f"found={found.decode()} path={self._data}"
            )

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Open the logs at their ends; all is on stable storage behind it, the points last.

        An error leaves them as a crash would.
        """
        settings = read_settings(self._data, self._files)
        with ExitStack() as stack:

            def opened(topic: str, number: int) -> LogAppender:
                directory = self._data / f"{topic}-{number}"
                config = settings.topic_config(topic)
                if not config.is_compacted:
                    raise InvalidError(
                        "the directory's settings do not have the topic compacted; give it "
                        f'"cleanup.policy" = "compact" there. topic={topic} '
                        f"path={self._data / SETTINGS_FILE}"
                    )
                if directory.is_dir():
                    self._cut_what_a_crash_tore(directory, topic, number)
                return stack.enter_context(LogAppender(directory, self._files, topic=config))

            points = opened(CHECKPOINTS, 0)
            logs = {(t, n): opened(t, n) for t in self.alive for n in range(PARTITIONS)}
            yield Writer(self, logs, points, self._source, self._step)
        self._files.fsync_directory(self._data)
        self._step("closed")

    def _cut_what_a_crash_tore(self, directory: Path, topic: str, number: int) -> None:
        """Let a log end with its last whole batch: what was behind it comes again.

        RefusedError when that is less than what was confirmed, which does not.
        """
        end = find_tail(list_partition(directory, self._files), self._files).log_end
        named = self._ends.get(topic, {}).get(str(number), 0)
        if end < named:
            raise RefusedError(
                "the log has lost what was on stable storage and will not come again; begin with "
                "another directory, which takes the tables as they are. "
                f"log_end={end} written={named} path={directory}"
            )
        cut_torn_tail(self._files, directory)


class Writer:
    """The ends of all logs, while they are open."""

    def __init__(
        self,
        topics: Topics,
        logs: Mapping[tuple[str, int], LogAppender],
        points: LogAppender,
        source: str,
        step: Step,
    ) -> None:
        """Take open logs, which the caller closes."""
        self._topics = topics
        self._logs = logs
        self._points = points
        self._source = source.encode()
        self._step = step

    def write(self, topic: str, rows: Rows, *, lsn: int, at_ms: int) -> None:
        """Write what becomes of rows at the commit ``lsn``; no delete of what is not there."""
        topics, alive = self._topics, self._topics.alive[topic]
        headers = ((LSN, lsn_text(lsn).encode()),)
        parts: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
        for key, value in rows.items():
            if value is None and key not in alive:
                continue
            (alive.discard if value is None else alive.add)(key)
            parts[zlib.crc32(key) % PARTITIONS].append(NewRecord(key, value, at_ms, headers))
        for number, records in enumerate(parts):
            for batch in _batches(records):
                topics.reached = max(topics.reached, lsn)
                topics.written += len(batch)
                self._logs[topic, number].append(batch)
                self._step("batch")

    def note(self, name: str, *, lsn: int, at_ms: int) -> None:
        """Write a point, the commit ``lsn`` being whole, unless there is something behind it."""
        if lsn < self._topics.reached:
            return
        for log in self._logs.values():
            log.flush()
        self._step("flushed")
        ends: dict[str, dict[str, int]] = {}
        for (topic, number), log in self._logs.items():
            ends.setdefault(topic, {})[str(number)] = log.log_end_offset
        headers = ((LSN, lsn_text(lsn).encode()), (SOURCE, self._source))
        self._points.append([NewRecord(name.encode(), json.dumps(ends).encode(), at_ms, headers)])
        self._topics.reached = self._topics.noted = lsn
        self._step("noted")


def prepare(data: Path, topics: Sequence[str]) -> None:
    """Make the data directory, with settings by which its topics are compacted."""
    data.mkdir(parents=True, exist_ok=True)
    settings = data / SETTINGS_FILE
    if not settings.exists():
        tables = [f'[topic."{each}"]\n"cleanup.policy" = "compact"\n' for each in topics]
        tables.append(f'[topic."{CHECKPOINTS}"]\n"cleanup.policy" = "compact"\n')
        settings.write_text("".join(tables))


def points_in(data: Path) -> dict[str, tuple[int, int, dict[str, dict[str, int]]]]:
    """Return offset, commit and offsets named of the last point of each name."""
    return {
        (point.key or b"").decode(): (
            point.offset,
            _lsn_of(point.headers),
            json.loads(point.value or b"{}"),
        )
        for point in keeplast.open_log(data / f"{CHECKPOINTS}-0").records()
    }


def _lsn_of(headers: Sequence[Header]) -> int:
    return max((lsn_number((v or b"0/0").decode()) for n, v in headers if n == LSN), default=0)


def _batches(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    """Yield records in batches that a topic takes; one that is larger is the topic's to refuse."""
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        bytes_more = len(record.key or b"") + len(record.value or b"") + 64
        if batch and size + bytes_more > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += bytes_more
    if batch:
        yield batch
