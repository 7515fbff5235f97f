"""The records of keys in files that are no part of the live log: staged, replaced, kept, put aside.

The rules that a reader must not break:

- Nothing here is held or written, and no lock is taken.
- A file that could not be read to its end is reported with a ``problem``, which keeps a
  certificate back.

A segment that a round or a broker has replaced has its records until its file goes, and so has a
directory that a broker disposes of. Such a file is read batch by batch. ``explain`` searches it as
``erase`` does, the log first: what moves from it meanwhile is seen twice rather than never.

What rounds have kept for ``keeplast undo`` is a trace of the key until its time is over. A kept
file that is still a segment of the log, because its round never came so far, is no second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from pathlib import Path

from msgspec import Struct

from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, InvalidError, RefusedError, error_text, retry_on
from keeplast.format.batch import RecordBatch
from keeplast.format.filename import (
    CLEANED_FOR,
    INCOMPLETE,
    LOG,
    PARTITION_METADATA,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.key_search import (
    RECORDS_MAX,
    FileRecord,
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_key_records,
)
from keeplast.log.checkpoints import UNFINISHED as UNFINISHED_NOTE
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, find_tail
from keeplast.log.paths import child_path
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.log.undo_files import read_kept
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_segment
from keeplast.read.transactions import TransactionOutcome
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace

LOOKS_MAX = 3
"""A log whose files change while it is searched is searched so many times."""
PIECE_BYTES = 1 << 20
KEYS_SOUGHT_MAX = 16
"""Of so many keys the bytes are sought in a batch before its records are taken apart."""
NAME_BYTES_CUT = 255
"""A broker cuts the topic in the name of a directory that it disposes of, to this length."""


class WantedKeys(Struct, frozen=True):
    """Which keys are searched for: ``keys`` where they are known, else what ``is_wanted`` says."""

    is_wanted: Callable[[bytes], bool]
    keys: frozenset[bytes] | None = None


class RemainsKind(Enum):
    """What a part of a place that is no part of the live log is, and how it goes.

    ``LEFT`` is a file next to the log with a name that rounds and brokers give: the next round
    removes it. ``STRANGE`` is one in a directory out of service, or with another name: no round
    does. ``KEPT`` is kept for undo. ``REPLACED`` is a segment that a store has replaced, ``HIDDEN``
    one that brokers of a live cluster do not read. ``UNFILED`` is no file that was searched by
    itself: bytes that a file of the log has and the log has not, objects that were not searched.
    """

    LEFT = auto()
    STRANGE = auto()
    KEPT = auto()
    REPLACED = auto()
    HIDDEN = auto()
    UNFILED = auto()


_TITLES = {
    RemainsKind.KEPT: "what round {} has kept for undo",
    RemainsKind.REPLACED: "replaced segment {}",
    RemainsKind.HIDDEN: "segment {}",
}
SEGMENTS = (RemainsKind.REPLACED, RemainsKind.HIDDEN)
"""Those that have an id in place of a file's name."""


class Remains(Struct, frozen=True):
    """A file, or a segment, that is no part of the live log, and what it has of the wanted keys.

    ``name`` is that of the file, from the partition's directory on, or the segment's id, or of
    ``KEPT`` the attempt of the round. ``problem`` says why not all of it could be searched.
    ``records`` are those of one key that is to be explained, and none in a search for many. It may
    stay until ``until_ms``, None: nothing says how long.
    """

    kind: RemainsKind
    name: str
    keys: frozenset[bytes] = frozenset()
    problem: str | None = None
    records: tuple[FileRecord, ...] = ()
    until_ms: int | None = None

    @property
    def title(self) -> str:
        """Return how it is called."""
        return _TITLES.get(self.kind, "{}").format(self.name)

    @property
    def fault(self) -> str:
        """Return how it is called, and why not all of it could be searched."""
        return f"{self.title}: {self.problem}"


def searched_files(remains: Iterable[Remains]) -> int:
    """Return how many files, or segments, were looked into by themselves."""
    return sum(each.kind is not RemainsKind.UNFILED for each in remains)


class SearchedKey(Struct, frozen=True):
    """What was found of one key: in the live log, and in what is no part of it.

    ``unseen`` says what was not searched. Of ``left_out`` segments, of so many bytes, filters say
    that the key is in none.
    """

    found: KeyExplanation
    remains: tuple[Remains, ...] = ()
    unseen: tuple[str, ...] = ()
    left_out: tuple[int, int] = (0, 0)


