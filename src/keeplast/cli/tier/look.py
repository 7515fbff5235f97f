"""``keeplast tier status``: what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import BrokerConfig, Json
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.tier.options import StoreCall, local_places, spoken_cleaner

Local = Annotated[
    Path | None,
    typer.Option(
        "--local", metavar="DIR", show_default=False,
        help="The data directory of a host: its local logs are shown too. Only read.",
    ),
]  # fmt: skip
ErasedBy = Annotated[
    bool,
    typer.Option(
        "--erased-by",
        help="Say too by when what is overwritten or deleted now is gone from the objects, while "
        "keeplast tier run goes and its rounds succeed. Reads what segments say of tombstones.",
    ),
]  # fmt: skip


@command(
    first=("store", "topics", "local"), example="keeplast tier status --store sqlite:///meta.db"
)
def status(
    call: StoreCall,
    readers: ReaderOptions,
    local: Local = None,
    erased_by: ErasedBy = False,
    broker_config: BrokerConfig = None,
    as_json: Json = False,
) -> Result:
    """Show each partition: what is cleaned and dirty, in which tier, and what waits to be removed.

    With `--local` the local log of a host is shown beside what is in object storage.
    """
    from keeplast.cli.show.output import print_result, screen_width
    from keeplast.cli.show.tier_status import (
        erased_lines,
        given_up_lines,
        status_parts,
        wait_lines,
    )
    from keeplast.service.documents import store_document

    erasures = {}
    places, brokers = local_places(local), readers.brokers()
    with call.opened(broker_config=broker_config, brokers=brokers, only_looks=True) as opened:
        found = [opened.status(each, places(each)) for each in call.chosen(opened)]
        given_up = [each for each in opened.forgotten() if call.scope.includes(each)]
        if erased_by:
            from keeplast.service.tier_pace import tier_pace

            pace = tier_pace(spoken_cleaner(broker_config), [each.remote_bytes for each in found])
            for each in found:
                erasures[each.partition] = opened.erased_by(
                    each.partition, pace, places(each.partition)
                )
    if not as_json:
        print_result(
            *status_parts(found, screen_width()), *wait_lines(found), *erased_lines(erasures),
            *given_up_lines(given_up),
        )  # fmt: skip
    return 0, store_document(found, given_up, erasures)
