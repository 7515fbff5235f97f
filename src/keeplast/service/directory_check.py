"""What stands in the way of a round of a data directory: rights, lock, disk, clock, policies.

Looks and changes nothing. Logs in object storage are only read: they have no rights here, no lock
and no disk.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from keeplast.clock import SystemClock, time_text
from keeplast.config.choice import SettingSources
from keeplast.config.settings import PolicyOrigin
from keeplast.config.sources import read_settings
from keeplast.format.filename import LOG
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.log.file_rights import missing_right, user_name
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.log.object_paths import is_object_path, shown
from keeplast.model.size import format_bytes, format_counted
from keeplast.run.room import usable_bytes
from keeplast.service.place_check import CheckState, PartCheck, PlaceCheck, tried
from keeplast.service.receipt_names import FILE_NAME
from keeplast.survey.receipt_clock import clock_notes
from keeplast.survey.wording import sentences

NAMES_MAX = 5


def check_directory(path: Path, files: FileSystem, sources: SettingSources) -> PlaceCheck:
    """Return how the data directory at ``path`` stands, by the settings of ``sources``."""
    directory = tried("directory", lambda: open_data_directory(path, files))
    if isinstance(directory, PartCheck):
        return PlaceCheck((directory,))
    checks = tuple(_checks(directory, files, sources))
    return PlaceCheck(checks, tuple(sorted(directory.topics())))


def _checks(
    directory: DataDirectory, files: FileSystem, sources: SettingSources
) -> Iterator[PartCheck]:
    count = format_counted(len(directory.partitions), "partition")
    yield PartCheck("directory", CheckState.OK, f"{shown(str(directory.root))}: {count}")
    if not is_object_path(directory.root):
        yield find_rights(directory)
        yield _lock(directory)
        yield tried("disk", lambda: _disk(directory, files))
    yield _clock(directory, files)
    yield tried("policies", lambda: _policies(directory, files, sources))


def find_rights(directory: DataDirectory) -> PartCheck:
    """Return whether this user may do to each file what a clean does."""
    missing = []
    for each in (directory.root, *(entry.path for entry in directory.partitions)):
        inside: list[Path] = []
        with contextlib.suppress(OSError):
            inside = sorted(each.iterdir()) if each != directory.root else []
        missing += [right for path in (each, *inside) if (right := missing_right(path))]
    if not missing:
        return PartCheck("rights", CheckState.OK, f"{user_name()} may read and write all of it")
    named = "; ".join(dict.fromkeys(missing[:NAMES_MAX]))
    words = f"{user_name()} may not {named}; run as the broker's user, such as sudo -u kafka"
    return PartCheck("rights", CheckState.PROBLEM, words)


def _lock(directory: DataDirectory) -> PartCheck:
    if is_locked(directory.root):
        words = "held: a broker or another keeplast works here; stop it, or clean a copy"
        return PartCheck("lock", CheckState.PROBLEM, words)
    return PartCheck("lock", CheckState.OK, "free")


def _disk(directory: DataDirectory, files: FileSystem) -> PartCheck:
    """Compare what may be written with the largest log, which a round may need at once."""
    room = usable_bytes(files, directory.root)
    sizes = [
        sum(files.stat(each.path / name).size_bytes for name in files.listdir(each.path)
            if name.endswith(LOG))
        for each in directory.partitions
    ]  # fmt: skip
    words = f"{format_bytes(max(room, 0))} may be written; the largest log has "
    words += format_bytes(max(sizes, default=0))
    if room <= 0:
        return PartCheck(
            "disk", CheckState.PROBLEM, f"{words}; make room, or use --to another disk"
        )
    return PartCheck("disk", CheckState.OK, words)


def _clock(directory: DataDirectory, files: FileSystem) -> PartCheck:
    """Compare this host's clock with the newest receipt of the directory."""
    now_ms = SystemClock().now_ms()
    notes = sentences(clock_notes(files, directory.root / FILE_NAME, now_ms))
    if notes:
        return PartCheck("clock", CheckState.WARNING, "; ".join(notes))
    return PartCheck("clock", CheckState.OK, f"{time_text(now_ms)[:19]}, by this host")


def _policies(directory: DataDirectory, files: FileSystem, sources: SettingSources) -> PartCheck:
    """Find the topics whose policy is not known; ``clean`` refuses those."""
    settings = read_settings(directory.root, files, sources)
    topics = directory.topics()
    unknown = sorted(
        topic
        for topic in topics
        if (origin := settings.policy_origin(topic)) is PolicyOrigin.UNKNOWN
        or (origin is PolicyOrigin.CLUSTER and settings.topic_config(topic).is_compacted)
    )
    if unknown:
        names = ", ".join(unknown[:NAMES_MAX]) + (", …" if len(unknown) > NAMES_MAX else "")
        words = f"cleanup.policy is unknown of {len(unknown)} of {len(topics)} topics: {names}"
        place = shlex.quote(shown(str(directory.root)))
        topic = shlex.quote(unknown[0])
        remedy = f"keeplast configure {place} cleanup.policy=compact --topic {topic}"
        return PartCheck("policies", CheckState.PROBLEM, words, remedy=remedy)
    compacted = sum(settings.topic_config(topic).is_compacted for topic in topics)
    return PartCheck("policies", CheckState.OK, f"known; {compacted} of {len(topics)} compacted")
