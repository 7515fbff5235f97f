"""Searches logs for keys that must go: the answer of ``keeplast erase keys``, of any place of logs.

A place says how its logs are opened, what lies next to them, and by when traces are gone from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keeplast.config.selection import Selection
from keeplast.errors import CompactionError, StoppedError, UnavailableError
from keeplast.inspect.erasure_search import (
    LOOKS_MAX,
    BesideLog,
    PartitionSearch,
    WantedKeys,
    is_marked_of,
    marked_of,
    search_directories,
    search_partition,
)
from keeplast.inspect.explain import KeyExplanation, explain_records, look_for_keys, rankings_of
from keeplast.inspect.fates import Outlook
from keeplast.inspect.key_search import KeyRecord
from keeplast.inspect.remains import ForeignPath, search_foreign
from keeplast.inspect.traces import LastTrace, TraceKind, hold_words, trace_words
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.model.hold import GroupReader
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.read.transactions import TransactionOutcome
from keeplast.rewrite.workspace import Workspace
from keeplast.service.erasure.erasure_answer import (
    ErasedKey,
    ErasureAnswer,
    ErasureKeys,
    KeyPlace,
    foreign_files,
    is_like_log,
)
from keeplast.service.erasure.foreign_paths import foreign_in_directory
from keeplast.service.erasure.trace_bounds import TraceBounds
from keeplast.service.search_tasks import Progressed, SearchRunner, ask_each
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.group_offsets import ReaderOffsets, ask_ahead
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest

if TYPE_CHECKING:
    # Who searches a directory has no packages of a live cluster's.
    from keeplast.attach.answers.erasure import AttachedTraces

SearchBeside = Callable[[WantedKeys], tuple[list[BesideLog], int]]
"""Searches files that are no log in service, and says how many it looked into."""
OUT_OF_SERVICE_WORDS = (
    "in a directory out of service, whose partition is not here: it goes when a broker, or "
    "somebody, removes it"
)


CompleteSearch = Callable[["SearchedLog", WantedKeys], "SearchedLog"]
"""Completes what was found of a log by what the caller alone can ask."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for, as of when, and with what; ``progressed`` hears of bytes read."""

    wanted: WantedKeys
    now_ms: int
    workspace: Workspace
    progressed: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """What there is of the keys in one partition, and what becomes of it.

    ``search`` is of its log, None where it has none; ``explained`` is of every key that is in the
    log. ``beside`` is what else was found or could not be searched, of ``searched_beside`` files,
    ``beside_words`` says how it goes where there is no log. ``unseen`` says what of the partition
    cannot be searched from here. ``tiered`` is the same of a live cluster's remote tier.
    """

    search: PartitionSearch | None
    explained: Mapping[bytes, KeyExplanation] = field(default_factory=dict)
    clean_to: int | None = None
    beside: tuple[BesideLog, ...] = ()
    searched_beside: int = 0
    beside_words: str | None = None
    unseen: tuple[str, ...] = ()
    tiered: AttachedTraces | None = None

    def with_beside(self, found: Iterable[BesideLog], count: int) -> SearchedLog:
        """Return it with what else was found, in ``count`` files more."""
        return replace(
            self, beside=(*self.beside, *found), searched_beside=self.searched_beside + count
        )


class SearchableLog(Protocol):
    """A partition that can be searched, wherever it lies."""

    @property
    def partition(self) -> TopicPartition:
        """Return which one it is."""

    def search(self, asked: Search) -> SearchedLog:
        """Search all of it; CompactionError or OSError when that cannot be done."""


