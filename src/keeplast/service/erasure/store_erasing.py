"""Searches a store for keys that must go, for ``keeplast erase keys`` and certificates.

Live segments and replaced ones are read once; nothing is held and nothing changed. An object
without a row in the metadata is reported as a problem, whatever its name: what is in it is not
known. What a host has not copied yet is not searched.

A certificate names its store by the name that its metadata has drawn once. Topic ids do not do:
they are those of the copied directory, and two stores may have the same. The metadata's version
only grows: a lower one is of metadata that was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keeplast.errors import CompactionError
from keeplast.inspect.erasure_search import search_partition
from keeplast.inspect.explain import rankings_of
from keeplast.inspect.remains import Remains, RemainsKind, WantedKeys, search_file
from keeplast.log.partition_log import list_partition
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.hold import GroupReader, ReportedGroups
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import Workspace
from keeplast.run.receipt import Receipt
from keeplast.service.erasure.certificate import (
    NOT_BOUND,
    NOT_SEARCHED,
    NOT_SEARCHED_OF_UNKNOWN,
    SEARCHED_OF_UNKNOWN,
    STORE,
    CertifiedPlace,
    SearchedPlace,
    receipts_standing,
)
from keeplast.service.erasure.certificate_check import (
    CertificateStanding,
    PartitionStanding,
    age,
    compare_each,
    is_as_it_was,
    judge,
    made_again,
    missing,
    wanted_keys,
)
from keeplast.service.erasure.directory_erasing import ROUNDS_OF_NOW
from keeplast.service.erasure.erasing import (
    FileLog,
    LogRemains,
    SearchableLog,
    SearchedLog,
    no_remains,
    search_logs,
    with_foreign,
)
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.foreign_paths import foreign_objects
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.store_choice import REPLACED_WORDS, StoreDates, choose_topics, tier_pace
from keeplast.store.look import RemoteLook, StoredReaders
from keeplast.store.tiered_store import StoreParts, TieredStore
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.report import PartitionReport, RoundReport, describe_error
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.tier.metadata.collection import find_name
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

UNNAMED = "no row of the metadata names it: keeplast collect removes it once it is old enough"
STRANGE = "keeplast gave nothing this name, and it was not searched: see whose it is, and remove it"
FORGOTTEN = "it was given up, and has objects: keeplast collect removes them"


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
        return LogRemains(state.partition, no_remains, REPLACED_WORDS)
    remote = remote_files(state, parts.objects)
    wait = StoredReaders(state.topic_id, brokers).wait(state.partition, look.topic, now_ms)
    return FileLog(
        PartitionRequest(state.partition, remote.path, look.topic),
        remote,
        CleanRequest((), log_start_offset=state.log_start, high_watermark=remote.end),
        partial(
            Checkpoints, {state.partition: state.first_dirty()}, {},
            {state.partition: remote.end}, {state.partition: state.holds},
        ),
        no_remains,
        # Asked here: a task is sent the answer.
        StoredReaders(state.topic_id, None if wait is None else ReportedGroups(wait.groups)),
        # An undo or another leader moves it back: it does not show an older store.
        shows_clean_to=False,
    )  # fmt: skip


def _with_replaced(
    look: RemoteLook, parts: StoreParts, found: SearchedLog, wanted: WantedKeys
) -> SearchedLog:
    return replace(found, remains=(*found.remains, *search_replaced(look, parts, wanted)))


def search_replaced(look: RemoteLook, parts: StoreParts, wanted: WantedKeys) -> list[Remains]:
    """Search the segments that were replaced and are not collected yet.

    Objects that no row names are among what was found, as problems.
    """
    state, objects = look.state, parts.objects
    found: list[Remains] = []
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
        found += search_file(path, RemainsKind.REPLACED, segment.segment_id, wanted, files)
    known = parts.metadata.known_ids(state.partition)
    strange, unnamed = list[str](), set[str]()
    for key in keys:
        name = segment_of_key(key)
        if name is not None and known.get(name, SegmentState.DELETED) is SegmentState.DELETED:
            unnamed.add(name)
        # One that is live since the look has no keys here.
        elif name is None or key not in named.get(name, (key,)):
            strange.append(key)
    unsearched = [(f"object {each}", STRANGE) for each in strange]
    unsearched += [(f"object of segment {each}", UNNAMED) for each in sorted(unnamed)]
    found += [Remains(RemainsKind.UNFILED, name, problem=why) for name, why in unsearched]
    return found


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
) -> tuple[PartitionReport, ...]:
    """Do rounds of the partitions in which a key is, and collect; returns what failed of each.

    Nothing is kept for undo: neither what these rounds replace nor what others have.
    """
    faults: list[PartitionReport] = []
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
                    failed = RoundReport(error=describe_error(error), failure=error)
                    faults.append(PartitionReport(each.topic, each.partition, (failed,)))
                    left.remove(each)
    return tuple(faults)


SEARCHED_IN_STORE = (
    "every batch of every live segment named below, decompressed, up to searched_to",
    "segments that were replaced and are not collected yet",
    "the list of the partitions' objects: none is there that no row of the metadata names",
)
NOT_SEARCHED_OF_STORE = (
    "filters beside segments, which have keyed hashes of keys in some of their bits",
    "what a host has on its disks, copied or not",
    "the metadata database, its logs and its backups",
)


def store_place(opened: TieredStore, partitions: Iterable[TopicPartition]) -> CertifiedPlace:
    """Return what is said of a store, before it is searched: what is found then is no older."""
    states = {each: opened.state(each) for each in partitions}
    return CertifiedPlace(
        {
            "kind": STORE,
            "cluster_id": None,
            "directory_id": None,
            "node_id": None,
            "store_id": find_name(opened.parts().metadata),
        },
        (*SEARCHED_IN_STORE, SEARCHED_OF_UNKNOWN),
        (*NOT_SEARCHED, *NOT_SEARCHED_OF_STORE, NOT_SEARCHED_OF_UNKNOWN),
        {partition: state.topic_id for partition, state in states.items()},
        {partition: state.version for partition, state in states.items()},
    )


def search_store(
    opened: TieredStore,
    topics: Sequence[str],
    cleaner: CleanerConfig,
    now_ms: int,
    keys: ErasureKeys,
    *,
    receipt: Path | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> SearchedPlace:
    """Search the partitions of ``topics``, of all without, for what a certificate rests on.

    ``receipt`` is held against the heads that the store keeps. RefusedError where it is broken.
    """
    standing = receipts_standing(receipt, opened.parts().metadata.facts)
    chosen = choose_topics(opened, topics)
    place = store_place(opened, chosen)
    answer = find_store_traces(
        opened, chosen, cleaner, now_ms, keys, planned=planned, progressed=progressed,
        runner=runner,
    )  # fmt: skip
    return SearchedPlace(answer, place, standing)


def compare_store(
    statement: Mapping[str, Any],
    opened: TieredStore,
    hasher: KeyHasher | None,
    *,
    behind: str | None = None,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    progressed: Callable[[int], None] = lambda _: None,
) -> tuple[PartitionStanding, ...]:
    """Compare what a store has now with a certificate; reads only.

    ``behind`` is why receipts do not reach the certificate's, None where nothing says so. Of a
    certificate without a store's id, as earlier versions made them, each standing says so. Without
    ``hasher`` no key is looked for, and what has changed is reported as such.
    """
    entries: Sequence[Mapping[str, Any]] = statement["partitions"]
    wanted = wanted_keys(statement, hasher)
    workspace, there = Workspace(memory_bytes), set(opened.partitions())
    strange = _strangeness(statement, opened)

    def compare(entry: Mapping[str, Any], partition: TopicPartition) -> PartitionStanding:
        if partition not in there:
            return missing(partition)
        return _compare(entry, partition, opened, wanted, workspace, progressed, behind)

    found = compare_each(entries, strange, compare)
    if strange is not None or _store_id(statement) is not None:
        return found
    return tuple(replace(each, why=f"{each.why}; {NOT_BOUND}") for each in found)


def _store_id(statement: Mapping[str, Any]) -> str | None:
    """Return which store a certificate is about, None where it does not say."""
    found = statement["place"].get("store_id")
    return None if found is None else str(found)


def _strangeness(statement: Mapping[str, Any], opened: TieredStore) -> str | None:
    """Return why a store is not the one that a certificate is about, None when it may be."""
    kind = statement["place"]["kind"]
    if kind != STORE:
        return f"the certificate is about a {kind}"
    wanted, found = _store_id(statement), find_name(opened.parts().metadata)
    if wanted is None or found == wanted:
        return None
    if found is None:
        return (
            f"the store has no id yet, and the certificate is about the one with {wanted}: it is "
            "another store, or came back from a backup that is older than its id"
        )
    return f"another store: its id is {found}, the certificate's is {wanted}"


def _compare(
    entry: Mapping[str, Any],
    partition: TopicPartition,
    opened: TieredStore,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Callable[[int], None],
    behind: str | None,
) -> PartitionStanding:
    look, parts = opened.look(partition), opened.parts()
    state = look.state
    if entry["topic_id"] != state.topic_id:
        return made_again(partition, state.topic_id)
    if state.version < int(entry["metadata_version"]):
        why = (
            f"the metadata is at version {state.version}, and was at {entry['metadata_version']}: "
            "it came back from a backup"
        )
        return PartitionStanding(partition, CertificateStanding.OLDER, why)
    files = remote_files(state, parts.objects)
    search = search_partition(
        partition, files.path, wanted, rankings_of(TopicConfig(), None), files, workspace,
        progressed,
    )  # fmt: skip
    remains = [*search.remains, *search_replaced(look, parts, wanted)]
    return judge(
        entry, search, remains, age(search, entry) or behind,
        partial(is_as_it_was, entry, search, files), looked_for_keys=wanted.keys is None,
    )  # fmt: skip
