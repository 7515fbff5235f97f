"""The receipts that the daemon keeps, and how they stay bounded.

Every round appends its line to one file: at a data directory's root (the coordinator does, before
the checkpoint moves), or where the user of a store says. When that is full it becomes the previous
one, which replaces the one before. So there are at most two files of about :data:`BYTES_MAX` each,
and at least the rounds of the last of them. Brokers ignore plain files there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.run.foresight import prove_receipt
from keeplast.run.receipt import Receipt, append_receipt, previous_receipts
from keeplast.survey.receipt_book import clock_notes
from keeplast.survey.wording import sentences

BYTES_MAX = 64 << 20


def open_receipt(path: Path | None, warned: Callable[[str], None]) -> Receipt | None:
    """Return what appends lines to ``path``, as :func:`receipt_to`.

    It warns of a clock that is earlier than the last line there.
    """
    files = LocalFiles()
    for note in sentences(clock_notes(files, path, SystemClock().now_ms())):
        warned(note)
    return receipt_to(files, path)


def receipt_to(
    files: FileSystem, path: Path | None, *, bytes_max: int | None = None
) -> Receipt | None:
    """Return what appends lines durably to ``path``, from several threads; None without a path.

    Beyond ``bytes_max`` the file is put aside, without it it only grows. RefusedError where no line
    can be appended: before anything is done that a line would record.
    """
    if path is None:
        return None
    prove_receipt(files, path)
    lock = threading.Lock()

    def append(line: bytes) -> bytes:
        with lock:
            if bytes_max is not None:
                with_room(files, path, bytes_max)
            return append_receipt(files, path, line)

    return append


def with_room(files: FileSystem, path: Path, bytes_max: int = BYTES_MAX) -> Path:
    """Return ``path``, which the next rounds append to; a full file is put aside first."""
    if files.exists(path) and files.stat(path).size_bytes >= bytes_max:
        files.rename(path, previous_receipts(path))
        files.fsync_directory(path.parent)
    return path
