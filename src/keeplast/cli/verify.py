"""``keeplast verify``: judge independently what cleaning did, over every kind of place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import FACTS, MEMORY_DEFAULT, Json, Note, NowMs, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions
from keeplast.cli.frame.values import place as place_argument
from keeplast.config.place_properties import WITH

if TYPE_CHECKING:
    from keeplast.config.places import FoundPlace
    from keeplast.service.verifying import Judgement, VerifyAnswer

After = Annotated[
    Path | None,
    typer.Argument(
        metavar="AFTER",
        help="The cleaned logs, where PLACE has them from before: both partition directories, or "
        "both log.dirs directories with the same partitions. With --receipt, the cleaned one alone "
        "will do, as PLACE.",
        show_default=False,
        parser=place_argument,
    ),
]
ReceiptHead = Annotated[
    str | None,
    typer.Option(
        "--receipt-head",
        metavar="HEAD",
        help="The head of the receipt's chain that was kept elsewhere, as keeplast inspect shows "
        "it: nothing up to it may be gone or changed.",
        rich_help_panel=FACTS,
    ),
]
Replicas = Annotated[
    bool,
    typer.Option(
        "--replicas",
        help="The two are replicas of one partition, cleaned or not, each at its own time.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also when a check cannot be judged.")
]


class VerifyOptions(Struct, frozen=True, kw_only=True):
    """What ``verify`` takes."""

    where: PlaceOptions
    after: After = None
    receipt_head: ReceiptHead = None
    note: Note = False
    replicas: Replicas = False
    scope: ScopeOptions
    now_ms: NowMs = None
    strict: Strict = False

    def receipt_of(self, found: FoundPlace) -> Path | None:
        """Return the receipt; of replicas only one that the call itself names."""
        given = found.given.get("receipt")
        is_spoken = given is not None and given.source == WITH
        return None if self.replicas and not is_spoken else found.path("receipt")


@command(
    first=("topics", "replicas", "strict"),
    example="keeplast verify BEFORE AFTER --receipt receipts.jsonl",
)
def verify(options: VerifyOptions, as_json: Json = False) -> Result:
    """Judge what cleaning did, by a method of its own: nothing of the cleaner decides here.

    Of a directory logs are compared with what they were, or held against --receipt FILE, which
    clean wrote: the clock, where the round ended, sizes and checksums. Of a store every row and
    every live object is read. Of a live cluster consumers read in both isolation levels, without a
    group, and each object that brokers would read is read too. Both are compared, with each other,
    with the decision log and with the replaced segments.

    Each check *holds*, is *broken* (exit 1), or *cannot be judged*, with the reason. Nothing is
    written but sorted runs in a temporary directory (with --note, a line in the receipt). No lock
    is taken: no other process may write to the logs of a directory meanwhile.
    """
    from keeplast.cli.frame.command import CHECK_FAILED, DONE, error_exit_code
    from keeplast.cli.frame.options import memory_size
    from keeplast.cli.show.output import fault_text, print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.show.verify import render
    from keeplast.inspect.verified_log import VerificationReport
    from keeplast.service.verifying import VerifyTerms

    def heard(name: str, judged: Judgement) -> None:
        if not isinstance(judged, VerificationReport):
            say(f"{name}: {fault_text(judged)}", kind="error")
        elif not as_json:
            print_result(*render(judged))

    found, place = options.where.open()
    with ProgressEvents("judging") as events:
        answer = place.verify(
            options.scope,
            VerifyTerms(
                after=options.after, replicas=options.replicas,
                receipt=options.receipt_of(found), receipt_head=options.receipt_head,
                notes=options.note, now_ms=options.now_ms,
                memory_bytes=memory_size(found.text("memory") or MEMORY_DEFAULT), heard=heard,
                planned=events.planned, progressed=events.progressed,
            ),
        )  # fmt: skip
    say(*answer.warnings, kind="warning")
    if not as_json:
        print_result(*_closing_lines(answer, is_strict=options.strict))
    for report in answer.reports:
        if options.note and not report.rounds:
            say(f"no round was judged, so nothing is noted. partition={report.name}", kind="note")
    code = max(map(error_exit_code, answer.faults), default=DONE)
    if answer.fails(is_strict=options.strict):
        code = max(code, CHECK_FAILED)
    return code, {**place.head, **answer.document(fault_text)}


def _closing_lines(answer: VerifyAnswer, *, is_strict: bool) -> list[str]:
    """Return what is said of all partitions, and of a receipt that no check is about."""
    from keeplast.cli.show.rounds import checks_line
    from keeplast.model.document import Verdict
    from keeplast.model.text import printable

    lines: list[str] = []
    chain, reports = answer.chain, answer.reports
    if chain is not None and not any("receipt" in each.check_names for each in reports):
        lines += ["", *map(printable, (f"receipt: {chain.sentence}", *chain.problems))]
    if len(reports) != 1 or reports[0].verdict is Verdict.UNJUDGED:
        lines += ["", checks_line(reports, is_strict=is_strict)]
    return lines
