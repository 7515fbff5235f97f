"""All that can be said of one key in one log: its records, and what becomes of each.

The log is looked at as ``keeplast status`` looks at it, and read once for the key. Takes no lock
and writes nothing; a log whose files are replaced meanwhile is looked at again.

The rule that a reader must not break: between two renames of a swap records are in no file of the
log. A key that was searched for then is not known to be gone. A swap is waited for, and one that
was interrupted is refused (:mod:`keeplast.log.readers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.reasons import Decision
from keeplast.cleaner.segment_expiry import SegmentExpiry, foresee_expiry
from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, InvalidError, UnavailableError
from keeplast.format.record import Record
from keeplast.inspect.fates import (
    Fate,
    FoundLog,
    KeyRounds,
    Outlook,
    RoundReach,
    find_fates,
    find_reaches,
    untouched_fate,
)
from keeplast.inspect.key_search import (
    KeyRecord,
    KeySample,
    Progressed,
    SearchedSegment,
    find_key_records,
    find_record_at,
    find_records_of_keys,
)
from keeplast.inspect.status import largest_timestamp, stable_limit
from keeplast.log.files import FileSystem
from keeplast.log.log_end import require_log_end
from keeplast.log.partition_log import read_first_timestamp
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.rewrite.ranking import Ranking, ranking_of
from keeplast.rewrite.workspace import Workspace
from keeplast.survey.bounds import Checkpoints, find_bounds, load_checkpoints
from keeplast.survey.group_offsets import ReaderOffsets
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey, survey_partition

LOOKS_MAX = 3
"""A log whose files are replaced while it is looked at is looked at so many times."""

_Explained = TypeVar("_Explained")


class AskedKey(Struct, frozen=True):
    """The key that is asked about, or the offset of a record that has it; one of them is given.

    ``header`` is the header that the strategy ``header`` is tried with, where the topic has none.
    ``values_bytes_max`` bounds what the values of a log's records may take, None for no bound.
    """

    key: bytes | None = None
    offset: int | None = None
    header: str | None = None
    values_bytes_max: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidError for none of both, and for both."""
        if (self.key is None) == (self.offset is None):
            raise InvalidError(
                "give a key or the offset of a record, one of them. "
                f"key={'given' if self.key is not None else None} offset={self.offset}",
                code="K101",
            )

    def require_one(self, partitions: int) -> None:
        """Raise InvalidError for an offset of more partitions than one, or of none."""
        if self.offset is not None and partitions != 1:
            raise InvalidError(
                "an offset is one partition's; give --topic and --partition too. "
                f"--offset={self.offset} partitions={partitions}",
                code="K102",
            )


class FoundRecord(Struct, frozen=True):
    """A record of the key, and what becomes of it.

    ``expiry`` says from when on retention or the log start takes its segment, whatever its fate is;
    None where no clock decides that.
    """

    record: KeyRecord
    fate: Fate
    expiry: SegmentExpiry | None = None


class KeyExplanation(Struct, frozen=True):
    """One partition as of ``now_ms``; offsets are those of its log, ``bound`` exclusive.

    ``winners`` has, by each strategy, the offset that would win of the committed records that are
    there, None without any. ``decision`` says whether a round is due now, or why none is;
    ``reaches`` how far rounds may clean, and from when on. Where no record has the key, ``passed``
    counts the records with another one that were looked at. ``near`` are then a few such keys, the
    most similar first.
    """

    partition: TopicPartition
    path: Path
    key: bytes
    now_ms: int
    topic: TopicConfig
    log_start: int
    log_end: int
    first_dirty: int
    bound: int
    decision: Decision
    winners: Mapping[Strategy, int | None]
    reaches: tuple[RoundReach, ...]
    records: tuple[FoundRecord, ...]
    passed: int = 0
    near: tuple[bytes, ...] = ()

    @property
    def winner(self) -> FoundRecord | None:
        """Return the record that wins in the end, None when none will."""
        return next((e for e in self.records if e.fate.outlook is Outlook.WINS), None)


def explain_key(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    now_ms: int,
    asked: AskedKey,
    workspace: Workspace,
    progressed: Progressed,
    checkpoints: Checkpoints | None = None,
    groups: ReaderOffsets | None = None,
) -> KeyExplanation:
    """Explain a key in one log.

    ``request`` has the offsets and wishes of a round that counts as the next one. ``checkpoints``
    None are the directory's, ``groups`` remembers what consumer groups have committed.

    CorruptError, RefusedError or OSError when the log cannot be looked at, UnavailableError when it
    changes all the time. InvalidError when there is no record at the offset that is asked about, or
    one without key.
    """

    def looked() -> LookedLog:
        known = (
            load_checkpoints(files, partition.path.parent) if checkpoints is None else checkpoints
        )
        return look_for_keys(partition, request, known, files, now_ms, groups)

    return _explain_settled(
        partition.path,
        files,
        looked,
        lambda found: explain_looked(found, asked, workspace, progressed),
    )


