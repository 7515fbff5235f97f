"""``keeplast repair``: end what was left undone, accept restored metadata, cut a store's log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.lazy import BadValue
from keeplast.cli.frame.options import Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver, Yes


def offset_or_directory(text: str) -> int | Path:
    """Return what ``--truncate-to`` says; digits alone are an offset, for Typer."""
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        return Path(text).expanduser()
    if text.startswith("-"):
        raise BadValue(f"an offset cannot be negative. value={text!r}", code="K104")
    return int(text)


AcceptMetadata = Annotated[
    bool,
    typer.Option(
        "--accept-metadata",
        help="Of a live cluster: the metadata topic is not the one that was seen before "
        "(restored, cut by an unclean leader). I have looked, and it is the right "
        "cluster's: publish its lost records again. Of a store: with --yes let restored "
        "metadata count from here on; later commits are lost to them.",
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Of a live cluster: the decision log of the topics that --topic names is lost, or "
        "an older backup, and no process that has it runs any more. Own the topics by these "
        "decisions, and write the metadata topic's state of them down again. No compactor "
        "may have been at work for the grace (grace-ms).",
    ),
]
TruncateTo = Annotated[
    int | None,
    typer.Option(
        "--truncate-to", metavar="OFFSET|DIR", parser=offset_or_directory, show_default=False,
        help="Of a store: cut the end of a log off that its broker has truncated. OFFSET is where "
        "the log ends then, exclusive, of one partition. DIR is a Kafka data directory: the log "
        "ends where its leader epochs, or its end, say that it has no more (./330 for a name of "
        "digits).",
    ),
]  # fmt: skip


@command(
    first=("accept_metadata", "rebuild", "truncate_to"),
    example="keeplast repair prod --topic orders",
)
def repair(
    where: PlaceOptions,
    scope: ScopeOptions,
    accept_metadata: AcceptMetadata = False,
    rebuild: Rebuild = False,
    truncate_to: TruncateTo = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Publish what was decided and is not on the cluster, and take back what was never decided.

    That is for a live cluster, and deletes nothing that a broker or a reader needs. Of a store it
    says what its metadata lack where they were restored from a backup, and ends with 4 then;
    nothing is removed by it. What --truncate-to cuts off is lost, and its objects go with keeplast
    collect, when their grace has passed.
    """
    from keeplast.cli.frame.command import end_of_upkeep
    from keeplast.cli.show.upkeep import removal_lines, restoration_lines, upkeep_lines
    from keeplast.service.upkeep import RepairTerms

    found, place = where.open()
    terms = RepairTerms(
        takes_over=take_over, is_agreed=yes, receipt=found.path("receipt"),
        accepts_metadata=accept_metadata, rebuilds=rebuild, truncate_to=truncate_to,
    )  # fmt: skip
    report = place.repair(scope, terms)
    lines = restoration_lines if report.facts else upkeep_lines
    if truncate_to is not None:
        lines = removal_lines
    return end_of_upkeep(place, report, lines, as_json=as_json)
