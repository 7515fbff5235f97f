"""``keeplast explain``: what there is of one key, what becomes of each record, and by when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.key_files import KEY_WORDS, parse_key
from keeplast.cli.frame.options import Json, NowMs, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, runner_of, search_of

if TYPE_CHECKING:
    pass

Key = Annotated[
    str | None,
    typer.Argument(
        metavar="KEY", help=f"The key: {KEY_WORDS}. Or give --offset.", show_default=False
    ),
]
Offset = Annotated[
    int | None,
    typer.Option("--offset", metavar="N", min=0, help="The key of the record at this offset."),
]
Values = Annotated[bool, typer.Option("--values", help="Show values too.")]
Header = Annotated[
    str | None,
    typer.Option(
        "--header",
        metavar="NAME",
        help="Also say which record would win if its version were taken from this header. "
        "Default: the topic's compaction.strategy.header.",
    ),
]


@command(
    first=("topics", "offset", "values"),
    example="keeplast explain DATA_DIR customer-17 --topic orders",
)
def explain(
    where: PlaceOptions,
    scope: ScopeOptions,
    key: Key = None,
    offset: Offset = None,
    values: Values = False,
    header: Header = None,
    now_ms: NowMs = None,
    as_json: Json = False,
) -> Result:
    """Show every record of one key: what becomes of it and when, and by when the last is gone.

    All partitions of the chosen topics are searched: of a directory the active segments too, of
    object storage the replaced segments. A record goes at the earliest at the time shown; a round
    must then be due. Reads each log once, takes no lock, claims nothing and writes nothing.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.cli.frame.command import REFUSED, say_faults
    from keeplast.cli.show.keys import render_explained
    from keeplast.cli.show.output import fault_text, print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.inspect.explain import AskedKey

    asked = AskedKey(None if key is None else parse_key(key), offset, header)
    found, place = where.open()
    with ProgressEvents("searching") as events, search_runner(runner_of(found)) as runner:
        terms = search_of(found, events, runner, brokers_of(found), now_ms)
        answer = place.explain(asked, scope, terms)
    say(*answer.warnings, kind="warning")
    for partition, reason in answer.left_out:
        say(f"{partition} is not searched: {reason}", kind="note")
    code = say_faults(answer.faults)
    if answer.left_out and not answer.parts and not answer.faults:
        code = REFUSED  # No log was searched, so the key may be in one.
    if not as_json:
        print_result(*render_explained(answer, values=values, key_words=KEY_WORDS))
    return code, answer.document(values=values, fault_text=fault_text)
