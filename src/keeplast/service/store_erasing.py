"""Searches a store for keys that must go: the answer of ``keeplast tier erase``.

Live segments and replaced ones are read once; nothing is held and nothing changed. What no row of
the metadata names is not searched, nor what a host has not copied yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from keeplast.inspect.erasure_search import BesideLog, WantedKeys, search_file
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.traces import LastTrace, find_last_trace
from keeplast.log.partition_log import list_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.erasing import SearchedLog, search_logs
from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.tier_pace import tier_pace
from keeplast.store.erasure import TierPace
from keeplast.store.look import RemoteLook
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles


class StoreDates:
    """By when traces are gone from a store that ``keeplast tier run`` goes on with."""

    beside_words = "in replaced segments, until those are collected"

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
) -> ErasureAnswer:
    """Search each of ``partitions``; one that is not compacted, or empty, is left out with why."""
    looks = [opened.look(each) for each in partitions]
    chosen = [each for each in looks if each.topic.is_compacted and each.state.routes]
    pace = tier_pace(cleaner, [each.state.effective_bytes() for each in chosen])
    planned(sum(each.state.effective_bytes() for each in chosen))
    dates = StoreDates(opened, pace, has_expired_rounds=cleaner.has_expired_rounds)
    objects = opened.parts().objects
    return search_logs(
        [_searched(each, objects) for each in chosen], dates, now_ms, keys,
        memory_bytes=memory_bytes, progressed=progressed,
        left_out=tuple(
            (
                each.state.partition,
                "the topic is not compacted" if each.state.routes else "nothing is stored",
            )
            for each in looks
            if each not in chosen
        ),
    )  # fmt: skip


def _searched(look: RemoteLook, objects: ObjectStore) -> SearchedLog:
    state = look.state
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    remote = RoundFiles(objects, state.partition, state.topic_id, segments)
    return SearchedLog(
        PartitionRequest(state.partition, remote.path, look.topic),
        remote,
        CleanRequest(
            (), first_dirty_offset=state.first_dirty(), log_start_offset=state.log_start,
            high_watermark=remote.end,
        ),
        lambda: Checkpoints({}, {}, {state.partition: remote.end}),
        partial(_search_replaced, look, objects),
    )  # fmt: skip


def _search_replaced(
    look: RemoteLook, objects: ObjectStore, wanted: WantedKeys
) -> tuple[list[BesideLog], int]:
    """Search the segments that were replaced and are not collected yet."""
    state = look.state
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
    return found, len(look.orphans)
