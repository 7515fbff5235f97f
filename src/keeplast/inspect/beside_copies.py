"""The records of one key in files that are no part of its log: staged, replaced, put aside.

A segment that a round or a broker has replaced has its records until its file goes, and so has a
directory that a broker disposes of. They are searched as ``erase`` searches them
(:mod:`keeplast.inspect.erasure_search`), the log first: what moves from it meanwhile is seen twice
rather than never. Takes no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.inspect.erasure_search import (
    LOOKS_MAX,
    BesideLog,
    BesideNews,
    WantedKeys,
    search_beside,
    search_directories,
)
from keeplast.inspect.key_search import RECORDS_MAX, Progressed
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.log_start import noted_log_start
from keeplast.log.partition_log import PartitionFiles, Tail, find_tail
from keeplast.log.settled import settled_partition


@dataclass(frozen=True, slots=True)
class BesideCopy:
    """A record in ``file``, named as ``erase`` names it, at ``position``.

    ``horizon_ms`` is the delete horizon of its batch, None without one. With ``in_transaction``
    nobody knows how that ended: the file alone does not tell.
    """

    record: Record
    file: str
    position: int
    horizon_ms: int | None
    in_transaction: bool


@dataclass(frozen=True, slots=True)
class BesideCopies:
    """What was found; ``unseen`` says which files could not be searched to their end, and why."""

    found: tuple[BesideCopy, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the files that have the key, each once, in the order of the search."""
        return tuple(dict.fromkeys(each.file for each in self.found))


def find_beside_copies(
    directory: Path | None,
    marked: Iterable[PartitionEntry],
    key: bytes,
    files: FileSystem,
    *,
    values_bytes_max: int | None = None,
    planned: Callable[[int], None],
    progressed: Progressed,
) -> BesideCopies:
    """Find ``key`` beside the log in ``directory``, and in the directories ``marked`` of it.

    What rounds have kept for ``undo`` is not looked into. ``directory`` None is of a partition that
    has no log here. ``planned`` hears of the bytes of each file before it is read. InvalidError for
    more records, or values, than anybody reads; errors of :func:`~keeplast.log.partition_log.
    list_partition`; OSError.
    """
    wanted = WantedKeys(key.__eq__, frozenset((key,)))
    collected = _Collected(directory, values_bytes_max)
    news = BesideNews(collected.add, planned, progressed)
    beside: Sequence[BesideLog] = ()
    if directory is not None:
        listing, tail = _listed(directory, files)
        beside, _, _ = search_beside(listing, tail, wanted, files, news, leaves_kept=True)
    elsewhere, _ = search_directories(marked, wanted, files, news)
    unseen = tuple(
        f"{each.name}: {each.problem}" for each in (*beside, *elsewhere) if each.problem is not None
    )
    return BesideCopies(tuple(collected.found), unseen)


def _listed(directory: Path, files: FileSystem) -> tuple[PartitionFiles, Tail]:
    """Return what lies in a partition directory now, and where its log ends."""
    for look in range(LOOKS_MAX):
        try:
            start = noted_log_start(files, directory)
            listing = settled_partition(directory, files, SystemClock(), if_empty=start)
            return listing, find_tail(listing, files)
        except FileNotFoundError:
            if look + 1 == LOOKS_MAX:
                raise
    raise AssertionError("unreachable")


class _Collected:
    """What a search has met so far, within its bounds."""

    def __init__(self, directory: Path | None, values_bytes_max: int | None) -> None:
        self.found: list[BesideCopy] = []
        self._directory = directory
        self._values_bytes_max = values_bytes_max
        self._values_bytes = 0

    def add(self, path: Path, batch: Batch, record: Record) -> None:
        self._values_bytes += len(record.value or b"")
        limit = self._values_bytes_max
        if limit is not None and self._values_bytes > limit:
            raise InvalidError(
                "the values of this key's records take more than is kept here; ask keeplast "
                f"explain. limit={limit} path={path}"
            )
        if len(self.found) >= RECORDS_MAX:
            raise InvalidError(
                f"more than {RECORDS_MAX} records of what is asked for lie beside the log; let "
                f"what was replaced go first, or ask for less. path={path}"
            )
        name = path.name if path.parent == self._directory else f"{path.parent.name}/{path.name}"
        self.found.append(
            BesideCopy(
                record, name, batch.position, batch.delete_horizon_ms, batch.is_transactional
            )
        )
