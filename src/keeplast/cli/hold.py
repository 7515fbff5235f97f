"""``keeplast hold``: keep cleaning from passing a point, so that its state can still be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import SCOPE, DataDir, Json, partition_number
from keeplast.cli.frame.spans import SPAN_WORDS, span_ms
from keeplast.cli.frame.times import time_ms
from keeplast.model.hold import HoldPoint
from keeplast.model.offsets import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rich.table import Table

    from keeplast.model.hold import Hold

NOW = "now"
OFFSET_CHARS_MAX = 19

hold = typer.Typer(
    name="hold",
    help="Keep rounds from cleaning past a point, for a while.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

HoldName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the hold.", show_default=False)
]
HeldTopics = Annotated[
    tuple[str, ...],
    typer.Option("--topic", metavar="T", help="The topic; repeatable.", rich_help_panel=SCOPE),
]
HeldPartitions = Annotated[
    tuple[int, ...],
    typer.Option(
        "--partition",
        metavar="N",
        parser=partition_number,
        help="Only partitions of this number; repeatable. Default: all.",
        rich_help_panel=SCOPE,
    ),
]


def _point(text: str) -> HoldPoint:
    """Return the point that ``--at`` says; a number is an offset."""
    stripped = text.strip()
    if stripped.lower() == NOW:
        return HoldPoint()
    if stripped.isascii() and stripped.isdecimal():
        if len(stripped) > OFFSET_CHARS_MAX or int(stripped) > INT64_MAX:
            raise typer.BadParameter(f"not an offset. value={text!r}")
        return HoldPoint(offset=int(stripped))
    if not stripped[:1].isdecimal():
        raise typer.BadParameter(
            "not a point; write an offset, a time such as 2026-05-31T22:00:00Z, or now. "
            f"value={text!r}"
        )
    return HoldPoint(time_ms=time_ms(stripped))


At = Annotated[
    HoldPoint,
    typer.Option(
        "--at",
        metavar="POINT",
        help="The earliest point whose state is to be told: an offset (of one partition), a time "
        "such as 2026-05-31T22:00:00Z, or now.",
        show_default=False,
        parser=_point,
    ),
]
MaxAge = Annotated[
    int,
    typer.Option(
        "--max-age",
        metavar="SPAN",
        help=f"After it the hold is over, also when nobody releases it: {SPAN_WORDS}.",
        show_default=False,
        parser=span_ms,
    ),
]


@hold.command()
@command(
    first=("topics", "at", "max_age"),
    example="keeplast hold add DATA_DIR audit --topic orders --at now --max-age 7d",
)
def add(
    data_dir: DataDir,
    name: HoldName,
    topics: HeldTopics,
    at: At,
    max_age: MaxAge,
    partitions: HeldPartitions = (),
    as_json: Json = False,
) -> Result:
    """Keep clean, run and every other round from passing a point of one or more topics.

    The states as of it and of every later point can then be told, with export --ending-offsets and
    --as-of, until the hold is over. Refused where cleaning has passed it already; as of now it is
    then at the first point that can be kept, which is shown. keeplast run may be at work. A
    broker's own cleaner knows nothing of holds; retention and delete-records go on.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.run.holds import add_holds, choose_entries

    files, clock = LocalFiles(), SystemClock()
    directory = open_data_directory(data_dir, files)
    entries = choose_entries(directory, topics, partitions)
    added = add_holds(directory, entries, name, at, max_age, files, clock)
    if not as_json:
        print_result(holds_table(added, clock.now_ms()))
    return DONE, {"path": directory.root, "holds": hold_documents(added, clock.now_ms())}


@hold.command(name="list")
@command(first=(), example="keeplast hold list DATA_DIR")
def list_(data_dir: DataDir, as_json: Json = False) -> Result:
    """Show every hold of a data directory; those that are over stay until the next is added."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.log.holds import read_holds

    files, now_ms = LocalFiles(), SystemClock().now_ms()
    root = open_data_directory(data_dir, files).root
    found = sorted(read_holds(files, root))
    if not as_json:
        print_result(holds_table(found, now_ms))
    return DONE, {"path": root, "holds": hold_documents(found, now_ms)}


@hold.command()
@command(first=(), example="keeplast hold release DATA_DIR audit")
def release(data_dir: DataDir, name: HoldName, as_json: Json = False) -> Result:
    """End a hold before its time, for all partitions that it is of."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.run.holds import release_holds

    files = LocalFiles()
    directory = open_data_directory(data_dir, files)
    released = release_holds(directory, name, files)
    if not as_json:
        print_result(released_words(name, released))
    now_ms = SystemClock().now_ms()
    return DONE, {"path": directory.root, "released": hold_documents(released, now_ms)}


def released_words(name: str, released: Sequence[Hold]) -> str:
    """Say what was released."""
    return f"released {name}, of {len(released)} partition(s)"


def hold_documents(holds: Sequence[Hold], now_ms: int) -> list[dict[str, Any]]:
    """Return holds for the document, with their partitions."""
    from keeplast.service.documents import hold_document

    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            **hold_document(each),
            "is_in_force": each.is_in_force(now_ms),
        }
        for each in holds
    ]


def holds_table(holds: Sequence[Hold], now_ms: int) -> Table | str:
    """Return a row each, or that there is none."""
    from keeplast.cli.show.rows import new_table
    from keeplast.clock import time_text
    from keeplast.model.duration import relative_text
    from keeplast.model.escapes import printable

    if not holds:
        return "no holds"
    table = new_table("hold", "partition", ">at offset", ">not cleaned past", "until", "")
    for each in holds:
        table.add_row(
            each.name,
            printable(str(each.partition)),
            f"{each.offset:,}",
            f"{each.limit:,}",
            time_text(each.until_ms)[:19],
            relative_text(each.until_ms, now_ms) if each.is_in_force(now_ms) else "over",
        )
    return table
