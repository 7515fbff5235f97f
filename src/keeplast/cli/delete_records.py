"""``keeplast delete-records``: move a partition's log start, as DeleteRecords of a broker does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded

if TYPE_CHECKING:
    from keeplast.run.delete_records import DeleteRecordsReport

Topic = Annotated[
    str, typer.Option("--topic", metavar="T", help="The topic.", rich_help_panel=options.SCOPE)
]
Partition = Annotated[
    int,
    typer.Option(
        "--partition", metavar="N", min=0, help="Its partition.", rich_help_panel=options.SCOPE
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


def delete_records(
    data_dir: options.DataDir,
    topic: Topic,
    partition: Partition,
    before_offset: BeforeOffset,
    remove: Remove = False,
    dry_run: DryRun = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    broker_config: options.BrokerConfig = None,
    high_watermark: options.HighWatermark = None,
    unsafe: options.Unsafe = False,
    as_json: options.Json = False,
) -> None:
    """Delete a partition's records below an offset, whatever their keys, as DeleteRecords does.

    They are gone for readers at once. Their bytes go when all of a segment is below the offset:
    with the next `clean` or `run`, at a broker's next retention check, or now with `--remove`.
    Refused for a topic whose policy lacks `delete`, and above the high watermark.
    """
    run_guarded(
        lambda: _deleted(
            data_dir, topic, partition, before_offset, remove, dry_run, tuple(config or ()),
            config_file, broker_config, high_watermark, unsafe, as_json,
        ),
        as_json=as_json,
    )  # fmt: skip


def _deleted(
    data_dir: Path,
    topic: str,
    partition: int,
    before_offset: int,
    remove: bool,
    dry_run: bool,
    config: tuple[str, ...],
    config_file: Path | None,
    broker_config: Path | None,
    high_watermark: int | None,
    unsafe: bool,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.config.selection import choose_partition
    from keeplast.log.files import LocalFiles
    from keeplast.run.delete_records import delete_records as delete

    files = LocalFiles()
    request, warnings = choose_partition(
        data_dir,
        files,
        topic=topic,
        partition=partition,
        flags=config,
        config_file=config_file,
        broker_config=broker_config,
    )
    for warning in warnings:
        say(warning, kind="warning")
    report = delete(
        request,
        files,
        before_offset=before_offset,
        high_watermark=high_watermark,
        is_unsafe=unsafe,
        removes=remove,
        writes=not dry_run,
        warned=lambda message: say(message, kind="warning"),
    )
    if not as_json:
        print_result(*_lines(report, dry_run=dry_run, removes=remove))
    return DONE, {**report.to_json(), "dry_run": dry_run}


def _lines(report: DeleteRecordsReport, *, dry_run: bool, removes: bool) -> list[str]:
    """Return what happened, what it means, and what becomes of the bytes and when."""
    from keeplast.cli.show.sizes import format_bytes
    from keeplast.model.escapes import printable

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
        what = f"{_count(len(report.below), 'segment')} wholly below ({bases}, {size})"
        if removes:
            lines.append(f"  {what}: {'would be removed' if dry_run else 'removed'}")
        else:
            who = "the next clean or run" if report.is_compacted else "--remove"
            lines.append(f"  {what}: removed by {who}, or by a broker's next retention check")
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


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
