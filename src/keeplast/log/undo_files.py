"""The segments that rounds have replaced and kept, next to the log that took their place.

They are hard links: they cost no writing, and the disk only from the moment on at which the segment
is replaced. A list, one for each wave, says what belongs together. It is made durable after its
files and removed before them, so that what a list names was whole when it was kept. A file that no
list names does not count. Their names mean nothing to brokers, which keep them, never read them,
and remove them with the partition (formats.md 3.5, S2).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import Struct

from keeplast.errors import CompactionError, CorruptError, RefusedError
from keeplast.format.filename import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Kind,
    UndoFile,
    parse_undo_file,
    segment_file,
)
from keeplast.log.files import FileSystem, reading, write_durable_like
from keeplast.model.undo import KeptWave, decode_wave, encode_wave

VERSION = 1
BYTES_MAX = 64 << 20
KINDS: tuple[Kind, ...] = (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
"""What is kept of a segment, as far as it is there."""


class KeptFiles(Struct, frozen=True):
    """What of a partition is kept: waves in their order, lists that cannot be read, and all names.

    ``damaged`` are the lists' names; ``files`` those of everything, lists included.
    """

    waves: tuple[KeptWave, ...]
    damaged: tuple[str, ...]
    files: tuple[UndoFile, ...]

    def rounds(self) -> tuple[tuple[KeptWave, ...], ...]:
        """Return the waves of each round, rounds from the oldest on."""
        found: dict[str, list[KeptWave]] = {}
        for wave in self.waves:
            found.setdefault(wave.attempt, []).append(wave)
        return tuple(tuple(waves) for waves in found.values())

    def require_lists(self, directory: Path) -> None:
        """Raise RefusedError for a list that is damaged: its round is not known."""
        for name in self.damaged:
            raise RefusedError(
                "the list of a round's kept files is damaged, so that the round cannot be "
                "undone; put the file back, or give it up with keeplast undo --drop. "
                f"list={name} path={directory}",
                code="K605",
            )


def read_kept(files: FileSystem, directory: Path) -> KeptFiles:
    """Return what is kept in a partition directory; OSError when it cannot be listed."""
    found = tuple(
        parsed for parsed in map(parse_undo_file, files.listdir(directory)) if parsed is not None
    )
    if found:
        directories = files.directories_in(directory)
        found = tuple(each for each in found if each.name not in directories)
    waves: list[KeptWave] = []
    damaged: list[str] = []
    for each in found:
        if each.kind is not None:
            continue
        try:
            waves.append(_read_list(files, directory / each.name, each))
        except FileNotFoundError:
            continue  # its time is over: somebody at work has just removed it
        except CompactionError:
            damaged.append(each.name)
    waves.sort(key=lambda wave: wave.number)
    return KeptFiles(tuple(waves), tuple(damaged), found)


def _read_list(files: FileSystem, path: Path, name: UndoFile) -> KeptWave:
    data = files.read_bytes(path, BYTES_MAX)
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}")
        return decode_wave(document, number=name.number, attempt=name.attempt)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            "the list of a round's kept files is damaged", path=str(path), position=0,
            expected="the JSON that a round writes", found=f"{type(error).__name__}: {error}",
            code="K608",
        ) from error  # fmt: skip


def keep_wave(files: FileSystem, directory: Path, wave: KeptWave) -> None:
    """Keep the sources of a wave, durably; nothing of it stays when that fails.

    RefusedError where the volume has no hard links, else OSError.
    """
    try:
        for base in sorted(wave.kept_bases()):
            for kind in KINDS:
                source = directory / segment_file(base, kind)
                if files.exists(source):
                    _link(files, source, directory / UndoFile(wave.attempt, base, kind).name)
        _write_list(
            files, directory, wave, like=directory / segment_file(wave.groups[0].base_offset, LOG)
        )
    except BaseException:
        with contextlib.suppress(OSError):
            drop_rounds(files, directory, {wave.attempt}, from_number=wave.number)
        raise


def _link(files: FileSystem, source: Path, target: Path) -> None:
    try:
        files.link(source, target)
    except FileExistsError:
        raise
    except PermissionError as error:
        raise RefusedError(
            "a round cannot keep the replaced segments: this volume or user makes no hard links. "
            f"Run as the log's owner, or set undo.retention.ms to 0. path={source} "
            f"problem={error}",
            code="K240",
        ) from error


def _write_list(files: FileSystem, directory: Path, wave: KeptWave, *, like: Path) -> None:
    """Write the list of a wave whose files are there; ``like`` has the owner that it gets."""
    document = {"version": VERSION, **encode_wave(wave)}
    path = directory / UndoFile(wave.attempt, wave.number, None).name
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    # The links first: what a list names is there.
    files.fsync_directory(directory)
    write_durable_like(files, path, data, like)


def replace_list(files: FileSystem, directory: Path, wave: KeptWave) -> None:
    """Replace the list of a wave by one that names less; what it names no more is to be dropped."""
    path = directory / UndoFile(wave.attempt, wave.number, None).name
    _write_list(files, directory, wave, like=path)


def drop_rounds(
    files: FileSystem,
    directory: Path,
    attempts: Collection[str],
    *,
    from_number: int = 0,
) -> int:
    """Remove what rounds have kept, their lists first; returns how many files went.

    With ``from_number`` only of lists from there on, and what no other list names.
    """
    found = read_kept(files, directory)
    lists = [
        each
        for each in found.files
        if each.kind is None and each.attempt in attempts and each.number >= from_number
    ]
    # The first wave's first: without it no undo takes what is left of a round for all of it.
    for each in sorted(lists, key=lambda each: each.number):
        files.unlink(directory / each.name)
        files.fsync_directory(directory)
    return len(lists) + drop_unnamed(files, directory)


def drop_unnamed(files: FileSystem, directory: Path) -> int:
    """Remove what no list that can be read names, such lists included; returns how many went."""
    found = read_kept(files, directory)
    named = {(wave.attempt, base) for wave in found.waves for base in wave.kept_bases()}
    gone = [*found.damaged]
    gone += [
        each.name
        for each in found.files
        if each.kind is not None and (each.attempt, each.number) not in named
    ]
    gone += [
        name
        for name in files.listdir(directory)
        if name.endswith(".tmp") and parse_undo_file(name.removesuffix(".tmp")) is not None
    ]
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(directory / name)
    if gone:
        files.fsync_directory(directory)
    return len(gone)


def kept_paths(files: FileSystem, directory: Path, attempt: str, base: int) -> dict[Kind, Path]:
    """Return the files of one kept segment by kind, those that are there."""
    paths = {kind: directory / UndoFile(attempt, base, kind).name for kind in KINDS}
    return {kind: path for kind, path in paths.items() if files.exists(path)}


def is_plain(files: FileSystem, path: Path) -> bool:
    """Say whether a kept name is of a regular file, and no link or directory in its place."""
    try:
        with reading(files, path):
            return True
    except RefusedError:
        return False


def kept_until_ms(
    files: FileSystem, directory: Path, names: Iterable[str], retention_ms: int
) -> int | None:
    """Return when the last of what is kept is due to go; None when nothing is.

    ``names`` are those in the directory. Where that is not known it goes at the next look: 0.
    """
    if all(parse_undo_file(name) is None for name in names):
        return None
    waves = read_kept(files, directory).waves
    return max((min(each.until_ms, each.kept_at_ms + retention_ms) for each in waves), default=0)
