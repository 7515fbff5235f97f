"""The partitions of a store as one data directory that is only read.

Rows are read once, and nothing is held: rounds go on meanwhile. Segments that they replace stay for
their grace, so that what was looked at can be read to its end.

A live object never goes, and a replaced one goes after its grace. So a process that finds none has
worked on an old state: a newer leader owns the partition, or the segment was replaced and its grace
is over. Only when the metadata store still names the segment has the object store lost something
(I-14). Readers load the state again and go on; rounds end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from keeplast.clock import SystemClock
from keeplast.errors import ConflictError, CorruptError, FencedError, InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.tier.metadata.database import is_missing, open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.log_directory import LogDirectoryRecipe, ShownLog
from keeplast.tier.objects.object_store import ObjectStore, segment_of_key
from keeplast.tier.objects.round_files import ROOT, RoundRecipe
from keeplast.tier.objects.stores import check_directory, open_objects
from keeplast.tier.state.partition_state import PartitionState

OBJECTS = "objects"
"""The fact of a store that says where its objects are."""


def require_store(url: str) -> None:
    """Raise InvalidError where the metadata of a store is a file that is not there."""
    if is_missing(url):
        raise InvalidError(
            "there is no such store; correct its address, or make it: keeplast copy DATA_DIR STORE "
            f"--new --objects URL. store={shown_url(url)}",
            code="K320",
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
                "the store has no objects yet, so there is nothing to read. "
                f"store={shown_url(url)}",
                code="K344",
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
    return ShownLog(
        partition=state.partition,
        files=RoundRecipe(objects, state.partition, state.topic_id, state.live_segments),
        log_start=state.log_start, earliest_as_of=state.earliest_as_of,
        topic_id=bytes.fromhex(state.topic_id), lineage=state.lineage, settings=state.settings,
    )  # fmt: skip


@contextmanager
def explained(
    store: MetadataStore, partition: TopicPartition, *, epoch: int | None = None
) -> Iterator[None]:
    """Turn FileNotFoundError for an object into what it means.

    FencedError when ``epoch``, that of an owner, is not the newest any more; ConflictError when the
    segment is not live any more; CorruptError when it is. Other files are none of its business.
    """
    try:
        yield
    except FileNotFoundError as error:
        segment_id = segment_of_key(str(error.filename))
        if segment_id is None:
            raise
        state = store.load(partition)
        if epoch is not None and state.leader_epoch != epoch:
            raise FencedError(
                "a newer leader owns the partition and has removed what was read here; stop. "
                f"partition={partition} epoch={epoch} current={state.leader_epoch}",
                code="K332",
            ) from error
        if segment_id in state.segments:
            raise CorruptError(
                "an object of a live segment is gone from the object store",
                path=str(error.filename),
                code="K339",
            ) from error
        raise ConflictError(
            "a segment was replaced and removed while it was read; do it again, and choose a "
            f"longer grace if it happens often. partition={partition} segment={segment_id}",
            code="K340",
        ) from error
