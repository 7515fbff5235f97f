"""``keeplast delete-records``: move a partition's log start, as DeleteRecords of a broker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import (
    SCOPE,
    HighWatermark,
    Json,
    despite_option,
    partition_number,
)
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver
from keeplast.errors import Despite
from keeplast.model.partition import TopicPartition

if TYPE_CHECKING:
    from keeplast.run.expiry import DeleteRecordsReport

Topic = Annotated[
    str, typer.Option("--topic", metavar="T", help="The topic.", rich_help_panel=SCOPE)
]
Partition = Annotated[
    int,
    typer.Option(
        "--partition",
        metavar="N",
        parser=partition_number,
        help="Its partition.",
        rich_help_panel=SCOPE,
    ),
]
BeforeOffset = Annotated[
    int,
    typer.Option(
        "--before-offset",
        metavar="OFFSET",
        min=-1,
        help="The first offset that stays; -1 deletes all that is replicated.",
    ),
]
Remove = Annotated[
    bool,
    typer.Option(
        "--remove", help="Take the segments that lie wholly below off the disk at once as well."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")
]
Limits = Annotated[tuple[Despite, ...], despite_option(Despite.LOG_BOUNDS)]


@command(
    first=("topic", "partition", "before_offset"),
    example="keeplast delete-records DATA_DIR --topic orders --partition 0 --before-offset 100",
)
def delete_records(
    where: PlaceOptions,
    topic: Topic,
    partition: Partition,
    before_offset: BeforeOffset,
    remove: Remove = False,
    dry_run: DryRun = False,
    high_watermark: HighWatermark = None,
    despite: Limits = (),
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Delete a partition's records below an offset, whatever their keys, as DeleteRecords does.

    They are gone for readers at once. Their bytes go when all of a segment is below the offset.

    Of a data directory: now with --remove, at a broker's next retention check, or after the next
    round of clean or run. That round may merge the segment with the next one; its bytes then stay
    as long as the merged segment. Of a store: with keeplast collect, when the grace has passed.
    Refused for a topic whose policy lacks delete, and above the high watermark.
    """
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.config.place_properties import PlaceKind
    from keeplast.service.upkeep import DeletionTerms

    found, place = where.open()
    terms = DeletionTerms(
        high_watermark=high_watermark, is_unsafe=bool(despite), removes=remove, writes=not dry_run,
        takes_over=take_over, receipt=found.path("receipt"),
        warned=lambda message: say(message, kind="warning"),
    )  # fmt: skip
    report = place.delete_records(TopicPartition(topic, partition), before_offset, terms)
    if not as_json:
        is_store = found.kind is PlaceKind.STORE
        print_result(*_lines(report, dry_run=dry_run, removes=remove, is_store=is_store))
    return DONE, {**place.head, **report.as_document(), "dry_run": dry_run}


def _lines(
    report: DeleteRecordsReport, *, dry_run: bool, removes: bool, is_store: bool
) -> list[str]:
    """Return what happened, what it means, and what becomes of the bytes and when."""
    from keeplast.model.text import format_bytes, format_counted, printable

    name = printable(f"{report.topic}-{report.partition}")
    would = "would be " if dry_run else ""
    if report.changed:
        lines = [
            f"{name}: log start {would}moved from {report.log_start_before} to {report.log_start}; "
            f"readers see {report.log_start}..{report.log_end}"
        ]
    else:
        lines = [f"{name}: nothing to delete, the log starts at {report.log_start} already"]
    if report.below:
        size = format_bytes(sum(segment.bytes for segment in report.below))
        bases = _bases([segment.base for segment in report.below])
        what = f"{format_counted(len(report.below), 'segment')} wholly below ({bases}, {size})"
        if removes:
            lines.append(f"  {what}: {'would be removed' if dry_run else 'removed'}")
        else:
            after = "by --remove, or by a broker's next retention check"
            if is_store:
                after = "by keeplast collect, when their grace has passed"
            elif report.is_compacted:
                after = (
                    "now by --remove, later by a broker's next retention check, or by the next "
                    "clean or run, unless its round joins it with what follows"
                )
            lines.append(f"  {what}: removed {after}")
    if report.partly is not None:
        partly = report.partly
        what = "holds deleted records and others"
        if partly.end_offset <= report.log_start:
            what = "is the active one, with nothing but deleted records"
        lines.append(
            f"  segment {partly.base} ({format_bytes(partly.bytes)}) {what}: its bytes go when it "
            "lies wholly below the log start, or expires"
        )
    lines += [f"  unsafe: {lift}" for lift in report.lifts]
    return lines


def _bases(bases: list[int]) -> str:
    shown = [str(base) for base in bases]
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]}, {shown[1]} … {shown[-1]}"
