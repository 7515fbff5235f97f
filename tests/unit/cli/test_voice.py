"""How much is said: quiet, verbose, and the file that keeps all of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console

from keeplast.cli.frame.command import run_guarded
from keeplast.cli.show.output import Voice, say, stderr_console, voice
from keeplast.cli.show.progress import ProgressEvents
from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import RoundReport
from tests.unit.cli.conftest import Run

ONE = TopicPartition("t", 0)


class Noon:
    """A clock that stands still."""

    def now_ms(self) -> int:
        """Noon of some day."""
        return 1_700_049_600_000

    def seconds(self) -> float:
        """No time passes."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Return at once."""


def failing() -> tuple[int, None]:
    raise InvalidError("no such thing. name=x")


def test_a_quiet_command_says_errors_and_warnings_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Voice(is_quiet=True):
        say("starting")
        say("defaults are assumed", kind="note")
        say("old file", kind="warning")
        with pytest.raises(typer.Exit):
            run_guarded(failing, as_json=False)
    assert "warning: old file\nerror: no such thing. name=x\n" == capsys.readouterr().err


def test_a_quiet_command_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr("sys.stderr", drawn)
    with Voice(is_quiet=True), ProgressEvents("cleaning") as events:
        events.planned(100)
        events.noted("how")
        events.finished(ONE, RoundReport(skipped=True))
        stderr_console().print("a bar")
    assert "" == drawn.getvalue()


def test_a_verbose_command_says_where_an_error_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Voice(is_verbose=True), pytest.raises(typer.Exit):
        run_guarded(failing, as_json=False)
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert ("error: no such thing. name=x", "Traceback (most recent call last):") == (first, second)
    assert "in failing" in "".join(rest)


@pytest.mark.parametrize("is_verbose", [False, True])
def test_a_verbose_command_says_each_round_above_the_bar(is_verbose: bool) -> None:
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, width=100, highlight=False, color_system=None
    )
    with Voice(is_verbose=is_verbose), ProgressEvents("cleaning", console) as events:
        events.finished(ONE, RoundReport(skipped=True))
    assert is_verbose is ("cleaning t-0: skipped" in screen.getvalue())


def test_the_log_file_has_all_lines_with_their_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keeplast.log"
    path.write_text("of yesterday\n")
    with Voice(is_quiet=True, path=path, clock=Noon()) as quiet:
        quiet.open()
        say("starting")
        say("old file", kind="warning")
    say("afterwards")
    assert [
        "of yesterday",
        "2023-11-15T12:00:00.000Z starting",
        "2023-11-15T12:00:00.000Z warning: old file",
    ] == path.read_text().splitlines()
    assert "warning: old file\nafterwards\n" == capsys.readouterr().err


def test_the_log_file_has_rounds_that_a_bar_hides(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    path = tmp_path / "keeplast.log"
    with Voice(path=path) as kept, ProgressEvents("cleaning", console) as events:
        kept.open()
        events.finished(ONE, RoundReport(skipped=True))
        events.noted("how")
    assert ["cleaning t-0: skipped: nothing to do", "how"] == [
        line.partition(" ")[2] for line in path.read_text().splitlines()
    ]


def test_a_file_that_cannot_be_opened_is_an_error_of_the_command(tmp_path: Path) -> None:
    with Voice(path=tmp_path / "none" / "x.log") as voiceless, pytest.raises(FileNotFoundError):
        voiceless.open()
    assert not voice().is_quiet


def test_a_log_file_on_a_full_disk_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Voice(path=Path("/dev/full")) as full:
        full.open()
        say("one", "two")
    assert ["warning: the log file gets no more", "one", "two"] == [
        line.partition(" lines")[0] for line in capsys.readouterr().err.splitlines()
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--quiet", "config", "--key", "segment.ms", "DIR"),
        ("config", "--key", "segment.ms", "DIR", "--quiet"),
        ("config", "--key", "segment.ms", "-q", "DIR"),
        ("config", "--key", "segment.ms", "DIR", "--quiet", "--log-file", "LOG"),
        ("config", "--key", "segment.ms", "DIR", "-q", "--log-file=LOG"),
    ],
)
def test_the_options_stand_anywhere_on_the_command_line(
    keeplast: Callable[..., Run], data_dir: Path, arguments: tuple[str, ...]
) -> None:
    log = data_dir / "said.log"
    given = [each.replace("DIR", str(data_dir)).replace("LOG", str(log)) for each in arguments]
    run = keeplast(*given)
    assert (0, "604800000", "") == (run.code, run.out.strip(), run.err)
    assert any("LOG" in each for each in arguments) is log.exists()
    if log.exists():
        assert "segment.ms: default" in log.read_text()


def test_words_after_two_dashes_are_no_options_of_ours(
    keeplast: Callable[..., Run], tmp_path: Path
) -> None:
    run = keeplast("inspect", "--", "--quiet")
    assert "no such file" in run.err


def test_a_log_file_that_cannot_be_made_is_one_line(
    keeplast: Callable[..., Run], data_dir: Path, tmp_path: Path
) -> None:
    run = keeplast(
        "config", "--key", "segment.ms", data_dir, "--log-file", tmp_path / "no" / "x", code=5
    )
    assert run.err.startswith("error: no such file or directory; correct the path")
    assert "Traceback" not in run.err


def test_an_option_without_its_value_is_a_mistake(
    keeplast: Callable[..., Run], data_dir: Path
) -> None:
    assert 2 == keeplast("config", "--key", "segment.ms", data_dir, "--log-file").code
