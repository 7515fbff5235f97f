"""A log as a Python object: look at its segments, batches and records, plan and clean it.

::

    import keeplast

    log = keeplast.open_log("/data/prices-0")
    for record in log.records(from_offset=1000):
        print(record.offset, record.key)
    compacted = keeplast.topic_config({"cleanup.policy": "compact"})
    print(log.plan(compacted, exact=True).rounds[-1].stats)
    log.clean(compacted)

Reading takes no lock and changes nothing. ``clean`` takes the lock of the data directory and is
refused while a broker holds it. The policy is the caller's to state: a log does not carry it. A log
that is opened by its path ranks records as its data directory says of the topic.

What a reader must not break: a log may be cleaned while it is read, and offsets never change. A
walk that loses a file goes on after the last batch that it gave. So it gives every batch once, and
misses nothing that was final.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from keeplast.api.live_state import Row, ShownState
from keeplast.api.rounds import clean, coordinator_of, plan
from keeplast.cleaner.settings import pinned
from keeplast.clock import Clock, SystemClock
from keeplast.config.sources import read_settings
from keeplast.errors import (
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.filename import parse_partition_directory
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.log.files import FileSystem
from keeplast.log.log_end import noted_high_watermark, sound_tail
from keeplast.log.partition_log import SegmentFiles, is_empty_log
from keeplast.log.paths import is_object_path, place_path
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.read.log_reader import read_segment
from keeplast.read.log_state import find_winners
from keeplast.read.log_view import LogView, segments_below
from keeplast.read.points import GroupPoint
from keeplast.read.state_end import end_of_state, require_in_front_of_cleaner, was_cleaned_past
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events, NoEvents
from keeplast.run.expiry import DeleteRecordsReport, delete_records
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import ExpiryReport, PartitionReport
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.survey.survey import torn_tail
from keeplast.survey.wording import note_words
from keeplast.tier.objects.places import recipe_of

RELISTS_MAX = 100
"""A directory that changes so often before one batch is read is not a log that is being cleaned."""


class LogWalk(Struct, frozen=True):
    """The partition directory ``path`` as ``files`` show it."""

    files: FileSystem
    path: Path

    def records(self, from_offset: int, key: bytes | None) -> Iterator[Record]:
        """Yield the records at or above ``from_offset``, of ``key`` alone where there is one."""
        for segment, batch in self.batches(from_offset):
            _check_crc(segment, batch)
            if batch.is_control:
                continue
            try:
                for record in batch.records():
                    is_wanted = key is None or record.key == key
                    if is_wanted and record.offset >= from_offset:
                        yield record
            except CorruptError as error:
                raise error.placed(path=str(segment.log_path), position=batch.position) from error

    def batches(self, from_offset: int) -> Iterator[tuple[SegmentFiles, Batch]]:
        """Yield batches once each and in order, also when segments are replaced meanwhile.

        A file that is open stays readable when a swap removes its name. One whose name is gone
        before it was opened has a successor, found by listing again. Offsets never change, so the
        reader goes on after the last one it gave.
        """
        replicated = noted_high_watermark(self.files, self.path)
        following = from_offset
        listed, at = self._list(following), 0
        relists = 0
        while at < len(listed):
            segment = listed[at]
            try:
                for batch in self._read(segment, is_active=at == len(listed) - 1):
                    # A file of that name may be a merged one by now, and reach further.
                    if batch.last_offset >= following:
                        following = batch.last_offset + 1
                        relists = 0
                        yield segment, batch
                at += 1
            except FileNotFoundError:
                relists += 1
                if relists > RELISTS_MAX:
                    raise
                listed, at = self._list(following), 0
        last_base = listed[-1].base_offset if listed else 0
        if replicated is not None and max(following, last_base) < replicated:
            self._require_end(replicated)

    def _list(self, from_offset: int) -> tuple[SegmentFiles, ...]:
        """Return the segments that may hold ``from_offset`` and what follows."""
        files, start = self.files, noted_log_start(self.files, self.path)
        listed = settled_partition(self.path, files, SystemClock(), if_empty=start).segments
        if len(listed) == 1 and not listed[0].size_bytes:
            return ()  # the only segment of an empty log may have no file
        first = [i for i, each in enumerate(listed) if each.base_offset <= from_offset]
        return listed[first[-1] if first else 0 :]

    def _read(self, segment: SegmentFiles, *, is_active: bool) -> Iterator[Batch]:
        try:
            yield from read_segment(self.files, segment.log_path)
        except CorruptError:
            if not is_active:
                raise
            self._require_end(noted_high_watermark(self.files, self.path))

    def _require_end(self, replicated: int | None) -> None:
        """Raise CorruptError unless the log ends where it was read to; a torn end is a warning."""
        start, clock = noted_log_start(self.files, self.path), SystemClock()
        listing = settled_partition(self.path, self.files, clock, if_empty=start)
        torn = torn_tail(listing, sound_tail(listing, replicated, self.files, clock))
        if torn is not None:
            warnings.warn(f"{note_words(torn)}. path={self.path}", stacklevel=2)


def _check_crc(segment: SegmentFiles, batch: Batch) -> None:
    if not batch.is_valid:
        raise CorruptError(
            "crc mismatch",
            path=str(segment.log_path),
            position=batch.position,
            expected=f"{batch.crc:#010x}",
            found=f"{batch.computed_crc:#010x}",
            code="K215",
        )


TopicConfigs = Callable[[Path, FileSystem], Callable[[str], TopicConfig]]
"""Gives what knows the settings of the topics of a data directory."""

STATE_TRIES_MAX = 5


class Segment(Struct, frozen=True):
    """One segment as listed: its base offset (inclusive), bytes, time and place.

    ``modified_ms`` is the file's modification time in milliseconds since 1970. The segment with the
    greatest base offset is active: it is never cleaned, and may end in an unfinished batch.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    path: Path
    is_active: bool


