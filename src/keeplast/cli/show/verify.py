"""A judgement as people read it: a line a check, then what is broken or why nobody can tell."""

from __future__ import annotations

from rich.console import RenderableType

from keeplast.cli.show.rows import new_table
from keeplast.inspect.verdicts import Check, Finding, VerificationReport
from keeplast.model.escapes import printable, shown_bytes

KEY_CHARACTERS = 40


def render(report: VerificationReport) -> list[RenderableType]:
    """Return what is printed for one partition."""
    table = new_table("check", "verdict", "claim")
    lines: list[str] = []
    for check in report.checks:
        table.add_row(check.name, check.verdict.value, check.claim)
        lines += [f"{check.name}: {line}" for line in _lines(check)]
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
