"""Makes staged files live, one wave at a time, so that a crash at any point loses nothing.

The order is Kafka's (``LocalLog.replaceSegments``; cleaning.md section 4.2). A crash may keep any
subset of the renames since the directory was last made durable. So it is made durable (!) wherever
a start-up would lose something if a later rename survived an earlier one:

1. staged files become ``.cleaned``; any other ``.cleaned`` is removed first, because at start-up a
   stray one voids every completed ``.swap`` at or above its base (!)
2. outputs in *descending* order: ``.cleaned`` becomes ``.swap`` (! after an output that continues a
   split segment: its first output alone replaces all of it); then the outcome is decided (!)
3. sources ascending: every file becomes ``.deleted`` (!)
4. outputs ascending: ``.swap`` is stripped, the log first (! after each log: what lies between two
   ``.log.swap`` is taken for superseded)
5. producer snapshots of bases that are gone become ``.deleted`` (!)
6. the caller removes what became ``.deleted``, before the next wave needs the room.

Two things lie beyond what a start-up removes, ``[first base, end of the last output)``. Sources
above that end go one by one in step 3 (! after each log), or a tombstone could go and what it
deletes stay. Those below it need no order, and share the flush after all of them. And an output
without aborted transactions takes an empty index along where its source has one, or the old index
could stay next to an output without records.

A caller commits waves in ascending order: later first would bring superseded records back. The
outputs of one wave are neighbours: what lies between them is removed by a start-up after step 2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set
from pathlib import Path

from msgspec import Struct

from keeplast.format.filename import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Kind,
    parse_segment_file,
    segment_file,
)
from keeplast.log.files import FileSystem
from keeplast.log.paths import child_path

KINDS: tuple[Kind, ...] = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
"""A segment's files in the order in which they are renamed."""


class Replacement(Struct, frozen=True):
    """One output: the staged name of each of its files by kind, and the bases it replaces.

    A segment that becomes several is replaced by the first of them; the others replace nothing.
    ``end_offset`` is the offset after the last batch of the log, as a start-up finds it. One that
    is lower costs flushes, and one that is higher could lose data.
    """

    base_offset: int
    staged: dict[Kind, str]
    sources: tuple[int, ...]
    end_offset: int = 0


def commit_wave(
    files: FileSystem, directory: Path, replacements: Sequence[Replacement]
) -> list[Path]:
    """Swap the outputs in; returns when the directory is durable, with what may be removed.

    What is there is listed once: the caller holds the lock, and all else that changes is done here.
    """
    if not replacements:
        return []
    there = frozenset(files.listdir(directory))
    outputs = _announce(files, directory, replacements, there)
    _decide(files, directory, outputs)
    removed = _retire_sources(files, directory, outputs, there)
    _install(files, directory, outputs)
    removed += _retire_snapshots(files, directory, outputs, there)
    files.fsync_directory(directory)
    return removed


class _Output(Struct, frozen=True):
    """An output whose files are there under their names plus a stage.

    ``has_blank`` says that its transaction index is empty and only there to replace another.
    """

    base_offset: int
    kinds: tuple[Kind, ...]
    sources: tuple[int, ...]
    end_offset: int
    has_blank: bool

    def rename(
        self, files: FileSystem, directory: Path, kind: Kind, source: str, target: str
    ) -> None:
        """Take one of the files from a stage to another."""
        name = segment_file(self.base_offset, kind)
        files.rename(child_path(directory, name + source), child_path(directory, name + target))


def _announce(
    files: FileSystem,
    directory: Path,
    replacements: Sequence[Replacement],
    there: Set[str],
) -> list[_Output]:
    for name in sorted(there):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.stage == CLEANED:
            files.unlink(child_path(directory, name))
    outputs: list[_Output] = []
    for replacement in sorted(replacements, key=lambda each: each.base_offset):
        base = replacement.base_offset
        for kind, name in replacement.staged.items():
            cleaned = child_path(directory, segment_file(base, kind) + CLEANED)
            files.rename(child_path(directory, name), cleaned)
        old_index = segment_file(base, TXN_INDEX)
        has_blank = TXN_INDEX not in replacement.staged and old_index in there
        if has_blank:
            blank = child_path(directory, old_index + CLEANED)
            with contextlib.closing(files.open_write(blank)) as handle:
                handle.fsync()
            files.copy_owner_and_mode(child_path(directory, old_index), blank)
        announced = {*replacement.staged, TXN_INDEX} if has_blank else set(replacement.staged)
        kinds = tuple(kind for kind in KINDS if kind in announced)
        end_offset = max(base, replacement.end_offset)
        outputs.append(_Output(base, kinds, replacement.sources, end_offset, has_blank))
    files.fsync_directory(directory)
    return outputs


def _decide(files: FileSystem, directory: Path, outputs: Sequence[_Output]) -> None:
    for output in reversed(outputs):
        for kind in output.kinds:
            output.rename(files, directory, kind, CLEANED, SWAP)
        if not output.sources:
            files.fsync_directory(directory)
    files.fsync_directory(directory)


def _retire_sources(
    files: FileSystem, directory: Path, outputs: Sequence[_Output], there: Set[str]
) -> list[Path]:
    removed: list[Path] = []
    for output in outputs:
        for base in output.sources:
            for kind in KINDS:
                removed += _retire(files, directory, segment_file(base, kind), there)
                # Nothing below the end of the last output comes back: a start-up removes it.
                if kind == LOG and base >= outputs[-1].end_offset:
                    files.fsync_directory(directory)
    files.fsync_directory(directory)
    return removed


def _install(files: FileSystem, directory: Path, outputs: Sequence[_Output]) -> None:
    for output in outputs:
        for kind in output.kinds:
            output.rename(files, directory, kind, SWAP, "")
            if kind == LOG:
                files.fsync_directory(directory)
        if output.has_blank:
            files.unlink(child_path(directory, segment_file(output.base_offset, TXN_INDEX)))


def _retire_snapshots(
    files: FileSystem, directory: Path, outputs: Sequence[_Output], there: Set[str]
) -> list[Path]:
    removed: list[Path] = []
    remaining = {output.base_offset for output in outputs}
    for output in outputs:
        for base in output.sources:
            if base not in remaining:
                removed += _retire(files, directory, segment_file(base, SNAPSHOT), there)
    return removed


def _retire(files: FileSystem, directory: Path, name: str, there: Set[str]) -> list[Path]:
    if name not in there:
        return []
    target = child_path(directory, name + DELETED)
    files.rename(child_path(directory, name), target)
    return [target]
