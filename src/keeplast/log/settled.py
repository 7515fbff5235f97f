"""Lists a partition for readers, who take no lock: not while segments are being swapped.

Between two renames of a swap some offsets are in no ``.log`` file, and a reader who listed the
directory then would miss them without noticing. So whoever finds a ``.swap`` waits until there is
none. A swap takes milliseconds. Where nobody holds the directory's lock it was interrupted, and is
for the next start of a broker or the next clean to finish.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import RefusedError, UnavailableError
from keeplast.format.filename import SWAP, parse_segment_file
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.log.partition_log import PartitionFiles, list_partition

SWAP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05


def settled_partition(
    path: Path, files: FileSystem, clock: Clock, *, if_empty: int | None = None
) -> PartitionFiles:
    """List a partition in which no swap is under way; ``if_empty`` as in :func:`list_partition`.

    RefusedError where one was interrupted, and as :func:`list_partition`; UnavailableError when one
    does not end although somebody is at work.
    """
    deadline = clock.seconds() + SWAP_SECONDS_MAX
    while True:
        # Asked before the names are listed: whoever lets go of it has ended the swap.
        is_at_work = is_locked(path.parent)
        try:
            listing = list_partition(path, files, if_empty=if_empty)
        except FileNotFoundError:
            # A segment went between its name and its size; or the directory did.
            if not files.is_directory(path):
                raise
        else:
            if not any(_is_swap(name) for name in listing.leftovers):
                return listing
            if not is_at_work:
                raise RefusedError(
                    "a swap of segments was interrupted, and what is here is not the whole log; "
                    f"start the broker or run keeplast clean, which finish it. path={path}"
                )
        if clock.seconds() >= deadline:
            raise UnavailableError(
                "segments are being replaced, and the swap does not end; see what holds the "
                f"directory's lock. path={path}"
            )
        clock.sleep(POLL_SECONDS)


def _is_swap(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.stage == SWAP
