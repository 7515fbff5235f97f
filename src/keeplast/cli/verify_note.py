"""How ``verify --note`` leaves its verdict in the receipt that it judged by.

Only on request: judging needs the right to read and no other. The line goes through the one door
for receipts, so that it is chained, and waits for whoever appends meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import RefusedError
from keeplast.inspect.verdicts import VerificationReport
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.verdict import Verdict
from keeplast.run.readiness import prove_receipt
from keeplast.run.receipt import append_receipt, verdict_line


def prove_note(files: FileSystem, receipt: Path, partitions: Collection[Path]) -> None:
    """Raise RefusedError unless a line can be appended to ``receipt``, outside ``partitions``."""
    try:
        prove_receipt(files, receipt, partitions)
    except RefusedError as error:
        raise RefusedError(
            f"the verdict cannot be noted; leave --note out to judge only. problem={error}"
        ) from error


def note_verdict(
    files: FileSystem, receipt: Path, partition: TopicPartition, report: VerificationReport
) -> None:
    """Append what ``report`` says of its rounds, durably. Raises OSError."""
    line = verdict_line(
        partition,
        now_ms=SystemClock().now_ms(),
        verdict=report.verdict,
        rounds=report.rounds,
        broken=report.names(Verdict.BROKEN),
        unjudged=report.names(Verdict.UNJUDGED),
    )
    append_receipt(files, receipt, line)
