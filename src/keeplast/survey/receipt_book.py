"""Reads receipts again: what rounds said of themselves, one JSON line a wave.

A last line that a crash cut off is of a wave that was not begun; it is left out. A line that is no
receipt is refused: a verdict must not rest on half of one.

A clock may be earlier than the receipts next to it. Then what time removes went too early, or goes
too late. The rule: **a clock that looks wrong is reported, and changes nothing**: the right time is
unknown here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import time_text
from keeplast.errors import CompactionError, InvalidError
from keeplast.log.files import FileSystem, reading
from keeplast.model.document import JudgedBy, Verdict
from keeplast.model.hold import ReaderWait, read_wait
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.survey.notes import ClockBehind
from keeplast.survey.receipt_chain import ChainHead, ChainReport, check_chain

BYTES_MAX = 1 << 30
"""A receipt file that is larger is not read again; start another one."""
VERSIONS = (1, 2)
LINE_BYTES, LINE_BYTES_MAX = 1 << 16, 1 << 24
"""How much of a file's end is read for its last line, at first and at most."""


class SegmentEntry(Struct, frozen=True):
    """A segment that a round found (``batches`` None) or left; ``crc32c`` None when not taken."""

    base_offset: int
    size_bytes: int
    mtime_ms: int | None = None
    batches: int | None = None
    crc32c: int | None = None
    sources: tuple[int, ...] = ()


class RoundReceipt(Struct, frozen=True):
    """The lines of one round as one, which is ``document``.

    ``attempt`` is the round's name in all of its lines, None in old ones, which had one line a
    round. ``has_ended`` is False where more waves were to follow the last line. ``clean_to`` is the
    cleaner checkpoint before the round, None where the line does not say.
    """

    partition: TopicPartition
    now_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    first_dirty: int
    bound: int
    end_offset: int
    inputs: tuple[SegmentEntry, ...]
    outputs: tuple[SegmentEntry, ...]
    producers: tuple[tuple[int, int, int], ...] | None
    messages_written: int
    document: dict[str, Any]
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str | None = None
    attempt: str | None = None
    has_ended: bool = True
    clean_to: int | None = None
    readers: ReaderWait | None = None
    expired: frozenset[int] = frozenset()
    """Base offsets of what retention or the log start offset let go since."""

    @property
    def name(self) -> str:
        """Return what a verdict calls the round: its attempt; its clock and range in old lines."""
        return self.attempt or f"{self.now_ms}:{self.first_dirty}-{self.end_offset}"


class ExpiryReceipt(Struct, frozen=True):
    """A line about segments that expired; ``bases`` are theirs."""

    partition: TopicPartition
    now_ms: int
    log_start_before: int
    log_start: int
    bases: tuple[int, ...]
    document: dict[str, Any]


class RemovalReceipt(Struct, frozen=True):
    """A line about what a user took out of a store; of no directory, and no round's."""

    partition: TopicPartition
    now_ms: int
    start: int
    end: int
    document: dict[str, Any]


class ActionReceipt(Struct, frozen=True):
    """A line about a request to a running loop; ``partition`` None is all of them."""

    partition: TopicPartition | None
    now_ms: int
    words: str
    document: dict[str, Any]


class CollectionReceipt(Struct, frozen=True):
    """A line about replaced segments of a live cluster whose objects went; no record did."""

    partition: TopicPartition
    now_ms: int
    start: int
    end: int
    segments: int
    size_bytes: int
    document: dict[str, Any]


class UndoReceipt(Struct, frozen=True):
    """A line about a round, by its ``attempt``, that was undone: the segments it had replaced are
    back.

    ``size_bytes`` are those of the segments that went and that came. ``more`` are the names of the
    later lines of the same round, after the one with ``attempt``: those of its chunks.
    """

    partition: TopicPartition
    now_ms: int
    attempt: str
    segments: int
    size_bytes: tuple[int, int]
    document: dict[str, Any]
    more: tuple[str, ...] = ()


class VerdictReceipt(Struct, frozen=True):
    """A line about what ``verify`` said of rounds of earlier lines; nothing was changed then.

    ``rounds`` are their names; ``broken`` the names of the checks that were. ``judged_by`` None is
    of a data directory.
    """

    partition: TopicPartition
    now_ms: int
    verdict: Verdict
    rounds: tuple[str, ...]
    broken: tuple[str, ...]
    document: dict[str, Any]
    judged_by: JudgedBy | None = None

    @property
    def words(self) -> str:
        """Return the verdict, what is broken, when it was said, and of what where that varies."""
        broken = f": {', '.join(self.broken)}" if self.broken else ""
        by = "" if self.judged_by is None else f" ({self.judged_by.words})"
        return f"{self.verdict.value}{broken} {time_text(self.now_ms)}{by}"


