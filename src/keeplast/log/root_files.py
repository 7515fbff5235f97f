"""The lists at a data directory's root, where brokers ignore plain files: holds, erasure requests.

Each list is one small file, and is replaced as a whole. It decides what may be cleaned or must be
gone, so a damaged one is an error and never an empty one. Holds that are over stay until the file
is written again.

A list of erasure requests of a store is text in its metadata. It has keyed hashes and no key. A
directory that comes back from a backup brings an older file with it, so that requests may also lie
elsewhere. Their ids and topics stand in the directory's own list then, since undo knows no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.files import FileSystem
from keeplast.log.paths import child_path, is_object_path
from keeplast.model.erasure_request import (
    HASH_HEX,
    KEYS_MAX,
    ErasureRequest,
    KeptElsewhere,
    RequestBook,
    SegmentDigest,
)
from keeplast.model.hold import Hold, check_hold_name, require_room
from keeplast.model.partition import TopicPartition, is_topic_name

RECEIPTS_NAME = "keeplast-receipts"
PREVIOUS_RECEIPTS_NAME = "keeplast-receipts.1"

HOLDS_NAME = "keeplast-holds"
HOLDS_VERSION = 1
HOLDS_BYTES_MAX = 64 << 20


def read_holds(files: FileSystem, root: Path) -> tuple[Hold, ...]:
    """Return all holds, those that are over too; none without a file, nor in an object store.

    CorruptError when the file is damaged, InvalidError when a newer keeplast wrote it.
    """
    path = child_path(root, HOLDS_NAME)
    # No directory in an object store is ever cleaned in place.
    if is_object_path(root) or not files.exists(path):
        return ()
    data = files.read_bytes(path, HOLDS_BYTES_MAX)
    try:
        document = json.loads(data)
        version = document["version"]
        if not isinstance(version, int) or version > HOLDS_VERSION:
            raise InvalidError(
                "written by a newer keeplast; use that one, or remove the file, and the holds with "
                f"it. path={path} version={version!r}",
                code="K226",
            )
        return tuple(_hold(entry) for entry in document["holds"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the list of holds is damaged ({type(error).__name__}); nothing is cleaned until it "
            "is restored, or removed and the holds added again",
            path=str(path), position=0, expected="the JSON that hold add writes", found=str(error),
            code="K225",
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
    document = {"version": HOLDS_VERSION, "holds": entries}
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


REQUESTS_NAME = "keeplast-erasures"
REQUESTS_VERSION = 2
"""The first has nothing of requests that are kept elsewhere."""
REQUESTS_MAX = 1000
HASHES_MAX = 1_000_000
REQUESTS_BYTES_MAX = 128 << 20
_ID = re.compile(r"[0-9a-f]{16}")
_SUM = re.compile(rf"[0-9a-f]{{{HASH_HEX}}}")


def read_book(files: FileSystem, path: Path) -> RequestBook:
    """Return the list in the file ``path``, an empty one without a file; errors: decode_book."""
    if not files.exists(path):
        return RequestBook()
    return decode_book(files.read_bytes(path, REQUESTS_BYTES_MAX), str(path))


def write_book(files: FileSystem, path: Path, book: RequestBook) -> None:
    """Replace the file, atomically and durably; RefusedError when there are too many."""
    files.write_durable(path, encode_book(book, str(path)))


def decode_book(data: bytes, where: str) -> RequestBook:
    """Return a list that :func:`encode_book` wrote; ``where`` it lies is named in errors.

    CorruptError when it is damaged, InvalidError when a newer keeplast wrote it.
    """
    try:
        document = json.loads(data)
        version = document["version"]
        if not isinstance(version, int) or version > REQUESTS_VERSION:
            raise InvalidError(
                f"written by a newer keeplast; use that one. path={where} version={version!r}",
                code="K226",
            )
        return RequestBook(
            tuple(_request(entry) for entry in document["requests"]),
            tuple(
                KeptElsewhere(_text(entry["id"], _ID), _topics(entry["topics"]))
                for entry in document.get("elsewhere", [])
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(
            f"the list of erasure requests is damaged ({type(error).__name__}); restore it from a "
            "copy, or move it away and make the requests again",
            path=where, position=0, expected="the JSON that keeplast erase keys writes",
            found=str(error), code="K610",
        ) from error  # fmt: skip


def encode_book(book: RequestBook, where: str) -> bytes:
    """Return the text of a list; RefusedError when there are too many, which names ``where``."""
    chosen = sorted(book.requests, key=lambda each: (each.created_ms, each.request_id))
    hashes = sum(len(each.keys) for each in chosen)
    if len(chosen) + len(book.elsewhere) > REQUESTS_MAX or hashes > HASHES_MAX:
        raise RefusedError(
            "too many erasure requests; forget those that have their certificate (keeplast erase "
            f"requests --forget). requests={len(chosen) + len(book.elsewhere)} most={REQUESTS_MAX} "
            f"keys={hashes} most={HASHES_MAX} path={where}",
            code="K611",
        )
    entries = [
        {
            "id": each.request_id,
            "created_ms": each.created_ms,
            "topics": list(each.topics),
            "hash_key": each.hash_check,
            "keys": list(each.keys),
            "before": [
                {
                    "topic": held.partition.topic,
                    "partition": held.partition.partition,
                    "name": held.name,
                    "bytes": held.size_bytes,
                    "sha256": held.sha256,
                }
                for held in each.before
            ],
        }
        for each in chosen
    ]
    document: dict[str, object] = {"version": 1, "requests": entries}
    if book.elsewhere:
        # A program that does not know of these would put back what they want gone.
        document |= {
            "version": REQUESTS_VERSION,
            "elsewhere": [
                {"id": each.request_id, "topics": list(each.topics)} for each in book.elsewhere
            ],
        }
    return json.dumps(document, indent=1).encode() + b"\n"


def _request(entry: Mapping[str, object]) -> ErasureRequest:
    keys = tuple(_text(each, _SUM) for each in _list(entry["keys"], KEYS_MAX))
    return ErasureRequest(
        _text(entry["id"], _ID),
        _number(entry["created_ms"]),
        _topics(entry["topics"]),
        _text(entry["hash_key"]),
        keys,
        tuple(_sum(each) for each in _list(entry["before"], HASHES_MAX)),
    )


def _sum(entry: object) -> SegmentDigest:
    if not isinstance(entry, dict):
        raise TypeError("a segment is an object")
    partition = TopicPartition(_topic(entry["topic"]), _number(entry["partition"]))
    return SegmentDigest(
        partition, _text(entry["name"]), _number(entry["bytes"]), _text(entry["sha256"], _SUM)
    )


def _topics(value: object) -> tuple[str, ...]:
    return tuple(_topic(each) for each in _list(value, KEYS_MAX))


def _topic(value: object) -> str:
    name = _text(value)
    if not is_topic_name(name):
        raise TypeError("no topic has such a name")
    return name


def _text(value: object, pattern: re.Pattern[str] | None = None) -> str:
    if not isinstance(value, str) or (pattern is not None and pattern.fullmatch(value) is None):
        raise TypeError("a text is missing, or not what it should be")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("a number from 0 on is missing")
    return value


def _list(value: object, most: int) -> list[object]:
    if not isinstance(value, list) or len(value) > most:
        raise TypeError(f"a list of at most {most} is missing")
    return value
