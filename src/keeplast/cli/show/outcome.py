"""The last line of a command: how many partitions ended how, and why where there is one reason.

Exit code 0 also means that everything was skipped, or that nothing could be judged; this line says
it in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from keeplast.inspect.verdicts import VerificationReport
from keeplast.model.escapes import printable
from keeplast.model.size import format_count, format_counted
from keeplast.model.verdict import Verdict
from keeplast.survey.report import CleanReport, PartitionReport

FAILED, SKIPPED = "failed", "skipped"
WHY_MANY = "the reasons stand above"
WHY_FAILED = "the errors follow on stderr"
WHY_FAILED_BEFORE = "the errors stand on stderr"


def closing_line(report: CleanReport, *, done: str = "cleaned") -> str:
    """Return ``1 cleaned, 2 skipped: why``; ``done`` is what happened to the others."""
    ends = Counter(_end(each, done) for each in report.partitions)
    reasons = {
        each.rounds[-1].reason or "nothing to do"
        for each in report.partitions
        if _end(each, done) == SKIPPED
    }
    parts = []
    for end in (done, SKIPPED, FAILED):
        if not ends[end]:
            continue
        words = f"{format_count(ends[end])} {end}"
        if end == SKIPPED:
            words += f": {reasons.pop() if len(reasons) == 1 else WHY_MANY}"
        parts.append(f"{words}: {WHY_FAILED}" if end == FAILED else words)
    gone = sum(len(each.expiry.segments) for each in report.partitions if each.expiry is not None)
    if gone:
        parts.append(f"{format_counted(gone, 'segment')} {_expiry_words(done)}")
    return printable("; ".join(parts)) if parts else "no partition was looked at"


def ends_line(ends: Mapping[str, int], *, failed: int) -> str:
    """Return ``1 expired (2 segments, 8 KiB); 1 failed: …``: how many partitions ended how.

    ``ends`` are counts by what happened; one that no partition met is left out.
    """
    parts = [f"{format_count(count)} {words}" for words, count in ends.items() if count]
    if failed:
        parts.append(f"{format_count(failed)} {FAILED}: {WHY_FAILED_BEFORE}")
    return "; ".join(parts) if parts else "no partition was looked at"


def checks_line(reports: Iterable[VerificationReport], *, is_strict: bool) -> str:
    """Return how many partitions hold, are broken or cannot be judged, and what that means."""
    verdicts = Counter(each.verdict for each in reports)
    words = ", ".join(
        f"{format_count(verdicts[verdict])} {_VERDICTS[verdict]}"
        for verdict in Verdict
        if verdicts[verdict]
    )
    if not words:
        return "no partition was checked"
    if verdicts[Verdict.UNJUDGED] and not is_strict:
        words += ": the reasons stand above; with --strict that is exit code 1"
    return words


def _end(partition: PartitionReport, done: str) -> str:
    expiry = partition.expiry
    if any(each.error is not None for each in partition.rounds):
        return FAILED
    if expiry is not None and expiry.error is not None:
        return FAILED
    if partition.rounds and all(each.skipped for each in partition.rounds):
        return SKIPPED
    return done


def _expiry_words(done: str) -> str:
    return "expired" if done == "cleaned" else "would expire"


_VERDICTS = {
    Verdict.HOLDS: "verified",
    Verdict.BROKEN: "broken",
    Verdict.UNJUDGED: "cannot be judged",
}
