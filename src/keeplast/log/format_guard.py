"""Refuses a partition directory that says things which are not understood here, before any write.

A newer Kafka may add a kind of file to every segment, or another layout of batches. Whoever swaps
segments without knowing it leaves such files behind with the wrong segment, or drops what a
batch says. So each of these is a RefusedError that names the file:

1. a file named by twenty digits and a kind that is not known; a kind may come with a stage;
2. a ``meta.properties``, ``partition.metadata`` or ``leader-epoch-checkpoint`` of a later version;
3. a batch of a later magic where a segment begins, or where its sound batches end.

So is a directory that has a segment file's name: it can be renamed as a file can, not removed.
Damage can look like 3: the magic is under no checksum. It is refused all the same, and so is left
as it is. Names that are no segment file's are ignored, as brokers ignore them.
Answers to ``LogFileUtils``, ``MetaPropertiesVersion``, ``CheckpointFile`` and ``RecordBatch``.
"""

from __future__ import annotations

import re
from pathlib import Path

from keeplast.columns.batch_table import HEADER_BYTES
from keeplast.errors import RefusedError
from keeplast.format.filename import (
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    is_unknown_kind,
    parse_segment_file,
)
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem, reading

MAGIC_MAX = 2
MESSAGE_BYTES_MIN = 14
_PREFIX_BYTES = 12
_MAGIC_AT = 16
_HEAD_BYTES_MAX = 4096

_VERSIONS: tuple[tuple[str, re.Pattern[bytes], int], ...] = (
    (PARTITION_METADATA, re.compile(rb"version:\s*([0-9]{1,9})\s"), 0),
    (LEADER_EPOCH_CHECKPOINT, re.compile(rb"([0-9]{1,9})\s"), 0),
)
_META_VERSION = re.compile(rb"(?:\A|[\r\n])version\s*[=:]\s*([0-9]{1,9})\s")
_META_VERSION_MAX = 1


def check_understood(directory: Path, files: FileSystem) -> dict[int, bytes]:
    """Raise RefusedError when something in a partition directory is a newer Kafka's.

    Returns by base offset what each log begins with, HEADER_BYTES at most, for whoever asks next.
    """
    heads: dict[int, bytes] = {}
    _check_version(
        child_path(directory.parent, META_PROPERTIES), _META_VERSION, _META_VERSION_MAX, files
    )
    names = files.listdir(directory)
    for name in names:
        if is_unknown_kind(name):
            raise RefusedError(
                "segment file of a kind that is not known; a newer Kafka's, it seems: use a "
                f"keeplast that knows it, or move the file away. path={directory / name}"
            )
    for name, pattern, latest in _VERSIONS:
        if name in names:
            _check_version(child_path(directory, name), pattern, latest, files, at_start=True)
    directories = files.directories_in(directory)
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None:
            continue
        if name in directories:
            raise RefusedError(
                f"directory in the place of a segment file; move it away. path={directory / name}"
            )
        if parsed.kind == LOG:
            head = check_magic(child_path(directory, name), 0, files)
            if not parsed.stage:
                heads[parsed.base_offset] = head
    return heads


def check_magic(path: Path, position: int, files: FileSystem) -> bytes:
    """Raise RefusedError when a whole batch of a later magic is at ``position`` of a segment.

    Returns what is there, HEADER_BYTES at most.
    """
    found = bytearray(HEADER_BYTES)
    with reading(files, path) as handle:
        left = handle.size_bytes - position
        head = bytes(found[: handle.pread_into(memoryview(found), position)])
    if len(head) <= _MAGIC_AT:
        return head
    size = int.from_bytes(head[8:_PREFIX_BYTES], "big", signed=True)
    magic = int.from_bytes(head[_MAGIC_AT : _MAGIC_AT + 1], "big", signed=True)
    if magic > MAGIC_MAX and MESSAGE_BYTES_MIN <= size <= left - _PREFIX_BYTES:
        raise RefusedError(
            "batch of a magic that is not known; a newer Kafka's, or damage: inspect the segment. "
            f"path={path} position={position} magic={magic} known={MAGIC_MAX}"
        )
    return head


def _check_version(
    path: Path,
    pattern: re.Pattern[bytes],
    latest: int,
    files: FileSystem,
    *,
    at_start: bool = False,
) -> None:
    """Refuse a later version; a file that is not there, or that says none, is no concern here."""
    if not files.exists(path):
        return
    head = bytearray(_HEAD_BYTES_MAX)
    with reading(files, path) as handle:
        count = handle.pread_into(memoryview(head), 0)
    # The last line may lack its end.
    text = bytes(head[:count]) + b"\n"
    found = pattern.match(text) if at_start else pattern.search(text)
    if found is not None and int(found[1]) > latest:
        raise RefusedError(
            "file of a version that is not known; a newer Kafka's, it seems: use a keeplast that "
            f"knows it. path={path} version={int(found[1])} known={latest}"
        )
