"""``keeplast collect``: remove what rounds have replaced, once its grace has passed."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver
from keeplast.service.upkeep import Orphans

OrphansWish = Annotated[
    Orphans | None,
    typer.Option(
        "--orphans",
        help="Of a live cluster: also look for objects that no broker serves, also of deleted "
        "topics. list shows them. collect removes those of deleted topics that this "
        "decision log or the metadata topic names; of other topics those that a process "
        "began and never announced. collect-served also removes those of deleted topics "
        "that the metadata topic still shows as served: no other cluster may read this "
        "bucket. Objects without a name anywhere stay.",
    ),
]  # fmt: skip


@command(first=("topics", "orphans"), example="keeplast collect prod")
def collect(
    where: PlaceOptions,
    scope: ScopeOptions,
    orphans: OrphansWish = None,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Remove replaced segments whose grace (grace-ms) has passed; there is no way back after that.

    Of a live cluster what is served instead is read from the remote tier first, whole. What a crash
    left is ended before, as keeplast repair does it. With broker-metrics nothing goes while a
    broker lags. Of a store the objects without a row go too, once they are as old as
    garbage-age-ms.
    """
    from keeplast.cli.frame.command import end_of_upkeep
    from keeplast.cli.show.upkeep import collection_lines
    from keeplast.service.upkeep import UpkeepTerms

    found, place = where.open()
    terms = UpkeepTerms(
        takes_over=take_over, keep_sources_ms=found.milliseconds("keep-sources") or 0,
        receipt=found.path("receipt"),
    )  # fmt: skip
    report = place.collect(scope, terms, orphans=orphans)
    return end_of_upkeep(place, report, collection_lines, as_json=as_json)
