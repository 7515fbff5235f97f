"""Lists a partition for readers, who take no lock: not while segments are being swapped.

Between two renames of a swap some offsets are in no ``.log`` file, and a reader who listed the
directory then would miss them without noticing. So who finds a ``.swap`` waits until there is none.
A swap takes milliseconds. Where nobody holds the directory's lock it was interrupted, and is for
the next start of a broker or the next clean to finish.

The names of a large directory are not listed at once, and one that is renamed meanwhile may be in
no part of the list. So while somebody is at work, logs are listed until they are the same twice.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import UnavailableError
from keeplast.format.filename import LOG, SWAP
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.log.partition_log import PartitionFiles, list_partition

SWAP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05


def settled_partition(
    path: Path, files: FileSystem, clock: Clock, *, if_empty: int | None = None
) -> PartitionFiles:
    """List a partition in which no swap is under way; ``if_empty`` as in :func:`list_partition`.

    InterruptedSwapError where one was interrupted, and RefusedError as :func:`list_partition`;
    UnavailableError when one does not end although somebody is at work.
    """
    deadline = clock.seconds() + SWAP_SECONDS_MAX
    while True:
        is_at_work = is_locked(path.parent)
        try:
            before = _logs(path, files) if is_at_work else frozenset()
            listing = list_partition(path, files, if_empty=if_empty)
            if not is_at_work or before == _logs(path, files):
                return listing
        except UnavailableError:
            pass  # segments are being replaced
        except FileNotFoundError:
            # A segment went between its name and its size; or the directory did.
            if not files.is_directory(path):
                raise
        if clock.seconds() >= deadline:
            raise UnavailableError(
                "segments are being replaced, and the swap does not end; see what holds the "
                f"directory's lock. path={path}"
            )
        clock.sleep(POLL_SECONDS)


def _logs(path: Path, files: FileSystem) -> frozenset[str]:
    return frozenset(name for name in files.listdir(path) if name.endswith((LOG, LOG + SWAP)))