Entry = (
    RoundReceipt
    | ExpiryReceipt
    | RemovalReceipt
    | ActionReceipt
    | CollectionReceipt
    | UndoReceipt
    | VerdictReceipt
)
RoundName = tuple[TopicPartition, str]
"""A round among all of a file."""
Line = TypeVar("Line")


def read_receipts(path: Path, files: FileSystem) -> tuple[RoundReceipt, ...]:
    """Return the rounds in a receipt file, in order; InvalidError when it is no receipt file."""
    return rounds_of(read_entries(path, files))


def rounds_of(entries: Sequence[Entry]) -> tuple[RoundReceipt, ...]:
    """Return the rounds, in order, each with what expired after it.

    Segments that expired before any round are no round's. A round that was undone is left out when
    a later one of its partition found the log as it did. Until then the files show how much of it
    is in place.
    """
    rounds: list[RoundReceipt] = []
    newest: dict[TopicPartition, int] = {}
    for entry in _without_undone(entries):
        if isinstance(entry, RoundReceipt):
            newest[entry.partition] = len(rounds)
            rounds.append(entry)
        elif isinstance(entry, ExpiryReceipt) and entry.partition in newest:
            at = newest[entry.partition]
            rounds[at] = replace(rounds[at], expired=rounds[at].expired.union(entry.bases))
    return tuple(rounds)


def subject_of(entry: Entry) -> RoundName | VerdictReceipt | None:
    """Return which round an entry is of, or which verdict it is, for :func:`beside_rounds`."""
    if isinstance(entry, RoundReceipt):
        return entry.partition, entry.name
    return entry if isinstance(entry, VerdictReceipt) else None


