"""What ``keeplast tier truncate`` and ``forget`` do to each partition, and what they say of it.

Imported only when it is known that the packages of the tier are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from keeplast.cli.frame.exit_codes import DONE, REFUSED
from keeplast.cli.tier.options import RemovalOptions
from keeplast.cli.tier.steps import Step, do_each
from keeplast.log.files import LocalFiles
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_counted
from keeplast.service.receipts import receipt_to
from keeplast.store.removal import Removal
from keeplast.store.tiered_store import TieredStore


def truncation(
    options: RemovalOptions, offset: int | None, paths: Mapping[TopicPartition, Path]
) -> Step[Removal]:
    """Cut partitions at ``offset``, or where their directories in ``paths`` say; or plan it."""
    write_line = receipt_to(LocalFiles(), options.receipt)

    def act(store: TieredStore, each: TopicPartition) -> Removal:
        path = paths.get(each)
        if not options.yes:
            return store.removals.plan_truncation(each, offset, directory=path)
        return store.removals.truncate(
            each, offset, directory=path, takes_over=options.call.take_over, receipt=write_line,
            grace_ms=options.grace.milliseconds,
        )  # fmt: skip

    return Step(act, _document, _show)


def forgetting(options: RemovalOptions) -> Step[Removal]:
    """Give partitions up, or plan it."""
    write_line = receipt_to(LocalFiles(), options.receipt)

    def act(store: TieredStore, each: TopicPartition) -> Removal:
        if not options.yes:
            return store.removals.plan_forgetting(each)
        return store.removals.forget(
            each, takes_over=options.call.take_over, receipt=write_line,
            grace_ms=options.grace.milliseconds,
        )  # fmt: skip

    return Step(act, _document, _show)


def remove_each(
    store: TieredStore,
    partitions: Sequence[TopicPartition],
    step: Step[Removal],
    *,
    does: bool,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Do a step for each partition; the code says when something waits for ``--yes``."""
    code, document = do_each(store, partitions, step, as_json=as_json)
    waits = not does and any(not each.get("is_empty", True) for each in document["partitions"])
    return max(code, REFUSED if waits else DONE), document


def _document(found: Removal) -> dict[str, Any]:
    return {
        "done": found.done, "is_empty": found.is_empty, "kind": found.kind, "start": found.start,
        "end": found.end, "segments": found.segments, "bytes": found.bytes,
        "records": found.records, "cut_segment": found.cut_base, "asked": found.asked,
        "is_cleaned_by": found.is_cleaned_by,
    }  # fmt: skip


def _show(done: Mapping[TopicPartition, Removal]) -> list[RenderableType]:
    lines: list[RenderableType] = [_line(found) for found in done.values()]
    if any(not found.done and not found.is_empty for found in done.values()):
        lines.append("nothing was changed; add --yes to do it")
    return lines


def _line(found: Removal) -> str:
    name = printable(str(found.partition))
    if found.is_empty:
        return f"{name}: nothing to cut, the log ends at {found.end}"
    what = f"offsets {found.start}..{found.end}"
    if found.records is not None:
        what += f", {format_counted(found.records, 'record')}"
    what += f", {format_bytes(found.bytes)} in {format_counted(found.segments, 'segment')}"
    if found.cut_base is not None:
        what += f"; segment {found.cut_base} is cut and its beginning stays"
    if found.asked is not None and found.start < found.asked:
        what += (
            f"; from {found.start} on and not from {found.asked}, which lies inside a batch: a "
            "batch goes whole or stays whole"
        )
    if found.is_cleaned_by:
        what += (
            "; rounds have cleaned what stays by what goes: a key whose newest record goes may "
            "have lost its older ones too. Where the directory has all of the log, keeplast tier "
            "forget and then import begin it anew, with them"
        )
    verb = "given up" if found.kind == "forget" else "cut off"
    tense = f"{verb}, and read by nobody any more" if found.done else f"would be {verb} and lost"
    return f"{name}: {tense}: {what}"
