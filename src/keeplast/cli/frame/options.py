"""The options of commands, each declared once, in groups that a command names as values.

How a group becomes options is in :mod:`keeplast.cli.frame.command`. A command with another default
or other words for an option says so in a group made from this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from keeplast.cleaner.selection import Order
from keeplast.cli.frame.parameters import (
    FACTS,
    LOOPBACK,
    MEMORY_DEFAULT,
    ROUND,
    RUN,
    SCOPE,
    SETTINGS,
    TASK_MEMORY_DEFAULT,
    BrokerConfig,
    Cores,
    Flags,
    HighWatermark,
    Memory,
    Runner,
    Selection,
    TaskMemory,
    Unsafe,
    partition_number,
)
from keeplast.cli.frame.places import place
from keeplast.cli.frame.wiring import RunnerName, choose_runner
from keeplast.config.choice import PartitionChoice, SettingSources
from keeplast.model.shape import Shape
from keeplast.model.size import parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions(PartitionChoice):
    """Which partitions a call is about."""

    topics: Annotated[
        tuple[str, ...],
        typer.Option(
            "--topic", metavar="T", help="Only this topic; repeatable.", rich_help_panel=SCOPE
        ),
    ] = ()
    partitions: Annotated[
        tuple[int, ...],
        typer.Option(
            "--partition",
            metavar="N",
            parser=partition_number,
            help="Only partitions of this number; repeatable.",
            rich_help_panel=SCOPE,
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions(SettingSources):
    """The files in which settings are looked for."""

    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file",
            metavar="FILE",
            help='TOML with [cluster] and [topic."name"] tables. '
            "Default: keeplast.toml in the data directory, if there is one.",
            rich_help_panel=SETTINGS,
        ),
    ] = None
    broker_config: BrokerConfig = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingOptions(FileOptions):
    """Where settings are looked for."""

    flags: Flags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where the cleaned log is written; ``to`` None is in place."""

    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Write the cleaned log there and leave the source untouched; s3://, gs:// and "
            "az:// "
            "too. Default: in place.",
            rich_help_panel=ROUND,
            parser=place,
        ),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Write to --to although other things lie there; partitions that are there already "
            "are replaced, unless they are of another topic or go further than the source.",
            rich_help_panel=ROUND,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Where the work is done, and on how much."""

    runner: Runner = None
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark master. Its executors read and write the log themselves, at the same path "
            "on every host unless it is in an object store. Default with --runner spark: local[*].",
            rich_help_panel=RUN,
        ),
    ] = None
    cores: Cores = None

    @property
    def chosen_runner(self) -> RunnerName:
        """Return where the work is done, also where no option says it."""
        return choose_runner(self.runner, self.master)


def memory_size(text: str) -> int:
    """Return what ``--memory`` says, in bytes; InvalidError below what a worker can work in."""
    from keeplast.rewrite.workspace import MEMORY_BYTES_MIN

    return parse_size(text, "--memory", least=MEMORY_BYTES_MIN)


def task_memory_size(text: str) -> int:
    """Return what ``--task-memory`` says, in bytes; InvalidError below what is worth a task."""
    from keeplast.survey.request import TASK_MEMORY_BYTES_MIN

    return parse_size(text, "--task-memory", least=TASK_MEMORY_BYTES_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What a round may hold in memory, and how its work is cut."""

    memory: Memory = MEMORY_DEFAULT
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--shape",
            help="How the work of a partition is cut. Default: each partition as it needs; plan "
            "says "
            "how and why.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None
    task_memory: TaskMemory = TASK_MEMORY_DEFAULT

    @property
    def memory_bytes(self) -> int:
        """Return the size in bytes; InvalidError when it is none, or too little."""
        return memory_size(self.memory)

    @property
    def task_memory_bytes(self) -> int:
        """Return the size in bytes; InvalidError when it is none, or too little."""
        return task_memory_size(self.task_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactOptions:
    """What stands in place of what the directory says."""

    now_ms: Annotated[
        int | None,
        typer.Option(
            "--now-ms",
            metavar="MS",
            min=0,
            help="The clock of the round, milliseconds since 1970; not ahead of now, unless "
            "--unsafe. "
            "Default: now.",
            rich_help_panel=FACTS,
        ),
    ] = None
    high_watermark: HighWatermark = None
    log_start_offset: Annotated[
        int | None,
        typer.Option(
            "--log-start-offset",
            metavar="OFFSET",
            min=0,
            help="First readable offset; another counts with --unsafe only. Default: "
            "log-start-offset-checkpoint, else the first segment.",
            rich_help_panel=FACTS,
        ),
    ] = None
    first_dirty_offset: Annotated[
        int | None,
        typer.Option(
            "--first-dirty-offset",
            metavar="OFFSET",
            min=0,
            help="Where the last round ended; not above the default, unless --unsafe. Default: "
            "cleaner-offset-checkpoint, else the log start.",
            rich_help_panel=FACTS,
        ),
    ] = None
    uncleanable_offset: Annotated[
        int | None,
        typer.Option(
            "--uncleanable-offset",
            metavar="OFFSET",
            min=0,
            help="First offset that must stay as it is; not above the default, unless --unsafe. "
            "Default: from transactions, lag and the active segment.",
            rich_help_panel=FACTS,
        ),
    ] = None
    unsafe: Unsafe = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthOptions:
    """What makes a log worth a round besides its dirty ratio."""

    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Ignore min.cleanable.dirty.ratio, and nothing else.",
            rich_help_panel=ROUND,
        ),
    ] = False
    expired: Annotated[
        bool,
        typer.Option(
            "--expired",
            help="Also clean where only tombstones and markers are left to go whose time has "
            "passed.",
            rich_help_panel=ROUND,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """When a loop ends, which log is next, and whether what was skipped is tried again."""

    once: Annotated[
        bool,
        typer.Option(
            "--once", help="End when no log is due for a round any more.", rich_help_panel=ROUND
        ),
    ] = False
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Try again what was skipped: partitions whose files are damaged, which are left "
            "alone until those change.",
            rich_help_panel=ROUND,
        ),
    ] = False
    selection: Selection = Order.OVERDUE_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """Where metrics are served."""

    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="N",
            min=0,
            max=65535,
            help="Serve metrics to Prometheus on this port; 0 takes a free one and says which.",
            rich_help_panel=RUN,
        ),
    ] = None
    metrics_host: Annotated[
        str,
        typer.Option(
            "--metrics-host",
            metavar="ADDRESS",
            help="Where they are served. Nobody is asked for a password.",
            rich_help_panel=RUN,
        ),
    ] = LOOPBACK

    @property
    def address(self) -> tuple[str, int] | None:
        """Return host and port, None when nothing is served."""
        return None if self.metrics_port is None else (self.metrics_host, self.metrics_port)
