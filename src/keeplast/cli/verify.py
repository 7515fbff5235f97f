"""``keeplast verify``: judge independently what cleaning did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from keeplast.cli import options
from keeplast.cli.guard import run_guarded
from keeplast.cli.places import place, recipe_for

Places = Annotated[
    list[Path],
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
        help="What clean --receipt wrote: the clock, the bound, sizes and checksums.",
        rich_help_panel=options.FACTS,
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
        rich_help_panel=options.RUN,
    ),
]


def verify(
    places: Places,
    receipt: ReceiptFile = None,
    replicas: Replicas = False,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    now_ms: options.NowMs = None,
    memory: Memory = options.MEMORY_DEFAULT,
    strict: Strict = False,
    object_option: options.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Judge what cleaning did, by a method of its own: nothing of the cleaner decides here.

    Each check *holds*, is *broken* (exit 1), or *cannot be judged*, with the reason. Nothing is
    written but sorted runs in a temporary directory, and no lock is taken: nobody may write to the
    logs meanwhile.
    """
    run_guarded(
        lambda: _verified(
            places, receipt, replicas, tuple(topic or ()), tuple(partition or ()),
            tuple(config or ()), config_file, now_ms, memory, strict,
            tuple(object_option or ()), as_json,
        ),
        as_json=as_json,
    )  # fmt: skip


def _verified(
    places: list[Path],
    receipt: Path | None,
    replicas: bool,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    config: tuple[str, ...],
    config_file: Path | None,
    now_ms: int | None,
    memory: str,
    strict: bool,
    object_options: tuple[str, ...],
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    from keeplast.cli.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.guard import JSON_VERSION
    from keeplast.cli.output import print_result
    from keeplast.cli.sizes import parse_size
    from keeplast.cli.verify_pairs import find_pairs
    from keeplast.cli.verify_view import render
    from keeplast.config.sources import read_settings
    from keeplast.engine.receipt_book import read_receipts
    from keeplast.engine.verdicts import Verdict
    from keeplast.engine.verification import Verifier, VerifySettings
    from keeplast.errors import InvalidError

    files = recipe_for(places, object_options).open()
    if replicas and (receipt is not None or len(places) != 2):
        raise InvalidError(
            f"--replicas takes two directories and no receipt; leave the others out. "
            f"directories={len(places)}"
        )
    if len(places) != (2 if receipt is None else len(places)) or not 1 <= len(places) <= 2:
        raise InvalidError(
            "give BEFORE and AFTER, or --receipt FILE and the cleaned directory. "
            f"directories={len(places)}"
        )
    receipts = () if receipt is None else read_receipts(receipt, files)
    pairs = find_pairs(places, files, topics=topics, partitions=partitions, are_replicas=replicas)
    settings = read_settings(pairs.root, files, flags=config, config_file=config_file)
    reports = []
    for pair in pairs.found:
        verifier = Verifier(
            files,
            VerifySettings(
                topic=settings.topic_config(pair.partition.topic),
                cleaner=settings.cleaner_config(),
                now_ms=now_ms,
                memory_bytes=parse_size(memory, "--memory"),
            ),
        )
        mine = [each for each in receipts if each.partition == pair.partition]
        if receipt is not None and not mine:
            raise InvalidError(
                f"the receipt is not about this partition; leave the partition out or the receipt. "
                f"partition={pair.partition} path={receipt}"
            )
        if replicas and pair.before is not None:
            report = verifier.verify_replicas(pair.before, pair.after)
        elif pair.before is not None:
            report = verifier.verify_pair(pair.before, pair.after, mine)
        else:
            report = verifier.verify_in_place(pair.after, mine)
        reports.append(report)
        if not as_json:
            print_result(*render(report))
    verdicts = {report.verdict for report in reports}
    fails = Verdict.BROKEN in verdicts or (strict and Verdict.UNJUDGED in verdicts)
    document = {
        "version": JSON_VERSION,
        "partitions": [report.to_json() for report in reports],
    }
    return CHECK_FAILED if fails else DONE, document
