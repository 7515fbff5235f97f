"""Groups of commands whose modules are imported when one of their commands is asked for.

To declare a command takes milliseconds: its options, their types, what each of them says. A call
is about one command, so it declares that one and no other. Whatever goes through all of a group
(its ``--help``, the completion of a command's name) imports all of it.

The rule: a command's name stands where it is listed, and not only in its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from keeplast.cli.frame.place_command import PlaceCommand
from keeplast.cli.frame.plain_values import take_plainly

MARKUP: Final = "markdown"
"""What help texts are written in."""


def import_home(home: str) -> Any:
    """Return what lies at ``module:attribute``: a command's function, or a group of Typer's."""
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)


class LazyGroup(TyperGroup):
    """A group of commands, each with its home: ``module:attribute``, by name and in order."""

    homes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.homes, self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take options of the group, and the name of a command."""
        take_plainly(self.get_params(ctx))
        found: list[str] = super().parse_args(ctx, args)
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; importing none."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, None when there is none."""
        # What a module fails with when it is imported must not pass for a name that is not known.
        if cmd_name not in self.commands:
            return None
        found = self.commands[cmd_name]
        own = {} if isinstance(found, LazyGroup) else getattr(found, "commands", {})
        for each in (found, *own.values()):
            take_plainly(each.get_params(ctx))
        return found


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each made when it is looked up; behind them those ``made`` already."""

    def __init__(self, homes: Mapping[str, str], made: Mapping[str, Any]) -> None:
        self._homes = homes
        self._made: dict[str, Any] = {**dict.fromkeys(homes), **made}

    def __getitem__(self, name: str) -> Any:
        made = self._made[name]
        if made is None:
            made = self._made[name] = _make(name, import_home(self._homes[name]))
        return made

    def __setitem__(self, name: str, made: Any) -> None:
        self._made[name] = made

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def _make(name: str, found: Any) -> Any:
    """Return the command or group as Typer makes them of what is registered."""
    if isinstance(found, typer.Typer):
        return get_group_from_info(
            TyperInfo(found), pretty_exceptions_short=True, rich_markup_mode=MARKUP,
            suggest_commands=True,
        )  # fmt: skip
    return get_command_from_info(
        CommandInfo(name, cls=PlaceCommand, callback=found),
        pretty_exceptions_short=True,
        rich_markup_mode=MARKUP,
    )
