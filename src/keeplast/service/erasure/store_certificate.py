"""What an erasure certificate says of a store, and how what is there now stands to one.

What is live and what was replaced is searched; an object that no row of the metadata names is told
as a problem, since nobody knows what is in it. The store is told from others by its name, which its
metadata has drawn once: topic ids are the directory's that went in, and two stores may have the
same. The metadata's version only grows: a lower one is of metadata that was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.inspect.erasure_search import WantedKeys, search_partition
from keeplast.inspect.explain import rankings_of
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import Workspace
from keeplast.service.erasure.certificate import (
    NOT_BOUND,
    NOT_SEARCHED,
    NOT_SEARCHED_OF_UNKNOWN,
    SEARCHED_OF_UNKNOWN,
    STORE,
    CertifiedPlace,
    receipts_standing,
)
from keeplast.service.erasure.certificate_check import (
    CertificateStanding,
    PartitionStanding,
    age,
    compare_each,
    is_as_it_was,
    judge,
    wanted_keys,
)
from keeplast.service.erasure.certificate_issue import SearchedPlace
from keeplast.service.erasure.erasure_answer import ErasureKeys
from keeplast.service.erasure.store_erasing import find_store_traces, remote_files, search_replaced
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.store_choice import choose_topics
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.store_name import find_name

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

    ``behind`` is why receipts do not reach the certificate's, None where nothing says so.
    Of a certificate without a store's id, as earlier versions made them, each standing says so.
    Without ``hasher`` nobody looks for keys, and what has changed is told as such.
    """
    entries: Sequence[Mapping[str, Any]] = statement["partitions"]
    wanted = wanted_keys(statement, hasher)
    workspace, there = Workspace(memory_bytes), set(opened.partitions())
    strange = _strangeness(statement, opened)

    def compare(entry: Mapping[str, Any], partition: TopicPartition) -> PartitionStanding:
        if strange is not None:
            return PartitionStanding(partition, CertificateStanding.OTHER, strange)
        if partition not in there:
            why = "there is no such partition"
            return PartitionStanding(partition, CertificateStanding.MISSING, why)
        return _compare(entry, partition, opened, wanted, workspace, progressed, behind)

    found = compare_each(entries, compare)
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
        why = f"the topic was made anew: its id is {state.topic_id}"
        return PartitionStanding(partition, CertificateStanding.OTHER, why)
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
    elsewhere, _ = search_replaced(look, parts, wanted)
    return judge(
        entry, search, [*search.beside, *elsewhere], age(search, entry) or behind,
        partial(is_as_it_was, entry, search, files), looked_for_keys=wanted.keys is None,
    )  # fmt: skip
