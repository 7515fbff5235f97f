"""Searches a store for keys that must go: the answer of ``keeplast erase keys``.

Live segments and replaced ones are read once; nothing is held and nothing changed. An object that
no row of the metadata names is told as a problem, whatever its name: nobody knows what is in it.
What a host has not copied yet is not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from keeplast.errors import CompactionError
from keeplast.inspect.erasure_search import BesideLog, WantedKeys, search_file
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.traces import LastTrace, find_last_trace
from keeplast.log.partition_log import list_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader, ToldGroups
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.receipt import Receipt
from keeplast.service.erasure.directory_erasing import ROUNDS_OF_NOW
from keeplast.service.erasure.erasing import (
    FileLog,
    LeftBeside,
    SearchableLog,
    SearchedLog,
    nothing_beside,
    search_logs,
    with_foreign,
)
from keeplast.service.erasure.erasure_answer import TOMBSTONE_WORDS, ErasureAnswer, ErasureKeys
from keeplast.service.erasure.foreign_paths import foreign_objects
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.tier_pace import tier_pace
from keeplast.store.erasure import TierErasure, TierPace
from keeplast.store.look import RemoteLook
from keeplast.store.readers import StoredReaders
from keeplast.store.tiered_store import StoreParts, TieredStore
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.tier.objects.object_store import (
    FILTER,
    ObjectStore,
    object_key,
    segment_of_key,
    topic_ids_of,
)
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, SegmentState

REPLACED_WORDS = "in replaced segments, until those are collected"
UNNAMED = "no row of the metadata names it: keeplast tier collect removes it once it is old enough"
STRANGE = "keeplast gave nothing this name, and nobody searched it: look whose it is, and remove it"
FORGOTTEN = "it was given up, and has objects: keeplast tier collect removes them"


class StoreDates:
    """By when traces are gone from a store that ``keeplast tier run`` goes on with."""

    undecided_words = TOMBSTONE_WORDS

    def __init__(self, opened: TieredStore, pace: TierPace, *, has_expired_rounds: bool) -> None:
        self._opened = opened
        self._pace = pace
        self._known: dict[TopicPartition, TierErasure] = {}
        self._has_expired_rounds = has_expired_rounds

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return by when all that is overwritten now is gone, None when nobody knows."""
        return self._erased_by(partition).by_ms

    def erased_words(self, partition: TopicPartition) -> str:
        """Return what that rests on, or why nobody knows."""
        return self._erased_by(partition).why

    def _erased_by(self, partition: TopicPartition) -> TierErasure:
        if partition not in self._known:
            # It reads what segments say of their tombstones: once for all keys.
            self._known[partition] = self._opened.erased_by(partition, self._pace)
        return self._known[partition]

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone, replaced segments included."""
        pace = self._pace
        return find_last_trace(
            found, erased_by_ms=self.erased_by_ms(found.partition),
            turn_ms=2 * pace.pass_ms + pace.left_ms(found.topic.undo_retention_ms),
            has_expired_rounds=self._has_expired_rounds,
        )  # fmt: skip

    def beside_from_ms(self, partition: TopicPartition, names: Sequence[str]) -> int | None:
        """Return None: what is replaced goes by ``erased_by_ms``, if somebody goes on."""
        return None

    def beside_trace(
        self, partition: TopicPartition, names: Sequence[str]
    ) -> tuple[int | None, str]:
        """Return by when what is replaced is gone, None when nobody knows, and how it goes."""
        return self.erased_by_ms(partition), REPLACED_WORDS


def find_store_traces(
    opened: TieredStore,
    partitions: Iterable[TopicPartition],
    cleaner: CleanerConfig,
    now_ms: int,
    keys: ErasureKeys,
    *,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> ErasureAnswer:
    """Search each of ``partitions``; one that is not compacted is left out with why.

    Of one that stores nothing any more, what was replaced and not collected is searched; one that
    was given up, and has objects, is left out too. With ``runner`` its tasks read the live
    segments; what was replaced only the metadata knows, and is read here.
    """
    looks = [opened.look(each) for each in partitions]
    chosen = [each for each in looks if each.topic.is_compacted]
    pace = tier_pace(
        cleaner, [each.state.effective_bytes() for each in chosen if each.state.routes]
    )
    planned(sum(each.state.effective_bytes() for each in chosen))
    dates = StoreDates(opened, pace, has_expired_rounds=cleaner.has_expired_rounds)
    parts = opened.parts()
    answer = search_logs(
        [_searched(each, parts, opened.brokers, now_ms) for each in chosen], dates, now_ms, keys,
        memory_bytes=memory_bytes, progressed=progressed, runner=runner,
        completing={
            each.state.partition: partial(_with_replaced, each, parts) for each in chosen
        },
        left_out=(
            *(
                (each.state.partition, "the topic is not compacted")
                for each in looks
                if each not in chosen
            ),
            *((each, FORGOTTEN) for each in _forgotten(opened, keys.chosen_topics)),
        ),
    )  # fmt: skip
    known = (*opened.partitions(), *opened.forgotten())
    searched = [each.state.partition for each in chosen]
    return with_foreign(
        answer, lambda: foreign_objects(parts.objects, known, searched), keys, planned=planned,
        progressed=progressed,
    )  # fmt: skip


def _forgotten(opened: TieredStore, topics: frozenset[str] | None) -> list[TopicPartition]:
    """Return the partitions of ``topics``, None for all, that were given up and have objects."""
    objects = opened.parts().objects
    return [
        each
        for each in opened.forgotten()
        if (topics is None or each.topic in topics) and any(objects.list(str(each)))
    ]


def remote_files(state: PartitionState, objects: ObjectStore) -> RoundFiles:
    """Return the live segments of a partition as files."""
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    return RoundFiles(objects, state.partition, state.topic_id, segments)


def _searched(
    look: RemoteLook, parts: StoreParts, brokers: GroupReader | None, now_ms: int
) -> SearchableLog:
    state = look.state
    if not state.routes:
        return LeftBeside(state.partition, nothing_beside, REPLACED_WORDS)
    remote = remote_files(state, parts.objects)
    told = StoredReaders(state.topic_id, brokers).wait(state.partition, look.topic, now_ms)
    return FileLog(
        PartitionRequest(state.partition, remote.path, look.topic),
        remote,
        CleanRequest((), log_start_offset=state.log_start, high_watermark=remote.end),
        partial(
            Checkpoints, {state.partition: state.first_dirty()}, {},
            {state.partition: remote.end}, {state.partition: state.holds},
        ),
        nothing_beside,
        # Asked here: a task is sent what was told.
        StoredReaders(state.topic_id, None if told is None else ToldGroups(told.groups)),
        # An undo or another leader moves it back: it does not tell an older store.
        tells_clean_to=False,
    )  # fmt: skip


def _with_replaced(
    look: RemoteLook, parts: StoreParts, found: SearchedLog, wanted: WantedKeys
) -> SearchedLog:
    return found.with_beside(*search_replaced(look, parts, wanted))


def search_replaced(
    look: RemoteLook, parts: StoreParts, wanted: WantedKeys
) -> tuple[list[BesideLog], int]:
    """Search the segments that were replaced and are not collected yet.

    Objects that no row names are among what was found, as problems.
    """
    state, objects = look.state, parts.objects
    found: list[BesideLog] = []
    # Listed before the rows are read: what is committed meanwhile has a row by then.
    keys = sorted(each.key for each in objects.list(str(state.partition)))
    topic_ids = topic_ids_of(keys)
    named = {
        each.segment_id: _keys_of(state.partition, state.topic_id, each)
        for each in state.segments.values()
    }
    for orphan in look.orphans:
        segment = orphan.segment
        topic_id = topic_ids.get(segment.segment_id, state.topic_id)
        named[segment.segment_id] = _keys_of(state.partition, topic_id, segment)
        files = RoundFiles(objects, state.partition, topic_id, (segment,))
        try:
            path = list_partition(files.path, files).segments[0].log_path
        except FileNotFoundError:
            continue  # collected by now
        each = search_file(path, wanted, files)
        if each is not None and (each.keys or each.problem):
            name = f"replaced segment {segment.segment_id}"
            found.append(BesideLog(name, each.keys, each.problem))
    known = parts.metadata.known_ids(state.partition)
    unnamed: set[str] = set()
    for key in keys:
        segment_id = segment_of_key(key)
        if segment_id is None:
            found.append(BesideLog(f"object {key}", problem=STRANGE))
        elif known.get(segment_id, SegmentState.DELETED) is SegmentState.DELETED:
            unnamed.add(segment_id)
        elif key not in named.get(segment_id, (key,)):  # one that is live since the look has none
            found.append(BesideLog(f"object {key}", problem=STRANGE))
    found += [BesideLog(f"object of segment {each}", problem=UNNAMED) for each in sorted(unnamed)]
    return found, len(look.orphans)


def _keys_of(partition: TopicPartition, topic_id: str, segment: RemoteSegment) -> frozenset[str]:
    """Return the keys of all that a segment's row names, and of its filter, which may be absent."""
    return frozenset(
        object_key(partition, topic_id, segment.segment_id, segment.base_offset, suffix)
        for suffix in (*segment.files, FILTER)
    )


def clean_store_traces(
    opened: Callable[[], AbstractContextManager[TieredStore]],
    partitions: Sequence[TopicPartition],
    *,
    takes_over: bool,
    grace_ms: int,
    receipt: Receipt | None,
    cleaner: CleanerConfig,
) -> list[tuple[TopicPartition, Exception]]:
    """Do rounds of the partitions in which a key is, and collect; returns what failed of each.

    Nothing is kept for undo: neither what these rounds replace nor what others have.
    """
    faults: list[tuple[TopicPartition, Exception]] = []
    left = list(partitions)
    for number in range(ROUNDS_OF_NOW):
        # Each by itself: one remembers what it has examined, and dates of that moment with it.
        with opened() as store:
            for each in tuple(left):
                try:
                    store.clean(
                        each, takes_over=takes_over, grace_ms=grace_ms, receipt=receipt, force=True,
                        expired=True, keeps=False, cleaner=cleaner,
                    )  # fmt: skip
                    store.undo.drop(each, takes_over=takes_over)
                    if number + 1 == ROUNDS_OF_NOW:
                        store.collect(each, takes_over=takes_over)
                except (CompactionError, OSError) as error:
                    faults.append((each, error))
                    left.remove(each)
    return faults
