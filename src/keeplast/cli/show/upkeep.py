"""Lines of what ``collect``, ``repair``, ``pause`` and ``detach`` did to each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keeplast.cli.show.rounds import ends_line
from keeplast.clock import time_text
from keeplast.model.text import format_bytes, format_count, format_counted, printable
from keeplast.service.upkeep import UpkeepReport


def upkeep_lines(report: UpkeepReport) -> Iterator[str]:
    """Yield a line for each partition that did not fail: what is not zero."""
    for each in report.outcomes:
        if each.failure is None:
            words = ", ".join(_words(each.facts)) or "nothing to do"
            yield f"{printable(str(each.partition))}: {printable(words)}"


def collection_lines(report: UpkeepReport) -> Iterator[str]:
    """Yield what was collected of each partition, and of all of them."""
    yield from upkeep_lines(report)
    done = [each.facts for each in report.outcomes if each.failure is None]
    sizes = [each["collected_bytes"] for each in done if each.get("collected_bytes")]
    segments = sum(each.get("collected_segments", 0) for each in done)
    amount = f"{format_counted(segments, 'segment')}, {format_bytes(sum(sizes))}"
    ends = {f"collected ({amount})": len(sizes), "had nothing to collect": len(done) - len(sizes)}
    yield ends_line(ends, failed=len(report.outcomes) - len(done))


def removal_lines(report: UpkeepReport) -> Iterator[str]:
    """Yield what a store lost or would lose of each partition."""
    for each in report.outcomes:
        if each.failure is None:
            yield f"{printable(str(each.partition))}: {_removal_words(each.facts)}"
    if report.waits:
        yield "nothing was changed; add --yes to do it"


def restoration_lines(report: UpkeepReport) -> Iterator[str]:
    """Yield what metadata lack that were restored from a backup, and whether they count."""
    for each in report.outcomes:
        for words in _gap_words(each.facts):
            yield f"{printable(str(each.partition))}: {words}"
    if not report.facts["is_older"]:
        yield "the metadata is the newest that its objects have seen: nothing to repair"
    elif report.facts["done"]:
        yield "accepted: this metadata counts from here on, and any other copy is refused"
    else:
        yield (
            "the metadata is older than its objects; nothing was changed: add --accept-metadata "
            "--yes to go on"
        )


def _words(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if value is True:
            yield name.removeprefix("is_")
        elif name in _COUNTS and value:
            yield _count_words(name, value, facts.get("waiting_until_ms"))
    if facts.get("is_paused") is False:
        yield "not paused"
    if facts.get("is_detached") is False:
        yield "still attached"
    if "held_back" in facts:
        yield f"nothing is deleted: {facts['held_back']}"


def _count_words(name: str, value: int, until_ms: int | None) -> str:
    """Return a count of ``_COUNTS`` in words; a replaced segment in its grace has a date."""
    if name.endswith("_bytes"):
        return f"{format_bytes(value)} {name.removesuffix('_bytes').replace('_', ' ')}"
    words = f"{format_count(value)} {name.replace('_', ' ')}"
    if name != "waiting":
        return words
    words += " for the grace"
    return words if until_ms is None else f"{words}, the first until {time_text(until_ms)[:19]}"


_COUNTS = frozenset(
    {
        "published", "published_again", "discarded", "collected_segments", "collected_objects",
        "collected_bytes", "rebuilt_decisions", "uncollected", "orphan_segments", "orphan_bytes",
        "unknown_segments", "unknown_bytes", "still_served_segments", "still_served_bytes",
        "unwritten", "unwritten_removed", "unwritten_waiting", "waiting",
    }
)  # fmt: skip


def _removal_words(found: Mapping[str, Any]) -> str:
    if found["is_empty"]:
        return f"nothing to cut, the log ends at {found['end']}"
    what = f"offsets {found['start']}..{found['end']}"
    if found["records"] is not None:
        what += f", {format_counted(found['records'], 'record')}"
    what += f", {format_bytes(found['bytes'])} in {format_counted(found['segments'], 'segment')}"
    if found["cut_segment"] is not None:
        what += f"; segment {found['cut_segment']} is cut and its beginning stays"
    if found["asked"] is not None and found["start"] < found["asked"]:
        what += (
            f"; from {found['start']} on and not from {found['asked']}, which lies inside a batch: "
            "a batch goes whole or stays whole"
        )
    if found["is_cleaned_by"]:
        what += (
            "; rounds have cleaned what stays by what goes: a key whose newest record goes may "
            "have lost its older ones too. Where the directory has all of the log, keeplast detach "
            "and then copy --new take it in again, with them"
        )
    if found["holds"]:
        what += f"; with the point of hold {', '.join(found['holds'])}"
    verb = "given up" if found["removal"] == "forget" else "cut off"
    tense = (
        f"{verb}, and no reader sees it any more" if found["done"] else f"would be {verb} and lost"
    )
    return f"{tense}: {what}"


def _gap_words(gap: Mapping[str, Any]) -> Iterator[str]:
    if gap["missing_segments"]:
        yield (
            f"lost: {format_counted(gap['missing_segments'], 'live segment')} "
            f"({format_bytes(gap['missing_bytes'])}, at offsets {gap['missing_start']}.."
            f"{gap['missing_end']}) without all of its objects, which were replaced since and are "
            "gone; take it in again with keeplast copy --new, after keeplast detach"
        )
    if gap["unknown_segments"]:
        after = (
            "written since, or garbage: collected when they are old enough"
            if gap["is_known"]
            else "of a partition that it does not know: left alone; import it to have it again"
        )
        yield (
            f"not in the metadata: {format_counted(gap['unknown_objects'], 'object')} of "
            f"{format_counted(gap['unknown_segments'], 'segment')} "
            f"({format_bytes(gap['unknown_bytes'])}) {after}"
        )
