"""Makes staged files live, one wave at a time, so that a crash at any point loses nothing.

The order is Kafka's (``LocalLog.replaceSegments``; cleaning.md section 4.2) with the directory made
durable between its steps:

1. staged files become ``.cleaned``; any other ``.cleaned`` is removed first, because at start-up a
   stray one voids every completed ``.swap`` at or above its base;
2. outputs in *descending* order: ``.cleaned`` becomes ``.swap``; then the outcome is decided;
3. sources ascending: every file becomes ``.deleted``;
4. outputs ascending: ``.swap`` is stripped;
5. producer snapshots of bases that are gone become ``.deleted``;
6. the caller removes what became ``.deleted``, before the next wave needs the room.

A caller commits waves in ascending order: later first would bring superseded records back. The
outputs of one wave are neighbours: what lies between them is removed by a start-up after step 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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

KINDS: tuple[Kind, ...] = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
"""A segment's files in the order in which they are renamed."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One output: the staged name of each of its files by kind, and the bases it replaces.

    A segment that becomes several is replaced by the first of them; the others replace nothing.
    """

    base_offset: int
    staged: dict[Kind, str]
    sources: tuple[int, ...]


def commit_wave(
    files: FileSystem, directory: Path, replacements: Sequence[Replacement]
) -> list[Path]:
    """Swap the outputs in; returns when the directory is durable, with what may be removed."""
    outputs = sorted(replacements, key=lambda replacement: replacement.base_offset)
    if not outputs:
        return []
    _announce(files, directory, outputs)
    for output in reversed(outputs):
        for kind in _kinds(output):
            name = segment_file(output.base_offset, kind)
            files.rename(directory / (name + CLEANED), directory / (name + SWAP))
    files.fsync_directory(directory)
    removed = _retire_sources(files, directory, outputs)
    for output in outputs:
        for kind in _kinds(output):
            name = segment_file(output.base_offset, kind)
            files.rename(directory / (name + SWAP), directory / name)
    removed += _retire_snapshots(files, directory, outputs)
    files.fsync_directory(directory)
    return removed


def _kinds(output: Replacement) -> list[Kind]:
    return [kind for kind in KINDS if kind in output.staged]


def _announce(files: FileSystem, directory: Path, outputs: Sequence[Replacement]) -> None:
    for name in files.listdir(directory):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.stage == CLEANED:
            files.unlink(directory / name)
    for output in outputs:
        for kind in _kinds(output):
            target = segment_file(output.base_offset, kind) + CLEANED
            files.rename(directory / output.staged[kind], directory / target)
    files.fsync_directory(directory)


def _retire_sources(
    files: FileSystem, directory: Path, outputs: Sequence[Replacement]
) -> list[Path]:
    removed: list[Path] = []
    for output in outputs:
        for base in output.sources:
            for kind in KINDS:
                removed += _retire(files, directory, segment_file(base, kind))
    files.fsync_directory(directory)
    return removed


def _retire_snapshots(
    files: FileSystem, directory: Path, outputs: Sequence[Replacement]
) -> list[Path]:
    removed: list[Path] = []
    remaining = {output.base_offset for output in outputs}
    for output in outputs:
        for base in output.sources:
            if base not in remaining:
                removed += _retire(files, directory, segment_file(base, SNAPSHOT))
    return removed


def _retire(files: FileSystem, directory: Path, name: str) -> list[Path]:
    if not files.exists(directory / name):
        return []
    target = directory / (name + DELETED)
    files.rename(directory / name, target)
    return [target]
