"""A bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from keeplast.cleaner.reasons import AllClean
from keeplast.cli.show.progress import ProgressEvents
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import RoundReport

PARTITION = TopicPartition("t", 0)
SKIPPED = RoundReport(skipped=True, cause=AllClean(0))


def test_a_terminal_gets_a_bar_of_bytes_and_warnings_above_it() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, highlight=False)
    with ProgressEvents("cleaning", console) as events:
        events.planned(1 << 20)
        events.progressed(1 << 20)
        events.warned("mind \x1b[2J this")
        events.finished(PARTITION, SKIPPED)
    shown = stream.getvalue()
    assert "cleaning" in shown
    assert "1.0/1.0 MiB" in shown
    assert "warning: mind \\x1b[2J this" in shown
    assert "skipped" not in shown


def test_elsewhere_there_is_a_line_for_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressEvents("cleaning", Console(file=io.StringIO())) as events:
        events.planned(100)
        events.progressed(100)
        events.warned("mind this")
        events.finished(PARTITION, SKIPPED)
    captured = capsys.readouterr()
    assert "" == captured.out
    assert (
        "warning: mind this\n"
        "cleaning t-0: skipped: nothing to clean: all is clean up to the active segment at 0\n"
    ) == captured.err
