"""The receipts that the daemon keeps beside the checkpoints, and how they stay bounded.

Every round appends its line to one file at the data directory's root (the coordinator does, before
the checkpoint moves). When that is full it becomes the previous one, which replaces the one before:
at most two files of about :data:`BYTES_MAX` each, and at least the rounds of the last of them.
Brokers ignore plain files there.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.log.files import FileSystem

FILE_NAME = "keeplast-receipts"
PREVIOUS_NAME = "keeplast-receipts.1"
BYTES_MAX = 64 << 20


def receipts_file(files: FileSystem, root: Path, bytes_max: int = BYTES_MAX) -> Path:
    """Return the file that the next rounds append to; a full one is put aside first."""
    path = root / FILE_NAME
    if files.exists(path) and files.stat(path).size_bytes >= bytes_max:
        files.rename(path, root / PREVIOUS_NAME)
        files.fsync_directory(root)
    return path
