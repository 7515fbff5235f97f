"""The options of commands, each declared once, alone or in groups that a command names as values.

How a group becomes options is in :mod:`keeplast.cli.frame.command`. A command with another default
or other words for an option says so in a group made from this one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from keeplast.cleaner.log_order import Order
from keeplast.cli.frame.lazy import BadValue
from keeplast.cli.frame.values import SPAN_WORDS, place, span_ms
from keeplast.cli.frame.wiring import RunnerName, choose_runner
from keeplast.config.layers import PartitionChoice
from keeplast.errors import Despite
from keeplast.model.text import parse_size
from keeplast.model.topic_config import HostRole

SCOPE = "Which partitions"
RUN = "How it runs"
SETTINGS = "Settings"
FACTS = "What a broker knows and a directory does not"
ROUND = "The round"

MEMORY_DEFAULT = "256m"
TASK_MEMORY_DEFAULT = "1g"
LOOPBACK = "127.0.0.1"


NUMBERS_MAX = 10_000
"""So many partitions one option may name; a topic has hardly more."""
_NUMBERS = re.compile(r"[ \t]*([0-9]{1,9})(?:[ \t]*-[ \t]*([0-9]{1,9}))?[ \t]*")


def partition_number(text: str) -> int:
    """Return a partition's number; for Typer, which shows the mistake as one of usage."""
    numbers = partition_numbers(text)
    if len(numbers) != 1:
        raise BadValue(f"this is about one partition; give its number. value={text!r}", code="K106")
    return numbers[0]


