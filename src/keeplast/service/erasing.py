"""Searches logs for keys that must go: the answer of ``keeplast erase``, of any place of logs.

A place says how its logs are opened, what lies beside them, and by when traces are gone from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from keeplast.config.selection import Selection
from keeplast.errors import CompactionError, StoppedError, UnavailableError
from keeplast.inspect.erasure_search import (
    LOOKS_MAX,
    BesideLog,
    PartitionSearch,
    WantedKeys,
    is_marked_of,
    search_directories,
    search_marked,
    search_partition,
)
from keeplast.inspect.explain import KeyExplanation, explain_records, look_for_keys, rankings_of
from keeplast.inspect.key_search import KeyRecord
from keeplast.inspect.traces import LastTrace, trace_words
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.read.transaction_outcomes import TransactionOutcome
from keeplast.rewrite.workspace import Workspace
from keeplast.service.erasure_answer import ErasedKey, ErasureAnswer, ErasureKeys, KeyPlace
from keeplast.service.trace_bounds import TraceBounds
from keeplast.survey.log_bounds import Checkpoints, load_checkpoints
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest

SearchBeside = Callable[[WantedKeys], tuple[list[BesideLog], int]]
"""Searches files that are no log in service, and says how many it looked into."""
OUT_OF_SERVICE_WORDS = (
    "in a directory out of service, whose partition is not here: it goes when a broker, or "
    "somebody, removes it"
)


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """One log as it is searched.

    ``request`` has the offsets of a round that counts as the next one, ``checkpoints`` reads those
    that count. ``beside`` searches what else was of the log, and says how many files that were.
    """

    partition: PartitionRequest
    files: FileSystem
    request: CleanRequest
    checkpoints: Callable[[], Checkpoints]
    beside: SearchBeside


class TraceDates(Protocol):
    """By when traces are gone from a place of logs; ``beside_words`` says how from beside one."""

    beside_words: str

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return by when all that is overwritten now is gone, None when nobody knows."""
        ...

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone from its log."""
        ...


def find_traces(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    keys: ErasureKeys,
    *,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> ErasureAnswer:
    """Search the chosen partitions of a data directory; takes no lock and writes nothing.

    A partition that cannot be searched is among the faults. ``planned`` and ``progressed`` hear of
    the bytes that are read; what they raise ends the search, a StoppedError at the least.
    """
    bounds = TraceBounds(selection, files, now_ms)
    planned(sum(bounds.look.sizes[each.partition] for each in selection.partitions))
    directory = selection.directory
    logs = [
        SearchedLog(
            each, files, CleanRequest((), rolls_idle=True),
            partial(load_checkpoints, files, each.path.parent),
            partial(search_marked, directory, each.partition, files=files),
        )
        for each in selection.partitions
    ]  # fmt: skip
    return search_logs(
        logs, bounds, now_ms, keys, memory_bytes=memory_bytes, progressed=progressed,
        refused=_refused(selection), left_out=_left_out(selection), ignored=directory.ignored,
        warnings=bounds.look.warnings,
        out_of_service=tuple(
            (partition, partial(search_directories, entries, files=files))
            for partition, entries in _out_of_service(directory, keys.chosen_topics).items()
        ),
    )  # fmt: skip


def search_logs(
    logs: Sequence[SearchedLog],
    dates: TraceDates,
    now_ms: int,
    keys: ErasureKeys,
    *,
    memory_bytes: int,
    progressed: Callable[[int], None],
    refused: Sequence[tuple[TopicPartition, Exception]] = (),
    left_out: tuple[tuple[TopicPartition, str], ...] = (),
    ignored: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    out_of_service: Sequence[tuple[TopicPartition, SearchBeside]] = (),
) -> ErasureAnswer:
    """Search each of ``logs``; what fails is among the faults of the answer, as are ``refused``.

    ``out_of_service`` search what is left of partitions that have no log any more.
    """
    workspace, wanted = Workspace(memory_bytes), keys.wanted()
    searches: list[PartitionSearch] = []
    places: dict[str, list[KeyPlace]] = {each: [] for each in keys.topics}
    problems: list[tuple[TopicPartition, BesideLog]] = []
    faults = list(refused)
    clean_to: dict[TopicPartition, int | None] = {}
    searched_beside = 0
    for log in logs:
        partition = log.partition.partition
        try:
            found, told = _search(log, now_ms, wanted, workspace, progressed)
            elsewhere, count = log.beside(wanted)
        except StoppedError:
            raise
        except (CompactionError, OSError) as error:
            faults.append((partition, error))
            continue
        searches.append(found)
        searched_beside += count
        clean_to[partition] = told.clean_to
        beside = [*found.beside, *elsewhere]
        problems += [(partition, one) for one in beside if one.problem is not None]
        for key in {*found.records, *(key for one in beside for key in one.keys)}:
            name = keys.hash_in(key, partition.topic)
            if name is None:
                continue
            names = tuple(one.name for one in beside if key in one.keys)
            places[name].append(_place(partition, told.found.get(key), names, dates))
    for partition, beside_of in out_of_service:
        try:
            elsewhere, count = beside_of(wanted)
        except (CompactionError, OSError) as error:
            faults.append((partition, error))
            continue
        searched_beside += count
        problems += [(partition, one) for one in elsewhere if one.problem is not None]
        for key in {key for one in elsewhere for key in one.keys}:
            name = keys.hash_in(key, partition.topic)
            if name is not None:
                names = tuple(one.name for one in elsewhere if key in one.keys)
                places[name].append(
                    KeyPlace(partition, True, None, OUT_OF_SERVICE_WORDS, (), 0, names)
                )
    return ErasureAnswer(
        now_ms,
        tuple(
            ErasedKey(name, keys.lines.get(name), tuple(sorted(its, key=lambda e: e.partition)))
            for name, its in sorted(
                places.items(), key=lambda item: (keys.lines.get(item[0], 0), item[0])
            )
        ),
        tuple(searches), clean_to, tuple(problems), searched_beside, tuple(faults),
        left_out, ignored, warnings,
    )  # fmt: skip


def _out_of_service(
    directory: DataDirectory, topics: frozenset[str] | None
) -> dict[TopicPartition, list[PartitionEntry]]:
    """Return the directories out of service of partitions that have no other one here.

    ``topics`` None are all: of a topic that is gone nobody knows whether it was compacted.
    """
    in_service = [each.partition for each in directory.partitions if each.mark is None]
    found: dict[TopicPartition, list[PartitionEntry]] = {}
    for entry in directory.partitions:
        number, named = entry.partition.partition, entry.partition.topic
        of = [each for each in topics or (named,) if is_marked_of(entry, each)]
        has_log = any(
            each.partition == number and is_marked_of(entry, each.topic) for each in in_service
        )
        if of and not has_log:
            found.setdefault(TopicPartition(of[0], number), []).append(entry)
    return found


def _left_out(selection: Selection) -> tuple[tuple[TopicPartition, str], ...]:
    """Return the partitions that are not compacted, each with why it is not searched."""
    return tuple(
        (TopicPartition(each.topic, each.partition), each.rounds[-1].reason or "not compacted")
        for each in selection.decided
        if each.rounds[-1].failure is None
    )


def _refused(selection: Selection) -> list[tuple[TopicPartition, Exception]]:
    """Return the partitions of which nobody knows whether they are compacted."""
    return [
        (TopicPartition(each.topic, each.partition), each.rounds[-1].failure)
        for each in selection.decided
        if each.rounds[-1].failure is not None
    ]


@dataclass(frozen=True, slots=True)
class _KeysTold:
    """What was said of the keys that are in a log."""

    found: Mapping[bytes, KeyExplanation]
    clean_to: int | None


def _search(
    log: SearchedLog,
    now_ms: int,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Callable[[int], None],
) -> tuple[PartitionSearch, _KeysTold]:
    """Search a log and say what becomes of what is there, both of the same files."""
    partition, files = log.partition, log.files
    rankings = rankings_of(partition.topic, None)
    for _ in range(LOOKS_MAX):
        found = search_partition(
            partition.partition, partition.path, wanted, rankings, files, workspace, progressed
        )
        checkpoints = log.checkpoints()
        looked = look_for_keys(partition, log.request, checkpoints, files, now_ms)
        if found.is_of(looked.segments):
            told = {
                key: explain_records(looked, key, records, rankings, workspace)
                for key, records in found.records.items()
            }
            return found, _KeysTold(told, checkpoints.cleaner.get(partition.partition))
    raise UnavailableError(
        "the log changed each time that it was searched; run again when no round is under way. "
        f"partition={partition.partition} path={partition.path}"
    )


def _place(
    partition: TopicPartition,
    found: KeyExplanation | None,
    beside: tuple[str, ...],
    dates: TraceDates,
) -> KeyPlace:
    by_ms = dates.erased_by_ms(partition)
    if found is None:
        return KeyPlace(
            partition, True, by_ms, dates.beside_words, (), 0, beside,
        )  # fmt: skip
    records = [each.record for each in found.records]
    decided, why = _decision(found, records)
    trace = dates.last_trace(found)
    by = trace.by_ms
    if beside:
        by = None if by is None or by_ms is None else max(by, by_ms)
    return KeyPlace(
        partition, decided, by if decided else None, why or trace_words(found, trace),
        tuple((each.segment, each.offset) for each in records),
        sum(each.is_tombstone for each in records), beside, _may_go_from(found),
    )  # fmt: skip


def _may_go_from(found: KeyExplanation) -> int | None:
    """Return from when on rounds may take every record; None where one stays, or no clock tells."""
    times = [each.fate.from_ms for each in found.records]
    goes = all(each.fate.verdict is not None for each in found.records)
    known = [each for each in times if each is not None]
    return max(known) if goes and known and len(known) == len(times) else None


def _decision(found: KeyExplanation, records: Sequence[KeyRecord]) -> tuple[bool, str]:
    """Return whether the key's delete is decided in a log, and why not."""
    if any(each.outcome is TransactionOutcome.OPEN for each in records):
        return False, "a transaction with the key is open; what it ends in decides"
    winner = found.winners[found.topic.strategy]
    if winner is None or all(each.is_tombstone for each in records if each.offset == winner):
        return True, ""
    return (
        False,
        f"a value wins (offset {winner}): write a tombstone for the key, to this partition",
    )
