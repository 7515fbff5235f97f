"""Options of commands that are used one by one, or in several groups; each declared once.

Those that belong together are a group of :mod:`keeplast.cli.frame.options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cleaner.selection import Order
from keeplast.cli.frame.places import place
from keeplast.cli.frame.wiring import RunnerName

SCOPE = "Which partitions"
RUN = "How it runs"
SETTINGS = "Settings"
FACTS = "What a broker knows and a directory does not"
ROUND = "The round"

MEMORY_DEFAULT = "256m"
TASK_MEMORY_DEFAULT = "1g"
LOOPBACK = "127.0.0.1"


def partition_number(text: str) -> int:
    """Return a partition's number; for Typer, which shows the mistake as one of usage."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal() and len(stripped) < 10:
        return int(stripped)
    raise typer.BadParameter(
        "not the number of a partition; give one from 0 on, and the option again for each further "
        f"one: --partition 0 --partition 1. value={text!r}"
    )


DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        help="A Kafka log.dirs directory, or one partition directory in it; s3://, gs:// and az:// "
        "too where nothing is written to it.",
        show_default=False,
        parser=place,
    ),
]
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
BrokerConfig = Annotated[
    Path | None,
    typer.Option(
        "--broker-config",
        metavar="FILE",
        help="The broker's server.properties: the cluster's defaults where nothing else says them. "
        "Only settings that keeplast knows are read. Default: Kafka's defaults, and a note.",
        rich_help_panel=SETTINGS,
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
        help="Any of Kafka's cleaner settings; repeatable. The topic's spelling is about the "
        "chosen topics, the broker's about the cluster.",
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
        help="End of what is replicated; not above the default, unless --unsafe. Default: "
        "replication-offset-checkpoint, else the log end.",
        rich_help_panel=FACTS,
    ),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe",
        help="Take what is given here as it is, also where it lifts a limit of the log; the "
        "receipt says so.",
        rich_help_panel=FACTS,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Buffers, and decompressed data kept between the two passes; the keys of a round come "
        "on top.",
        rich_help_panel=RUN,
    ),
]
TaskMemory = Annotated[
    str,
    typer.Option(
        "--task-memory",
        metavar="SIZE",
        help="What one Spark task may hold of keys; a log with more of them is cut into several "
        "tasks. --memory comes on top.",
        rich_help_panel=RUN,
    ),
]
KeyMapBytes = Annotated[
    str | None,
    typer.Option(
        "--key-map-bytes",
        metavar="SIZE",
        help="What a round may hold of keys, as a broker's log.cleaner.dedupe.buffer.size: 24 "
        "bytes a key, as full as the load factor says. It ends where that is full. Default: no "
        "limit.",
        rich_help_panel=RUN,
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
Receipt = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Append what was planned, read and written, before it is in place. plan writes none.",
        rich_help_panel=ROUND,
    ),
]
Note = Annotated[
    bool,
    typer.Option(
        "--note",
        help="Append each verdict to the receipt, as a line of its own; keeplast inspect and the "
        "console show it beside the rounds that it is of.",
        rich_help_panel=RUN,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