def partition_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of ``0-3,7``, each once, in order; for Typer as :func:`partition_number`.

    Kafka's own tools write ranges so.
    """
    found: set[int] = set()
    for part in text.split(","):
        matched = _NUMBERS.fullmatch(part)
        if matched is None:
            raise BadValue(
                f"not a partition; give its number, or several: 0-3,7. value={text!r}", code="K106"
            )
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first or last - first + len(found) >= NUMBERS_MAX:
            raise BadValue(
                "a range goes from a number to a greater one, and there may be "
                f"{NUMBERS_MAX:,} partitions. value={text!r}",
                code="K106",
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


_DESPITE_ABOUT = {
    Despite.DIRTY_RATIO: "clean whatever min.cleanable.dirty.ratio says",
    Despite.LOG_BOUNDS: "take a clock and offsets given here as they are, also where they go "
    "beyond what the log says; the receipt says so",
    Despite.EXISTING_TARGET: "write to --to although it is not empty; an earlier export, or "
    "earlier copies of the same partitions, are replaced",
    Despite.KEYLESS_RECORDS: "let records without a key go when a topic of a store becomes "
    "compacted",
    Despite.PARTIAL_TOPICS: "take what is here of topics that have more partitions by the "
    "directory's metadata log",
}


def despite_option(*limits: Despite) -> Any:
    """Return the option that lets a command go past ``limits``; its refusals name them."""

    def parse(text: str) -> Despite:
        if text in limits:
            return Despite(text)
        raise BadValue(
            f"not a limit of this command; give one of {', '.join(limits)}. value={text!r}",
            code="K113",
        )

    about = "; ".join(f"{each}: {_DESPITE_ABOUT[each]}" for each in limits)
    return typer.Option(
        "--despite", metavar="LIMIT", parser=parse,
        help=f"Go past a limit that a refusal names; repeatable. {about}.",
    )  # fmt: skip


ObjectOptions = Annotated[
    tuple[str, ...],
    typer.Option(
        "--object-option",
        metavar="KEY=VALUE",
        help="An option of the object store, such as endpoint=http://host:port; repeatable. "
        "Credentials are taken from the environment too, or given as KEY=@FILE or KEY=env:NAME.",
        rich_help_panel=RUN,
    ),
]
Runner = Annotated[
    RunnerName | None,
    typer.Option(
        "--runner",
        help="Threads of this process, or Spark. Default: local; spark with --master and under "
        "spark-submit.",
        show_default=False,
        rich_help_panel=RUN,
    ),
]
Flags = Annotated[
    tuple[str, ...],
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="Any of Kafka's cleaner settings; repeatable. A topic's name for one "
        "(segment.ms) sets the chosen topics, a broker's (log.roll.ms) the cluster.",
        rich_help_panel=SETTINGS,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        "--cores", metavar="N", min=1, help="Cores to use. Default: all.", rich_help_panel=RUN
    ),
]
NowMs = Annotated[
    int | None,
    typer.Option(
        "--now-ms",
        metavar="MS",
        min=0,
        help="The clock of the run, milliseconds since 1970. Default: now.",
        rich_help_panel=FACTS,
    ),
]
HighWatermark = Annotated[
    int | None,
    typer.Option(
        "--high-watermark",
        metavar="OFFSET",
        min=0,
        help="End of what is replicated; not above the default. Default: "
        "replication-offset-checkpoint, else the log end.",
        rich_help_panel=FACTS,
    ),
]
Selection = Annotated[
    Order,
    typer.Option(
        "--selection",
        help="overdue-first: max.compaction.lag.ms comes before the dirty ratio, and an idle "
        "active segment older than it or segment.ms is rolled first. kafka: a broker's order, "
        "which rolls nothing.",
        rich_help_panel=ROUND,
    ),
]
Note = Annotated[
    bool,
    typer.Option(
        "--note",
        help="Append each verdict to the receipt, as a line of its own; keeplast inspect and the "
        "console show it next to the rounds that it judges.",
        rich_help_panel=RUN,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


HOST = "As a host"


class ScopeOptions(PartitionChoice, frozen=True, kw_only=True):
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
            parser=partition_numbers,
            help="Only partitions of this number, or of several: 0-3,7. Repeatable.",
            rich_help_panel=SCOPE,
        ),
    ] = ()


To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="Write the cleaned log there and leave the source untouched; s3://, gs:// and "
        "az:// too. Default: in place.",
        rich_help_panel=ROUND,
        parser=place,
    ),
]


class RunnerOptions(Struct, frozen=True, kw_only=True):
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


class FactOptions(Struct, frozen=True, kw_only=True):
    """What stands in place of what the directory says."""

    now_ms: Annotated[
        int | None,
        typer.Option(
            "--now-ms",
            metavar="MS",
            min=0,
            help="The clock of the round, milliseconds since 1970; not ahead of now. Default: now.",
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
            help="First readable offset; another needs --despite log-bounds. Default: "
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
            help="Where the last round ended; not above the default. Default: "
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
            help="First offset that must stay as it is; not above the default. "
            "Default: from transactions, lag and the active segment.",
            rich_help_panel=FACTS,
        ),
    ] = None


Expired = Annotated[
    bool,
    typer.Option(
        "--expired",
        help="Also clean where only tombstones and markers are left to go whose time has passed.",
        rich_help_panel=ROUND,
    ),
]


class LoopOptions(Struct, frozen=True, kw_only=True):
    """When a loop ends, which log is next, and whether what was skipped is tried again."""

    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="End when no log is due for a round any more, and nothing can be collected.",
            rich_help_panel=ROUND,
        ),
    ] = False
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Try again what was skipped: damaged partitions, which are left alone until "
            "their files change.",
            rich_help_panel=ROUND,
        ),
    ] = False
    selection: Selection = Order.OVERDUE_FIRST


class HostOptions(Struct, frozen=True, kw_only=True):
    """Whether a process is a host of a store's partitions, where, and with which lease."""

    host_dir: Annotated[
        Path | None,
        typer.Option(
            "--host-dir", metavar="DIR", show_default=False, rich_help_panel=HOST,
            help="Lead or follow the partitions of a store, with their local logs below DIR, which "
            "is this process's alone. Segments that object storage has leave it by "
            "local.retention. Never a broker's directory.",
        ),
    ] = None  # fmt: skip
    role: Annotated[
        HostRole | None,
        typer.Option(
            "--role", show_default=False, rich_help_panel=HOST,
            help="auto leads what no host leads and follows the rest, leader leaves the rest "
            "alone, follower never leads. Default: auto. With --host-dir.",
        ),
    ] = None  # fmt: skip
    lease_ms: Annotated[
        int | None,
        typer.Option(
            "--lease-ms", metavar="MS", parser=span_ms, rich_help_panel=HOST,
            help="After how long without a sign of it a leader is taken over: milliseconds, or "
            f"{SPAN_WORDS}. Default: 30 seconds. With --host-dir.",
        ),
    ] = None  # fmt: skip


class MetricsOptions(Struct, frozen=True, kw_only=True):
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
            help="The address to serve them at; readers need no password.",
            rich_help_panel=RUN,
        ),
    ] = LOOPBACK
