"""Which paths below a place have no known name: of a data directory, and of a store's objects.

The rule that a reader must not break: each path below the place is known by its name, is searched
as a log, or is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from keeplast.config.sources import FILE_NAME as SETTINGS_NAME
from keeplast.format.filename import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.inspect.erasure_search import ForeignPath, walk
from keeplast.inspect.remains import is_without_keys, was_log
from keeplast.log.data_directory import DataDirectory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.root_files import HOLDS_NAME, PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME, REQUESTS_NAME
from keeplast.model.partition import TopicPartition
from keeplast.service import schedule
from keeplast.tier.objects.handles import ObjectReadHandle
from keeplast.tier.objects.object_store import FILTER, MARKS, STORE_NAME, ObjectStore, OnDisk

_AT_ROOT = frozenset(
    {
        META_PROPERTIES, LOCK, CLEAN_SHUTDOWN, CLEANER_CHECKPOINT, LOG_START_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT, SETTINGS_NAME, RECEIPTS_NAME,
        PREVIOUS_RECEIPTS_NAME, REQUESTS_NAME, HOLDS_NAME, schedule.FILE_NAME,
        schedule.FAILING_NAME,
    }
)  # fmt: skip
_REMOTE_INDEXES = "remote-log-index-cache"
"""Where a broker keeps indexes of remote segments (Kafka's RemoteIndexCache)."""
_REMOTE_INDEX = re.compile(r"[0-9]+_[A-Za-z0-9_-]{22}\.(index|timeindex|txnindex)(\.deleted)?\Z")
_QUORUM_STATE = "quorum-state"
"""Next to the metadata log of a KRaft cluster: who leads it."""
_OBJECT = re.compile(rf"([^/]+)/[^/]+/[0-9a-f]{{32}}/(?:[0-9]{{20}}\.[a-z-]+|{FILTER})\Z")
_UNLISTED = re.compile(r".*#[0-9]+\Z", re.DOTALL)
"""In a directory of objects: what is being written, which no list of them shows."""


def foreign_in_directory(
    directory: DataDirectory, searched: Collection[str], files: FileSystem
) -> Iterator[ForeignPath]:
    """Yield the paths of unknown name below a data directory.

    ``searched`` are the names of the partitions' directories whose logs, and what was one, are
    searched otherwise.
    """
    partitions = {each.path.name for each in directory.partitions}

    def is_known(parts: tuple[str, ...]) -> bool:
        top, name = parts[0], parts[-1]
        if len(parts) == 1:
            return name.removesuffix(".tmp") in _AT_ROOT
        if len(parts) > 2:
            return False
        if top == _REMOTE_INDEXES:
            return _REMOTE_INDEX.match(name) is not None
        if top not in partitions:
            return False
        # The log of a topic that is not meant is no stranger's.
        is_log = was_log(name) if top in searched else _is_of_log(name)
        return is_log or is_without_keys(name) or name == _QUORUM_STATE

    return walk(directory.root, files, is_known)


def _is_of_log(name: str) -> bool:
    """Say whether a name is that of a log's file, live, staged or kept for undo."""
    return parse_segment_file(name) is not None or parse_undo_file(name) is not None


def foreign_objects(
    objects: ObjectStore, partitions: Iterable[TopicPartition], searched: Iterable[TopicPartition]
) -> Iterator[ForeignPath]:
    """Yield the objects of a store's place under names that no row of its metadata has had.

    ``partitions`` are all that the metadata knows; of those that are ``searched`` every object is
    accounted for otherwise.
    """
    known, accounted = {str(each) for each in partitions}, {str(each) for each in searched}

    def is_known(parts: tuple[str, ...]) -> bool:
        named = _OBJECT.match("/".join(parts))
        if parts == (STORE_NAME,) or (parts[0] == MARKS and parts[-1].isdecimal()):
            return True
        if named is not None:
            return named[1] in known
        return parts[0] in accounted and len(parts) > 1 and _UNLISTED.match(parts[-1]) is None

    if isinstance(objects, OnDisk) and objects.directory is not None:
        return walk(objects.directory, LocalFiles(), is_known)
    return (
        ForeignPath(
            each.key, each.size_bytes, (each.size_bytes, each.modified_ms),
            partial(ObjectReadHandle, objects, each.key, each.size_bytes),
        )
        for each in objects.list("")
        if not is_known(tuple(each.key.split("/")))
    )  # fmt: skip
