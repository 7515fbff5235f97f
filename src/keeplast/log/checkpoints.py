"""The checkpoint files of a data directory, read and written as a broker does.

A line for a partition that is not in the directory is kept on a write: a stopped broker may have
put its other directories' partitions nowhere else. Source: cleaning.md section 1.9, formats.md 2.8.

A call asks for the same files once a partition, and writes one of them as often. The bytes are read
each time, since they are what counts; parsed they are once: ten thousand partitions would otherwise
parse ten thousand lines ten thousand times.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keeplast.errors import CorruptError
from keeplast.format.checkpoint import decode_offsets, encode_lines, offset_line
from keeplast.log.child_path import child_path
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition

BYTES_MAX = 64 << 20
"""A checkpoint line is some 280 bytes at most; this is room for a quarter of a million."""

PARSED_MAX = 8
"""How many contents stay parsed, of BYTES_MAX together: the files of two data directories."""


@dataclass(frozen=True, slots=True)
class _Content:
    """A checkpoint, parsed: the offset of each partition, and its line as it is written."""

    offsets: Mapping[TopicPartition, int]
    lines: Mapping[TopicPartition, str]


_EMPTY = _Content({}, {})
_parsed: OrderedDict[bytes, _Content] = OrderedDict()
_parsed_lock = threading.Lock()


def read_checkpoint(files: FileSystem, root: Path, name: str) -> Mapping[TopicPartition, int]:
    """Return the offsets in the file ``name``, empty when there is no such file.

    Raises CorruptError with the path when it is malformed.
    """
    return _read(files, child_path(root, name)).offsets


def update_checkpoint(
    files: FileSystem, root: Path, name: str, changes: dict[TopicPartition, int]
) -> None:
    """Replace the lines of ``changes``, atomically and durably; other lines stay."""
    content = _read(files, root / name)
    new = {tp: offset for tp, offset in changes.items() if content.offsets.get(tp) != offset}
    if new:
        _write(
            files,
            root / name,
            _Content({**content.offsets, **new}, {**content.lines, **_lines_of(new)}),
        )


def drop_from_checkpoint(
    files: FileSystem, root: Path, name: str, partition: TopicPartition
) -> None:
    """Remove the line of ``partition``, atomically and durably; other lines stay."""
    content = _read(files, root / name)
    if partition in content.offsets:
        offsets, lines = dict(content.offsets), dict(content.lines)
        del offsets[partition], lines[partition]
        _write(files, root / name, _Content(offsets, lines))


def _read(files: FileSystem, path: Path) -> _Content:
    if not files.exists(path):
        return _EMPTY
    data = files.read_bytes(path, BYTES_MAX)
    with _parsed_lock:
        content = _parsed.get(data)
        if content is not None:
            _parsed.move_to_end(data)
            return content
    try:
        offsets = decode_offsets(data)
    except CorruptError as error:
        raise error.located(str(path)) from error
    content = _Content(offsets, _lines_of(offsets))
    _keep(data, content)
    return content


def _write(files: FileSystem, path: Path, content: _Content) -> None:
    data = encode_lines(content.lines.values())
    files.write_durable(path, data)
    _keep(data, content)


def _keep(data: bytes, content: _Content) -> None:
    with _parsed_lock:
        _parsed[data] = content
        _parsed.move_to_end(data)
        while len(_parsed) > PARSED_MAX or sum(map(len, _parsed)) > BYTES_MAX:
            _parsed.popitem(last=False)


def _lines_of(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    return {partition: offset_line(partition, offset) for partition, offset in offsets.items()}
