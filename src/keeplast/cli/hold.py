"""``keeplast hold``: keep cleaning from passing a point, so that its state can still be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.lazy import BadValue, PlaceCommand
from keeplast.cli.frame.options import SCOPE, Json, partition_numbers
from keeplast.cli.frame.round_options import PlaceOptions
from keeplast.cli.frame.values import SPAN_WORDS, span_ms, time_ms
from keeplast.model.hold import HoldPoint
from keeplast.model.partition import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from keeplast.model.hold import Hold, HoldBook

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
ListedTopics = Annotated[
    tuple[str, ...],
    typer.Option("--topic", metavar="T", help="Only this topic; repeatable."),
]
HeldPartitions = Annotated[
    tuple[int, ...],
    typer.Option(
        "--partition",
        metavar="N",
        parser=partition_numbers,
        help="Only partitions of this number, or of several: 0-3,7. Repeatable. Default: all.",
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
            raise BadValue(f"not an offset; give 0 to {INT64_MAX}. value={text!r}", code="K104")
        return HoldPoint(offset=int(stripped))
    if not stripped[:1].isdecimal():
        raise BadValue(
            "not a point; write an offset, a time such as 2026-05-31T22:00:00Z, or now. "
            f"value={text!r}",
            code="K105",
        )
    return HoldPoint(time_ms=time_ms(stripped))


At = Annotated[
    HoldPoint,
    typer.Option(
        "--at",
        metavar="POINT",
        help="The earliest point whose state stays readable: an offset (of one partition), a time "
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
        help=f"The hold ends after it, also when it is not released: {SPAN_WORDS}.",
        show_default=False,
        parser=span_ms,
    ),
]


@hold.command(cls=PlaceCommand)
@command(
    first=("topics", "at", "max_age"),
    example="keeplast hold add DATA_DIR audit --topic orders --at now --max-age 7d",
)
def add(
    where: PlaceOptions,
    name: HoldName,
    topics: HeldTopics,
    at: At,
    max_age: MaxAge,
    partitions: HeldPartitions = (),
    as_json: Json = False,
) -> Result:
    """Keep the rounds of every host from passing a point of one or more topics.

    The states as of it and of every later point can then be read, with export --ending-offsets and
    --as-of, until the hold is over. Refused where cleaning has passed it already; with --at now the
    hold then begins at the first point that can be kept, and shows it. keeplast run may be at
    work. A broker's own cleaner knows nothing of holds; retention and delete-records go on. Topics
    of a live cluster can be held before they are attached. Where no round can reach the point yet,
    the hold begins at the last segment that one can.
    """
    _, place = where.open()
    return _shown(
        place.head, "holds", place.add_hold(name, topics, partitions, at, max_age), as_json
    )


@hold.command(cls=PlaceCommand, name="list")
@command(first=("topics",), example="keeplast hold list DATA_DIR")
def list_(where: PlaceOptions, topics: ListedTopics = (), as_json: Json = False) -> Result:
    """Show every hold of a place; those that are over stay until the next is added."""
    _, place = where.open()
    book = place.holds()
    found = [each for each in book.holds if not topics or each.hold.partition.topic in topics]
    return _shown(place.head, "holds", replace(book, holds=tuple(found)), as_json)


@hold.command(cls=PlaceCommand)
@command(first=(), example="keeplast hold release DATA_DIR audit")
def release(where: PlaceOptions, name: HoldName, as_json: Json = False) -> Result:
    """End a hold before its time, for all its partitions."""
    _, place = where.open()
    book = place.release_hold(name)
    words = f"released {name}, of {len(book.holds)} partition(s)"
    return _shown(place.head, "released", book, as_json, words)


def _shown(
    head: Mapping[str, Any], key: str, book: HoldBook, as_json: bool, words: str = ""
) -> Result:
    """Show holds, or ``words`` instead; the document has them under ``key``."""
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.service.documents import hold_document

    if not as_json:
        print_result(words or holds_table([each.hold for each in book.holds], book.now_ms))
    rows = [
        {
            "topic": each.hold.partition.topic,
            "partition": each.hold.partition.partition,
            "topic_id": each.topic_id,
            **hold_document(each.hold),
            "is_in_force": each.hold.is_in_force(book.now_ms),
        }
        for each in book.holds
    ]
    return DONE, {**head, key: rows}


def holds_table(holds: Sequence[Hold], now_ms: int) -> Table | str:
    """Return a row each, or that there is none."""
    from keeplast.cli.show.tables import new_table
    from keeplast.clock import time_text
    from keeplast.model.text import precise_relative_text, printable

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
            precise_relative_text(each.until_ms, now_ms) if each.is_in_force(now_ms) else "over",
        )
    return table