@dataclass(frozen=True, slots=True)
class FileLog:
    """A log of segment files.

    ``request`` has the offsets of a round that counts as the next one, ``checkpoints`` reads those
    that count. ``beside`` searches what else was of the log, and says how many files that were.
    ``readers`` read the groups that tombstones wait for, None where files next to the log do. How
    far the log is clean is passed on unless ``shows_clean_to`` is False.
    """

    log: PartitionRequest
    files: FileSystem
    request: CleanRequest
    checkpoints: Callable[[], Checkpoints]
    beside: SearchBeside
    readers: ReaderOffsets | None = None
    shows_clean_to: bool = True

    @property
    def partition(self) -> TopicPartition:
        """Return which one it is."""
        return self.log.partition

    def search(self, asked: Search) -> SearchedLog:
        """Search the log and say what becomes of what is there, both of the same files."""
        log, files, workspace = self.log, self.files, asked.workspace
        rankings = rankings_of(log.topic, None)
        for _ in range(LOOKS_MAX):
            found = search_partition(
                log.partition, log.path, asked.wanted, rankings, files, workspace,
                asked.progressed,
            )  # fmt: skip
            checkpoints = self.checkpoints()
            looked = look_for_keys(
                log, self.request, checkpoints, files, asked.now_ms, self.readers
            )  # fmt: skip
            if not found.is_of(looked.segments):
                continue
            explained = {
                key: explain_records(looked, key, records, rankings, workspace)
                for key, records in found.records.items()
            }
            elsewhere, count = self.beside(asked.wanted)
            clean_to = checkpoints.cleaner.get(log.partition) if self.shows_clean_to else None
            return SearchedLog(found, explained, clean_to, (*found.beside, *elsewhere), count)
        raise UnavailableError(
            "the log changed each time that it was searched; run again when no round is under way. "
            f"partition={log.partition} path={log.path}",
            code="K234",
        )


@dataclass(frozen=True, slots=True)
class LeftBeside:
    """A partition without a log: ``beside`` searches what is left, ``words`` say how that goes."""

    partition: TopicPartition
    beside: SearchBeside
    words: str

    def search(self, asked: Search) -> SearchedLog:
        """Search what is left."""
        found, count = self.beside(asked.wanted)
        return SearchedLog(
            None, beside=tuple(found), searched_beside=count, beside_words=self.words
        )


class TraceDates(Protocol):
    """By when traces are gone from a place of logs.

    ``undecided_words`` say what is to be done where a value wins.
    """

    undecided_words: str

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return by when all that is overwritten now is gone, None when that is not known."""

    def erased_words(self, partition: TopicPartition) -> str:
        """Return what that rests on, or why it is not known."""

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone from its log."""

    def beside_from_ms(self, partition: TopicPartition, names: Sequence[str]) -> int | None:
        """Return from when on files next to a log may go, None where no clock decides it."""

    def beside_trace(
        self, partition: TopicPartition, names: Sequence[str]
    ) -> tuple[int | None, str]:
        """Return by when files next to a log are gone, None if not known, and how they go."""


def find_traces(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    keys: ErasureKeys,
    *,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
    brokers: GroupReader | None = None,
) -> ErasureAnswer:
    """Search the chosen partitions of a data directory; takes no lock and writes nothing.

    With ``runner`` its tasks read the logs, each of them one. ``brokers`` read what consumer groups
    have committed, None where files do. A partition that cannot be searched is among the faults.
    ``planned`` and ``progressed`` hear of the bytes that are read; what they raise ends the search,
    a StoppedError at the least.
    """
    bounds = TraceBounds(selection, files, now_ms, brokers=brokers)
    planned(sum(bounds.look.sizes[each.partition] for each in selection.partitions))
    directory = selection.directory
    marked = [each for each in directory.partitions if each.mark is not None]
    logs: list[SearchableLog] = [
        FileLog(
            each, files, CleanRequest((), rolls_idle=True),
            partial(load_checkpoints, files, each.path.parent),
            partial(search_directories, marked_of(marked, each.partition), files=files),
            ask_ahead(brokers, each, files, now_ms),
        )
        for each in selection.partitions
    ]  # fmt: skip
    logs += [
        LeftBeside(
            partition, partial(search_directories, entries, files=files), OUT_OF_SERVICE_WORDS
        )
        for partition, entries in out_of_service(directory, keys.chosen_topics).items()
    ]
    answer = search_logs(
        logs, bounds, now_ms, keys, memory_bytes=memory_bytes, progressed=progressed,
        refused=_refused(selection), left_out=_left_out(selection),
        warnings=bounds.look.warnings, runner=runner, roots=(directory.root,),
    )  # fmt: skip
    topics = () if keys.chosen_topics is None else tuple(sorted(keys.chosen_topics))
    searched = _searched_names(selection, marked, keys.chosen_topics)
    partitions = {each.path.name for each in directory.partitions}

    def has_log_name(name: str) -> bool:
        top = name.split("/", 1)[0]
        return top not in partitions and is_like_log(top, topics)

    return with_foreign(
        answer, lambda: foreign_in_directory(directory, searched, files), keys, has_log_name,
        planned=planned, progressed=progressed,
    )  # fmt: skip


