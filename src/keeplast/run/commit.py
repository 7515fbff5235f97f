"""Makes a wave part of a log in a directory: the only place where a live file changes.

In place: nothing is renamed before the partition has been found as it was surveyed. A group that
was left alone never lies between two outputs of one swap. To a new place: other files are copied
next to the staged ones, and the checkpoint is written last. An earlier log goes when nothing is
left to be read.

Signals are held back during work that must not be left half done. A signal whose handler raises
would end a swap between two renames. That loses nothing, but leaves the partition for the next
start-up to finish. Handlers run in the main thread only, so they are put aside there; signals that
arrived are delivered when the block ends.

Unneeded files are removed; a disk that refuses is no reason to give anything up. They have staged
names: the next call here, or a broker's start, removes those that are left.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from keeplast.errors import CompactionError, ConflictError, UnavailableError
from keeplast.format.filename import (
    DELETED,
    INDEX,
    SNAPSHOT,
    TIME_INDEX,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, list_partition
from keeplast.log.recovery import recover_swap
from keeplast.log.swap import KINDS, Replacement, commit_wave
from keeplast.rewrite.task import StagedGroup
from keeplast.run.round_state import Site

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Let neither SIGINT nor SIGTERM interrupt the block; they take effect at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    # A handler that was not set from Python cannot be put back, and raises nothing either.
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not None]
    previous = {
        number: signal.signal(number, lambda got, _: arrived.append(got)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for got in dict.fromkeys(arrived):
            signal.raise_signal(got)


def remove_files(files: FileSystem, paths: Iterable[Path], warned: Callable[[str], None]) -> None:
    """Remove ``paths``; ``warned`` hears of each that stays."""
    for path in paths:
        try:
            files.unlink(path)
        except FileNotFoundError:
            continue  # an abandoned attempt has removed its own
        except (OSError, UnavailableError) as error:
            warned(
                "a file could not be removed; the next clean, or a broker's start, does. "
                f"path={path} error={error}"
            )


GiveUp = Callable[[Collection[str]], None]
"""Removes the earlier log at a target, all but what is staged there under these names."""


def check_unchanged(
    files: FileSystem, surveyed: PartitionFiles, committed: Sequence[StagedGroup]
) -> None:
    """Raise ConflictError unless the directory is as surveyed, but for what we committed since."""
    found = {s.base_offset: s for s in list_partition(surveyed.path, files).segments}
    ours = {base for group in committed for base in group.sources}
    for segment in surveyed.segments:
        base = segment.base_offset
        if base in ours:
            continue
        now = found.get(base)
        if now is None or (now.size_bytes, now.mtime_ns) != (segment.size_bytes, segment.mtime_ns):
            raise ConflictError(
                "the partition changed while it was being cleaned and is left alone; "
                f"stop what writes to it and run again. path={segment.log_path}",
                code="K232",
            )


@contextlib.contextmanager
def settled(files: FileSystem, path: Path, warned: Callable[[str], None]) -> Iterator[None]:
    """Finish or undo a swap at once that a disk which fails has cut off; the error goes on.

    ``warned`` hears of it when the disk refuses that too.
    """
    try:
        yield
    except OSError:
        try:
            recover_swap(files, path)
        except (CompactionError, OSError) as error:
            warned(
                "the swap could be neither finished nor undone; the next clean, or a broker's "
                f"start, does. path={path} error={error}"
            )
        raise


def commit_in_place(files: FileSystem, path: Path, staged: Sequence[StagedGroup]) -> list[Path]:
    """Swap a wave in; returns the replaced files, which are for the caller to remove.

    The caller has just asked :func:`check_unchanged`.
    """
    removed: list[Path] = []
    for run in _neighbours(staged):
        removed += commit_wave(files, path, run)
    return removed


def commit_to_target(
    files: FileSystem,
    site: Site,
    staged: Sequence[StagedGroup],
    surveyed: PartitionFiles,
    give_up: GiveUp | None = None,
) -> None:
    """Complete ``site.target``: outputs under their final names, everything else copied.

    With ``give_up`` an earlier log lies there: all that is copied is staged first.
    """
    check_unchanged(files, surveyed, ())
    groups = [group for group in staged if group.files]
    replaced = {base for group in groups for base in group.sources}
    outputs = {group.base_offset for group in staged}
    names = [
        name
        for name in _files_in(files, site.path)
        if not _is_replaced(name, replaced=replaced, outputs=outputs)
    ]
    copies: dict[str, str] = {}
    if give_up is not None:
        copies = _copy_beside(files, site.path, site.target, names, site.attempt)
        give_up([*copies.values(), *(file.name for group in groups for file in group.files)])
    times = {segment.base_offset: segment.mtime_ms * 1_000_000 for segment in surveyed.segments}
    mtime_ns = 0
    for group in staged:
        if group.sources:
            mtime_ns = times[group.sources[-1]]
        for file in group.files:
            final = site.target / f"{group.base_offset:020d}{file.kind}"
            files.rename(site.target / file.name, final)
            # The worker has set it, but on a file that another name's object does not follow.
            files.set_mtime(final, mtime_ns)
    _bring(files, site.path, site.target, names, copies)
    files.fsync_directory(site.target)
    files.fsync_directory(site.target.parent)


def complete_active(files: FileSystem, listing: PartitionFiles) -> None:
    """Give an empty active segment the empty indexes that a broker gives it at start-up.

    Only that: an index of a segment with batches is left to the broker's own recovery.
    """
    active = listing.active
    if active.size_bytes:
        return
    for kind in (INDEX, TIME_INDEX):
        if not files.exists(active.path(kind)):
            files.open_write(active.path(kind)).close()
            files.set_mtime(active.path(kind), active.mtime_ns)


def copy_partition(
    files: FileSystem, source: Path, target: Path, attempt: str, give_up: GiveUp | None = None
) -> None:
    """Copy every file of a partition that no round has changed; see :func:`commit_to_target`."""
    names = _files_in(files, source)
    copies: dict[str, str] = {}
    if give_up is not None:
        copies = _copy_beside(files, source, target, names, attempt)
        give_up(list(copies.values()))
    _bring(files, source, target, names, copies)
    files.fsync_directory(target)


def _files_in(files: FileSystem, source: Path) -> list[str]:
    """Return what makes up a partition; what rounds have kept there is not of its log."""
    return [
        name
        for name in files.listdir(source)
        if parse_undo_file(name) is None and not files.is_directory(source / name)
    ]


def _is_replaced(name: str, *, replaced: set[int], outputs: set[int]) -> bool:
    """Say whether a file of the source is not of the log that a round has made of it."""
    parsed = parse_segment_file(name)
    if parsed is None:
        return False
    if parsed.stage or (parsed.kind in KINDS and parsed.base_offset in replaced):
        return True
    is_gone = parsed.base_offset in replaced and parsed.base_offset not in outputs
    return parsed.kind == SNAPSHOT and is_gone


def _copy_beside(
    files: FileSystem, source: Path, target: Path, names: Sequence[str], attempt: str
) -> dict[str, str]:
    """Copy files under names that no log has, and return those; all or none of them."""
    copies = {name: f"{name}.{attempt}{DELETED}" for name in names}
    try:
        for name, staged in copies.items():
            copy_file(files, source / name, target / staged)
    except BaseException:
        for staged in copies.values():
            with contextlib.suppress(OSError):
                files.unlink(target / staged)
        raise
    return copies


def _bring(
    files: FileSystem, source: Path, target: Path, names: Sequence[str], copies: Mapping[str, str]
) -> None:
    """Give copies that were made next to an earlier log their names, and make the others."""
    for name in names:
        if name not in copies:
            copy_file(files, source / name, target / name)
            continue
        files.rename(target / copies[name], target / name)
        files.set_mtime(target / name, files.stat(source / name).mtime_ns)


def copy_file(files: FileSystem, source: Path, target: Path) -> None:
    """Copy a regular file durably, with mode, owner and modification time."""
    with reading(files, source) as handle, contextlib.closing(files.open_write(target)) as out:
        out.copy_from(handle, 0, handle.size_bytes)
        out.fsync()
    files.copy_owner_and_mode(source, target)
    files.set_mtime(target, files.stat(source).mtime_ns)


def _neighbours(staged: Sequence[StagedGroup]) -> Iterator[list[Replacement]]:
    """Yield the outputs run by run, split where a group was left alone.

    A start-up that finds completed ``.swap`` files takes everything between the first and the last
    of them for superseded and removes it. A segment that stays as it is would go with it.
    """
    run: list[Replacement] = []
    for group in staged:
        if group.files:
            names = {file.kind: file.name for file in group.files}
            run.append(Replacement(group.base_offset, names, group.sources, group.end_offset))
        elif run:
            yield run
            run = []
    if run:
        yield run
