"""How ``verify --note`` leaves its verdict in the receipt that it judged by.

Only on request: judging needs the right to read and no other. The line goes through the one door
for receipts, so that it is chained, and waits for whoever appends meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from keeplast.cli.show.output import say
from keeplast.clock import SystemClock
from keeplast.errors import InvalidError, RefusedError
from keeplast.inspect.verdicts import VerificationReport
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.verdict import Verdict
from keeplast.run.readiness import prove_receipt
from keeplast.run.receipt import append_receipt, verdict_line
from keeplast.survey.receipt_book import RoundReceipt, read_receipts, read_whole_lines


def prove_note(files: FileSystem, receipt: Path, partitions: Collection[Path]) -> None:
    """Raise RefusedError unless a line can be appended to ``receipt``, outside ``partitions``."""
    try:
        prove_receipt(files, receipt, partitions)
    except RefusedError as error:
        raise RefusedError(
            f"the verdict cannot be noted; leave --note out to judge only. problem={error}"
        ) from error


def read_judged(receipt: Path | None, *, notes: bool) -> tuple[RoundReceipt, ...]:
    """Return the rounds of a receipt file by which a log with an owner is judged; none without it.

    Called before anything is judged, which may take hours: InvalidError for a file that is none,
    RefusedError for one to which nothing can be appended where that is to be done. One without
    lines has no rounds: whether it was emptied is told by the heads that are kept.
    """
    if receipt is None:
        if notes:
            raise InvalidError("--note writes into a receipt; give --receipt FILE too.")
        return ()
    if not receipt.exists():
        raise InvalidError(
            "there is no such receipt file; name the one that --receipt of the rounds named. "
            f"--receipt={receipt}"
        )
    if notes:
        prove_note(LocalFiles(), receipt, ())
    elif not read_whole_lines(receipt, LocalFiles()):
        return ()
    return read_receipts(receipt, LocalFiles())


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
        judged_by=report.judged_by,
    )
    append_receipt(files, receipt, line)


def note_all(receipt: Path, reports: Mapping[TopicPartition, VerificationReport]) -> int:
    """Append a line for each report that judged rounds; return how many, and say of the others.

    Raises OSError.
    """
    noted = 0
    for partition, report in reports.items():
        if report.rounds:
            note_verdict(LocalFiles(), receipt, partition, report)
            noted += 1
        else:
            say_unnoted(report)
    return noted


def say_unnoted(report: VerificationReport) -> None:
    """Say that no round was judged, so that nothing is noted."""
    say(f"no round was judged, so nothing is noted. partition={report.name}", kind="note")