def _searched_names(
    selection: Selection, marked: Iterable[PartitionEntry], topics: frozenset[str] | None
) -> frozenset[str]:
    """Return the names of the directories in which every file that was a log is searched."""
    numbers = {each.partition for each in selection.partitions}
    out = {
        entry.path.name
        for entry in marked
        if any(entry in marked_of((entry,), each) for each in numbers)
    }
    left = out_of_service(selection.directory, topics).values()
    return frozenset(
        {each.path.name for each in selection.partitions}
        | out
        | {entry.path.name for entries in left for entry in entries}
    )


def with_foreign(
    answer: ErasureAnswer,
    listed: Callable[[], Iterable[ForeignPath]],
    keys: ErasureKeys,
    has_log_name: Callable[[str], bool] = lambda name: False,
    *,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> ErasureAnswer:
    """Search the paths of unknown name that ``listed`` gives, after the logs.

    A path that could not be searched is in a certificate's way if ``has_log_name`` is true of it.
    """
    found = search_foreign(listed, keys.wanted(), planned=planned, progressed=progressed)
    return replace(
        answer, foreign=foreign_files(found, keys, has_log_name), foreign_searched=found.searched
    )


def search_logs(
    logs: Iterable[SearchableLog],
    dates: TraceDates,
    now_ms: int,
    keys: ErasureKeys,
    *,
    memory_bytes: int,
    progressed: Callable[[int], None],
    refused: Sequence[tuple[TopicPartition, Exception]] = (),
    left_out: tuple[tuple[TopicPartition, str], ...] = (),
    warnings: tuple[str, ...] = (),
    runner: SearchRunner | None = None,
    roots: Iterable[Path] = (),
    completing: Mapping[TopicPartition, CompleteSearch] | None = None,
) -> ErasureAnswer:
    """Search each of ``logs``; what fails is among the faults of the answer, as are ``refused``.

    With ``runner`` its tasks do it, which see ``roots``: logs and keys are sent to them. What is in
    ``completing`` stays with the caller, after the logs.
    """
    searches: list[PartitionSearch] = []
    places: dict[str, list[KeyPlace]] = {each: [] for each in keys.topics}
    problems: list[tuple[TopicPartition, BesideLog]] = []
    faults = list(refused)
    unseen: list[tuple[TopicPartition, str]] = []
    clean_to: dict[TopicPartition, int | None] = {}
    searched_beside = 0
    here = completing or {}
    search = partial(_search, keys, now_ms)
    results = ask_each(list(logs), search, memory_bytes, lambda _: None, progressed, runner, roots)
    for partition, found in sorted(results, key=lambda each: each[0]):
        if not isinstance(found, Exception) and partition in here:
            found = _completed(found, here[partition], keys.wanted())
        if isinstance(found, Exception):
            faults.append((partition, found))
            continue
        if found.search is not None:
            searches.append(found.search)
            clean_to[partition] = found.clean_to
        searched_beside += found.searched_beside
        problems += [(partition, one) for one in found.beside if one.problem is not None]
        unseen += [(partition, words) for words in found.unseen]
        for key in {*found.explained, *(key for one in found.beside for key in one.keys)}:
            name = keys.hash_in(key, partition.topic)
            if name is not None:
                places[name].append(_place(partition, key, found, dates))
    return ErasureAnswer(
        now_ms,
        tuple(
            ErasedKey(name, keys.lines.get(name), tuple(sorted(its, key=lambda e: e.partition)))
            for name, its in sorted(
                places.items(), key=lambda item: (keys.lines.get(item[0], 0), item[0])
            )
        ),
        tuple(searches), clean_to, tuple(problems), searched_beside, tuple(faults),
        left_out, warnings=warnings, unseen=tuple(unseen),
    )  # fmt: skip


def _search(
    keys: ErasureKeys,
    now_ms: int,
    log: SearchableLog,
    workspace: Workspace,
    planned: Progressed,
    progressed: Progressed,
) -> SearchedLog:
    """Search one log for ``keys`` as of ``now_ms``; its bytes were planned before."""
    return log.search(Search(keys.wanted(), now_ms, workspace, progressed))


def nothing_beside(wanted: WantedKeys) -> tuple[list[BesideLog], int]:
    """Search nothing: what lies next to the log is searched elsewhere."""
    return [], 0


def _completed(
    found: SearchedLog, complete: CompleteSearch, wanted: WantedKeys
) -> SearchedLog | Exception:
    """Return a log with what else was found of it, or why that could not be searched."""
    try:
        return complete(found, wanted)
    except StoppedError:
        raise
    except (CompactionError, OSError) as error:
        return error


def out_of_service(
    directory: DataDirectory, topics: frozenset[str] | None
) -> dict[TopicPartition, list[PartitionEntry]]:
    """Return the directories out of service of partitions that have no other one here.

    ``topics`` None are all: whether a topic that is gone was compacted is not known.
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
    """Return the partitions whose cleanup policy is not known."""
    return [
        (TopicPartition(each.topic, each.partition), each.rounds[-1].failure)
        for each in selection.decided
        if each.rounds[-1].failure is not None
    ]


def _place(
    partition: TopicPartition, key: bytes, searched: SearchedLog, dates: TraceDates
) -> KeyPlace:
    beside = tuple(one.name for one in searched.beside if key in one.keys)
    found = searched.explained.get(key)
    beside_from_ms = dates.beside_from_ms(partition, beside) if beside else None
    if found is None and searched.beside_words is not None:
        return KeyPlace(partition, True, None, searched.beside_words, (), 0, beside, beside_from_ms)
    if found is None:
        by_ms, words = dates.beside_trace(partition, beside)
        return KeyPlace(partition, True, by_ms, words, (), 0, beside, beside_from_ms)
    records = [each.record for each in found.records]
    decided, why = _decision(found, records, dates.undecided_words)
    trace = dates.last_trace(found)
    by, words = trace.by_ms, ""
    if beside:
        beside_by_ms, words = dates.beside_trace(partition, beside)
        by = None if by is None or beside_by_ms is None else max(by, beside_by_ms)
    if not why:
        # What a whole log goes by stands next to a key's trace elsewhere; here it is all there is.
        has_bound = trace.kind is not TraceKind.NO_BOUND
        why = trace_words(found, trace) if has_bound else dates.erased_words(partition)
    waits = _waits_for(found)
    parts = (why, waits and f"it waits: {waits}", words and f"also {words}")
    return KeyPlace(
        partition, decided, by if decided else None, "; ".join(filter(None, parts)),
        tuple((each.segment, each.offset) for each in records),
        sum(each.is_tombstone for each in records), beside, _may_go_from(found),
    )  # fmt: skip


def _may_go_from(found: KeyExplanation) -> int | None:
    """Return from when on rounds may take every record; None if one stays or no clock decides."""
    times = [each.fate.from_ms for each in found.records]
    goes = all(each.fate.verdict is not None for each in found.records)
    known = [each for each in times if each is not None]
    return max(known) if goes and known and len(known) == len(times) else None


def _waits_for(found: KeyExplanation) -> str | None:
    """Say what the record waits for that goes last, None where none has to wait."""
    later = [each.fate for each in found.records if each.fate.outlook is Outlook.GOES_LATER]
    last = max(later, key=lambda fate: INT64_MAX if fate.from_ms is None else fate.from_ms,
               default=None)  # fmt: skip
    return None if last is None else hold_words(last, found.topic.delete_retention_ms)


def _decision(found: KeyExplanation, records: Sequence[KeyRecord], words: str) -> tuple[bool, str]:
    """Return whether the key's delete is decided in a log, and why not, ``words`` last."""
    if any(each.outcome is TransactionOutcome.OPEN for each in records):
        return False, "a transaction with the key is open; what it ends in decides"
    winner = found.winners[found.topic.strategy]
    if winner is None or all(each.is_tombstone for each in records if each.offset == winner):
        return True, ""
    return False, f"a value wins (offset {winner}): {words}"
