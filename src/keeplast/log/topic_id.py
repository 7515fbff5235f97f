"""Which topic a partition directory is of: a name may be used again, an id is not.

Answers to ``PartitionMetadataFile``; formats.md section 2.7.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import CorruptError, InvalidError
from keeplast.format import partition_metadata
from keeplast.format.filename import PARTITION_METADATA
from keeplast.log.files import FileSystem

METADATA_BYTES_MAX = 1 << 16


def read_topic_id(path: Path, files: FileSystem) -> bytes | None:
    """Return the topic id that a partition directory says; None when it says none that is one."""
    try:
        data = files.read_bytes(path / PARTITION_METADATA, METADATA_BYTES_MAX)
        return partition_metadata.decode(data).topic_id
    except (FileNotFoundError, CorruptError, InvalidError):
        return None
