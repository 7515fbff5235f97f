"""Makes a command of a function that takes its options as values.

A frozen dataclass whose fields are ``Annotated`` with Typer's parameters is a group of options. A
command names the groups it takes; Typer is shown their fields one by one, in the order in which
they stand. So an option is declared once, and what a command was given is passed on as a value.

In a group a repeatable option is a tuple, empty when it was not given; Typer's list stays here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo, ParameterInfo

from keeplast.cli.frame.guard import run_guarded

Result = tuple[int, Any]
"""The exit code of a command, and what its document is made of."""

FIRST_MAX = 3


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter as Typer sees it; ``default`` is ``inspect.Parameter.empty`` for a must."""

    name: str
    kind: Any
    info: ParameterInfo
    default: Any
    is_repeatable: bool

    def for_typer(self, *, is_first: bool) -> inspect.Parameter:
        """Return the parameter of the signature; one of the first has no panel of its own."""
        info = self.info
        if is_first:
            info = copy(info)
            info.rich_help_panel = None
        kind, default = self.kind, self.default
        if self.is_repeatable:
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
            if default is not inspect.Parameter.empty:
                kind, default = kind | None, None
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, info],
        )


def command(
    *, first: tuple[str, ...], example: str
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Return what makes a command of a function that returns exit code and document.

    The function takes groups of options and single ``Annotated`` parameters, ``as_json`` among
    them. ``first`` are the parameters that are used most, at most three: ``--help`` shows them
    before all others. ``example`` is one call that makes sense, shown below the description.
    """

    def make(function: Callable[..., Result]) -> Callable[..., None]:
        parameters = list(_flat(function))
        found = {each.name: each for each in parameters}
        if len(found) < len(parameters):
            raise TypeError(f"an option is declared twice. command={function.__name__}")
        if set(first) - found.keys() or len(first) > FIRST_MAX:
            raise TypeError(f"not options of it, or too many. command={function.__name__} {first=}")
        ordered = [
            *(each for each in found.values() if not isinstance(each.info, OptionInfo)),
            *(found[name] for name in first),
            *(
                each
                for each in found.values()
                if isinstance(each.info, OptionInfo) and each.name not in first
            ),
        ]
        signature = inspect.Signature(
            [each.for_typer(is_first=each.name in first) for each in ordered]
        )

        def call(**given: Any) -> None:
            def body() -> Result:
                return function(**_arguments(function, given))

            run_guarded(body, as_json=given["as_json"])

        call.__name__ = call.__qualname__ = function.__name__
        call.__module__ = function.__module__
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nExample: `{example}`"
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        return call

    return make


def _hints_of(holder: Any) -> dict[str, Any]:
    """Return what stands for options in a function or a group: groups, and ``Annotated`` ones.

    A group may have fields that are no options; they keep their defaults.
    """
    hints = get_type_hints(holder, include_extras=True)
    names = inspect.signature(holder).parameters
    return {
        name: hints[name]
        for name in names
        if is_dataclass(hints[name]) or get_origin(hints[name]) is Annotated
    }


def _flat(holder: Any) -> Iterator[_Parameter]:
    """Yield the parameters of a function or a group, those of its groups in their places."""
    signature = inspect.signature(holder)
    for name, hint in _hints_of(holder).items():
        if is_dataclass(hint):
            yield from _flat(hint)
        else:
            kind, *metadata = get_args(hint)
            info = next(each for each in metadata if isinstance(each, ParameterInfo))
            default = signature.parameters[name].default
            yield _Parameter(name, kind, info, default, get_origin(kind) is tuple)


def _arguments(holder: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to call a function or a group with, made of what Typer gave by name."""
    found: dict[str, Any] = {}
    for name, hint in _hints_of(holder).items():
        if is_dataclass(hint):
            group: Any = hint
            found[name] = group(**_arguments(group, given))
        elif get_origin(get_args(hint)[0]) is tuple:
            found[name] = tuple(given[name] or ())
        else:
            found[name] = given[name]
    return found
