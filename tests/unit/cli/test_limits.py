"""Every option that can widen what a command touches has a row that names the test of its limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from keeplast.cli.main import app
from keeplast.config.place_properties import AT, PROPERTIES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "limits.md"
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
"""Commands that change no log whatever they are told."""


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


def rows() -> list[tuple[str, str, str]]:
    """Return options, commands and limits of the table."""
    found = re.findall(r"^\| (`--.*?`) \| (.*?) \|.*\| (.*) \|$", PAGE.read_text("utf-8"), re.M)
    assert found
    return [(a, b, c) for a, b, c in found]


WIDE = sorted({(o, c) for o, c in options() if o not in NARROW and c not in READING})


@pytest.mark.parametrize(("option", "command"), WIDE, ids=[f"{c} {o}" for o, c in WIDE])
def test_an_option_that_can_widen_has_a_row(option: str, command: str) -> None:
    for names, commands, _ in rows():
        about = [each.strip() for each in commands.split(",")]
        is_about = bool({command, "all that clean", "every verb"} & set(about))
        # --despite has a row for each limit that it goes past.
        if is_about and (f"`{option}`" in names or f"`{option} " in names):
            return
    raise AssertionError(f"docs/reference/limits.md has no row for {command} {option}")


def test_every_row_names_a_test_that_there_is() -> None:
    for names, _, limit in rows():
        tests = re.findall(r"`([\w/]+\.py)::(\w+)`", limit)
        assert tests or "likewise" in limit, names
        for path, name in tests:
            source = (PAGE.parents[2] / "tests" / path).read_text("utf-8")
            assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), f"{path}::{name}"


def test_a_property_of_a_place_that_can_widen_has_a_row() -> None:
    named = {each for names, _, _ in rows() for each in re.findall(r"`(--[\w-]+)`", names)}
    asked = {f"--{each.name}" for each in PROPERTIES if each.name != AT}
    assert set() == asked - named - NARROW


def test_every_command_of_a_row_is_one() -> None:
    known = {command for _, command in options()} | {"all that clean", "every verb", "tier"}
    named = {each.strip() for _, commands, _ in rows() for each in commands.split(",")}
    assert set() == (named | READING) - known


def test_every_option_of_a_row_is_one() -> None:
    known = {option for option, _ in options()} | {f"--{each.name}" for each in PROPERTIES}
    for names, _, _ in rows():
        for name in re.findall(r"`(--[\w/-]+)`", names):
            assert name in known
