"""``keeplast verify``: judge independently what cleaning did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import ScopeOptions, SettingOptions, memory_size
from keeplast.cli.frame.parameters import (
    FACTS,
    MEMORY_DEFAULT,
    RUN,
    Json,
    Note,
    NowMs,
    ObjectOptions,
)
from keeplast.cli.frame.places import place, recipe_for
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.inspect.verdicts import VerificationReport
    from keeplast.log.files import FileSystem
    from keeplast.survey.receipt_chain import ChainReport

Places = Annotated[
    tuple[Path, ...],
    typer.Argument(
        metavar="BEFORE AFTER",
        help="The log before cleaning and after it: two partition directories, or two log.dirs "
        "directories with the same partitions. With --receipt, the cleaned one alone will do.",
        show_default=False,
        parser=place,
    ),
]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="What clean --receipt wrote: the clock, where the round ended, sizes and checksums.",
        rich_help_panel=FACTS,
    ),
]
ReceiptHead = Annotated[
    str | None,
    typer.Option(
        "--receipt-head",
        metavar="HEAD",
        help="The head of the receipt's chain that was kept elsewhere, as keeplast receipt show "
        "says it: nothing up to it may be gone or changed.",
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
Memory = Annotated[
    str,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="What sorting may hold in memory; the rest lies in the system's temporary directory.",
        rich_help_panel=RUN,
    ),
]

UNWRITTEN = "the receipt file is empty: clean leaves it so when nothing was cleaned."


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What ``verify`` takes."""

    places: Places
    receipt: ReceiptFile = None
    receipt_head: ReceiptHead = None
    note: Note = False
    replicas: Replicas = False
    scope: ScopeOptions
    settings: SettingOptions
    now_ms: NowMs = None
    memory: Memory = MEMORY_DEFAULT
    strict: Strict = False
    object_options: ObjectOptions = ()


@command(
    first=("receipt", "replicas", "strict"),
    example="keeplast verify BEFORE AFTER --receipt receipts.jsonl",
)
def verify(options: VerifyOptions, as_json: Json = False) -> Result:
    """Judge what cleaning did, by a method of its own: nothing of the cleaner decides here.

    Each check *holds*, is *broken* (exit 1), or *cannot be judged*, with the reason. Nothing is
    written but sorted runs in a temporary directory (with --note, a line in the receipt), and no
    lock is taken: nobody may write to the logs meanwhile.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.show.outcome import checks_line
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.verify import render
    from keeplast.model.verdict import Verdict

    _check_places(options)
    reports = []
    for report in _reports(options):
        reports.append(report)
        if not as_json:
            print_result(*render(report))
    verdicts = {report.verdict for report in reports}
    if not as_json and (len(reports) != 1 or Verdict.UNJUDGED in verdicts):
        print_result("", checks_line(reports, is_strict=options.strict))
    fails = Verdict.BROKEN in verdicts or (options.strict and Verdict.UNJUDGED in verdicts)
    document: dict[str, object] = {"partitions": reports}
    if options.note:
        document["noted"] = sum(1 for report in reports if report.rounds)
        from keeplast.cli.verify_note import say_unnoted

        for report in reports:
            if not report.rounds:
                say_unnoted(report)
    return CHECK_FAILED if fails else DONE, document


def _check_places(options: VerifyOptions) -> None:
    """Make sure that there are as many directories as the call is about."""
    count = len(options.places)
    if options.receipt_head is not None and options.receipt is None:
        raise InvalidError("--receipt-head is of a receipt; give --receipt FILE too.")
    if options.note and options.receipt is None:
        raise InvalidError("--note writes into a receipt; give --receipt FILE too.")
    if options.replicas and (options.receipt is not None or count != 2):
        raise InvalidError(
            f"--replicas takes two directories and no receipt; leave the others out. "
            f"directories={count}"
        )
    if count != 2 and not (count == 1 and options.receipt is not None):
        raise InvalidError(
            "give BEFORE and AFTER, or --receipt FILE and the cleaned directory. "
            f"directories={count}"
        )


def _reports(options: VerifyOptions) -> Iterator[VerificationReport]:
    """Yield what is found of each partition, and then note it where that is asked for."""
    from keeplast.cli.verify_pairs import find_pairs
    from keeplast.config.sources import read_settings
    from keeplast.inspect.receipt_proof import with_chain
    from keeplast.inspect.verification import Verifier, VerifySettings
    from keeplast.survey.receipt_book import read_entries, rounds_of

    files = recipe_for(options.places, options.object_options).open()
    is_unwritten = options.receipt is not None and _is_unwritten(options.receipt, files)
    entries = (
        () if options.receipt is None or is_unwritten else read_entries(options.receipt, files)
    )
    receipts = rounds_of(entries)
    chain = None if not entries else _chain(options, files)
    pairs = find_pairs(options.places, files, options.scope, are_replicas=options.replicas)
    described = {each.partition for each in entries if each.partition is not None}
    if described and described.isdisjoint(pair.partition for pair in pairs.found):
        # A receipt of another directory would pass for one of rounds that found nothing to do.
        raise InvalidError(
            "the receipt is about none of these partitions; give the receipt of this directory. "
            f"in_receipt={min(described)} partition={pairs.found[0].partition} "
            f"path={options.receipt}"
        )
    noted_in = options.receipt if options.note else None
    if noted_in is not None:
        from keeplast.cli.verify_note import prove_note

        # Before anything is judged, which may take hours.
        paths = [path for pair in pairs.found for path in (pair.before, pair.after)]
        prove_note(files, noted_in, [path for path in paths if path is not None])
    settings = read_settings(pairs.root, files, options.settings)
    for pair in pairs.found:
        verifier = Verifier(
            files,
            VerifySettings(
                topic=settings.topic_config(pair.partition.topic),
                cleaner=settings.cleaner_config(),
                now_ms=options.now_ms,
                memory_bytes=memory_size(options.memory),
            ),
        )
        mine = [each for each in receipts if each.partition == pair.partition]
        if options.replicas and pair.before is not None:
            report = verifier.verify_replicas(pair.before, pair.after)
        elif pair.before is not None:
            given = None if options.receipt is None else mine
            report = verifier.verify_pair(pair.before, pair.after, given)
        else:
            report = verifier.verify_in_place(pair.after, mine)
        if chain is not None:
            report = with_chain(report, chain)
        if is_unwritten:
            report = replace(
                report, notes=(f"{UNWRITTEN} receipt={options.receipt}", *report.notes)
            )
        yield report
        if noted_in is not None and report.rounds:
            from keeplast.cli.verify_note import note_verdict

            note_verdict(files, noted_in, pair.partition, report)


def _chain(options: VerifyOptions, files: FileSystem) -> ChainReport | None:
    """Return what the chain of the receipt proves."""
    from keeplast.survey.receipt_book import read_chain
    from keeplast.survey.receipt_chain import ChainHead

    if options.receipt is None:
        return None
    kept = None if options.receipt_head is None else ChainHead.parse(options.receipt_head)
    return read_chain(options.receipt, files, kept)


def _is_unwritten(path: Path, files: FileSystem) -> bool:
    """Say whether no round has left a line in a receipt file, which is there and empty.

    InvalidError where there is none: what it was to say cannot be judged.
    """
    there = path.resolve()
    if not files.exists(there):
        raise InvalidError(
            "there is no such receipt file; name the one that clean --receipt wrote, or leave "
            f"--receipt out. --receipt={path}"
        )
    return not files.is_directory(there) and not files.stat(there).size_bytes