def _without_undone(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without rounds that were undone, as a later round has found.

    A line is an intent. Where that round has not found what the one before it found, the undo was
    not carried out, or not to its end.
    """
    left: list[Entry | None] = []
    at: dict[RoundName, int] = {}
    undone: dict[TopicPartition, list[list[int]]] = {}
    for entry in entries:
        if isinstance(entry, UndoReceipt) and (entry.partition, entry.attempt) in at:
            names = [(entry.partition, each) for each in (entry.attempt, *entry.more)]
            found = [at[name] for name in names if name in at]
            undone.setdefault(entry.partition, []).append(found)
        elif isinstance(entry, RoundReceipt):
            for indexes in undone.pop(entry.partition, ()):
                earlier = left[indexes[0]]
                if isinstance(earlier, RoundReceipt) and _finds_again(earlier, entry):
                    for index in indexes:
                        left[index] = None
            at[entry.partition, entry.name] = len(left)
        left.append(entry)
    return [entry for entry in left if entry is not None]


def _finds_again(earlier: RoundReceipt, later: RoundReceipt) -> bool:
    """Say whether a round found every closed segment that an earlier one had found."""
    sizes = {segment.base_offset: segment.size_bytes for segment in later.inputs}
    return all(sizes.get(each.base_offset) == each.size_bytes for each in earlier.inputs[:-1])


def beside_rounds(
    lines: Iterable[Line], subject: Callable[[Line], RoundName | VerdictReceipt | None]
) -> list[tuple[Line, VerdictReceipt | None]]:
    """Return ``lines`` without verdicts, and next to each round the verdict that counts of it.

    ``subject`` says which round a line is of, or which verdict it is. The newest verdict counts;
    one that could not judge does not take the place of one that could. A verdict about no earlier
    line stays a line: its rounds were put aside, or more waves of them came since.
    """
    found: list[tuple[Line, VerdictReceipt | None]] = []
    at: dict[RoundName, int] = {}
    for line in lines:
        about = subject(line)
        if isinstance(about, VerdictReceipt):
            names = ((about.partition, name) for name in about.rounds)
            judged = [at[name] for name in names if name in at]
            for index in judged:
                round_, known = found[index]
                if known is None or about.verdict is not Verdict.UNJUDGED:
                    found[index] = round_, about
            if judged:
                continue
        elif about is not None:
            at[about] = len(found)
        found.append((line, None))
    return found


def last_line(files: FileSystem, path: Path) -> bytes | None:
    """Return the last whole line, newline included; None where there is none.

    ValueError when it is longer than :data:`LINE_BYTES_MAX`.
    """
    with reading(files, path) as handle:
        size, length = handle.size_bytes, LINE_BYTES
        while True:
            data = bytearray(min(length, size))
            del data[handle.pread_into(memoryview(data), size - len(data)) :]
            lines = bytes(data).split(b"\n")
            # A crash cut off what stands after the last newline, and what stands before the first
            # one may lack its beginning.
            whole = lines[:-1] if len(data) == size else lines[1:-1]
            if whole:
                return whole[-1] + b"\n"
            if length >= size:
                return None
            if length >= LINE_BYTES_MAX:
                raise ValueError("no whole line")
            length *= 4


def read_chain(path: Path, files: FileSystem, kept: ChainHead | None = None) -> ChainReport:
    """Return what the chain of a receipt file proves; ``kept`` is a head that lay elsewhere.

    A line that a crash cut off is left out.
    """
    return check_chain(read_whole_lines(path, files), kept)


def read_whole_lines(path: Path, files: FileSystem) -> list[bytes]:
    """Return the lines of a receipt file, newlines included, without what a crash cut off."""
    return whole_lines(files.read_bytes(path.resolve(), BYTES_MAX))


def whole_lines(data: bytes) -> list[bytes]:
    """Return the whole lines of ``data``, newlines included."""
    whole = data.rpartition(b"\n")[0]
    return [line + b"\n" for line in whole.split(b"\n")] if whole else []


def read_entries(path: Path, files: FileSystem) -> tuple[Entry, ...]:
    """Return the entries of a receipt file, in order: a round once, for all of its waves.

    InvalidError when it is no receipt file.
    """
    # A file that the user names may be a link.
    whole, _, _ = files.read_bytes(path.resolve(), BYTES_MAX).rpartition(b"\n")
    receipts: dict[object, Entry] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            entry = parse_entry(line)
            name: object = number
            if isinstance(entry, RoundReceipt) and entry.attempt is not None:
                name = (entry.partition, entry.attempt)
                # A round stands where its newest wave does.
                earlier = receipts.pop(name, None)
                if isinstance(earlier, RoundReceipt):
                    entry = join_waves(earlier, entry)
            receipts[name] = entry
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidError(
                f"not a receipt; give the file that clean --receipt wrote. path={path} "
                f"line={number} problem={type(error).__name__}: {error}",
                code="K620",
            ) from error
    if not receipts:
        raise InvalidError(
            f"no whole receipt in the file; give another one. path={path}", code="K620"
        )
    return tuple(receipts.values())


def parse_entry(line: bytes) -> Entry:
    """Return the entry of one line; ValueError, KeyError, TypeError or their like for no entry."""
    return _entry(json.loads(line))


def join_waves(earlier: RoundReceipt, wave: RoundReceipt) -> RoundReceipt:
    """Return the lines of a round so far and its next one as one."""
    return _receipt(_join(earlier.document, wave.document))


def _join(earlier: dict[str, Any], wave: dict[str, Any]) -> dict[str, Any]:
    """Return the lines of a round so far and its next one as one."""
    seen = {segment["base"]: segment for segment in wave["inputs"]}
    round_ = dict(wave["round"])
    round_["groups"] = [*(earlier["round"].get("groups") or ()), *(round_.get("groups") or ())]
    return {
        **earlier,
        **wave,
        "inputs": [seen.get(segment["base"], segment) for segment in earlier["inputs"]],
        "outputs": [*earlier["outputs"], *wave["outputs"]],
        "round": round_,
    }


def _action(document: dict[str, Any]) -> ActionReceipt:
    found, topic = document["action"], document["topic"]
    return ActionReceipt(
        partition=None if topic is None else TopicPartition(str(topic), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        words=f"{found['name']}, asked for by {found['by']}",
        document=document,
    )


def _removal(document: dict[str, Any]) -> RemovalReceipt:
    found = document["removal"]
    return RemovalReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        start=int(found["start"]),
        end=int(found["end"]),
        document=document,
    )


def _collection(document: dict[str, Any]) -> CollectionReceipt:
    found = document["collection"]
    return CollectionReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        start=int(found["start"]),
        end=int(found["end"]),
        segments=int(found["segments"]),
        size_bytes=int(found["bytes"]),
        document=document,
    )


def _undo(document: dict[str, Any]) -> UndoReceipt:
    found = document["undo"]
    replaced, restored = (
        [int(segment["bytes"]) for segment in found[name]] for name in ("replaced", "restored")
    )
    return UndoReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        attempt=str(found["attempt"]),
        segments=len(restored),
        size_bytes=(sum(replaced), sum(restored)),
        document=document,
        more=tuple(str(each) for each in found.get("more", ())),
    )


def _verdict(document: dict[str, Any]) -> VerdictReceipt:
    found = document["verdict"]
    return VerdictReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        verdict=Verdict(found["verdict"]),
        rounds=tuple(str(each) for each in found["rounds"]),
        broken=tuple(str(each) for each in found["broken"]),
        document=document,
        judged_by=None
        if "by" not in found
        else JudgedBy(str(found["by"]), int(found["epoch"]), int(found["clean_to"])),
    )


def _expiry(document: dict[str, Any]) -> ExpiryReceipt:
    found = document["expiry"]
    return ExpiryReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        log_start_before=int(found["log_start_before"]),
        log_start=int(found["log_start"]),
        bases=tuple(int(segment["base"]) for segment in found["segments"]),
        document=document,
    )


def _receipt(document: dict[str, Any]) -> RoundReceipt:
    config, found = document["config"], document["round"]
    producers = document.get("producers")
    return RoundReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        delete_retention_ms=int(config["delete.retention.ms"]),
        min_compaction_lag_ms=int(config["min.compaction.lag.ms"]),
        first_dirty=int(found["first_dirty"]),
        bound=int(found["bound"]),
        end_offset=int(found["end_offset"]),
        inputs=tuple(
            SegmentEntry(int(s["base"]), int(s["bytes"]), int(s["mtime_ms"]), None, s.get("crc32c"))
            for s in document["inputs"]
        ),
        outputs=tuple(
            SegmentEntry(
                int(s["base"]),
                int(s["bytes"]),
                None,
                int(s["batches"]),
                s.get("crc32c"),
                tuple(int(base) for base in s["sources"]),
            )
            for s in document["outputs"]
        ),
        producers=None
        if producers is None
        else tuple((int(a), int(b), int(c)) for a, b, c in producers),
        messages_written=int(found["stats"]["messages_written"]),
        document=document,
        strategy=Strategy(config.get("compaction.strategy", Strategy.OFFSET)),
        strategy_header=config.get("compaction.strategy.header"),
        attempt=None if document.get("attempt") is None else str(document["attempt"]),
        has_ended=bool(document.get("is_last", True)),
        clean_to=None if document.get("clean_to") is None else int(document["clean_to"]),
        readers=read_wait(document.get("readers")),
    )


_ENTRIES: dict[str, Callable[[dict[str, Any]], Entry]] = {
    "action": _action,
    "removal": _removal,
    "collection": _collection,
    "verdict": _verdict,
    "undo": _undo,
    "expiry": _expiry,
}
"""How a line is read that has this field; one without any is of a round."""


def _entry(document: dict[str, Any]) -> Entry:
    if document["version"] not in VERSIONS:
        raise ValueError(f"version {document['version']}")
    read = next((_ENTRIES[name] for name in _ENTRIES if name in document), _receipt)
    return read(document)


CLOCK_MS_MIN = 1000
"""Clocks are corrected by less all the time."""


def clock_notes(files: FileSystem, path: Path | None, now_ms: int) -> tuple[ClockBehind, ...]:
    """Return a note when ``now_ms`` lies before the last receipt, nothing when it does not.

    A host's clock was ahead then or is late now: what time removes went too early, or goes late. A
    file that is no receipt, or cannot be read, is its reader's and its writer's business.
    """
    if path is None:
        return ()
    try:
        last_ms = _last_ms(files, path.resolve())
    except (CompactionError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return (ClockBehind(path, last_ms, now_ms),) if last_ms - now_ms >= CLOCK_MS_MIN else ()


def _last_ms(files: FileSystem, path: Path) -> int:
    """Return the time of the last whole line; ValueError without one that is short enough."""
    line = last_line(files, path)
    if line is None:
        raise ValueError("no whole line")
    return int(json.loads(line)["now_ms"])
