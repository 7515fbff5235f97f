"""``keeplast doctor``: whether this host, and a data directory on it, has what a clean needs.

Looks and changes nothing. What only Spark needs, or only a store, is no problem while it is absent:
the line says what does without. A problem is what would end a ``clean``, and gives exit code 1.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
from keeplast.cli.frame.parameters import Json
from keeplast.errors import CompactionError, InvalidError, installing

if TYPE_CHECKING:
    from keeplast.log.data_directory import DataDirectory
    from keeplast.log.files import FileSystem

Found = TypeVar("Found")
JAVA_MIN = 17
JAVA_SECONDS_MAX = 20
NAMES_MAX = 5


class CheckState(StrEnum):
    """How one thing stands."""

    OK = "ok"
    ABSENT = "absent"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at; ``words`` say what was found and what helps."""

    name: str
    state: CheckState
    words: str


@command(first=(), example="keeplast doctor DATA_DIR")
def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA_DIR]",
            help="Look at this Kafka log.dirs directory too: rights, lock, disk, policies.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> Result:
    """Look whether all is there that clean needs: Java, pyspark, rights, lock, disk, policies.

    Changes nothing. Exit code 1 when something would end a clean.
    """
    from rich.text import Text

    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.rows import new_table
    from keeplast.model.escapes import printable

    found = [*host_findings(), *(() if data_dir is None else directory_findings(data_dir))]
    problems = sum(each.state is CheckState.PROBLEM for each in found)
    if not as_json:
        table = new_table("=what", "=state", "found")
        for each in found:
            table.add_row(each.name, each.state.value, Text(printable(each.words)))
        words = "nothing is in the way" if not problems else f"{problems} in the way of a clean"
        print_result(table, "", words)
    document = {"checks": found}
    return CHECK_FAILED if problems else DONE, document


def host_findings() -> Iterator[Diagnosis]:
    """Yield what this host has: Python, kernels, Java, pyspark, and what extras bring."""
    from keeplast import __version__

    yield Diagnosis(
        "keeplast", CheckState.OK, f"{__version__} on Python {platform.python_version()}"
    )
    yield _kernels()
    yield find_java()
    yield _pyspark()
    for extra, packages, use in (
        ("s3", ("obstore",), "logs in object storage"),
        ("tier", ("sqlalchemy", "alembic", "obstore", "psycopg"), "keeplast tier"),
        ("cluster", ("confluent_kafka",), "keeplast attach"),
    ):
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        words = f"{', '.join(missing)} missing, for {use}; {installing(extra)}"
        yield (
            Diagnosis(f"extra {extra}", CheckState.ABSENT, words)
            if missing
            else Diagnosis(f"extra {extra}", CheckState.OK, f"there, for {use}")
        )


def _kernels() -> Diagnosis:
    from keeplast.columns import kernel
    from keeplast.kernel_cache import cache_folder, cache_warning, compiled_count

    warning = cache_warning()
    if warning is not None:
        return Diagnosis("kernels", CheckState.ABSENT, warning)
    words = (
        f"{compiled_count()} of {len(kernel.names())} compiled, each when a command first needs "
        f"it; kept in {cache_folder()}"
    )
    return Diagnosis("kernels", CheckState.OK, words)


