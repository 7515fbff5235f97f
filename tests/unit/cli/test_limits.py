"""Every option that can widen what a command touches has a row that names the test of its limit."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from keeplast.cli.main import app
from keeplast.config.place_properties import AT, PROPERTIES

ROOT = Path(__file__).resolve().parents[3]
ROWS = tomllib.loads(Path(__file__).with_name("limits.toml").read_text("utf-8"))["row"]
"""Of docs/reference/limits.md, which is made of them: options, commands, and limits with tests."""
NARROW = {
    "--all", "--as-of", "--behind-proxy", "--bootstrap-server", "--checkpoint",
    "--checkpoint-group",
    "--closed-topics", "--command-config", "--compare",
    "--console", "--console-certificate", "--console-key",
    "--console-name", "--console-token-file", "--cores", "--data-dir", "--decisions", "--details",
    "--as", "--dry-run",
    "--ending-offsets",
    "--effective", "--erased-by", "--exact", "--extra", "--file", "--first", "--from-offset",
    "--git",
    "--interval", "--json", "--limit", "--list", "--listen", "--master", "--memory",
    "--metrics-host", "--metrics-open", "--metrics-port", "--no-values",
    "--object-option", "--objects", "--once", "--partition", "--plan", "--properties", "--python",
    "--receipt", "--records",
    "--replicas", "--round-seconds", "--runner", "--search-bytes", "--search-seconds", "--shape",
    "--storage",
    "--storage-option", "--store", "--strict",
    "--task-memory", "--tier", "--tombstones", "--topic", "--watch",
}  # fmt: skip
"""Options that choose partitions, resources or what is shown. A new option is put here, or gets a
row: somebody has decided."""
READING = {
    "config", "console", "demo", "erase check", "erase requests", "explain",
    "inspect", "pack", "place add", "place check", "place list", "status",
    "verify",
}  # fmt: skip
"""Commands that change no log with any argument."""


def options() -> Iterator[tuple[str, str]]:
    """Yield the name of every option with its command."""

    def below(command: Any, name: str) -> Iterator[tuple[str, str]]:
        for word, each in getattr(command, "commands", {}).items():
            yield from below(each, f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            for parameter in command.params:
                if parameter.param_type_name == "option":
                    yield "/".join(parameter.opts + parameter.secondary_opts), name

    yield from below(typer.main.get_command(app), "")


WIDE = sorted({(o, c) for o, c in options() if o not in NARROW and c not in READING})


@pytest.mark.parametrize(("option", "command"), WIDE, ids=[f"{c} {o}" for o, c in WIDE])
def test_an_option_that_can_widen_has_a_row(option: str, command: str) -> None:
    for row in ROWS:
        is_about = bool({command, "all that clean", "every verb"} & set(row["commands"]))
        # --despite has a row for each limit that it goes past.
        if is_about and any(each.split(" ")[0] == option for each in row["options"]):
            return
    raise AssertionError(f"tests/unit/cli/limits.toml has no row for {command} {option}")


def test_every_limit_of_a_row_names_tests_that_there_are() -> None:
    assert 50 <= len(ROWS)
    for row in ROWS:
        assert row["cannot"], row
        for limit in row["cannot"]:
            assert limit["tests"], limit
            for each in limit["tests"]:
                path, *classes, name = each.split("::")
                source = (ROOT / "tests" / path).read_text("utf-8")
                for of in classes:
                    # A contract, whose tests every kind of store inherits.
                    base = re.search(rf"^class {of}\((\w+)\)", source, re.MULTILINE)
                    assert base, each
                    homes = (ROOT / "tests" / "support").glob("*_contract.py")
                    texts = [home.read_text("utf-8") for home in homes]
                    source = next(text for text in texts if f"class {base[1]}" in text)
                assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), each


def test_the_page_has_every_limit_and_no_test() -> None:
    page = (ROOT / "docs" / "reference" / "limits.md").read_text("utf-8")
    said = page.lower()
    for row in ROWS:
        assert row["can"].lower() in said
        assert [] == [e["limit"] for e in row["cannot"] if e["limit"].lower() not in said]
    assert "test_" not in page


def test_undo_has_no_option_that_lifts_a_refusal() -> None:
    for path in ("unit/run/test_undo.py", "unit/store/test_tier_undo.py"):
        source = (ROOT / "tests" / path).read_text("utf-8")
        assert "def test_an_undo_that_would_lose_records_is_refused(" in source


def test_a_property_of_a_place_that_can_widen_has_a_row() -> None:
    named = {each for row in ROWS for each in row["options"]}
    asked = {f"--{each.name}" for each in PROPERTIES if each.name != AT}
    assert set() == asked - named - NARROW


def test_every_command_of_a_row_is_one() -> None:
    known = {command for _, command in options()} | {"all that clean", "every verb", "tier"}
    named = {each for row in ROWS for each in row["commands"]}
    assert set() == (named | READING) - known


def test_every_option_of_a_row_is_one() -> None:
    known = {option for option, _ in options()} | {f"--{each.name}" for each in PROPERTIES}
    for row in ROWS:
        for each in row["options"]:
            assert each.split(" ")[0] in known
