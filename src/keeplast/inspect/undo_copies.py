"""The records of one key in what rounds have kept of a log for ``keeplast undo``.

What is kept is no part of the log, and is there all the same: a trace of the key, until its time is
over. A kept file that is still a segment of the log, because its round never came so far, is no
second copy. Takes no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, RefusedError, error_text
from keeplast.format.filename import LOG
from keeplast.inspect.key_search import KeyRecord, Progressed, SearchedSegment, find_key_records
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.settled import settled_partition
from keeplast.log.undo_files import read_kept
from keeplast.model.strategy import Strategy
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace


@dataclass(frozen=True, slots=True)
class UndoCopy:
    """A record in what ``round`` has kept, which may go from ``until_ms`` on.

    None: no list names it, so that it goes with the next look of ``run``, or the next ``clean``.
    """

    record: KeyRecord
    round: str
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class UndoCopies:
    """What was found; ``unseen`` says which files could not be searched, and why."""

    found: tuple[UndoCopy, ...] = ()
    unseen: tuple[str, ...] = ()


def find_undo_copies(
    directory: Path,
    key: bytes,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    *,
    retention_ms: int,
    values_bytes_max: int | None = None,
    planned: Callable[[int], None],
    progressed: Progressed,
) -> UndoCopies:
    """Find ``key`` in what is kept in a partition directory, by ``undo.retention.ms`` of now.

    Each file is searched by itself, so that a transaction whose marker lies in another one counts
    as open. ``planned`` hears of the bytes that will be read. InvalidError for too many records, or
    values; OSError.
    """
    kept = read_kept(files, directory)
    logs = [each for each in kept.files if each.kind == LOG]
    if not logs:
        return UndoCopies()
    ends = {
        (wave.attempt, base): min(wave.until_ms, wave.kept_at_ms + retention_ms)
        for wave in kept.waves
        for base in wave.kept_bases()
    }
    listing = settled_partition(directory, files, SystemClock(), if_empty=0)
    live = {each.inode for each in listing.segments}
    found: list[UndoCopy] = []
    unseen: list[str] = []
    for each in logs:
        path = directory / each.name
        try:
            status = files.stat(path)
            if status.inode in live:
                continue
            planned(status.size_bytes)
            segment = SegmentFiles(directory, each.number, status.size_bytes, status.mtime_ns)
            records = find_key_records(
                [SearchedSegment(segment, status.size_bytes, named=path)], key, rankings, files,
                workspace, progressed, values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue  # its time is over
        except (CorruptError, RefusedError) as error:
            unseen.append(f"what round {each.attempt} has kept for undo: {error_text(error)}")
            continue
        until_ms = ends.get((each.attempt, each.number))
        found += [UndoCopy(record, each.attempt, until_ms) for record in records]
    return UndoCopies(tuple(found), tuple(unseen))
