"""Searches a store for keys that must go: the answer of ``keeplast tier erase``.

Live segments and replaced ones are read once; nothing is held and nothing changed. An object that
no row of the metadata names is told as a problem: nobody knows what is in it. What a host has not
copied yet is not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from keeplast.inspect.erasure_search import BesideLog, WantedKeys, search_file
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.traces import LastTrace, find_last_trace
from keeplast.log.partition_log import list_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.erasing import (
    FileLog,
    LeftBeside,
    SearchableLog,
    SearchRunner,
    nothing_beside,
    search_logs,
)
from keeplast.service.erasure_answer import TOMBSTONE_WORDS, ErasureAnswer, ErasureKeys
from keeplast.service.tier_pace import tier_pace
from keeplast.store.erasure import TierPace
from keeplast.store.look import RemoteLook
from keeplast.store.tiered_store import StoreParts, TieredStore
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.tier.objects.object_store import ObjectStore, segment_of_key
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import SegmentState

FORGOTTEN = "it was given up, and has objects: keeplast tier collect removes them"


class StoreDates:
    """By when traces are gone from a store that ``keeplast tier run`` goes on with."""

    beside_words = "in replaced segments, until those are collected"
    undecided_words = TOMBSTONE_WORDS

    def __init__(self, opened: TieredStore, pace: TierPace, *, has_expired_rounds: bool) -> None:
        self._opened = opened
        self._pace = pace
        self._known: dict[TopicPartition, int | None] = {}
        self._has_expired_rounds = has_expired_rounds

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return by when all that is overwritten now is gone, None when nobody knows."""
        if partition not in self._known:
            # It reads what segments say of their tombstones: once for all keys.
            self._known[partition] = self._opened.erased_by(partition, self._pace).by_ms
        return self._known[partition]

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone, replaced segments included."""
        pace = self._pace
        return find_last_trace(
            found, erased_by_ms=self.erased_by_ms(found.partition),
            turn_ms=2 * pace.pass_ms + max(pace.grace_ms, pace.garbage_age_ms),
            has_expired_rounds=self._has_expired_rounds,
        )  # fmt: skip

    def beside_from_ms(self, partition: TopicPartition, names: Sequence[str]) -> int | None:
        """Return None: what is replaced goes by ``erased_by_ms``, if somebody goes on."""
        return None


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
    return search_logs(
        [_searched(each, parts) for each in chosen], dates, now_ms, keys,
        memory_bytes=memory_bytes, progressed=progressed, runner=runner,
        beside_here={
            each.state.partition: partial(search_replaced, each, parts) for each in chosen
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


def _searched(look: RemoteLook, parts: StoreParts) -> SearchableLog:
    state = look.state
    if not state.routes:
        return LeftBeside(state.partition, nothing_beside, StoreDates.beside_words)
    remote = remote_files(state, parts.objects)
    return FileLog(
        PartitionRequest(state.partition, remote.path, look.topic),
        remote,
        CleanRequest(
            (), first_dirty_offset=state.first_dirty(), log_start_offset=state.log_start,
            high_watermark=remote.end,
        ),
        partial(
            Checkpoints, {}, {}, {state.partition: remote.end}, {state.partition: state.holds}
        ),
        nothing_beside,
    )  # fmt: skip


def search_replaced(
    look: RemoteLook, parts: StoreParts, wanted: WantedKeys
) -> tuple[list[BesideLog], int]:
    """Search the segments that were replaced and are not collected yet.

    Objects that no row names are among what was found, as problems.
    """
    state, objects = look.state, parts.objects
    found: list[BesideLog] = []
    for orphan in look.orphans:
        files = RoundFiles(objects, state.partition, state.topic_id, (orphan.segment,))
        name = f"replaced segment {orphan.segment.segment_id}"
        try:
            path = list_partition(files.path, files).segments[0].log_path
        except FileNotFoundError:
            continue  # collected by now
        each = search_file(path, wanted, files)
        if each is not None and (each.keys or each.problem):
            found.append(BesideLog(name, each.keys, each.problem))
    # Listed before the rows are read: what is committed meanwhile has a row by then.
    ids = {segment_of_key(each.key) for each in objects.list(str(state.partition))}
    known = parts.metadata.known_ids(state.partition)
    found += [
        BesideLog(f"object of segment {each}", problem="no row of the metadata names it: keeplast "
                  "tier collect removes it once it is old enough")
        for each in sorted(filter(None, ids))
        if known.get(each, SegmentState.DELETED) is SegmentState.DELETED
    ]  # fmt: skip
    return found, len(look.orphans)
