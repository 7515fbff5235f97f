"""What a check of a place finds: reach, rights, release, clock and settings, one row each.

The rule: **a check changes nothing, and one that fails hides no other**: what cannot be looked at
is a row with its error. Only a PROBLEM would end a round.

Of this host the rows are Python, kernels, Java, pyspark and the extras. What only Spark needs, or
only a store, is no problem while it is absent: the row says what does without.

Of a data directory they are rights, lock, disk, clock and policies. Logs in object storage are only
read: they have no rights here, no lock and no disk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from keeplast.clock import SystemClock, time_text
from keeplast.columns import kernel
from keeplast.config.layers import SettingSources
from keeplast.config.precedence import PolicyOrigin
from keeplast.config.sources import read_settings
from keeplast.errors import CompactionError, InvalidError, error_text, installing
from keeplast.format.filename import LOG
from keeplast.kernel_cache import cache_folder, cache_warning, compiled_count
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.log.paths import is_object_path, missing_right, right_words, shown, user_name
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.text import format_bytes, format_counted, without_secrets
from keeplast.run.foresight import usable_bytes
from keeplast.survey.receipt_book import clock_notes
from keeplast.survey.wording import sentences

Found = TypeVar("Found")


class CheckState(StrEnum):
    """How one thing stands."""

    OK = "ok"
    ABSENT = "absent"
    WARNING = "warning"
    PROBLEM = "problem"


class PartCheck(Struct, frozen=True):
    """One thing that was looked at; ``words`` say what was found.

    ``topic`` is None for all of the place. ``remedy`` is a line to type or what to do, empty where
    ``words`` say it.
    """

    name: str
    state: CheckState
    words: str
    topic: str | None = None
    remedy: str = ""


class PlaceCheck(Struct, frozen=True):
    """The rows of a place, and its topics; ``cluster_id`` and ``brokers`` are a live cluster's."""

    checks: tuple[PartCheck, ...]
    topics: tuple[str, ...] = ()
    cluster_id: str | None = None
    brokers: tuple[int, ...] = ()


def tried(name: str, look: Callable[[], Found]) -> Found | PartCheck:
    """Return what ``look`` returns, and its error as a problem."""
    try:
        return look()
    except (CompactionError, OSError) as error:
        return problem_of(name, error)


def problem_of(name: str, error: Exception) -> PartCheck:
    """Return an error as a row, without a secret."""
    words = without_secrets(error_text(error, right_words(error)))
    return PartCheck(name, CheckState.PROBLEM, words)


JAVA_MIN = 17
JAVA_SECONDS_MAX = 20
EXTRAS = (
    ("s3", ("obstore",), "logs in object storage"),
    ("tier", ("sqlalchemy", "alembic", "obstore", "psycopg"), "stores"),
    ("cluster", ("confluent_kafka",), "live clusters"),
)


def check_installation(release: str, open_spark: Callable[[], object]) -> Iterator[PartCheck]:
    """Yield a row for each part; ``open_spark`` raises InvalidError where pyspark is no use."""
    yield PartCheck("keeplast", CheckState.OK, f"{release} on Python {platform.python_version()}")
    yield _kernels()
    yield find_java()
    yield _pyspark(open_spark)
    for extra, packages, use in EXTRAS:
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        words = f"{', '.join(missing)} missing, for {use}; {installing(extra)}"
        yield (
            PartCheck(f"extra {extra}", CheckState.ABSENT, words)
            if missing
            else PartCheck(f"extra {extra}", CheckState.OK, f"there, for {use}")
        )


def _kernels() -> PartCheck:
    warning = cache_warning()
    if warning is not None:
        return PartCheck("kernels", CheckState.ABSENT, warning)
    words = (
        f"{compiled_count()} of {len(kernel.names())} compiled, each when a command first needs "
        f"it; kept in {cache_folder()}"
    )
    return PartCheck("kernels", CheckState.OK, words)


def find_java() -> PartCheck:
    """Say which Java there is; only Spark needs one."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    without = "--runner local does without"
    if path is None:
        return PartCheck("Java", CheckState.ABSENT, f"none in {home or 'PATH'}; {without}")
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return PartCheck("Java", CheckState.ABSENT, f"{path} does not start ({error}); {without}")
    found = re.search(r'version "([0-9]+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < JAVA_MIN:
        release = found[1] if found else "an unknown version"
        return PartCheck("Java", CheckState.ABSENT, f"{release}, Spark needs {JAVA_MIN}; {without}")
    return PartCheck("Java", CheckState.OK, f"{found[1]} at {path}")


def _pyspark(open_spark: Callable[[], object]) -> PartCheck:
    try:
        open_spark()
        return PartCheck("pyspark", CheckState.OK, version("pyspark"))
    except (InvalidError, PackageNotFoundError) as error:
        return PartCheck("pyspark", CheckState.ABSENT, str(error))


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
    notes = sentences(clock_notes(files, directory.root / RECEIPTS_NAME, now_ms))
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
        remedy = (
            f"give --topic {topic} --config cleanup.policy=compact, or a keeplast.toml that says it"
            if is_object_path(directory.root)
            else f"keeplast configure {place} cleanup.policy=compact --topic {topic}"
        )
        return PartCheck("policies", CheckState.PROBLEM, words, remedy=remedy)
    compacted = sum(settings.topic_config(topic).is_compacted for topic in topics)
    return PartCheck("policies", CheckState.OK, f"known; {compacted} of {len(topics)} compacted")
