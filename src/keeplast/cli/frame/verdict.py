"""The exit code of a whole report: the worst of what its rounds say.

A round that crossed a process boundary may carry its error's name only; the name decides then.
"""

from __future__ import annotations

from collections.abc import Iterator

from keeplast.cli.frame.exit_codes import CORRUPT, DONE, FAILED, REFUSED, USAGE, error_exit_code
from keeplast.cli.show.fault import fault_text
from keeplast.errors import CorruptError, InvalidError, RefusedError, StoppedError
from keeplast.survey.report import CleanReport, ExpiryReport, RoundReport

_BY_NAME = {
    InvalidError.__name__: USAGE,
    CorruptError.__name__: CORRUPT,
    RefusedError.__name__: REFUSED,
}


def round_exit_code(report: RoundReport | ExpiryReport) -> int:
    """Return the code for one round, or for what expired after it; a skipped one is done."""
    if report.failure is not None:
        return error_exit_code(report.failure)
    if report.error is not None:
        return _BY_NAME.get(report.error.error_class, FAILED)
    return DONE


def report_exit_code(report: CleanReport) -> int:
    """Return the code for a whole call."""
    return max((round_exit_code(each) for _, each in _outcomes(report)), default=DONE)


def is_stopped(report: CleanReport) -> bool:
    """Say whether something was left undone because somebody asked for that."""
    return any(isinstance(each.failure, StoppedError) for _, each in _outcomes(report))


def report_errors(report: CleanReport) -> list[str]:
    """Return a line for each failed round or expiry, the partition first."""
    return [
        f"{name}: {fault_text(each.failure) if each.failure else each.error.message}"
        for name, each in _outcomes(report)
        if each.error is not None
    ]


def _outcomes(report: CleanReport) -> Iterator[tuple[str, RoundReport | ExpiryReport]]:
    """Yield everything that may have failed, with the partition's name."""
    for partition in report.partitions:
        name = f"{partition.topic}-{partition.partition}"
        for each in partition.rounds:
            yield name, each
        if partition.expiry is not None:
            yield name, partition.expiry
