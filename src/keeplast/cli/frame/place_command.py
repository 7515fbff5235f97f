"""Commands over a place: ``--memory 4g`` is a short way to write ``--with memory=4g``.

A property of a place is declared once, in :mod:`keeplast.config.place_properties`, and can be
given to every verb. The rule: an option that the command declares itself is left to it. Options of
a verb that the table of a named place gives count where the command line is silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from keeplast.config.place_properties import AT, PROPERTIES, WITH, PropertyType
from keeplast.errors import CompactionError

TYPES = {f"--{each.name}": each.type for each in PROPERTIES if each.name != AT}


class PlaceCommand(TyperCommand):
    """A command whose options may be properties of its place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments, properties among them."""
        own = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        if WITH in own:
            args = with_properties(args, own)
            ctx.default_map = {**(ctx.default_map or {}), **self._defaults(ctx, args)}
        found: list[str] = super().parse_args(ctx, args)
        return found

    def _defaults(self, ctx: Any, args: list[str]) -> dict[str, Any]:
        """Return the options that a named place's table has for this verb, by parameter."""
        try:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            name = given.get("place")
            if not isinstance(name, str):
                return {}
            from keeplast.config.places import find_place

            found = find_place(name)
        except (TyperException, CompactionError):
            return {}  # The command itself says what is wrong.
        verb = "".join(ctx.command_path.split()[1:2])
        table = found.defaults.get(verb, {})
        names = {opt[2:]: each.name for each in self.params for opt in each.opts}
        for key in table:
            if key not in names:
                raise typer.BadParameter(
                    f"the place's table gives an option that this command has not; correct it. "
                    f"place={name} table={verb} option={key}"
                )
        return {names[key]: value for key, value in table.items()}


def with_properties(args: Sequence[str], own: set[str]) -> list[str]:
    """Return the arguments with every property as ``--with NAME=VALUE``; after ``--`` none is."""
    found: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        name, equals, value = word.partition("=")
        kind = TYPES.get(name)
        if kind is None or name in own:
            found.append(word)
            continue
        if not equals:
            # A flag needs no value; everything else takes the next word, as options do.
            value = "true" if kind is PropertyType.FLAG or not rest else rest.pop(0)
        separator = "." if kind is PropertyType.OPTIONS else "="
        found += [WITH, f"{name[2:]}{separator}{value}"]
    return found