class ShownRecords(Struct):
    """What a search for one key keeps of records, within the bounds of what a person reads.

    ``planned`` hears of the bytes of a file before it is read, ``progressed`` of those that were.
    What they raise ends the search, unless it is a CorruptError or a RefusedError.
    """

    planned: Progressed
    progressed: Progressed
    values_bytes_max: int | None = None
    count: int = 0
    values_bytes: int = 0

    def take(self, path: Path, batch: Batch, record: Record) -> FileRecord:
        """Return a record that was met; InvalidError for more of them than a person reads."""
        self.values_bytes += len(record.value or b"")
        self.count += 1
        limit = self.values_bytes_max
        if limit is not None and self.values_bytes > limit:
            raise InvalidError(
                "the values of this key's records take more than is kept here; ask keeplast "
                f"explain. limit={limit} path={path}",
                code="K156",
            )
        if self.count > RECORDS_MAX:
            raise InvalidError(
                f"more than {RECORDS_MAX} records of what is asked for lie next to the log; let "
                f"what was replaced go first, or ask for less. path={path}",
                code="K156",
            )
        # A file alone does not show how a transaction ended.
        outcome = None if batch.is_transactional else TransactionOutcome.COMMITTED
        return FileRecord(record, None, batch.position, outcome, batch.delete_horizon_ms)


def find_remains(
    directory: Path | None,
    marked: Iterable[PartitionEntry],
    key: bytes,
    files: FileSystem,
    *,
    values_bytes_max: int | None = None,
    planned: Progressed,
    progressed: Progressed,
) -> tuple[Remains, ...]:
    """Find ``key`` next to the log in ``directory``, and in the directories ``marked`` of it.

    What rounds have kept for ``undo`` is not looked into. ``directory`` None is of a partition that
    has no log here. InvalidError for more records, or values, than a person reads; errors of
    :func:`~keeplast.log.partition_log.list_partition`; OSError.
    """
    wanted = WantedKeys(key.__eq__, frozenset((key,)))
    shown = ShownRecords(planned, progressed, values_bytes_max)
    found: list[Remains] = []
    if directory is not None:
        listed = retry_on(FileNotFoundError, LOOKS_MAX, partial(_listed, directory, files))
        found, _ = search_next_to_log(*listed, wanted, files, shown)
    found += search_out_of_service(marked, wanted, files, shown)
    return tuple(each for each in found if each.records or each.problem)


def _listed(directory: Path, files: FileSystem) -> tuple[PartitionFiles, Tail]:
    """Return what lies in a partition directory now, and where its log ends."""
    start = noted_log_start(files, directory)
    listing = settled_partition(directory, files, SystemClock(), if_empty=start)
    return listing, find_tail(listing, files)


