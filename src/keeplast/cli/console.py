"""``keeplast console``: the anatomy of every log in a browser, where nothing runs."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, check_packages, command
from keeplast.cli.frame.console import (
    PORT_DEFAULT,
    EntranceOptions,
    console_address,
    console_served,
    say_console,
    search_limits,
)
from keeplast.cli.frame.options import LOOPBACK, Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions

Listen = Annotated[
    str,
    typer.Option(
        "--listen", metavar="HOST:PORT",
        help="Where browsers find it; HOST or PORT alone is enough, port 0 takes a free one.",
    ),
]  # fmt: skip


@command(first=("listen", "topics"), example="keeplast console DATA_DIR")
def console(
    where: PlaceOptions,
    scope: ScopeOptions,
    entrance: EntranceOptions,
    listen: Listen = f"{LOOPBACK}:{PORT_DEFAULT}",
    as_json: Json = False,
) -> Result:
    """Show logs in a browser until Ctrl-C; runs nothing, takes no lock and changes nothing.

    Of a live cluster keys are found where the place's storage is known. A loop's own console,
    keeplast run --console, shows the work too.
    """
    import threading

    from keeplast.api.open_place import brokers_of
    from keeplast.cli.frame.command import DONE
    from keeplast.clock import SystemClock
    from keeplast.service.place_loop import ViewTerms

    check_packages("console")
    address, clock = console_address(listen), SystemClock()
    found, place = where.open()
    limits = search_limits(found)
    view = place.view(
        scope, ViewTerms(clock=clock, receipt=found.path("receipt"), brokers=brokers_of(found))
    )
    with (
        view.watcher,
        console_served(
            view.watcher, view, address, entrance, clock, limits=limits, place=found.shown
        ) as server,
    ):
        say_console(server, entrance)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return DONE, {**place.head, "address": server.address}
    return DONE, place.head
