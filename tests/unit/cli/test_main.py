"""The command without a command: its version, its help, and what it does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

import keeplast as package
from keeplast.cli.main import app
from tests.unit.cli.conftest import Run

Command = Callable[..., Run]


def test_version_is_the_packages(keeplast: Command) -> None:
    run = keeplast("--version")
    assert (0, f"keeplast {package.__version__}") == (run.code, run.out.strip())


def test_help_says_what_exit_codes_mean(keeplast: Command) -> None:
    run = keeplast("--help")
    assert 0 == run.code
    assert "Exit codes: 0 done, 1 a check failed, 2 usage" in run.out


def test_a_command_that_does_not_exist_is_a_usage_error(keeplast: Command) -> None:
    assert 2 == keeplast("compact").code


def test_the_shell_completes_commands_and_options(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--install-completion" in keeplast("--help").out
    monkeypatch.setenv("_KEEPLAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("COMP_WORDS", "keeplast del")
    assert "delete-records" == keeplast().out.strip()


def commands_below(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*names, name)
        if hasattr(command, "commands"):
            yield from commands_below(command, (*names, name))


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_no_help_cuts_the_name_of_an_option(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    found = list(commands_below(typer.main.get_command(app)))
    assert len(found) > 25
    for names in found:
        run = keeplast(*names, "--help")
        assert (0, []) == (run.code, [line for line in run.out.splitlines() if "…" in line]), names