def find_kept(
    directory: Path,
    key: bytes,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    *,
    retention_ms: int,
    values_bytes_max: int | None = None,
    planned: Progressed,
    progressed: Progressed,
) -> tuple[Remains, ...]:
    """Find ``key`` in what is kept in a partition directory, by ``undo.retention.ms`` of now.

    Each file is searched by itself, so that a transaction whose marker lies in another one counts
    as open. What no list names has no end: it goes with the next look of ``run``, or the next
    ``clean``. InvalidError for too many records, or values; OSError.
    """
    kept = read_kept(files, directory)
    logs = [each for each in kept.files if each.kind == LOG]
    if not logs:
        return ()
    ends = {
        (wave.attempt, base): min(wave.until_ms, wave.kept_at_ms + retention_ms)
        for wave in kept.waves
        for base in wave.kept_bases()
    }
    listing = settled_partition(directory, files, SystemClock(), if_empty=0)
    live = {each.inode for each in listing.segments}
    found: list[Remains] = []
    for each in logs:
        path = directory / each.name
        records: tuple[KeyRecord, ...] = ()
        problem = None
        try:
            status = files.stat(path)
            if status.inode in live:
                continue
            planned(status.size_bytes)
            segment = SegmentFiles(directory, each.number, status.size_bytes, status.mtime_ns)
            records = find_key_records(
                [SearchedSegment(segment, status.size_bytes, named=path)], key, rankings, files,
                workspace, progressed, values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue  # its time is over
        except (CorruptError, RefusedError) as error:
            problem = error_text(error)
        until_ms = ends.get((each.attempt, each.number))
        found.append(
            Remains(
                RemainsKind.KEPT, each.attempt, problem=problem, records=records, until_ms=until_ms
            )
        )
    return tuple(found)


def search_next_to_log(
    listing: PartitionFiles,
    tail: Tail,
    wanted: WantedKeys,
    files: FileSystem,
    shown: ShownRecords | None = None,
) -> tuple[list[Remains], tuple[str, ...]]:
    """Return what lies next to the log, and the names of files that are unknown.

    With ``shown`` what rounds have kept for ``undo`` is left to the caller, which knows its end.
    """
    found: list[Remains] = []
    if listing.active.size_bytes > tail.valid_bytes and not _is_zero(
        files, listing.active.log_path, tail.valid_bytes, listing.active.size_bytes
    ):
        found.append(
            Remains(
                RemainsKind.UNFILED, listing.active.log_path.name,
                problem=f"bytes behind the log's end, from position {tail.valid_bytes} on, are no "
                "batches: a broker's start cuts them off",
            )
        )  # fmt: skip
    unknown = []
    for name in (*listing.leftovers, *listing.unknown):
        is_kept = parse_undo_file(name) is not None
        if not was_log(name):
            if name in listing.unknown and not is_without_keys(name):
                unknown.append(name)
        elif shown is None or not is_kept:
            is_known = is_kept or parse_segment_file(name) is not None
            kind = RemainsKind.LEFT if is_known else RemainsKind.STRANGE
            found += search_file(child_path(listing.path, name), kind, name, wanted, files, shown)
    return found, tuple(unknown)


def search_out_of_service(
    entries: Iterable[PartitionEntry],
    wanted: WantedKeys,
    files: FileSystem,
    shown: ShownRecords | None = None,
) -> list[Remains]:
    """Search directories that a broker disposes of, moves or has set aside."""
    found: list[Remains] = []
    for entry in entries:
        try:
            names = [name for name in files.listdir(entry.path) if was_log(name)]
        except FileNotFoundError:
            continue  # disposed of by now
        for name in names:
            found += search_file(
                child_path(entry.path, name), RemainsKind.STRANGE, f"{entry.path.name}/{name}",
                wanted, files, shown,
            )  # fmt: skip
    return found


def marked_of(
    entries: Iterable[PartitionEntry], partition: TopicPartition
) -> tuple[PartitionEntry, ...]:
    """Return which of ``entries`` are out of service, and of ``partition``."""
    return tuple(
        entry
        for entry in entries
        if entry.partition.partition == partition.partition and is_marked_of(entry, partition.topic)
    )


def is_marked_of(entry: PartitionEntry, topic: str) -> bool:
    """Say whether a directory is of ``topic`` and out of service: disposed of, moved, set aside."""
    if entry.mark is None:
        return False
    is_cut = len(entry.path.name) >= NAME_BYTES_CUT
    named = entry.partition.topic
    return named == topic or (is_cut and topic.startswith(named))


_KNOWN = frozenset(
    {
        PARTITION_METADATA, "leader-epoch-checkpoint", "leader-epoch-checkpoint.tmp",
        CLEANED_FOR, UNFINISHED_NOTE, INCOMPLETE,
    }
)  # fmt: skip
"""Files of a partition directory that have neither keys nor values of records."""


def is_without_keys(name: str) -> bool:
    """Say whether a file of a partition directory has, by its name, neither keys nor values."""
    parsed = parse_segment_file(name) or parse_undo_file(name)
    return name in _KNOWN if parsed is None else parsed.kind != LOG


def was_log(name: str) -> bool:
    """Say whether a file is, or by its name may have been, a segment of records."""
    parsed = parse_segment_file(name) or parse_undo_file(name)
    return parsed.kind == LOG if parsed is not None else LOG in name


def search_file(
    path: Path,
    kind: RemainsKind,
    name: str,
    wanted: WantedKeys,
    files: FileSystem,
    shown: ShownRecords | None = None,
) -> tuple[Remains, ...]:
    """Return what a file that is no part of a log has, nothing when it is gone by now."""
    keys: set[bytes] = set()
    records: list[FileRecord] = []
    problem = None
    try:
        if shown is not None:
            shown.planned(files.stat(path).size_bytes)
        for batch in read_segment(files, path):
            if shown is not None:
                shown.progressed(batch.size_bytes)
            # First: what says that a batch has markers alone is a bit of what the checksum is of.
            if not batch.is_valid:
                problem = "a batch has a wrong checksum"
                break
            if batch.is_control or _has_none(batch, wanted):
                continue
            for record in batch.records():
                if record.key is not None and wanted.is_wanted(record.key):
                    keys.add(record.key)
                    if shown is not None:
                        records.append(shown.take(path, batch, record))
    except FileNotFoundError:
        return ()
    except (CorruptError, RefusedError) as error:
        why = error.problem if isinstance(error, CorruptError) else "it is no plain file"
        problem = f"it cannot be read to its end ({why})"
    return (Remains(kind, name, frozenset(keys), problem, tuple(records)),)


def _has_none(batch: Batch, wanted: WantedKeys) -> bool:
    """Say whether the bytes of no wanted key are in a batch; False where that is not sought."""
    if (
        wanted.keys is None
        or len(wanted.keys) > KEYS_SOUGHT_MAX
        or not isinstance(batch, RecordBatch)
        or batch.count <= 0
    ):
        return False
    data = bytes(batch.plain())
    return all(key not in data for key in wanted.keys)


def _is_zero(files: FileSystem, path: Path, start: int, end: int) -> bool:
    """Say whether bytes ``[start, end)`` of a file are all zero, as a broker's preallocation is."""
    with reading(files, path) as handle:
        buffer = bytearray(PIECE_BYTES)
        while start < end:
            view = memoryview(buffer)[: min(PIECE_BYTES, end - start)]
            got = handle.pread_into(view, start)
            if not got:
                return True
            if any(view[:got]):
                return False
            start += got
    return True
