"""``keeplast pause`` and ``detach``: keep processes from partitions, and give partitions up."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver, Yes

Resume = Annotated[
    bool, typer.Option("--resume", help="Let processes go on with partitions that were paused.")
]


@command(first=("topics", "resume"), example="keeplast pause prod --topic orders")
def pause(
    where: PlaceOptions, scope: ScopeOptions, resume: Resume = False, as_json: Json = False
) -> Result:
    """Let no process on any host decide or delete anything more in a live cluster's topics.

    It holds until --resume. What is decided already is still published. No process is fenced.
    """
    from keeplast.cli.frame.command import end_of_upkeep
    from keeplast.cli.show.upkeep import upkeep_lines

    _, place = where.open()
    report = place.pause(scope, is_paused=not resume)
    return end_of_upkeep(place, report, upkeep_lines, as_json=as_json)


@command(first=("topics", "yes"), example="keeplast detach prod --topic orders")
def detach(
    where: PlaceOptions,
    scope: ScopeOptions,
    yes: Yes = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Give partitions up. A live cluster KEEPS its topics; a store LOSES what it holds of them.

    Live cluster: what is decided is ended, replaced segments are collected, and the topic is left
    to its brokers, with all its records; what is compacted stays so. A partition whose replaced
    segments wait for their grace stays attached; one whose topic was deleted is only forgotten.

    Store: the partitions that --topic names are in it no more, and keeplast collect removes their
    objects when the grace has passed. Without --yes it says what would be lost, changes nothing,
    and ends with 4.
    """
    from keeplast.cli.frame.command import end_of_upkeep
    from keeplast.cli.show.upkeep import removal_lines, upkeep_lines
    from keeplast.config.place_properties import PlaceKind
    from keeplast.service.upkeep import UpkeepTerms

    found, place = where.open()
    terms = UpkeepTerms(
        takes_over=take_over, is_agreed=yes, receipt=found.path("receipt"),
        keep_sources_ms=found.milliseconds("keep-sources") or 0,
    )  # fmt: skip
    lines = removal_lines if found.kind is PlaceKind.STORE else upkeep_lines
    return end_of_upkeep(place, place.detach(scope, terms), lines, as_json=as_json)
