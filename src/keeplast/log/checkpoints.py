"""The checkpoint files of a data directory, read and written as a broker does.

A line for a partition that is not in the directory is kept on a write: a stopped broker may have
put its other directories' partitions nowhere else. Source: cleaning.md section 1.9, formats.md 2.8.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format.checkpoint import decode_offsets, encode_offsets
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition

BYTES_MAX = 64 << 20
"""A checkpoint line is some 280 bytes at most; this is room for a quarter of a million."""


def read_checkpoint(files: FileSystem, root: Path, name: str) -> dict[TopicPartition, int]:
    """Return the offsets in the file ``name``, empty when there is no such file.

    Raises CorruptError with the path when it is malformed.
    """
    path = root / name
    if not files.exists(path):
        return {}
    try:
        return decode_offsets(files.read_bytes(path, BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error


def update_checkpoint(
    files: FileSystem, root: Path, name: str, changes: dict[TopicPartition, int]
) -> None:
    """Replace the lines of ``changes``, atomically and durably; other lines stay."""
    offsets = read_checkpoint(files, root, name)
    if all(offsets.get(partition) == value for partition, value in changes.items()):
        return
    offsets.update(changes)
    files.write_durable(root / name, encode_offsets(offsets))


def drop_from_checkpoint(
    files: FileSystem, root: Path, name: str, partition: TopicPartition
) -> None:
    """Remove the line of ``partition``, atomically and durably; other lines stay."""
    offsets = read_checkpoint(files, root, name)
    if offsets.pop(partition, None) is not None:
        files.write_durable(root / name, encode_offsets(offsets))
