"""Partitions that are set aside, and those whose rounds fail: what is wrong with each, kept from
one start to the next.

Kafka forgets its uncleanable partitions when it stops and fails on them again; here they are in
one small file at the data directory's root, where brokers ignore it. A mark says which files it is
about: once a partition's segments are other files (restored, repaired, cleaned by somebody), it
no longer counts. A mark is never a reason to lose anything: without the file a damaged partition
is only found damaged once more. What may pass is tried again and never kept from its turn; it is
written down so that ``status`` promises nothing that rests on the next round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.filename import parse_segment_file
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition

FILE_NAME = "keeplast-set-aside"
FAILING_NAME = "keeplast-failing"
"""Partitions whose last attempt failed and that are tried again; marks as in the other file."""
VERSION = 1
BYTES_MAX = 64 << 20
REASON_LENGTH_MAX = 2000
STORED_BETWEEN = ": "


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why a partition is not cleaned, since when, and which files that was said about.

    An empty ``fingerprint`` is about any.
    ``path`` and ``position`` are those of the damage, where it has any.
    """

    partition: TopicPartition
    reason: str
    error_class: str
    since_ms: int
    fingerprint: str
    path: str | None = None
    position: int | None = None


def fingerprint(files: FileSystem, directory: Path) -> str:
    """Return what identifies the segment files of a partition: names, sizes, times of change."""
    digest = hashlib.sha256()
    for name in files.listdir(directory):
        parsed = parse_segment_file(name)
        if parsed is not None and not parsed.stage:
            status = files.stat(directory / name)
            digest.update(f"{name} {status.size_bytes} {status.mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def set_aside(
    files: FileSystem,
    partition: TopicPartition,
    directory: Path,
    error: Exception,
    now_ms: int,
) -> SetAside:
    """Return the mark for a partition that failed with ``error``; writes nothing."""
    damage = error if isinstance(error, CorruptError) else None
    return SetAside(
        partition,
        (str(error) or type(error).__name__)[:REASON_LENGTH_MAX],
        type(error).__name__,
        now_ms,
        fingerprint(files, directory),
        None if damage is None else damage.path,
        None if damage is None else damage.position,
    )


def failing(
    files: FileSystem,
    partition: TopicPartition,
    directory: Path,
    error: Exception,
    since_ms: int,
) -> SetAside:
    """Return the mark of a partition that is tried again, also when it cannot even be listed."""
    try:
        return set_aside(files, partition, directory, error, since_ms)
    except OSError:
        return mark_of(partition, error, since_ms)


def mark_of(partition: TopicPartition, error: Exception, since_ms: int) -> SetAside:
    """Return the mark of a partition that no files are known of, as in a store."""
    name = type(error).__name__
    return SetAside(partition, str(error)[:REASON_LENGTH_MAX] or name, name, since_ms, "")


def stored_mark(mark: SetAside) -> str:
    """Return what a store keeps of a mark: the class of the error, a colon, the reason."""
    return f"{mark.error_class}{STORED_BETWEEN}{mark.reason}"


def read_stored_mark(partition: TopicPartition, text: str, since_ms: int) -> SetAside:
    """Return the mark that :func:`stored_mark` wrote; text without a colon is both."""
    name, _, reason = text.partition(STORED_BETWEEN)
    return SetAside(partition, reason or name, name, since_ms, "")


def is_about(mark: SetAside, files: FileSystem, directory: Path) -> bool:
    """Say whether the files of a partition are those that ``mark`` was said about."""
    return not mark.fingerprint or mark.fingerprint == fingerprint(files, directory)


def read_set_aside(
    files: FileSystem, root: Path, name: str = FILE_NAME
) -> dict[TopicPartition, SetAside]:
    """Return the marks of a data directory, empty without a file.

    CorruptError when the file is damaged, InvalidError when a newer keeplast wrote it.
    """
    path = root / name
    if not files.exists(path):
        return {}
    data = files.read_bytes(path, BYTES_MAX)
    try:
        document = json.loads(data)
        version = document["version"]
        if not isinstance(version, int) or version > VERSION:
            raise InvalidError(
                f"written by a newer keeplast; use that one, or remove the file. path={path} "
                f"version={version!r}"
            )
        marks = [_mark(entry) for entry in document["partitions"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the list of partitions that failed is damaged ({type(error).__name__})",
            path=str(path), position=0, expected="the JSON that run writes", found=str(error),
        ) from error  # fmt: skip
    return {mark.partition: mark for mark in marks}


def _mark(entry: Mapping[str, object]) -> SetAside:
    def text(name: str) -> str:
        value = entry[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is no text")
        return value

    def number(name: str) -> int:
        value = entry[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is no number")
        return value

    return SetAside(
        TopicPartition(text("topic"), number("partition")),
        text("reason"),
        text("error_class"),
        number("since_ms"),
        text("fingerprint"),
        None if entry["path"] is None else text("path"),
        None if entry["position"] is None else number("position"),
    )


def write_set_aside(
    files: FileSystem,
    root: Path,
    marks: Mapping[TopicPartition, SetAside],
    name: str = FILE_NAME,
) -> None:
    """Replace the file, atomically and durably; without marks there is no file."""
    path = root / name
    if not marks:
        if files.exists(path):
            files.unlink(path)
            files.fsync_directory(root)
        return
    entries = [
        {
            "topic": mark.partition.topic,
            "partition": mark.partition.partition,
            "reason": mark.reason,
            "error_class": mark.error_class,
            "path": mark.path,
            "position": mark.position,
            "since_ms": mark.since_ms,
            "fingerprint": mark.fingerprint,
        }
        for _, mark in sorted(marks.items())
    ]
    document = {"version": VERSION, "partitions": entries}
    files.write_durable(path, json.dumps(document, indent=1).encode() + b"\n")
