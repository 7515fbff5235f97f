"""The options that ``plan`` and ``clean`` share, spelled once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.places import place
from keeplast.cli.frame.wiring import RunnerName

SCOPE = "Which partitions"
RUN = "How it runs"
SETTINGS = "Settings"
FACTS = "What a broker knows and a directory does not"
ROUND = "The round"


class SelectionName(StrEnum):
    """Whose rules say which log is next, and when an idle active segment is left."""

    OVERDUE_FIRST = "overdue-first"
    KAFKA = "kafka"


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
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="T", help="Only this topic; repeatable.", rich_help_panel=SCOPE
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="Only partitions of this number; repeatable.",
        rich_help_panel=SCOPE,
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="Write the cleaned log there and leave the source untouched; s3://, gs:// and az:// "
        "too. Default: in place.",
        rich_help_panel=ROUND,
        parser=place,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Write to --to although other things lie there; partitions that are there already "
        "are replaced.",
        rich_help_panel=ROUND,
    ),
]
ObjectOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--object-option",
        metavar="KEY=VALUE",
        help="An option of the object store, such as endpoint=http://host:port; repeatable. "
        "Credentials are taken from the environment too, or given as KEY=@FILE or KEY=env:NAME.",
        rich_help_panel=RUN,
    ),
]
Runner = Annotated[
    RunnerName,
    typer.Option("--runner", help="Spark, or threads of this process.", rich_help_panel=RUN),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master; every host must have the directory at the same path, unless it is in "
        "an object store. Default: local[*].",
        rich_help_panel=RUN,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        "--cores", metavar="N", min=1, help="Cores to use. Default: all.", rich_help_panel=RUN
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="Any of Kafka's cleaner settings; repeatable. The topic's spelling is about the "
        "chosen topics, the broker's about the cluster.",
        rich_help_panel=SETTINGS,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        metavar="FILE",
        help='TOML with [cluster] and [topic."name"] tables. '
        "Default: keeplast.toml in the data directory, if there is one.",
        rich_help_panel=SETTINGS,
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
RoundNowMs = Annotated[
    int | None,
    typer.Option(
        "--now-ms",
        metavar="MS",
        min=0,
        help="The clock of the round, milliseconds since 1970; not ahead of now, unless --unsafe. "
        "Default: now.",
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
LogStartOffset = Annotated[
    int | None,
    typer.Option(
        "--log-start-offset",
        metavar="OFFSET",
        min=0,
        help="First readable offset; another counts with --unsafe only. Default: "
        "log-start-offset-checkpoint, else the first segment.",
        rich_help_panel=FACTS,
    ),
]
FirstDirtyOffset = Annotated[
    int | None,
    typer.Option(
        "--first-dirty-offset",
        metavar="OFFSET",
        min=0,
        help="Where the last round ended; not above the default, unless --unsafe. Default: "
        "cleaner-offset-checkpoint, else the log start.",
        rich_help_panel=FACTS,
    ),
]
UncleanableOffset = Annotated[
    int | None,
    typer.Option(
        "--uncleanable-offset",
        metavar="OFFSET",
        min=0,
        help="First offset that must stay as it is; not above the default, unless --unsafe. "
        "Default: from transactions, lag and the active segment.",
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
KeyMapBytes = Annotated[
    str | None,
    typer.Option(
        "--key-map-bytes",
        metavar="SIZE",
        help="Bound the key map: SIZE // 24 slots times the load factor; a round ends where it "
        "fills. Default: no such bound.",
        rich_help_panel=RUN,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Windows, buffers and decompressed data kept between the passes; the key map comes "
        "on top.",
        rich_help_panel=RUN,
    ),
]


class ShapeName(StrEnum):
    """How the work of a partition is cut; the engine's Shape says what each means."""

    PARTITION = "partition"
    BROADCAST = "broadcast"
    BUCKET = "bucket"


Shape = Annotated[
    ShapeName | None,
    typer.Option(
        "--shape",
        help="How the work of a partition is cut. Default: each partition as it needs; plan says "
        "how and why.",
        show_default=False,
        rich_help_panel=RUN,
    ),
]
TaskMemory = Annotated[
    str,
    typer.Option(
        "--task-memory",
        metavar="SIZE",
        help="Keys that one Spark task may hold, in bytes; what has more is cut into buckets. "
        "--memory comes on top.",
        rich_help_panel=RUN,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds", metavar="N", min=1, help="Rounds to do. Default: 1.", rich_help_panel=ROUND
    ),
]
UntilDone = Annotated[
    bool,
    typer.Option(
        "--until-done",
        help="Rounds until the end offset reaches the bound.",
        rich_help_panel=ROUND,
    ),
]
RollActive = Annotated[
    bool,
    typer.Option(
        "--roll-active",
        help="Start a new active segment first, so that the present one can be cleaned.",
        rich_help_panel=ROUND,
    ),
]
Retention = Annotated[
    bool,
    typer.Option(
        "--retention/--no-retention",
        help="Afterwards remove the segments that retention.ms, retention.bytes (policy delete) "
        "or the log start offset let go, as a broker's cleaner does for compacted topics.",
        rich_help_panel=ROUND,
    ),
]
Selection = Annotated[
    SelectionName,
    typer.Option(
        "--selection",
        help="overdue-first: max.compaction.lag.ms comes before the dirty ratio, and an idle "
        "active segment older than it or segment.ms is rolled first. kafka: a broker's order, "
        "which rolls nothing.",
        rich_help_panel=ROUND,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Ignore min.cleanable.dirty.ratio, and nothing else.",
        rich_help_panel=ROUND,
    ),
]
Expired = Annotated[
    bool,
    typer.Option(
        "--expired",
        help="Also clean where only tombstones and markers are left to go whose time has passed.",
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
Once = Annotated[
    bool,
    typer.Option("--once", help="End when nothing is eligible any more.", rich_help_panel=ROUND),
]
Retry = Annotated[
    bool,
    typer.Option(
        "--retry",
        help="Forget which partitions were set aside, and try them again.",
        rich_help_panel=ROUND,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=0,
        max=65535,
        help="Serve metrics to Prometheus on this port; 0 takes a free one and says which.",
        rich_help_panel=RUN,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        help="Where they are served. Nobody is asked for a password.",
        rich_help_panel=RUN,
    ),
]
LOOPBACK = "127.0.0.1"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]

MEMORY_DEFAULT = "256m"
TASK_MEMORY_DEFAULT = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The values of those options for one call; what has a default is left out by keeplast run."""

    data_dir: Path
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    runner: RunnerName
    master: str | None
    cores: int | None
    config: tuple[str, ...]
    config_file: Path | None
    broker_config: Path | None
    key_map_bytes: str | None
    memory: str
    shape: ShapeName | None
    task_memory: str
    selection: SelectionName
    as_json: bool
    to: Path | None = None
    overwrite: bool = False
    object_options: tuple[str, ...] = ()
    now_ms: int | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    uncleanable_offset: int | None = None
    unsafe: bool = False
    rounds: int | None = None
    until_done: bool = False
    roll_active: bool = False
    retention: bool = False
    force: bool = False
    expired: bool = False
    receipt: Path | None = None
