"""The receipts that the daemon keeps, and how they stay bounded.

Every round appends its line to one file: at a data directory's root (the coordinator does, before
the checkpoint moves), or where the user of a store says. When that is full it becomes the previous
one, which replaces the one before: at most two files of about :data:`BYTES_MAX` each, and at least
the rounds of the last of them. Brokers ignore plain files there.
"""

from __future__ import annotations

import threading
from pathlib import Path

from keeplast.log.files import FileSystem
from keeplast.run.readiness import prove_receipt
from keeplast.run.receipt import Receipt, append_receipt, previous_receipts
from keeplast.service.receipt_names import FILE_NAME

BYTES_MAX = 64 << 20


def receipts_file(files: FileSystem, root: Path, bytes_max: int = BYTES_MAX) -> Path:
    """Return the file that the next rounds append to; a full one is put aside first."""
    return _with_room(files, root / FILE_NAME, bytes_max)


def receipt_to(
    files: FileSystem, path: Path | None, *, bytes_max: int | None = None
) -> Receipt | None:
    """Return what appends lines durably to ``path``, from several threads; None without a path.

    Beyond ``bytes_max`` the file is put aside, without it it only grows. RefusedError where no line
    can be appended: before anything is done that a line would tell of.
    """
    if path is None:
        return None
    prove_receipt(files, path)
    lock = threading.Lock()

    def append(line: bytes) -> bytes:
        with lock:
            if bytes_max is not None:
                _with_room(files, path, bytes_max)
            return append_receipt(files, path, line)

    return append


def _with_room(files: FileSystem, path: Path, bytes_max: int) -> Path:
    if files.exists(path) and files.stat(path).size_bytes >= bytes_max:
        files.rename(path, previous_receipts(path))
        files.fsync_directory(path.parent)
    return path