def explain_keys(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    now_ms: int,
    keys: Collection[bytes],
    workspace: Workspace,
    progressed: Progressed,
) -> dict[bytes, KeyExplanation]:
    """Explain many keys in one log by one reading of it; errors as for :func:`explain_key`.

    Values and headers of records are left out.
    """
    rankings = rankings_of(partition.topic, None)

    def looked() -> LookedLog:
        checkpoints = load_checkpoints(files, partition.path.parent)
        return look_for_keys(partition, request, checkpoints, files, now_ms)

    def explained(found: LookedLog) -> dict[bytes, KeyExplanation]:
        records: dict[bytes, list[KeyRecord]] = {key: [] for key in keys}
        for each in find_records_of_keys(
            found.segments, records, rankings, files, workspace, progressed
        ):
            records[each.record.key or b""].append(each)
        return {
            key: explain_records(found, key, its, rankings, workspace)
            for key, its in records.items()
        }

    return _explain_settled(partition.path, files, looked, explained)


def _explain_settled(
    path: Path,
    files: FileSystem,
    look: Callable[[], LookedLog],
    explain: Callable[[LookedLog], _Explained],
) -> _Explained:
    """Explain a log whose files stay the same from before the look until after the search.

    RefusedError for a swap that was interrupted; UnavailableError when the files change each time.
    """
    for _ in range(LOOKS_MAX):
        before = _closed(path, files)
        try:
            found = explain(look())
        except (FileNotFoundError, CorruptError, InvalidError):
            # What was listed may be gone by now, or another file with less in it.
            if before == _closed(path, files):
                raise
        else:
            if before == _closed(path, files):
                return found
    raise UnavailableError(
        "the log changed each time that it was searched; run again when no round is under way. "
        f"path={path}",
        code="K234",
    )


def _closed(path: Path, files: FileSystem) -> list[tuple[int, int, int]]:
    """Return what differs between the closed segments of a settled log and others in their place.

    An active segment that is closed meanwhile makes one more: then the log is looked at again.
    """
    listing = settled_partition(path, files, SystemClock(), if_empty=noted_log_start(files, path))
    return [(each.base_offset, each.inode, each.size_bytes) for each in listing.segments[:-1]]


class LookedLog(Struct, frozen=True, kw_only=True):
    """A log as it was looked at: ``segments`` are searched, ``log`` says what rounds may do.

    ``bound`` is the next round's, exclusive, ``decision`` whether one is due. What lies in segments
    that begin below ``rounds_from`` no round reads or touches. ``expiries`` are segments, by base
    offset, that retention or the log start lets go.
    """

    partition: TopicPartition
    path: Path
    topic: TopicConfig
    files: FileSystem
    segments: Sequence[SearchedSegment]
    log: FoundLog
    bound: int
    decision: Decision
    rounds_from: int = 0
    expiries: Mapping[int, SegmentExpiry] = field(default_factory=dict)


def look_for_keys(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    groups: ReaderOffsets | None = None,
) -> LookedLog:
    """Look at a log without reading its records; errors as for :func:`explain_key`."""
    # A round for what has expired has a first dirty offset of its own.
    request = replace(request, expired=False)
    survey = survey_partition(
        partition, request, checkpoints, files, now_ms, foresees_roll=True, groups=groups
    )
    watermark = checkpoints.high_watermark.get(partition.partition)
    require_log_end(survey.listing, survey.tail, watermark, files)
    log = FoundLog(
        segments=survey.segments,
        log_start=survey.log_start,
        first_dirty=survey.section.first_dirty.offset,
        log_end=survey.tail.log_end,
        stable=stable_limit(partition.partition, survey, checkpoints),
        active_first_ms=read_first_timestamp(survey.listing.active, files)
        if survey.tail.valid_bytes
        else None,
        active_largest_ms=largest_timestamp(survey.listing, survey.tail, files),
        now_ms=now_ms,
        holds=survey.holds,
        readers=survey.readers,
    )
    bounds = find_bounds(partition.partition, request, checkpoints, survey.listing, survey.tail)
    return LookedLog(
        partition=partition.partition,
        path=partition.path,
        topic=partition.topic,
        files=files,
        segments=[
            SearchedSegment(
                each,
                survey.tail.valid_bytes if each is survey.listing.active else each.size_bytes,
            )
            for each in survey.listing.segments
        ],
        log=log,
        bound=survey.section.cleanable.bound,
        decision=survey.decision,
        expiries=_foreseen_expiry(partition.topic, survey, log, bounds.high_watermark),
    )


