"""A list of erasure requests as it is kept: of a data directory one file at its root, where brokers
ignore plain files; of a store text in its metadata.

It has keyed hashes and no key. A list that is damaged is an error and never an empty one: whoever
reads it wants to know what must be gone. It is replaced as a whole. A directory that comes back
from a backup brings an older file with it, so that requests may also lie elsewhere; their ids and
topics stand in the directory's own list then, since undo knows no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.files import FileSystem
from keeplast.model.erasure_request import (
    KEYS_MAX,
    ErasureRequest,
    KeptElsewhere,
    RequestBook,
    SegmentDigest,
)
from keeplast.model.keyed_hash import HASH_HEX
from keeplast.model.partition import TopicPartition, is_topic_name

REQUESTS_NAME = "keeplast-erasures"
VERSION = 2
"""The first has nothing of requests that are kept elsewhere."""
REQUESTS_MAX = 1000
HASHES_MAX = 1_000_000
BYTES_MAX = 128 << 20
_ID = re.compile(r"[0-9a-f]{16}")
_SUM = re.compile(rf"[0-9a-f]{{{HASH_HEX}}}")


def read_book(files: FileSystem, path: Path) -> RequestBook:
    """Return the list in the file ``path``, an empty one without a file; errors: decode_book."""
    if not files.exists(path):
        return RequestBook()
    return decode_book(files.read_bytes(path, BYTES_MAX), str(path))


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
        if not isinstance(version, int) or version > VERSION:
            raise InvalidError(
                f"written by a newer keeplast; use that one. path={where} version={version!r}"
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
            found=str(error),
        ) from error  # fmt: skip


def encode_book(book: RequestBook, where: str) -> bytes:
    """Return the text of a list; RefusedError when there are too many, which names ``where``."""
    chosen = sorted(book.requests, key=lambda each: (each.created_ms, each.request_id))
    hashes = sum(len(each.keys) for each in chosen)
    if len(chosen) + len(book.elsewhere) > REQUESTS_MAX or hashes > HASHES_MAX:
        raise RefusedError(
            "too many erasure requests; forget those that have their certificate (keeplast erase "
            f"requests --forget). requests={len(chosen) + len(book.elsewhere)} most={REQUESTS_MAX} "
            f"keys={hashes} most={HASHES_MAX} path={where}"
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
        # Who does not know of these would put back what they want gone.
        document |= {
            "version": VERSION,
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
