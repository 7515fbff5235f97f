"""Takes the values of a command line that say plainly what they are, without Typer's conversion.

Typer converts with pydantic, which takes longer to import than most commands take to begin. A
text for a text, a default that is of its type already, and what a parser of ours makes of a text
need none of it.

The rule: nothing is refused here. Whatever is not plain goes to Typer, with the words it has for
mistakes. Typer keeps what converts a parameter in the parameter; one that does not asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, get_args, get_origin


class NotPlainError(Exception):
    """A value that is for Typer to convert."""


class PlainValues:
    """Stands in for what Typer would make to convert the values of one parameter."""

    def __init__(self, parameter: Any) -> None:
        descriptor = parameter.type_descriptor
        self._kind = descriptor.annotation
        self._parser: Callable[[str], Any] | None = descriptor.parameter_info.parser

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value as the command takes it; errors are Typer's."""
        try:
            if param.multiple or param.nargs == -1:
                return self._several(() if value is None else value)
            return None if value is None else self._one(self._kind, value)
        except NotPlainError:
            param._runtime_param = None
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _several(self, values: Any) -> Any:
        if values == ():
            return ()
        if get_origin(self._kind) is not list or not isinstance(values, list | tuple):
            raise NotPlainError
        (kind,) = get_args(self._kind)
        return [self._one(kind, value) for value in values]

    def _one(self, kind: Any, value: Any) -> Any:
        if self._parser is not None and isinstance(value, str):
            try:
                return self._parser(value)
            except (ValueError, AssertionError):
                raise NotPlainError from None
        is_same = isinstance(kind, type) and issubclass(kind, str | int | Enum)
        if self._parser is None and is_same and type(value) is kind:
            return value
        raise NotPlainError


def take_plainly(parameters: Iterable[Any]) -> None:
    """Have the values of ``parameters`` taken as they are where they are plain."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", parameter) is None:
            parameter._runtime_param = PlainValues(parameter)