def _foreseen_expiry(
    topic: TopicConfig, survey: Survey, log: FoundLog, high_watermark: int
) -> Mapping[int, SegmentExpiry]:
    """Return when segments may go by retention and the log start, as they are now."""
    if log.log_start > log.log_end:
        return {}  # A broker would drop the whole log, and keeplast refuses to.
    *closed, active = survey.segments
    largest_ms = -1 if log.active_largest_ms is None else log.active_largest_ms
    known = replace(active, size_bytes=survey.tail.valid_bytes, largest_timestamp_ms=largest_ms)
    return foresee_expiry(
        topic, (*closed, known), log_start=log.log_start, log_end=log.log_end,
        high_watermark=high_watermark, now_ms=log.now_ms,
        is_torn=survey.tail.torn_at is not None,
    )  # fmt: skip


def explain_looked(
    looked: LookedLog, asked: AskedKey, workspace: Workspace, progressed: Progressed
) -> KeyExplanation:
    """Explain a key in a log that was looked at; errors as for :func:`explain_key`."""
    key = key_of(looked, asked)
    rankings = rankings_of(looked.topic, asked.header)
    sample = KeySample()
    records = find_key_records(
        looked.segments, key, rankings, looked.files, workspace, progressed,
        asked.values_bytes_max, sample,
    )  # fmt: skip
    found = explain_records(looked, key, records, rankings, workspace)
    return found if records else replace(found, passed=sample.passed, near=sample.near(key))


def key_of(looked: LookedLog, asked: AskedKey) -> bytes:
    """Return the key that is asked about; InvalidError where no record with a key is there."""
    return (asked.key or b"") if asked.offset is None else _key_at(looked, asked.offset)


def explain_records(
    looked: LookedLog,
    key: bytes,
    records: Sequence[KeyRecord],
    rankings: Mapping[Strategy, Ranking],
    workspace: Workspace,
) -> KeyExplanation:
    """Explain the records of one key that were found in a log; nothing is read."""
    topic, log = looked.topic, looked.log
    taken = [each for each in records if each.segment >= looked.rounds_from]
    winners = {
        strategy: KeyRounds(records, strategy, ranking, workspace).winner(log.log_start)
        for strategy, ranking in rankings.items()
    }
    reaches = find_reaches(log, topic)
    rounds = KeyRounds(taken, topic.strategy, rankings[topic.strategy], workspace)
    decided = iter(find_fates(taken, rounds, log, topic, reaches))
    fates = [
        next(decided)
        if each.segment >= looked.rounds_from
        else untouched_fate(each, winners[topic.strategy], log)
        for each in records
    ]
    return KeyExplanation(
        partition=looked.partition,
        path=looked.path,
        key=key,
        now_ms=log.now_ms,
        topic=topic,
        log_start=log.log_start,
        log_end=log.log_end,
        first_dirty=log.first_dirty,
        bound=looked.bound,
        decision=looked.decision,
        winners=winners,
        reaches=tuple(reaches),
        records=tuple(
            FoundRecord(record, fate, looked.expiries.get(record.segment))
            for record, fate in zip(records, fates, strict=True)
        ),
    )


def rankings_of(topic: TopicConfig, header: str | None) -> dict[Strategy, Ranking]:
    """Return every strategy that can be tried: ``header`` needs a name, the topic's before any."""
    name = topic.strategy_header or header
    tried = [Strategy.OFFSET, Strategy.TIMESTAMP, *([Strategy.HEADER] if name else [])]
    return {each: ranking_of(replace(topic, strategy=each, strategy_header=name)) for each in tried}


def _key_at(looked: LookedLog, offset: int) -> bytes:
    record: Record | None = find_record_at(looked.segments, offset, looked.files)
    where = f"offset={offset} partition={looked.partition}"
    if record is None:
        raise InvalidError(
            "there is no record at this offset (any more); keeplast inspect PATH --records "
            f"--from-offset N shows what is there. {where}",
            code="K150",
        )
    if record.key is None:
        raise InvalidError(
            f"the record has no key: the first round that reaches it removes it. {where}",
            code="K151",
        )
    return record.key
