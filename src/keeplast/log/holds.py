"""The holds of a data directory: one small file at its root, where brokers ignore plain files.

Who reads it decides what may be cleaned, so a file that is damaged is an error and never an empty
one. It is replaced as a whole. Holds that are over stay until somebody writes the file again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem
from keeplast.log.object_paths import is_object_path
from keeplast.model.hold import Hold, check_hold_name, require_room
from keeplast.model.partition import TopicPartition

HOLDS_NAME = "keeplast-holds"
VERSION = 1
BYTES_MAX = 64 << 20


def read_holds(files: FileSystem, root: Path) -> tuple[Hold, ...]:
    """Return all holds, those that are over too; none without a file, nor in an object store.

    CorruptError when the file is damaged, InvalidError when a newer keeplast wrote it.
    """
    path = child_path(root, HOLDS_NAME)
    # No directory in an object store is ever cleaned in place.
    if is_object_path(root) or not files.exists(path):
        return ()
    data = files.read_bytes(path, BYTES_MAX)
    try:
        document = json.loads(data)
        version = document["version"]
        if not isinstance(version, int) or version > VERSION:
            raise InvalidError(
                "written by a newer keeplast; use that one, or remove the file, and the holds with "
                f"it. path={path} version={version!r}"
            )
        return tuple(_hold(entry) for entry in document["holds"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the list of holds is damaged ({type(error).__name__}); nothing is cleaned until it "
            "is restored, or removed and the holds added again",
            path=str(path), position=0, expected="the JSON that hold add writes", found=str(error),
        ) from error  # fmt: skip


def holds_by_partition(holds: Iterable[Hold]) -> Mapping[TopicPartition, tuple[Hold, ...]]:
    """Return the holds of each partition that has any."""
    found: dict[TopicPartition, tuple[Hold, ...]] = {}
    for each in holds:
        found[each.partition] = (*found.get(each.partition, ()), each)
    return found


def write_holds(files: FileSystem, root: Path, holds: Iterable[Hold]) -> None:
    """Replace the file, atomically and durably; without holds there is none."""
    path, chosen = root / HOLDS_NAME, sorted(holds)
    require_room(len(chosen), f"path={path}")
    if not chosen:
        if files.exists(path):
            files.unlink(path)
            files.fsync_directory(root)
        return
    # An earlier keeplast knows no "point", and cleans nothing at or above "offset" either.
    entries = [
        {
            "name": each.name,
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "offset": each.limit,
            "point": each.offset,
            "since_ms": each.since_ms,
            "until_ms": each.until_ms,
        }
        for each in chosen
    ]
    document = {"version": VERSION, "holds": entries}
    files.write_durable(path, json.dumps(document, indent=1).encode() + b"\n")


def _hold(entry: Mapping[str, object]) -> Hold:
    name, topic = entry["name"], entry["topic"]
    if not isinstance(name, str) or not isinstance(topic, str):
        raise TypeError("name and topic are texts")
    try:
        check_hold_name(name)
    except InvalidError as error:
        raise TypeError(str(error)) from None
    numbers = []
    for key in ("partition", "offset", "since_ms", "until_ms"):
        value = entry[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise TypeError(f"{key} is no number from 0 on")
        numbers.append(value)
    number, limit, since_ms, until_ms = numbers
    point = entry.get("point", limit)
    if not isinstance(point, int) or isinstance(point, bool) or point < limit:
        raise TypeError("point is no number from the offset on")
    return Hold(name, TopicPartition(topic, number), point, since_ms, until_ms, limit)
