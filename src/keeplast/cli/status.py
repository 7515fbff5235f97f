"""``keeplast status``: where every log stands, what needs attention first, and until when."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import ScopeOptions, SettingOptions
from keeplast.cli.frame.parameters import FACTS, DataDir, Json, NowMs, ObjectOptions
from keeplast.cli.frame.places import recipe_for
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.frame.spans import span_seconds
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.service.status import DirectoryStatus

LIMIT_DEFAULT = 20
SHOW = "What is shown"


class TombstonesName(StrEnum):
    """What is read to count tombstones and markers."""

    HEADERS = "headers"
    RECORDS = "records"
    SKIP = "skip"


Tombstones = Annotated[
    TombstonesName,
    typer.Option(
        "--tombstones",
        help="headers: count batches, reading every batch header. records: count tombstones, "
        "reading everything. skip: neither, the fastest.",
        rich_help_panel=SHOW,
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", metavar="N", min=1, help="Show the N most urgent.", rich_help_panel=SHOW
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show every partition.", rich_help_panel=SHOW)]
Details = Annotated[
    bool,
    typer.Option(
        "--details",
        help="Tell everything of each. Default: of three at most.",
        rich_help_panel=SHOW,
    ),
]
Watch = Annotated[
    int | None,
    typer.Option(
        "--watch",
        metavar="SECONDS",
        parser=span_seconds,
        help="Look again every so many seconds, or after a span such as 5min, until Ctrl-C.",
        rich_help_panel=SHOW,
    ),
]
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where rounds wrote their receipts. Default: those that keeplast run keeps in "
        "DATA_DIR.",
        rich_help_panel=FACTS,
    ),
]
RoundSeconds = Annotated[
    float | None,
    typer.Option(
        "--round-seconds",
        metavar="N",
        min=0,
        help="The longest that a round takes here, for 'erased by'. Default: from each log's size, "
        "at a pace that a slow disk keeps.",
        rich_help_panel=FACTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """What ``status`` takes."""

    data_dir: DataDir
    scope: ScopeOptions
    limit: Limit = LIMIT_DEFAULT
    all_partitions: All = False
    details: Details = False
    tombstones: Tombstones = TombstonesName.HEADERS
    watch: Watch = None
    settings: SettingOptions
    readers: ReaderOptions
    now_ms: NowMs = None
    receipt: Receipts = None
    round_seconds: RoundSeconds = None
    object_options: ObjectOptions = ()


@command(first=("topics", "watch", "details"), example="keeplast status DATA_DIR --topic orders")
def status(options: StatusOptions, as_json: Json = False) -> Result:
    """Say where every log stands, why it is cleaned or not, and by when old values are gone.

    The most urgent partitions come first. Reads without the directory's lock and writes nothing; a
    broker or keeplast run may be at work.
    """
    from keeplast.cli.frame.exit_codes import DONE, error_exit_code
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.service.documents import status_document

    if options.watch is not None:
        return _watch(options, options.watch, as_json=as_json)
    now_ms = SystemClock().now_ms() if options.now_ms is None else options.now_ms
    found = _look(options, now_ms, options.readers.brokers())
    if not as_json:
        print_result(*_render(found, options))
    codes = [error_exit_code(each.error) for each in found.partitions if each.error is not None]
    return max(codes, default=DONE), status_document(found)


def _watch(options: StatusOptions, watch: int, *, as_json: bool) -> Result:
    """Show the status again and again; Ctrl-C is how that ends, not how it fails."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import clear_screen, print_result
    from keeplast.clock import SystemClock

    if as_json or options.now_ms is not None:
        raise InvalidError(
            f"--watch goes on with the clock; leave out --json and --now-ms. --watch={watch}"
        )
    clock, brokers = SystemClock(), options.readers.brokers()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            parts = _render(_look(options, clock.now_ms(), brokers), options)
            clear_screen()
            print_result(*parts)
            clock.sleep(watch)
    return DONE, {}


def _render(found: DirectoryStatus, options: StatusOptions) -> list[RenderableType]:
    from keeplast.cli.show.output import screen_width
    from keeplast.cli.show.status import render_status

    limit = None if options.all_partitions else options.limit
    return render_status(found, limit=limit, has_details=options.details, width=screen_width())


def _look(options: StatusOptions, now_ms: int, brokers: BrokerGroups | None) -> DirectoryStatus:
    from keeplast.cli.frame.standing import find_standing
    from keeplast.cli.show.output import say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.selection import select_partitions
    from keeplast.inspect.status import TombstoneReading

    files = recipe_for((options.data_dir,), options.object_options).open()
    selection = select_partitions(options.data_dir, files, options.scope, options.settings)
    for warning in selection.warnings:
        say(warning, kind="warning")
    with ProgressEvents("looking") as events:
        return find_standing(
            selection, files, now_ms, tombstones=TombstoneReading(options.tombstones.value),
            round_seconds=options.round_seconds, receipt=options.receipt, events=events,
            brokers=brokers,
        )  # fmt: skip
