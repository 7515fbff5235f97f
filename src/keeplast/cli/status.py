"""``keeplast status``: where every log stands, what needs attention first, and until when."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import FACTS, Json, NowMs, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions
from keeplast.cli.frame.values import span_seconds
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keeplast.api.place import AskedPlace
    from keeplast.config.places import FoundPlace
    from keeplast.model.hold import GroupReader
    from keeplast.service.status import PlaceStatus

LIMIT_DEFAULT = 20
SHOW = "What is shown"


class TombstonesName(StrEnum):
    """What is read to count tombstones and markers."""

    HEADERS = "headers"
    RECORDS = "records"
    SKIP = "skip"


class ShowOptions(Struct, frozen=True, kw_only=True):
    """How much of a status is shown, and how often."""

    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, help="Show the N most urgent.", rich_help_panel=SHOW
        ),
    ] = LIMIT_DEFAULT
    all_partitions: Annotated[
        bool, typer.Option("--all", help="Show every partition.", rich_help_panel=SHOW)
    ] = False
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Show everything of each. Default: of three at most.",
            rich_help_panel=SHOW,
        ),
    ] = False
    watch: Annotated[
        int | None,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            parser=span_seconds,
            help="Look again every so many seconds, or after a span such as 5min, until Ctrl-C.",
            rich_help_panel=SHOW,
        ),
    ] = None


class LookOptions(Struct, frozen=True, kw_only=True):
    """What is read for a status, and what it rests on."""

    tombstones: Annotated[
        TombstonesName | None,
        typer.Option(
            "--tombstones",
            show_default=False,
            help="Of a directory. headers: count batches with tombstones, reading every batch "
            "header. records: count tombstones, reading everything. skip: neither, the fastest. "
            "Default: headers.",
            rich_help_panel=SHOW,
        ),
    ] = None
    erased_by: Annotated[
        bool,
        typer.Option(
            "--erased-by",
            help="Of a store: read objects too, and say by when old values are gone. Of other "
            "places that is always said.",
            rich_help_panel=SHOW,
        ),
    ] = False
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Of a live cluster: read all that a round would, and count what it would save.",
            rich_help_panel=SHOW,
        ),
    ] = False
    round_seconds: Annotated[
        float | None,
        typer.Option(
            "--round-seconds",
            metavar="N",
            min=0,
            help="The longest that a round takes in a directory, for 'erased by'. Default: from "
            "each log's size, at a pace that a slow disk keeps.",
            rich_help_panel=FACTS,
        ),
    ] = None
    now_ms: NowMs = None


@command(first=("topics", "watch", "details"), example="keeplast status DATA_DIR --topic orders")
def status(
    where: PlaceOptions,
    scope: ScopeOptions,
    show: ShowOptions,
    look: LookOptions,
    as_json: Json = False,
) -> Result:
    """Say where every log stands, why it is cleaned or not, and by when old values are gone.

    The most urgent partitions come first; one that cannot be read is among them with its error.
    Takes no lock, claims nothing and writes nothing: a broker or keeplast run may be at work.

    Of a store it shows what is in which tier, of a live cluster what brokers serve and hide. There
    the decision log (--decisions) says what is clean, and the storage (--storage) when a round is
    due.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.cli.frame.command import DONE, error_exit_code
    from keeplast.cli.show.output import clear_screen, print_result
    from keeplast.clock import SystemClock
    from keeplast.service.documents import status_document

    if show.watch is not None and (as_json or look.now_ms is not None):
        raise InvalidError(
            f"--watch goes on with the clock; leave out --json and --now-ms. --watch={show.watch}",
            code="K101",
        )
    found, place = where.open()
    brokers = brokers_of(found)
    if show.watch is not None:
        # Ctrl-C is how that ends, not how it fails.
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                parts = _render(_look(found, place, scope, look, brokers), place, show)
                clear_screen()
                print_result(*parts)
                SystemClock().sleep(show.watch)
        return DONE, {}
    answer = _look(found, place, scope, look, brokers)
    if not as_json:
        print_result(*_render(answer, place, show))
    codes = [error_exit_code(each.error) for each in answer.partitions if each.error is not None]
    return max(codes, default=DONE), {**place.head, **status_document(answer)}


def _look(
    found: FoundPlace,
    place: AskedPlace,
    scope: ScopeOptions,
    look: LookOptions,
    brokers: GroupReader | None,
) -> PlaceStatus:
    from keeplast.cli.frame.round_options import work_of
    from keeplast.cli.show.output import say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.inspect.status import TombstoneReading
    from keeplast.run.events import StopSwitch
    from keeplast.service.status import StatusTerms

    with ProgressEvents("looking") as events:
        open_runner = None
        if look.exact:
            work = work_of(found, events, StopSwitch(), compiles=False, brokers=brokers)
            open_runner = work.open_runner
        terms = StatusTerms(
            now_ms=look.now_ms,
            tombstones=None if look.tombstones is None else TombstoneReading(look.tombstones.value),
            round_seconds=look.round_seconds, erased_by=look.erased_by, open_runner=open_runner,
            receipt=found.path("receipt"), brokers=brokers,
            planned=events.planned if events.has_bar else None,
            progressed=events.progressed,
        )  # fmt: skip
        answer = place.status(scope, terms)
    say(*answer.warnings, kind="warning")
    return answer


def _render(answer: PlaceStatus, place: AskedPlace, show: ShowOptions) -> list[RenderableType]:
    from keeplast.cli.show.output import screen_width
    from keeplast.cli.show.status import render_status

    limit = None if show.all_partitions else show.limit
    return render_status(
        answer, place.address, limit=limit, has_details=show.details, width=screen_width()
    )
