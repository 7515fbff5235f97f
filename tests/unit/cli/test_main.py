"""The command without a command: its version, its help, and what it does not know."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import keeplast as package
from keeplast.cli.main import GROUPS, HOMES, OBJECTS_PER_COLLECTION, app, main
from tests.unit.cli.conftest import Command


def test_version_is_the_packages(keeplast: Command) -> None:
    run = keeplast("--version")
    assert (0, f"keeplast {package.__version__}") == (run.code, run.out.strip())


def test_help_says_what_exit_codes_mean(keeplast: Command) -> None:
    run = keeplast("--help", code=0)
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
    assert "--install-completion" in keeplast("--help-all").out
    monkeypatch.setenv("_KEEPLAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("COMP_WORDS", "keeplast del")
    assert "delete-records" == keeplast().out.strip()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_first_screen_has_a_plain_line_for_each_command_in_groups_by_task(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run = keeplast("--help")
    lines = run.out.splitlines()
    assert (True, []) == (run.out.isascii(), [line for line in lines if len(line) > 80])
    firsts = [line.split()[0] for line in lines if line.startswith("  ")]
    assert ["status", "plan", "clean", "run", "verify", "explain"] == firsts[:6]
    assert sorted(HOMES) == sorted(firsts)
    assert len(lines) <= 40


def test_every_command_is_in_one_group_of_the_first_screen() -> None:
    grouped = [name for commands in GROUPS.values() for name in commands]
    assert len(grouped) == len(set(grouped))
    assert HOMES.keys() <= set(grouped)
    lines = [f"  {name:14}  {text}" for group in GROUPS.values() for name, text in group.items()]
    assert [] == [line for line in lines if len(line) > 78 or not line.endswith(".")]


ROW = re.compile(r"^(?:  |│ (?:[ *]  )?)(?:-\w, )?(--[a-z-]+)", re.MULTILINE)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_help_shows_twelve_options_at_most_and_says_how_many_more_there_are(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    cut = 0
    for names in leaves():
        short, whole = keeplast(*names, "--help").out, keeplast(*names, "--help-all").out
        shown, every = (
            set(ROW.findall(text)) - {"--help", "--help-all"} for text in (short, whole)
        )
        assert (True, True, True) == (len(shown) <= 12, shown <= every, "--json" in shown), names
        said = re.findall(r"(\d+) more: (.*) --help-all", short)
        left = len(every - shown)
        assert ([int(count) for count, _ in said], "--help-all" in whole) == (
            [left] if left else [], True,
        ), names  # fmt: skip
        cut += bool(left)
    assert cut


def test_the_long_help_of_all_has_every_command_and_that_of_a_group_its_own(
    keeplast: Command,
) -> None:
    every = keeplast("--help-all").out
    assert {" ".join(names) for names in leaves()} <= {
        line.strip().split("  ")[0] for line in every.splitlines()
    }
    assert keeplast("hold", "--help-all").out.count("release") > 0


def leaves() -> list[tuple[str, ...]]:
    found = list(commands_below(typer.main.get_command(app)))
    return [names for names in found if names not in {each[:-1] for each in found}]


def commands_below(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*names, name)
        if hasattr(command, "commands"):
            yield from commands_below(command, (*names, name))


def test_the_usage_line_brackets_what_may_be_left_out_and_nothing_else(keeplast: Command) -> None:
    words = r"(?: [A-Z=_]+| --[a-z-]+ [A-Z]+| \[[A-Z=]+\](?:\.\.\.)?)*"
    calls = {}
    for names in leaves():
        text = keeplast(*names, "--help").out
        calls[names] = " ".join(text.partition("\n\n")[0].split())
        assert re.fullmatch(
            rf"Usage: .*keeplast {' '.join(names)}{words} \[OPTIONS\]", calls[names]
        )
        assert not re.search(r"str>|list\[", text), names
    assert calls[("export",)].endswith("export PLACE [PLACE]... --to DIR [OPTIONS]")
    assert calls[("configure",)].endswith("configure PLACE [KEY=VALUE]... [OPTIONS]")


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
