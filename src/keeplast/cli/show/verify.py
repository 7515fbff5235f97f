"""Judgements as people read them: of a log, of two strategies, of a place.

A judgement of a log is a line a check, then what is broken or why it cannot be judged. Of compared
strategies it shows what changes, what has no version, what pins keys. The check of a place is one
table, and below it the lines to type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.tables import new_table
from keeplast.clock import time_text
from keeplast.inspect.preview import PreviewedRecord, StrategyPreview
from keeplast.inspect.verified_log import Check, Finding, VerificationReport
from keeplast.model.text import format_count, printable, shown_bytes
from keeplast.model.topic_config import Strategy
from keeplast.service.place_check import CheckState, PartCheck

KEY_CHARACTERS = 40


def render(report: VerificationReport) -> list[RenderableType]:
    """Return what is printed for one partition."""
    table = new_table(
        "check",
        "verdict",
        "claim",
        rows=((check.name, check.verdict.value, check.claim) for check in report.checks),
    )
    lines = [f"{check.name}: {line}" for check in report.checks for line in _lines(check)]
    heading = f"{report.name}: {report.verdict.value}"
    return [*map(printable, (heading, *report.notes)), table, *map(printable, lines)]


def _lines(check: Check) -> list[str]:
    lines = [_finding(finding) for finding in check.findings]
    more = check.count - len(check.findings)
    if more > 0:
        lines.append(f"and {more} more")
    return [*lines, *check.reasons]


def _finding(finding: Finding) -> str:
    offset = "" if finding.offset is None else f"offset {finding.offset}: "
    key = "" if finding.key is None else f" key={shown_bytes(finding.key, KEY_CHARACTERS)}"
    segment = f" segment={finding.where['segment']}" if "segment" in finding.where else ""
    return f"{offset}{finding.problem}{key}{segment}"


COMPARED_KEY_CHARACTERS = 32


def render_comparison(preview: StrategyPreview) -> list[RenderableType]:
    """Return what is printed for one partition."""
    parts: list[RenderableType] = [*map(printable, _sentences(preview))]
    if preview.changes:
        parts += ["", _changes_table(preview)]
        if preview.keys_changed > len(preview.changes):
            more = preview.keys_changed - len(preview.changes)
            parts.append(f"and {format_count(more)} more keys: --first N")
    if preview.spread.far_ahead_count:
        parts += ["", *map(printable, _far_ahead_sentence(preview)), _far_ahead_table(preview)]
    return [*parts, ""]


def _sentences(preview: StrategyPreview) -> list[str]:
    by = preview.then.value if preview.header is None else f"header {preview.header}"
    lines = [
        f"{preview.partition}: {format_count(preview.keys_changed)} of "
        f"{format_count(preview.keys)} keys would keep another record by {by} than by "
        f"{preview.today.value} today ({preview.today_source})"
    ]
    if preview.keys_back or preview.keys_gone:
        lines.append(
            f"  {format_count(preview.keys_back)} keys that are deleted today would be there, "
            f"{format_count(preview.keys_gone)} that are there would be deleted"
        )
    if preview.then is Strategy.HEADER:
        lines.append(
            f"  of {format_count(preview.records)} records "
            f"{format_count(preview.versions_missing)} lack the header, "
            f"{format_count(preview.versions_malformed)} have one that is not eight bytes: they "
            "lose to any that has a version"
        )
        lines.append(
            f"  {format_count(preview.tombstones_unversioned)} tombstones have no version, and "
            "delete nothing that has one"
        )
    usual = preview.spread.usual
    if usual is not None:
        show = _choose_format(preview)
        lines.append(
            f"  {preview.then.value if preview.header is None else 'version'}s from "
            f"{show(preview.spread.least or 0)} to {show(preview.spread.greatest or 0)}, "
            f"98 % of them from {show(usual[0])} to {show(usual[1])}"
        )
        if preview.spread.limit is not None and not preview.spread.far_ahead_count:
            lines.append("  none is far ahead of the rest")
    return lines


def _far_ahead_sentence(preview: StrategyPreview) -> list[str]:
    spread = preview.spread
    show = _choose_format(preview)
    return [
        f"{format_count(spread.far_ahead_count)} far ahead of the rest: above "
        f"{show(spread.limit or 0)}, which is ten times as far beyond those 98 % as they reach. "
        "Each pins its key until a record with a version at least as great comes:"
    ]


def _changes_table(preview: StrategyPreview) -> Table:
    return new_table(
        "key",
        "",
        ">offset",
        "=timestamp",
        ">version",
        "",
        rows=(
            row
            for each in preview.changes
            for row in (
                (_key(each.key), "today", *_cells(each.today)),
                (Text(""), "then", *_cells(each.then)),
            )
        ),
    )


def _key(key: bytes) -> Text:
    return Text(shown_bytes(key, COMPARED_KEY_CHARACTERS))


def _cells(candidate: PreviewedRecord) -> tuple[str, str, str, str]:
    return (
        str(candidate.offset),
        time_text(candidate.timestamp),
        "" if candidate.version is None else str(candidate.version),
        "tombstone" if candidate.is_tombstone else "",
    )


def _far_ahead_table(preview: StrategyPreview) -> Table:
    show = _choose_format(preview)
    return new_table(
        "key",
        ">offset",
        ">version" if preview.header else "timestamp",
        rows=((_key(each.key), str(each.offset), show(each.version)) for each in preview.far_ahead),
    )


def _choose_format(preview: StrategyPreview) -> Callable[[int], str]:
    """Return how a version is written: a number, or a moment."""
    return str if preview.header is not None else time_text


def check_parts(checks: Sequence[PartCheck]) -> Iterator[RenderableType]:
    """Yield the table, each remedy in a line that can be copied, and the number of problems."""
    table = new_table("=what", "=state", "found")
    for each in checks:
        about = "" if each.topic is None else f"{printable(each.topic)}: "
        table.add_row(each.name, each.state.value, Text(about + printable(each.words)))
    yield table
    for each in checks:
        if each.remedy:
            about = "" if each.topic is None else f" of {printable(each.topic)}"
            yield ""
            yield f"{each.name}{about}:"
            yield f"  {printable(each.remedy)}"
    problems = sum(each.state is CheckState.PROBLEM for each in checks)
    yield ""
    yield "nothing is in the way" if not problems else f"{problems} in the way of a clean"
