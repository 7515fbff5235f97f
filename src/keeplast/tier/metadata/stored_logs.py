"""The partitions of a store as one data directory that is only read.

Rows are read once, and nothing is held: rounds go on meanwhile. What they replace stays for its
grace, so that what was looked at can be read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.model.redaction import shown_url
from keeplast.tier.metadata.database import is_missing, open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.log_directory import LogDirectoryRecipe, ShownLog
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import ROOT, RoundRecipe
from keeplast.tier.objects.stores import check_directory, open_objects
from keeplast.tier.state.partition_state import PartitionState

OBJECTS = "objects"
"""The fact of a store that says where its objects are."""


def require_store(url: str) -> None:
    """Raise InvalidError where the metadata of a store is a file that is not there."""
    if is_missing(url):
        raise InvalidError(
            "there is no such store; correct its address, or make it: keeplast tier init "
            f"--store URL --objects URL. store={shown_url(url)}"
        )


def open_stored_logs(
    url: str, options: Mapping[str, str], wants: Callable[[TopicPartition], bool]
) -> LogDirectoryRecipe:
    """Return the partitions of the store at ``url`` that somebody ``wants``, as they are now.

    ``options`` are the object store's. InvalidError where there is no store, or none with objects.
    """
    require_store(url)
    metadata = MetadataStore(open_database(url, only_looks=True), SystemClock())
    try:
        place = metadata.find_fact(OBJECTS)
        if place is None:
            raise InvalidError(
                f"the store has no objects yet, so there is nothing to read. store={shown_url(url)}"
            )
        check_directory(place)
        return stored_logs(metadata, open_objects(place, dict(options)), wants)
    finally:
        metadata.close()


def stored_logs(
    metadata: MetadataStore, objects: ObjectStore, wants: Callable[[TopicPartition], bool]
) -> LogDirectoryRecipe:
    """Return the partitions that somebody ``wants``, as they are now; the others by name."""
    there = metadata.partitions()
    wanted = tuple(each for each in there if wants(each))
    return LogDirectoryRecipe(
        ROOT, tuple(shown_log(metadata.load(each), objects) for each in wanted),
        tuple(each for each in there if each not in set(wanted)),
    )  # fmt: skip


def shown_log(state: PartitionState, objects: ObjectStore) -> ShownLog:
    """Return a partition as a reader's directory has it."""
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    return ShownLog(
        partition=state.partition,
        files=RoundRecipe(objects, state.partition, state.topic_id, segments),
        log_start=state.log_start, told_from=state.told_from,
        topic_id=bytes.fromhex(state.topic_id), lineage=state.lineage, settings=state.settings,
    )  # fmt: skip
