"""Whether the state of a log at an offset can be read, and whether it still could after reading.

A cleaner removes a record because of another one below the end of its round. So a log that was
cleaned to C still has its state as of C and of every later offset, and of no earlier one. The
records that were final at an earlier one may be gone, while those that replaced them lie above it.

The cleaner's checkpoint, which is written at a round's end, says how far a log was cleaned. Until
then, and after a crash, notes say it: our rounds write them before they replace anything
(:mod:`keeplast.log.checkpoints`). A copy without these files, and a broker that crashed in between,
leave a log that was cleaned further than any file says. Then, as a rule, offsets are missing:
brokers assign every one, and only a cleaner takes one away. So there are three conditions, unless
the end is where a reader may read to, which no cleaner passes. From the end of the part that is
said to be clean on nothing may be missing, and no batch may have a delete horizon. And no round may
be half done. One case is left: a broker's crash between swap and checkpoint whose round took
nothing but from the clean section.

Transactions count as they were decided at the offset. A transaction is in flight at an offset when
it begins below it and its marker lies at or above it. A state as of that offset does not have it.
Two things follow:

* A reader that goes on from the state reads again from where the first of them begins. Otherwise no
  reader would get its records below the offset.
* A cleaner believed a transaction that is committed by now, also where its data lies in the cleaned
  part and its marker above the offset. The records that were final without it are gone, and so is
  the state.

The second can only happen to a transaction that began below where the log was cleaned to. A
producer snapshot from between there and the offset says which producers had one open there; brokers
write one where a segment begins. Without one a producer may have had one until its first marker
above there, unless its sequence begins above there. Earlier data of it may have been superseded, or
deleted, and leave no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.columns.batches import HAS_EVENTS
from keeplast.errors import ConflictError, CorruptError, InvalidError, RefusedError
from keeplast.format import producer_snapshot
from keeplast.format.batch import decode_batch
from keeplast.format.filename import CLEANED, SNAPSHOT, parse_segment_file, segment_file
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType
from keeplast.log.checkpoints import said_end
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.log.partition_log import SNAPSHOT_BYTES_MAX, PartitionFiles
from keeplast.log.paths import is_object_path
from keeplast.log.readers import settled_partition
from keeplast.log.transactions import TransactionFold, markers_of
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import Window, WindowBuffers
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.read.log_view import LogView, SegmentsSeen, Split, Wanted
from keeplast.read.points import first_offset_from, first_record
from keeplast.read.record_source import read_wanted
from keeplast.read.transactions import is_transactional_data


class InFlight(Struct, frozen=True):
    """The transactions that are in flight at an offset.

    ``first_offset`` is where the earliest of them begins, as far as it has left data; None without
    one. ``believed_to`` is after the last marker of those that a cleaner may have believed though
    they are undecided at the offset. None without one, and then the state can be read. ``snapshot``
    is the offset of the producer snapshot from which on they were followed. None where there was
    none, so that it was from the log start. ``has_producers`` says that there was one at all, in
    the snapshot or above it.
    """

    first_offset: int | None
    believed_to: int | None
    snapshot: int | None
    has_producers: bool


def find_in_flight(
    view: LogView, end_offset: int, cleaned_to: int | None, files: FileSystem, clock: Clock
) -> InFlight:
    """Return what is in flight at ``end_offset`` of a log that was cleaned to ``cleaned_to``.

    None was never cleaned, as far as any file says; otherwise it is at most ``end_offset``. Reads
    headers: up to there from the newest snapshot above the cleaned part, without one from the log
    start; to the log end where that may matter. CorruptError as for a round.
    """
    first = max(view.log_start, cleaned_to or 0)
    snapshot, entries = _newest_snapshot(view, first, end_offset, files)
    start = view.log_start if snapshot is None else snapshot
    fold = TransactionFold(
        [
            (each.producer_id, each.current_txn_first_offset)
            for each in entries
            if each.current_txn_first_offset >= 0
        ]
    )
    has_producers = bool(entries)
    for window in _headers(view, start, end_offset, files, clock):
        fold.add(window)
        has_producers |= bool(window.marks & HAS_EVENTS)
    open_from = dict(fold.opened())
    is_cleaned = first > view.log_start
    is_known = snapshot is not None
    suspects = {producer for producer, offset in open_from.items() if offset < first}
    believed_to = None
    if is_cleaned and not is_known:
        believed_to = _believed_to(view, first, end_offset, None, files, clock)
    elif is_cleaned and suspects:
        believed_to = _believed_to(view, end_offset, end_offset, suspects, files, clock)
    first_offset = min(open_from.values(), default=None)
    return InFlight(first_offset, believed_to, snapshot, has_producers)


def _believed_to(
    view: LogView,
    start: int,
    end_offset: int,
    suspects: set[int] | None,
    files: FileSystem,
    clock: Clock,
) -> int | None:
    """Return the offset after the last COMMIT, from ``end_offset`` on, that is the first marker of
    a suspect from ``start`` on; None without one.

    ``suspects`` None are all producers, but those whose transaction surely begins above ``start``.
    """
    seen: set[int] = set()
    found = None
    for window in _headers(view, start, INT64_MAX, files, clock):
        began = _began_here(window, seen) if suspects is None else {}
        for producer, offset, kind in markers_of(window).tolist():
            if producer in seen or (suspects is not None and producer not in suspects):
                continue
            seen.add(producer)
            is_behind = began.get(producer, offset) < offset
            if kind == ControlType.COMMIT and offset >= end_offset and not is_behind:
                found = offset + 1
        seen.update(began)
    return found


def _began_here(window: Window, seen: Collection[int]) -> dict[int, int]:
    """Return producers, not ``seen``, whose first data of the window begins their sequence, and
    where that lies: nothing of their transaction is in front of it.
    """
    rows = window.table[: window.batches]
    first: dict[int, int] = {}
    for row in np.flatnonzero(is_transactional_data(rows)).tolist():
        first.setdefault(int(rows[row, t.PRODUCER_ID]), row)
    began = {}
    for producer, row in first.items():
        if producer not in seen:
            at = int(rows[row, t.POSITION])
            raw = window.data[at : at + int(rows[row, t.SIZE])].tobytes()
            if decode_batch(raw).base_sequence == 0:
                began[producer] = int(rows[row, t.BASE_OFFSET])
    return began


def _newest_snapshot(
    view: LogView, first: int, end_offset: int, files: FileSystem
) -> tuple[int | None, Sequence[ProducerEntry]]:
    """Return from where in [first, end] to follow the producers, and who they are there.

    None, and no producers, without a snapshot in that range.
    """
    for segment in reversed(view.segments):
        at = segment.base_offset
        if not (first <= at <= end_offset and view.log_start < at):
            continue
        path = view.path / segment_file(at, SNAPSHOT)
        try:
            entries = producer_snapshot.decode(files.read_bytes(path, SNAPSHOT_BYTES_MAX))
        except (CorruptError, FileNotFoundError):
            continue
        return at, entries
    return None, []


def _headers(
    view: LogView, first: int, end: int, files: FileSystem, clock: Clock
) -> Iterator[Window]:
    """Yield windows with the batches that begin below ``end`` and reach to ``first``."""
    split = Split(view.partition, view.path, Wanted(first, end), 0)
    at = first
    for _, window, _, _ in read_wanted(split, files, clock, WindowBuffers(), checks_crc=False):
        rows = window.table[: window.batches]
        lasts = rows[:, t.LAST_OFFSET]
        chosen = (lasts >= at) & (rows[:, t.BASE_OFFSET] < end)
        if not chosen.any():
            continue
        at = int(lasts[chosen].max()) + 1
        table = np.ascontiguousarray(rows[chosen])
        yield replace(window, table=table, batches=len(table))


def end_of_state(
    view: LogView, end_offset: int | None, as_of_ms: int | None, files: FileSystem, clock: Clock
) -> int:
    """Return where the state of committed records ends that is asked for; None and None is latest.

    ``as_of_ms`` is milliseconds since 1970. InvalidError for an offset that the log does not have,
    and for two points; otherwise as :func:`require_state_at` and :func:`require_known_time`.
    """
    latest = view.last_stable
    if end_offset is None and as_of_ms is None:
        return latest
    if end_offset is not None and as_of_ms is not None:
        raise InvalidError(
            f"one point at a time; leave end_offset or as_of_ms out. end_offset={end_offset} "
            f"as_of_ms={as_of_ms}",
            code="K101",
        )
    if as_of_ms is not None:
        found = first_offset_from(view, as_of_ms + 1, files, clock)
        end_offset = latest if found is None else min(found, latest)
        require_known_time(view, end_offset, files, clock)
    if end_offset is None or not view.log_start <= end_offset <= view.log_end:
        raise InvalidError(
            "the log does not have this offset; it was deleted or never written. Choose one that "
            f"it has. end_offset={end_offset} log_start={view.log_start} log_end={view.log_end} "
            f"path={view.path}",
            code="K150",
        )
    end = min(end_offset, latest)
    require_state_at(view, end, latest=latest, files=files, clock=clock)
    return end


def require_state_at(
    view: LogView,
    end_offset: int,
    *,
    latest: int,
    files: FileSystem,
    clock: Clock,
    committed: bool = True,
) -> int:
    """Return from which offset on to read after the state of [log start, ``end_offset``).

    That is ``end_offset``, or where the first transaction begins that is undecided there.
    RefusedError when that state cannot be read (any more). ``latest`` is the end of what the reader
    may read. The reader sees all records unless only the ``committed``. The headers of all batches
    above the cleaner's checkpoint are read where ``end_offset`` lies below ``latest``.
    """
    listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
    cleaned_to = require_in_front_of_cleaner(view.partition, listing, end_offset, files)
    where = f"end_offset={end_offset} partition={view.partition} path={view.path}"
    if end_offset >= latest:
        return end_offset
    if is_being_cleaned(listing):
        ends = round_end_words(view.path)
        raise RefusedError(
            f"the state as of an earlier offset cannot be given while {ends}. Read it after "
            f"that, or to the latest offset. {where}",
            code="K152",
        )
    require_no_signs(view, end_offset, cleaned_to, files, clock)
    if not committed:
        return end_offset
    found = find_in_flight(view, end_offset, cleaned_to, files, clock)
    require_disbelieved(view, end_offset, found)
    return end_offset if found.first_offset is None else min(end_offset, found.first_offset)


def is_being_cleaned(listing: PartitionFiles) -> bool:
    """Say whether a round is under way, or was interrupted."""
    return any(is_half_done(name) for name in listing.leftovers)


def require_no_signs(
    view: LogView, end_offset: int, cleaned_to: int | None, files: FileSystem, clock: Clock
) -> None:
    """Raise RefusedError when the log was cleaned further than ``cleaned_to``, by what is missing.

    Reads the headers of all batches from there on.
    """
    first = max(view.log_start, cleaned_to or 0)
    split = Split(view.partition, view.path, Wanted(first, view.log_end), 0)
    missing, horizon = _first_signs(split, files, clock)
    if missing is not None or horizon is not None:
        sign = f"missing_offset={missing}" if horizon is None else f"horizon_offset={horizon}"
        raise RefusedError(
            "the state as of this offset cannot be given. Missing offsets or a delete horizon "
            "show that the log was cleaned, and no checkpoint says up to where. Read it to the "
            f"latest offset, or clean the log first. {sign} end_offset={end_offset} "
            f"partition={view.partition} path={view.path}",
            code="K152",
        )


def require_disbelieved(view: LogView, end_offset: int, found: InFlight) -> None:
    """Raise RefusedError when a cleaner may have believed what is in flight at ``end_offset``."""
    if found.believed_to is not None:
        raise RefusedError(
            "the state as of this offset is gone: a transaction in flight there has data in the "
            "cleaned part. The records that it replaced were removed, because it is committed by "
            "now. Read it to the latest offset, or to one from its end on. "
            f"earliest_offset={found.believed_to} end_offset={end_offset} "
            f"partition={view.partition} path={view.path}",
            code="K152",
        )


def require_known_time(view: LogView, end_offset: int, files: FileSystem, clock: Clock) -> None:
    """Raise RefusedError when it is unknown whether ``end_offset`` is the offset of its time.

    It is that of the first later record that is still there. Where nothing lies between the end of
    the cleaned part and it, one that is gone may have been the first. The last one below that end
    stays, as the newest of its key: unless it was a tombstone, or of an aborted transaction.
    """
    listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
    cleaned_to = require_in_front_of_cleaner(view.partition, listing, end_offset, files)
    if cleaned_to is None or cleaned_to <= view.log_start:
        return
    last = cleaned_to - 1
    split = Split(view.partition, view.path, Wanted(last, end_offset), 0)
    for _, window, _, _ in read_wanted(split, files, clock, WindowBuffers(), checks_crc=False):
        rows = window.table[: window.batches]
        lasts = rows[:, t.LAST_OFFSET]
        is_marker = (rows[:, t.ATTRIBUTES] & t.CONTROL != 0) & (rows[:, t.MAGIC] == 2)
        is_behind = (lasts >= cleaned_to) & (rows[:, t.BASE_OFFSET] < end_offset)
        if (is_behind | (is_marker & (lasts == last))).any():
            return
    if first_record(replace(split, wanted=Wanted(last, cleaned_to)), files, clock) is None:
        raise RefusedError(
            "the state as of this time is gone: it lies in the cleaned part, where records of "
            "that time were removed, or before the first record after it. Give a later time, or "
            f"an offset. earliest_offset={cleaned_to} partition={view.partition} path={view.path}",
            code="K152",
        )


def require_in_front_of_cleaner(
    partition: TopicPartition, listing: PartitionFiles, end_offset: int, files: FileSystem
) -> int | None:
    """Raise RefusedError when the log was cleaned beyond ``end_offset``; returns how far it was.

    None when nothing says so.
    """
    cleaned_to = said_end(partition, listing, files)
    if cleaned_to is None:
        return None
    if end_offset < cleaned_to:
        raise RefusedError(
            "the state as of this offset is gone: the log was cleaned further, and of the records "
            "that were final then some were removed for later ones. Read it to the latest offset, "
            f"or to one from where it was cleaned to on. cleaned_to={cleaned_to} "
            f"end_offset={end_offset} partition={partition} path={listing.path}",
            code="K152",
        )
    return cleaned_to


def require_uncleaned(split: Split, files: FileSystem, clock: Clock) -> None:
    """Raise ConflictError when a round may have passed the end of a state while it was read."""
    end = split.wanted.end_offset
    seen = split.segments
    if seen is not None and was_cleaned_past(split.partition, split.path, seen, end, files, clock):
        raise ConflictError(
            "the log was cleaned past the end of this state while it was read, so that keys may "
            "be missing from it. Read it again, or set failOnDataLoss=false where later records "
            f"are read anyway. end_offset={end} partition={split.partition} path={split.path}",
            code="K153",
        )


def was_cleaned_past(
    partition: TopicPartition,
    path: Path,
    seen: SegmentsSeen,
    end_offset: int,
    files: FileSystem,
    clock: Clock,
) -> bool:
    """Say whether records below ``end_offset`` may have gone for others above it since ``seen``.

    Not while ``end_offset`` lies in the active segment. Segments that retention removed are no
    sign of it.
    """
    listing = settled_partition(path, files, clock, if_empty=noted_log_start(files, path))
    if listing.active.base_offset <= end_offset:
        return False
    first = listing.segments[0].base_offset
    now = {segment.base_offset: segment for segment in listing.segments}
    for segment in seen.closed:
        base = segment.base_offset
        if first <= base < end_offset and now.get(base) != segment:
            return True
    # The then active segment grew until it was closed, so that its size shows nothing.
    grown = max(seen.active_base, first)
    return first_missing(partition, path, grown, end_offset, files, clock) is not None


def first_missing(
    partition: TopicPartition,
    path: Path,
    first_offset: int,
    end_offset: int,
    files: FileSystem,
    clock: Clock,
) -> int | None:
    """Return an offset of [first, end) from which on no record, or not each one, is there.

    None when there is none. A compressed message of an old format counts as one that lacks some:
    its header does not say how many it has.
    """
    split = Split(partition, path, Wanted(first_offset, end_offset), 0)
    return _first_signs(split, files, clock, wants_horizons=False)[0]


def _first_signs(
    split: Split, files: FileSystem, clock: Clock, *, wants_horizons: bool = True
) -> tuple[int | None, int | None]:
    """Return the first sign of cleaning in a range: what is missing, or a batch with a horizon.

    Not of batches in the segment where the range begins: a broker whose key map was full gives them
    horizons above the end of its round.
    """
    first_offset, end_offset = split.wanted.first_offset, split.wanted.end_offset
    expected = first_offset
    for base, window, _, _ in read_wanted(split, files, clock, WindowBuffers()):
        table = window.table[: window.batches]
        table = table[table[:, t.LAST_OFFSET] >= expected]
        if not len(table):
            continue
        bases, lasts = table[:, t.BASE_OFFSET], table[:, t.LAST_OFFSET]
        follows = np.concatenate([[expected], lasts[:-1] + 1])
        is_hiding = (table[:, t.MAGIC] < 2) & (table[:, t.ATTRIBUTES] & t.CODEC_MASK != 0)
        lacks = (bases > follows) | (table[:, t.COUNT] != lasts - bases + 1) | is_hiding
        lacking = np.flatnonzero(lacks & (follows < end_offset))
        if len(lacking):
            return int(follows[lacking[0]]), None
        has_horizon = (table[:, t.MAGIC] == 2) & (table[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0)
        if wants_horizons and base >= first_offset and has_horizon.any():
            return None, int(bases[np.flatnonzero(has_horizon)[0]])
        expected = int(lasts[-1]) + 1
    return expected if expected < end_offset else None, None


def round_end_words(path: Path) -> str:
    """Return what there is instead of a whole round in the directory ``path``, and what ends it."""
    if is_object_path(path):
        return (
            "the files of a round that was not over when the directory was copied lie here; end it "
            "there with keeplast clean or by the broker's start, and copy the directory again"
        )
    if is_locked(path.parent):
        return "the log is cleaned; wait for the end of the round"
    return (
        "the files of a round that was interrupted lie here; remove them with "
        f"keeplast clean or keeplast run {path.parent}, or by starting the broker"
    )


def is_half_done(name: str) -> bool:
    """Say whether a file is what a round that is not over has written."""
    parsed = parse_segment_file(name)
    return parsed is not None and (parsed.stage == CLEANED or parsed.attempt is not None)
