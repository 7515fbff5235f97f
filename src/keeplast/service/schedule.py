"""When a partition's turn comes: after failures, after being passed over, or never: set aside.

Kafka forgets its uncleanable partitions when it stops and fails on them again. Here they are in one
small file at the data directory's root, where brokers ignore it. A mark says which files it is
about. Once a partition's segments are other files (restored, repaired, cleaned by another program),
it no longer counts. A mark is never a reason to lose anything: without the file a damaged partition
is only found damaged once more.

What may pass is tried again and never kept from its turn. It is written down so that ``status``
promises nothing that rests on the next round.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.erasure import Pace
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvalidError,
    InvariantError,
    StoppedError,
    error_text,
)
from keeplast.format.filename import parse_segment_file
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Strategy
from keeplast.run.events import RoundWork
from keeplast.survey.report import RoundReport

FILE_NAME = "keeplast-set-aside"
FAILING_NAME = "keeplast-failing"
"""Partitions whose last attempt failed and that are tried again; marks as in the other file."""
VERSION = 1
BYTES_MAX = 64 << 20
REASON_LENGTH_MAX = 2000
STORED_BETWEEN = ": "


class SetAside(Struct, frozen=True):
    """Why a partition is not cleaned, since when, and which files that was said about.

    An empty ``fingerprint`` is about any.
    ``path`` and ``position`` are those of the damage, where it has any.
    """

    partition: TopicPartition
    reason: str
    error_class: str
    since_ms: int
    fingerprint: str
    path: str | None = None
    position: int | None = None


def fingerprint(files: FileSystem, directory: Path) -> str:
    """Return what identifies the segment files of a partition: names, sizes, times of change."""
    digest = hashlib.sha256()
    for name in files.listdir(directory):
        parsed = parse_segment_file(name)
        if parsed is not None and not parsed.stage:
            status = files.stat(directory / name)
            digest.update(f"{name} {status.size_bytes} {status.mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def set_aside(
    files: FileSystem,
    partition: TopicPartition,
    directory: Path,
    error: Exception,
    now_ms: int,
) -> SetAside:
    """Return the mark for a partition that failed with ``error``; writes nothing."""
    damage = error if isinstance(error, CorruptError) else None
    return SetAside(
        partition,
        error_text(error)[:REASON_LENGTH_MAX],
        type(error).__name__,
        now_ms,
        fingerprint(files, directory),
        None if damage is None else damage.path,
        None if damage is None else damage.position,
    )


def failing(
    files: FileSystem,
    partition: TopicPartition,
    directory: Path,
    error: Exception,
    since_ms: int,
) -> SetAside:
    """Return the mark of a partition that is tried again, also when it cannot even be listed."""
    try:
        return set_aside(files, partition, directory, error, since_ms)
    except OSError:
        return mark_of(partition, error, since_ms)


def mark_of(partition: TopicPartition, error: Exception, since_ms: int) -> SetAside:
    """Return the mark of a partition that no files are known of, as in a store."""
    name = type(error).__name__
    return SetAside(partition, error_text(error)[:REASON_LENGTH_MAX], name, since_ms, "")


def stored_mark(mark: SetAside) -> str:
    """Return what a store keeps of a mark: the class of the error, a colon, the reason."""
    return f"{mark.error_class}{STORED_BETWEEN}{mark.reason}"


def read_stored_mark(partition: TopicPartition, text: str, since_ms: int) -> SetAside:
    """Return the mark that :func:`stored_mark` wrote; text without a colon is both."""
    name, _, reason = text.partition(STORED_BETWEEN)
    return SetAside(partition, reason or name, name, since_ms, "")


def is_about(mark: SetAside, files: FileSystem, directory: Path) -> bool:
    """Say whether the files of a partition are those that ``mark`` was said about."""
    return not mark.fingerprint or mark.fingerprint == fingerprint(files, directory)


def read_set_aside(
    files: FileSystem, root: Path, name: str = FILE_NAME
) -> dict[TopicPartition, SetAside]:
    """Return the marks of a data directory, empty without a file.

    CorruptError when the file is damaged, InvalidError when a newer keeplast wrote it.
    """
    path = root / name
    if not files.exists(path):
        return {}
    data = files.read_bytes(path, BYTES_MAX)
    try:
        document = json.loads(data)
        version = document["version"]
        if not isinstance(version, int) or version > VERSION:
            raise InvalidError(
                f"written by a newer keeplast; use that one, or remove the file. path={path} "
                f"version={version!r}",
                code="K226",
            )
        marks = [_mark(entry) for entry in document["partitions"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the list of partitions that failed is damaged ({type(error).__name__})",
            path=str(path), position=0, expected="the JSON that run writes", found=str(error),
            code="K227",
        ) from error  # fmt: skip
    return {mark.partition: mark for mark in marks}


def _mark(entry: Mapping[str, object]) -> SetAside:
    def text(name: str) -> str:
        value = entry[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is no text")
        return value

    def number(name: str) -> int:
        value = entry[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is no number")
        return value

    return SetAside(
        TopicPartition(text("topic"), number("partition")),
        text("reason"),
        text("error_class"),
        number("since_ms"),
        text("fingerprint"),
        None if entry["path"] is None else text("path"),
        None if entry["position"] is None else number("position"),
    )


def write_set_aside(
    files: FileSystem,
    root: Path,
    marks: Mapping[TopicPartition, SetAside],
    name: str = FILE_NAME,
) -> None:
    """Replace the file, atomically and durably; without marks there is no file."""
    path = root / name
    if not marks:
        if files.exists(path):
            files.unlink(path)
            files.fsync_directory(root)
        return
    entries = [
        {
            "topic": mark.partition.topic,
            "partition": mark.partition.partition,
            "reason": mark.reason,
            "error_class": mark.error_class,
            "path": mark.path,
            "position": mark.position,
            "since_ms": mark.since_ms,
            "fingerprint": mark.fingerprint,
        }
        for _, mark in sorted(marks.items())
    ]
    document = {"version": VERSION, "partitions": entries}
    files.write_durable(path, json.dumps(document, indent=1).encode() + b"\n")


LOOK_MS_MIN = 1000
"""What was found of a partition holds for so long at least, and the loop rests so long."""
RETRY_MS_MAX = 900_000
RETRY_MS_MIN = 100
"""So that a back-off of 0 does not make a busy loop of a full disk."""

ROUND_BYTES_PER_SECOND = 32 << 20
"""Bytes of a log that a worker gets through in a second, at the least: both passes over compressed
batches, and the writing, on one slow disk."""
ROUND_MS_MIN = 2000


class TurnHistory(Struct):
    """What has happened to one partition since the start."""

    passed_over: int = 0
    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    last_round: RoundReport | None = None
    last_round_ms: int | None = None
    failures: int = 0
    failure: Exception | None = None
    retry_at_ms: int | None = None
    pause_ms: int = 0

    @property
    def has_changed_anything(self) -> bool:
        """True when the last round left the log otherwise than it found it, and did not fail."""
        last = self.last_round
        if last is None or last.failure is not None or last.skipped:
            return False
        if (last.end_offset or 0) > (last.first_dirty or 0):
            return True
        return last.stats is not None and last.stats.bytes_written != last.stats.bytes_read


def is_lasting(error: Exception, directory: Path) -> bool:
    """Say whether trying again would fail again: damage in ``directory``, or our defect."""
    if isinstance(error, CorruptError):
        return error.path is None or Path(error.path).is_relative_to(directory)
    may_pass = isinstance(error, CompactionError | OSError | MemoryError)
    return isinstance(error, InvariantError) or not may_pass


def planned_round(
    partition: TopicPartition, ranges: CleanableRange, strategy: Strategy
) -> tuple[int, RoundWork]:
    """Return what both passes of a round will read, in bytes by its look, and whose that is.

    As :meth:`~keeplast.run.round_state.Round.bytes_to_read` counts: with versions the first pass
    reads what is clean, too.
    """
    index = ranges.cleanable_bytes
    if strategy is not Strategy.OFFSET:
        index += ranges.clean_bytes
    return index + ranges.clean_bytes + ranges.cleanable_bytes, RoundWork(partition, index)


def retry_ms(failures: int, backoff_ms: int) -> int:
    """Return how long to wait after so many failures in a row, at least one."""
    first = max(backoff_ms, RETRY_MS_MIN)
    return max(min(first << min(failures - 1, 32), RETRY_MS_MAX), first)


class Schedule(Struct):
    """The histories of all partitions, and the marks of those that are set aside."""

    marks: dict[TopicPartition, SetAside] = field(default_factory=dict)
    histories: dict[TopicPartition, TurnHistory] = field(default_factory=dict)

    def history(self, partition: TopicPartition) -> TurnHistory:
        """Return the history of a partition, a new one when it is new."""
        return self.histories.setdefault(partition, TurnHistory())

    def is_waiting(self, partition: TopicPartition, now_ms: int) -> bool:
        """Say whether the pause after a failure is not over yet.

        One that would last longer than it was meant to is over: the clock was ahead when it began.
        """
        history = self.history(partition)
        retry_at = history.retry_at_ms
        return retry_at is not None and 0 < retry_at - now_ms <= history.pause_ms

    def passed_over(self, partitions: set[TopicPartition], chosen: set[TopicPartition]) -> None:
        """Count a choice: among the eligible ``partitions``, ``chosen`` were taken."""
        for partition, history in self.histories.items():
            is_left = partition in partitions and partition not in chosen
            history.passed_over = history.passed_over + 1 if is_left else 0

    def finished(self, partition: TopicPartition, report: RoundReport, now_ms: int) -> None:
        """Note a round that ended, well or not; of a failure :meth:`failed` hears as well."""
        history = self.history(partition)
        history.last_round, history.last_round_ms = report, now_ms
        if report.failure is None and report.stats is not None:
            history.rounds += 1
            history.bytes_read += report.stats.map_bytes_read + report.stats.bytes_read
            history.bytes_written += report.stats.bytes_written
            history.seconds += report.stats.total_seconds
            self.recovered(partition)

    def recovered(self, partition: TopicPartition) -> None:
        """Forget failures: the partition could be worked on."""
        history = self.history(partition)
        history.failures, history.failure, history.retry_at_ms = 0, None, None

    def failed(
        self, partition: TopicPartition, error: Exception, *, backoff_ms: int, now_ms: int
    ) -> int:
        """Note a failure that may pass; returns the pause in milliseconds."""
        history = self.history(partition)
        history.failures += 1
        history.failure = error
        pause = retry_ms(history.failures, backoff_ms)
        history.retry_at_ms, history.pause_ms = now_ms + pause, pause
        return pause

    def keep(self, partitions: set[TopicPartition]) -> None:
        """Forget the histories of all partitions but these."""
        self.histories = {
            each: history for each, history in self.histories.items() if each in partitions
        }


def is_stop(error: Exception | None) -> bool:
    """Say whether a round ended because it was asked to: no failure."""
    return isinstance(error, StoppedError)


def daemon_pace(cleaner: CleanerConfig, round_seconds: float | None) -> Pace:
    """Return how fast a daemon is taken to be: one round at a time, each on a slow disk.

    ``round_seconds`` is the longest that a round may last, when that is known. Otherwise it follows
    from the size of the log, and from the limit on bytes a second. A round reads a log twice and
    writes it once at most.
    """
    pause_ms = max(cleaner.backoff_ms, LOOK_MS_MIN)
    if round_seconds is not None:
        return Pace(math.inf, round(round_seconds * 1000), 1, pause_ms)
    limit = cleaner.io_limit
    rate = ROUND_BYTES_PER_SECOND if limit is None else min(ROUND_BYTES_PER_SECOND, limit / 3)
    return Pace(rate, ROUND_MS_MIN, 1, pause_ms)
