"""Searches logs for keys that must go: the answer of ``keeplast erase keys``, of any place of logs.

A place says how its logs are opened, what lies next to them, and by when traces are gone from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.config.selection import Selection
from keeplast.errors import UnavailableError
from keeplast.inspect.erasure_search import (
    ForeignPath,
    PartitionSearch,
    search_foreign,
    search_partition,
)
from keeplast.inspect.explain import KeyExplanation, explain_records, look_for_keys, rankings_of
from keeplast.inspect.fates import Outlook
from keeplast.inspect.key_search import KeyRecord
from keeplast.inspect.remains import (
    LOOKS_MAX,
    Remains,
    WantedKeys,
    is_marked_of,
    marked_of,
    search_out_of_service,
    searched_files,
)
from keeplast.inspect.traces import LastTrace, TraceKind, hold_words, later_of, trace_words
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
from keeplast.service.search_tasks import AskableLog, Progressed, SearchRunner, ask_each, attempt
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.group_offsets import ReaderOffsets, ask_ahead
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest

if TYPE_CHECKING:
    # Who searches a directory has no packages of a live cluster's.
    from keeplast.attach.answers.erasure import AttachedTraces

SearchRemains = Callable[[WantedKeys], list[Remains]]
"""Searches what is no part of a log in service."""
OUT_OF_SERVICE_WORDS = (
    "in a directory out of service, whose partition is not here: it goes when a broker, or "
    "somebody, removes it"
)


CompleteSearch = Callable[["SearchedLog", WantedKeys], "SearchedLog"]
"""Completes what was found of a log by what the caller alone can ask."""


class Search(Struct, frozen=True):
    """What is searched for, as of when, and with what; ``progressed`` hears of bytes read."""

    wanted: WantedKeys
    now_ms: int
    workspace: Workspace
    progressed: Callable[[int], None]


class SearchedLog(Struct, frozen=True):
    """What there is of the keys in one partition, and what becomes of it.

    ``search`` is of its log and what lies next to it, None where it has none; ``explained`` is of
    every key that is in the log. ``remains`` lie elsewhere, ``words`` say how they go where there
    is no log. ``unseen`` says what of the partition cannot be searched from here. ``tiered`` is the
    same of a live cluster's remote tier.
    """

    search: PartitionSearch | None
    explained: Mapping[bytes, KeyExplanation] = field(default_factory=dict)
    clean_to: int | None = None
    remains: tuple[Remains, ...] = ()
    words: str | None = None
    unseen: tuple[str, ...] = ()
    tiered: AttachedTraces | None = None

    @property
    def all_remains(self) -> tuple[Remains, ...]:
        """Return all that is no part of the log, what lies next to it first."""
        return self.remains if self.search is None else (*self.search.remains, *self.remains)


class SearchableLog(AskableLog, Protocol):
    """A partition that can be searched, wherever it lies."""

    def search(self, asked: Search) -> SearchedLog:
        """Search all of it; CompactionError or OSError when that cannot be done."""


class FileLog(Struct, frozen=True):
    """A log of segment files.

    ``request`` has the offsets of a round that counts as the next one, ``checkpoints`` reads those
    that count. ``remains`` searches what else was of the log, elsewhere than in its directory.
    ``readers`` read the groups that tombstones wait for, None where files next to the log do. How
    far the log is clean is passed on unless ``shows_clean_to`` is False.
    """

    log: PartitionRequest
    files: FileSystem
    request: CleanRequest
    checkpoints: Callable[[], Checkpoints]
    remains: SearchRemains
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
            remains = tuple(self.remains(asked.wanted))
            clean_to = checkpoints.cleaner.get(log.partition) if self.shows_clean_to else None
            return SearchedLog(found, explained, clean_to, remains)
        raise UnavailableError(
            "the log changed each time that it was searched; run again when no round is under way. "
            f"partition={log.partition} path={log.path}",
            code="K234",
        )


class LogRemains(Struct, frozen=True):
    """A partition without a log: ``remains`` searches what is left, ``words`` say how that goes."""

    partition: TopicPartition
    remains: SearchRemains
    words: str

    def search(self, asked: Search) -> SearchedLog:
        """Search what is left."""
        return SearchedLog(None, remains=tuple(self.remains(asked.wanted)), words=self.words)


class TraceDates(Protocol):
    """By when traces are gone from a place of logs.

    ``undecided_words`` say what is to be done where a value wins.
    """

    undecided_words: str

    def erased_words(self, partition: TopicPartition) -> str:
        """Return what the end of all that is overwritten now rests on, or why none is known."""

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone from its log."""

    def remains_trace(
        self, partition: TopicPartition, remains: Sequence[Remains]
    ) -> tuple[int | None, int | None, str]:
        """Return from when on what is no part of a log may go, by when it is gone, and how it goes.

        A time is None where no clock decides it, or it is not known.
        """


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
            partial(search_out_of_service, marked_of(marked, each.partition), files=files),
            ask_ahead(brokers, each, files, now_ms),
        )
        for each in selection.partitions
    ]  # fmt: skip
    logs += [
        LogRemains(
            partition, partial(search_out_of_service, entries, files=files), OUT_OF_SERVICE_WORDS
        )
        for partition, entries in out_of_service(directory, keys.chosen_topics).items()
    ]
    answer = search_logs(
        logs, bounds, now_ms, keys, memory_bytes=memory_bytes, progressed=progressed,
        refused=refused(selection), left_out=uncompacted(selection),
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
    problems: list[tuple[TopicPartition, Remains]] = []
    faults = list(refused)
    unseen: list[tuple[TopicPartition, str]] = []
    clean_to: dict[TopicPartition, int | None] = {}
    files_searched = 0
    here = completing or {}
    search = partial(_search, keys, now_ms)
    results = ask_each(list(logs), search, memory_bytes, lambda _: None, progressed, runner, roots)
    for partition, found in sorted(results, key=lambda each: each[0]):
        if not isinstance(found, Exception) and partition in here:
            found = attempt(partial(here[partition], found, keys.wanted()))
        if isinstance(found, Exception):
            faults.append((partition, found))
            continue
        if found.search is not None:
            searches.append(found.search)
            clean_to[partition] = found.clean_to
        files_searched += searched_files(found.remains)
        problems += [(partition, one) for one in found.all_remains if one.problem is not None]
        unseen += [(partition, words) for words in found.unseen]
        for key in {*found.explained, *(key for one in found.all_remains for key in one.keys)}:
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
        tuple(searches), clean_to, tuple(problems), files_searched, tuple(faults),
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


def no_remains(wanted: WantedKeys) -> list[Remains]:
    """Search nothing: what is no part of the log is searched elsewhere."""
    return []


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


def uncompacted(selection: Selection) -> tuple[tuple[TopicPartition, str], ...]:
    """Return the partitions that are not compacted, each with why it is not searched."""
    return tuple(
        (TopicPartition(each.topic, each.partition), each.rounds[-1].reason or "not compacted")
        for each in selection.decided
        if each.rounds[-1].failure is None
    )


def refused(selection: Selection) -> list[tuple[TopicPartition, Exception]]:
    """Return the partitions whose topic is refused, as where its cleanup policy is not known."""
    return [
        (TopicPartition(each.topic, each.partition), each.rounds[-1].failure)
        for each in selection.decided
        if each.rounds[-1].failure is not None
    ]


def _place(
    partition: TopicPartition, key: bytes, searched: SearchedLog, dates: TraceDates
) -> KeyPlace:
    remains = [one for one in searched.all_remains if key in one.keys]
    titles = tuple(one.title for one in remains)
    found = searched.explained.get(key)
    if found is None and searched.words is not None:
        return KeyPlace(partition, True, None, searched.words, (), 0, titles)
    from_ms, gone_ms, words = (
        dates.remains_trace(partition, remains) if remains else (None, None, "")
    )
    if found is None:
        return KeyPlace(partition, True, gone_ms, words, (), 0, titles, from_ms)
    records = [each.record for each in found.records]
    decided, why = _decision(found, records, dates.undecided_words)
    trace = dates.last_trace(found)
    by_ms = later_of(trace.by_ms, gone_ms) if remains else trace.by_ms
    if not why:
        # What a whole log goes by stands next to a key's trace elsewhere; here it is all there is.
        has_bound = trace.kind is not TraceKind.NO_BOUND
        why = trace_words(found, trace) if has_bound else dates.erased_words(partition)
    waits = _waits_for(found)
    parts = (why, waits and f"it waits: {waits}", words and f"also {words}")
    return KeyPlace(
        partition, decided, by_ms if decided else None, "; ".join(filter(None, parts)),
        tuple((each.segment, each.offset) for each in records),
        sum(each.is_tombstone for each in records), titles, _may_go_from(found),
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