def find_java() -> Diagnosis:
    """Say which Java there is; only Spark needs one."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    without = "--runner local does without"
    if path is None:
        return Diagnosis("Java", CheckState.ABSENT, f"none in {home or 'PATH'}; {without}")
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("Java", CheckState.ABSENT, f"{path} does not start ({error}); {without}")
    version = re.search(r'version "([0-9]+)', done.stderr + done.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        told = version[1] if version else "an unknown version"
        return Diagnosis("Java", CheckState.ABSENT, f"{told}, Spark needs {JAVA_MIN}; {without}")
    return Diagnosis("Java", CheckState.OK, f"{version[1]} at {path}")


def _pyspark() -> Diagnosis:
    from importlib.metadata import PackageNotFoundError, version

    from keeplast.cli.frame.wiring import RunnerName, open_runner

    try:
        open_runner(RunnerName.SPARK, master=None, cores=None)
        return Diagnosis("pyspark", CheckState.OK, version("pyspark"))
    except (InvalidError, PackageNotFoundError) as error:
        return Diagnosis("pyspark", CheckState.ABSENT, str(error))


def directory_findings(path: Path) -> Iterator[Diagnosis]:
    """Yield what stands in the way of a clean of the data directory ``path``."""
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    files = LocalFiles()
    directory = _try("directory", lambda: open_data_directory(path, files))
    if isinstance(directory, Diagnosis):
        yield directory
        return
    count = len(directory.partitions)
    words = f"{directory.root}: {count} partition{'' if count == 1 else 's'}"
    yield Diagnosis("directory", CheckState.OK, words)
    yield find_rights(directory)
    yield _lock(directory)
    yield _try("disk", lambda: _disk(directory, files))
    yield _try("policies", lambda: _policies(directory, files))


def find_rights(directory: DataDirectory) -> Diagnosis:
    """Say whether this user may do to each file what a clean does."""
    from keeplast.cli.show.fault import missing_right, user_name

    missing = []
    for each in (directory.root, *(entry.path for entry in directory.partitions)):
        inside: list[Path] = []
        with contextlib.suppress(OSError):
            inside = sorted(each.iterdir()) if each != directory.root else []
        missing += [right for path in (each, *inside) if (right := missing_right(path))]
    if not missing:
        return Diagnosis("rights", CheckState.OK, f"{user_name()} may read and write all of it")
    shown = "; ".join(dict.fromkeys(missing[:NAMES_MAX]))
    words = f"{user_name()} may not {shown}; run as the broker's user, such as sudo -u kafka"
    return Diagnosis("rights", CheckState.PROBLEM, words)


def _lock(directory: DataDirectory) -> Diagnosis:
    from keeplast.log.lock import is_locked

    if is_locked(directory.root):
        words = "held: a broker or another keeplast works here; stop it, or clean a copy"
        return Diagnosis("lock", CheckState.PROBLEM, words)
    return Diagnosis("lock", CheckState.OK, "free")


def _disk(directory: DataDirectory, files: FileSystem) -> Diagnosis:
    """Compare what may be written with the largest log, which a round may need at once."""
    from keeplast.format.filename import LOG
    from keeplast.model.size import format_bytes
    from keeplast.run.room import usable_bytes

    room = usable_bytes(files, directory.root)
    sizes = [
        sum(files.stat(each.path / name).size_bytes for name in files.listdir(each.path)
            if name.endswith(LOG))
        for each in directory.partitions
    ]  # fmt: skip
    words = f"{format_bytes(max(room, 0))} may be written; the largest log has "
    words += format_bytes(max(sizes, default=0))
    if room <= 0:
        return Diagnosis(
            "disk", CheckState.PROBLEM, f"{words}; make room, or use --to another disk"
        )
    return Diagnosis("disk", CheckState.OK, words)


def _policies(directory: DataDirectory, files: FileSystem) -> Diagnosis:
    """Say of which topics nobody knows whether they are compacted; ``clean`` refuses those."""
    from keeplast.config.settings import PolicyOrigin
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import METADATA_TOPIC

    settings = read_settings(directory.root, files)
    topics = {each.partition.topic for each in directory.partitions if each.mark is None}
    topics -= {METADATA_TOPIC}
    unknown = sorted(
        topic
        for topic in topics
        if (origin := settings.policy_origin(topic)) is PolicyOrigin.UNKNOWN
        or (origin is PolicyOrigin.CLUSTER and settings.topic_config(topic).is_compacted)
    )
    if unknown:
        names = ", ".join(unknown[:NAMES_MAX]) + (", …" if len(unknown) > NAMES_MAX else "")
        words = (
            f"cleanup.policy is unknown of {len(unknown)} of {len(topics)} topics: {names}; say it "
            "with keeplast config set cleanup.policy=compact --topic T DATA_DIR"
        )
        return Diagnosis("policies", CheckState.PROBLEM, words)
    compacted = sum(settings.topic_config(topic).is_compacted for topic in topics)
    return Diagnosis("policies", CheckState.OK, f"known; {compacted} of {len(topics)} compacted")


def _try(name: str, look: Callable[[], Found]) -> Found | Diagnosis:
    from keeplast.cli.show.fault import fault_text

    try:
        return look()
    except (CompactionError, OSError) as error:
        return Diagnosis(name, CheckState.PROBLEM, fault_text(error))
