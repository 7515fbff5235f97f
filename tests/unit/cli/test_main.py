"""The command without a command: its version, its help, and what it does not know."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

import keeplast as package
from keeplast.cli.main import OBJECTS_PER_COLLECTION, app, main
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


def test_a_process_of_its_own_looks_for_garbage_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = gc.get_threshold(), list[tuple[int, ...]]()
    for name in ("claim_stdout", "terminate_on_signal"):
        monkeypatch.setattr(f"keeplast.cli.main.{name}", lambda: None)
    monkeypatch.setattr("keeplast.cli.main.app", lambda: found.append(gc.get_threshold()))
    try:
        main()
    finally:
        gc.set_threshold(*before)
    assert [(OBJECTS_PER_COLLECTION, *before[1:])] == found


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