class KeyState(dict[bytes, Record], ShownState):
    """The final record of every key; ``ranking`` says by what records ranked, and who says so.

    Where the topic ranks otherwise, give ``state()`` its settings:
    ``topic_config({"compaction.strategy": "header", "compaction.strategy.header": "version"})``.
    """

    def __init__(self, records: Mapping[bytes, Record], ranking: str, partition: int) -> None:
        """Take what was found."""
        super().__init__(records)
        self.ranking = ranking
        self._partition = partition

    def _rows(self) -> Iterator[Row]:
        for each in self.values():
            yield (
                self._partition, each.offset, each.timestamp, each.key, each.value, each.headers,
            )  # fmt: skip


class OpenLog:
    """One partition directory. Holds no file open; each call sees the directory as it is then."""

    def __init__(
        self,
        path: Path,
        *,
        files: FileSystem | None = None,
        options: Mapping[str, str] | None = None,
        topic_configs: TopicConfigs | None = None,
    ) -> None:
        """Take a partition directory; see :func:`keeplast.open_log`.

        ``files`` stands in for what the path's recipe would open; ``topic_configs`` knows the
        settings of topics.
        """
        self.path = path.absolute()
        self._topic_configs = topic_configs
        self._options = dict(options or {})
        recipe = recipe_of((self.path,), self._options if is_object_path(self.path) else {})
        self._files = recipe.open() if files is None else files
        parsed = parse_partition_directory(self.path.name)
        if not self._files.is_directory(self.path):
            raise InvalidError(
                f"no such directory; correct the path. path={self.path}", code="K110"
            )
        if parsed is None:
            raise InvalidError(
                f"not a partition directory; its name must be <topic>-<number>. path={self.path}",
                code="K116",
            )
        self.partition: TopicPartition = parsed.partition
        self._mark = parsed.mark
        self._walk = LogWalk(self._files, self.path)

    def __repr__(self) -> str:
        return f"OpenLog({str(self.path)!r})"

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments by ascending base offset, none of a log that has no file yet.

        RefusedError when what is in the directory is not understood, or a swap of segments was
        interrupted in it.
        """
        is_empty = is_empty_log(self._files.listdir(self.path))
        listed = () if is_empty else self._listed(None)
        return tuple(
            Segment(s.base_offset, s.size_bytes, s.mtime_ms, s.log_path, s is listed[-1])
            for s in listed
        )

    def log_start_offset(self) -> int:
        """Return the first readable offset, by the data directory or else by the first segment.

        Records below it are deleted, though their batch or segment may still have them.
        CorruptError when ``log-start-offset-checkpoint`` cannot be read.
        """
        noted = noted_log_start(self._files, self.path)
        return max(noted, self._listed(noted)[0].base_offset)

    def _listed(self, if_empty: int | None) -> tuple[SegmentFiles, ...]:
        clock = SystemClock()
        return settled_partition(self.path, self._files, clock, if_empty=if_empty).segments

    def batches(self, *, from_offset: int = 0) -> Iterator[Batch]:
        """Yield the batches whose last offset is at or above ``from_offset``, in log order.

        Never those that end below the log start offset. Control batches come too. A wrong CRC is
        not an error here: see ``batch.is_valid``. A batch that is unfinished at the end of the
        active segment ends the log, with a warning. At most 4 MiB, or one larger batch, are held at
        a time; a batch kept by the caller keeps its window.

        Raises CorruptError, with path and position, where a closed segment cannot be read on, and
        where the active one is damaged in front of whole batches. So it does where the log ends
        below its high watermark.
        """
        for _, batch in self._walk.batches(max(from_offset, self.log_start_offset())):
            yield batch

    def records(self, *, from_offset: int = 0, key: bytes | None = None) -> Iterator[Record]:
        """Yield the records at or above ``from_offset`` and the log start offset, in log order.

        With ``key`` those of this key alone; :func:`keeplast.explain` says what becomes of them.
        Records of open and aborted transactions come too, control records do not. Raises
        CorruptError for a batch with a wrong CRC and for records that are not well-formed,
        InvalidError for a key that is not bytes.
        """
        if key is not None and not isinstance(key, bytes):
            raise InvalidError(
                f'the keys of records are bytes; give b"...". given={type(key).__name__}',
                code="K109",
            )
        yield from self._walk.records(max(from_offset, self.log_start_offset()), key)

    def state(
        self,
        topic: TopicConfig | None = None,
        *,
        end_offset: int | None = None,
        as_of_ms: int | None = None,
        end_group: str | None = None,
    ) -> KeyState:
        """Return the final record of every key that is not deleted, in offset order.

        A read-committed view: nothing aborted, nothing from the first open transaction on. Nothing
        below the log start offset counts. Holds one record a key in memory, and reads the log
        twice.

        Which record of a key is final follows ``topic``'s strategy. By default it is the one that
        the data directory's settings give it (``keeplast.toml``, environment, metadata log), so
        that it is the same before and after cleaning. A broker's own topic ranks by offset.
        ``ranking`` of what was found says which it was, and who chose it; give ``topic`` where it
        ranks otherwise.

        ``end_offset``, exclusive, asks for the state of an earlier point, with transactions as they
        were decided there. ``as_of_ms`` asks for that of a time in milliseconds since 1970: it lies
        where the first record with a later timestamp lies, as exact as producers' clocks.
        ``end_group`` asks for the state of what a consumer group has committed, by the
        ``__consumer_offsets`` next to the log.

        Raises CorruptError as :meth:`records` does, and InvalidError for an offset that the log
        does not have. RefusedError when an open transaction ends it below what was cleaned, or when
        that point's state cannot be read (any more). UnavailableError when the log is cleaned
        faster than it is read.
        """
        topic = pinned(self.partition.topic, self._ranks() if topic is None else topic)
        clock = SystemClock()
        for _ in range(STATE_TRIES_MAX):
            log_start = self.log_start_offset()
            view, end, winners = find_winners(
                self.partition, self.path, log_start, topic, self._files, clock,
                lambda view: end_of_state(
                    view, self._end_offset(view, end_offset, end_group, clock), as_of_ms,
                    self._files, clock,
                ),
            )  # fmt: skip
            torn = view.torn_words()
            if torn is not None:
                warnings.warn(f"{torn}. path={self.path}", stacklevel=2)
            if end < self.log_start_offset():
                # A transaction counts as open whose marker went with its data while it was read.
                continue
            found = {
                record.key: record
                for record in self.records(from_offset=view.log_start)
                if record.offset in winners and record.key is not None and not record.is_tombstone
            }
            # Winners may have gone for records that came after the first pass.
            seen = segments_below(view, end)
            if not was_cleaned_past(self.partition, self.path, seen, end, self._files, clock):
                # Who cleaned past an open transaction has taken what was final in front of it.
                if self._mark is None:
                    listing = settled_partition(self.path, self._files, clock, if_empty=log_start)
                    require_in_front_of_cleaner(self.partition, listing, end, self._files)
                return KeyState(found, topic.ranking, self.partition.partition)
        raise UnavailableError(
            "the log is cleaned faster than its state can be read; read a copy of it, or when the "
            f"cleaner rests. path={self.path}",
            code="K153",
        )

    def _end_offset(
        self, view: LogView, end_offset: int | None, end_group: str | None, clock: Clock
    ) -> int | None:
        """Return the end that is asked for; InvalidError for two, or where a group has none."""
        if end_group is None:
            return end_offset
        if end_offset is not None:
            raise InvalidError(
                f"one point at a time; leave end_offset or end_group out. end_offset={end_offset} "
                f"end_group={end_group!r}",
                code="K101",
            )
        point = GroupPoint(view.path.parent, end_group, self._files, clock, "end_group")
        return point.offset(view.partition, view.path, view.log_end)

    def _ranks(self) -> TopicConfig:
        """Return how the topic ranks its records; InvalidError when no source says it."""
        if self._topic_configs is None:
            raise InvalidError(
                f"how the topic ranks its records is not known; give state() its settings. "
                f"path={self.path}",
                code="K131",
            )
        return self._topic_configs(self.path.parent, self._files)(self.partition.topic)

    @property
    def files(self) -> FileSystem:
        """Return how the log's files are read."""
        return self._files

    def plan(
        self,
        topic: TopicConfig,
        *,
        cleaner: CleanerConfig | None = None,
        exact: bool = False,
        now_ms: int | None = None,
        force: bool = False,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        cores: int | None = None,
        runner: Runner | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> PartitionReport:
        """Return what :meth:`clean` with the same arguments would do; nothing is written.

        With ``exact`` everything is read and counted; without it the bounds are exact and the rest
        is estimated from a small sample. Arguments and errors as for :meth:`clean`.
        """
        request = CleanRequest(
            self._choose_partition(topic, cleaner),
            now_ms=now_ms,
            force=force,
            memory_bytes=memory_bytes,
        )
        return plan(
            request, exact=exact, cores=cores, runner=runner, events=events, clock=clock,
            object_options=self._options,
        ).partitions[0]  # fmt: skip

    def clean(
        self,
        topic: TopicConfig,
        *,
        cleaner: CleanerConfig | None = None,
        to: Path | str | None = None,
        overwrites: bool = False,
        now_ms: int | None = None,
        rounds: int | None = 1,
        is_unsafe: bool = False,
        force: bool = False,
        roll_active: bool = False,
        rolls_idle: bool = False,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        cores: int | None = None,
        runner: Runner | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> PartitionReport:
        """Clean the log as Kafka's cleaner would, and return what each round did.

        ``topic`` must have ``compact`` in its policy, else RefusedError. ``to`` is a directory that
        receives the cleaned log, None cleans in place; ``overwrites`` gives up what lies there.
        ``rounds`` None means until the end offset reaches the bound. ``now_ms`` is the clock of the
        run in milliseconds, None the machine's; one ahead is refused unless ``is_unsafe``.
        ``force`` ignores ``min_cleanable_dirty_ratio`` only. ``roll_active`` starts a new active
        segment first, ``rolls_idle`` only when the present one is older than ``segment_ms`` or
        ``max_compaction_lag_ms``, at the target if there is one. ``memory_bytes`` bounds windows
        and buffers, not the key map.
        ``runner`` None means threads of this process, ``cores`` of them; a runner that is given
        stays open.

        A log that cannot be cleaned does not raise: its last round has ``error`` and ``failure``,
        and the log is as it was. Raises RefusedError while a broker holds the data directory.
        """
        request = CleanRequest(
            self._choose_partition(topic, cleaner), now_ms=now_ms, force=force, is_unsafe=is_unsafe,
            memory_bytes=memory_bytes, rounds=rounds, roll_active=roll_active,
            rolls_idle=rolls_idle, target=None if to is None else place_path(str(to)),
            overwrites=overwrites,
        )  # fmt: skip
        return clean(
            request, cores=cores, runner=runner, events=events, clock=clock,
            object_options=self._options,
        ).partitions[0]  # fmt: skip

    def expire(
        self,
        topic: TopicConfig,
        *,
        now_ms: int | None = None,
        high_watermark: int | None = None,
        is_unsafe: bool = False,
    ) -> ExpiryReport:
        """Remove the segments that ``topic``'s retention and the log start offset let go.

        What goes and what stays, and why, is in the report; so is an error, as for :meth:`clean`.
        A clock ahead and a high watermark above the directory's are refused unless ``is_unsafe``.
        Raises RefusedError while a broker holds the data directory.
        """
        request = CleanRequest(
            (self._partition_request(topic),), now_ms=now_ms, high_watermark=high_watermark,
            is_unsafe=is_unsafe,
        )  # fmt: skip
        with LocalRunner(1) as runner:
            (report,) = (
                coordinator_of(request, runner, None, None, self._options)
                .expire(request)
                .partitions
            )
        if report.expiry is None:
            raise InvariantError("an expiry without a report", code="K901")
        return report.expiry

    def delete_records(
        self,
        topic: TopicConfig,
        *,
        before_offset: int,
        high_watermark: int | None = None,
        is_unsafe: bool = False,
        removes: bool = False,
    ) -> DeleteRecordsReport:
        """Move the log start to ``before_offset`` as DeleteRecords does; -1 is the high watermark.

        ``removes`` takes the segments that lie wholly below off the disk at once as well. Raises
        RefusedError without ``delete`` in ``topic``'s policy, above the high watermark, and while a
        broker holds the data directory.
        """
        return delete_records(
            self._partition_request(topic),
            self._files,
            before_offset=before_offset,
            high_watermark=high_watermark,
            is_unsafe=is_unsafe,
            removes=removes,
            warned=NoEvents().warned,
        )

    def _partition_request(
        self, topic: TopicConfig, cleaner: CleanerConfig | None = None
    ) -> PartitionRequest:
        if self._mark is not None:
            raise RefusedError(
                f"the replica is marked {self._mark}, a broker disposes of it; choose one in "
                f"service. path={self.path}",
                code="K206",
            )
        return PartitionRequest(self.partition, self.path, topic, cleaner or CleanerConfig())

    def _choose_partition(
        self, topic: TopicConfig, cleaner: CleanerConfig | None
    ) -> tuple[PartitionRequest]:
        partition = self._partition_request(topic, cleaner)
        if not topic.is_compacted:
            raise RefusedError(
                f"cleanup.policy without compact: cleaning would lose the topic's history. "
                f"cleanup_policy={','.join(sorted(topic.cleanup_policy))} path={self.path}",
                code="K128",
            )
        return (partition,)


def open_log(directory: Path | str, *, object_options: Mapping[str, str] | None = None) -> OpenLog:
    """Open one partition directory, such as ``/data/prices-0`` or ``s3://bucket/data/prices-0``.

    ``object_options`` are those of the object store, such as its ``endpoint``. A log there is
    cleaned ``to`` another place, never where it is.
    InvalidError when its name is no ``<topic>-<number>`` or it is no directory. Nothing is read
    yet.
    """
    return OpenLog(place_path(str(directory)), options=object_options, topic_configs=_topic_configs)


def _topic_configs(root: Path, files: FileSystem) -> Callable[[str], TopicConfig]:
    return read_settings(root, files).topic_config
