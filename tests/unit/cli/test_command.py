"""Options that are declared once: groups become parameters, and what was given comes as values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from keeplast.cli.frame.command import Result, command
from keeplast.cli.main import app

Number = Annotated[int, typer.Option("--number", rich_help_panel="Numbers")]
Json = Annotated[bool, typer.Option("--json")]


class Names(Struct, frozen=True, kw_only=True):
    names: Annotated[tuple[str, ...], typer.Option("--name", rich_help_panel="Names")] = ()
    no_option: str = "its own"


class Everything(Struct, frozen=True, kw_only=True):
    numbers: Annotated[tuple[int, ...], typer.Argument(metavar="N...")]
    number: Number = 3
    inner: Names


seen: list[Any] = []


@command(first=("names",), example="keeplast try 1 --name a")
def attempt(everything: Everything, as_json: Json = False) -> Result:
    """Take what is given."""
    seen.append(everything)
    return 0, {"number": everything.number}


def call(*arguments: str) -> Any:
    """Return what the command was called with."""
    tried = typer.Typer()
    tried.command()(attempt)
    result = CliRunner().invoke(tried, arguments)
    assert 0 == result.exit_code, result.output
    return result


def test_a_group_in_a_group_is_given_as_values() -> None:
    result = call("1", "2", "--name", "a", "--name", "b", "--number", "5", "--json")
    expected = Everything(numbers=(1, 2), number=5, inner=Names(names=("a", "b")))
    assert expected == seen[-1]
    assert 5 == json.loads(result.stdout)["number"]


def test_a_missing_option_has_the_groups_default() -> None:
    call("1")
    assert Everything(numbers=(1,), number=3, inner=Names(names=())) == seen[-1]
    assert "its own" == seen[-1].inner.no_option


def test_the_most_used_come_first_and_in_no_panel_of_their_own() -> None:
    tried = typer.Typer(add_completion=False)
    tried.command()(attempt)
    parameters = typer.main.get_command(tried).params
    assert ["numbers", "names", "number", "as_json"] == [each.name for each in parameters]
    panels = [getattr(each, "rich_help_panel", None) for each in parameters]
    assert [None, None, "Numbers", None] == panels
    assert "Example: `keeplast try 1 --name a`" in (attempt.__doc__ or "")


def test_an_option_that_two_groups_declare_is_refused() -> None:
    def twice(one: Everything, number: Number = 1, as_json: Json = False) -> Result:
        return 0, {}

    twice.__annotations__.update(one=Everything, number=Number, as_json=Json)
    with pytest.raises(TypeError, match="declared twice"):
        command(first=(), example="")(twice)


@pytest.mark.parametrize("first", [("unknown",), ("names",) * 12])
def test_what_comes_first_is_an_option_and_not_more_than_is_shown(first: tuple[str, ...]) -> None:
    def some(one: Everything, as_json: Json = False) -> Result:
        return 0, {}

    some.__annotations__.update(one=Everything, as_json=Json)
    with pytest.raises(TypeError, match="too many"):
        command(first=first, example="")(some)


def commands(found: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with the words it is called by."""
    if hasattr(found, "commands"):
        for word, each in found.commands.items():
            yield from commands(each, (*name, word))
    else:
        yield name, found


COMMANDS = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("name", "found"), COMMANDS, ids=[" ".join(n) for n, _ in COMMANDS])
def test_every_command_shows_an_example_that_it_takes(name: tuple[str, ...], found: Any) -> None:
    (line,) = [line for line in (found.help or "").splitlines() if line.startswith("Example: ")]
    words = shlex.split(line.removeprefix("Example: ").strip("`"))
    assert ["keeplast", *name] == words[: 1 + len(name)]
    found.make_context(name[-1], words[1 + len(name) :]).close()


def test_there_is_an_example_of_every_command() -> None:
    assert 30 <= len(COMMANDS)
