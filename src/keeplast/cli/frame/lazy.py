"""Groups of commands whose modules are imported when one of their commands is asked for.

The rules that a reader must not break:

- A command's name stands where it is listed, and not only in its module.
- No value of a command line is refused here. What is not plain goes to Typer, with the words it has
  for mistakes.
- An option that the command declares itself is left to it.
- The catalogue of codes is read when a code is asked for, and never before.

To declare a command takes milliseconds: its options, their types, what each of them says. A call is
about one command, so it declares that one and no other. Only what goes through all of a group (its
``--help``, the completion of a command's name) imports all of it.

Typer converts values with pydantic, which takes longer to import than most commands take to begin.
A text for a text, a default that is of its type already, and what a parser of ours makes of a text
need none of it. Typer keeps what converts a parameter in the parameter; a plain one has no use for
it.

``--memory 4g`` is a short way to write ``--with memory=4g``: a property of a place is declared
once, in :mod:`keeplast.config.place_properties`, and can be given to every verb. Options of a verb
that the table of a named place gives count where the command line is silent. ``--help`` shows at
most twelve options, and says how many more ``--help-all`` shows.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, ClassVar, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from keeplast.config.place_properties import AT, PROPERTIES, WITH, PropertyType
from keeplast.errors import CompactionError

USAGE_CODE = "K100"
"""Of a command line that Typer does not understand, in its own words."""
ENTRY_WIDTH = 100


class BadValue(typer.BadParameter):
    """A value of an argument or an option that cannot be used; ``code`` as in our own errors."""

    def __init__(self, message: str, *, code: str | None) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def coded_usage() -> Iterator[None]:
    """Let the message of a mistake of usage end with its code."""
    try:
        yield
    except TyperException as error:
        text = f"{error.format_message()} [{getattr(error, 'code', None) or USAGE_CODE}]"
        error.format_message = lambda: text  # type: ignore[method-assign]
        raise


def entry_text(code: str) -> str:
    """Return what the catalogue says of a code; BadValue with the nearest where there is none."""
    import textwrap

    from keeplast.service.catalogue import ENTRY_PARTS, read_entries

    entries = read_entries()
    if code not in entries:
        nearest = min(entries, key=lambda each: abs(int(each[1:]) - int(code[1:])))
        raise BadValue(f"no such code; the nearest is {nearest}. code={code}", code="K100")
    entry = entries[code]
    width = min(shutil.get_terminal_size().columns, ENTRY_WIDTH)
    parts = [
        textwrap.fill(f"{heading}: {entry[name]}", width, break_on_hyphens=False)
        for name, heading in ENTRY_PARTS.items()
    ]
    return "\n\n".join([f"{code}: {entry['title']}", *parts])


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


TYPES = {f"--{each.name}": each.type for each in PROPERTIES if each.name != AT}
HELP_ALL = "--help-all"
LINE_CHARS_MAX = 200
COLUMNS_MIN = 90
"""Tables of options need so many columns; below, names of options would be cut."""
SHOWN_MAX = 12
"""A help shows so many options, ``--json`` among them, without ``--help`` itself."""


class TwoHelps:
    """The help of a command or a group in two lengths; stands in front of Typer's class."""

    params: list[Any]
    epilog: str | None
    rich_markup_mode: Any
    _help_all: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, those for help among them."""
        if self._help_all is None:
            short: Any = self.get_help_option(ctx)  # type: ignore[attr-defined]

            def show_all(ctx: Any, param: Any, value: Any) -> None:
                ctx.meta[HELP_ALL] = value
                short.callback(ctx, param, value)

            self._help_all = _changed(
                short, name="help_all", opts=[HELP_ALL], callback=show_all,
                help="Show all options and exit.",
            )  # fmt: skip
        return [*super().get_params(ctx), self._help_all]  # type: ignore[misc]

    def shown_options(self) -> list[Any]:
        """Return the options that ``--help`` shows: the first of them, and ``--json``."""
        options = [each for each in self.params if each.param_type_name == "option"]
        others = [each for each in options if each.name != "as_json"]
        left = max(len(options) - SHOWN_MAX, 0)
        return [each for each in options if each not in others[len(others) - left :]]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help in the length that was asked for."""
        written = copy(self)
        if shutil.get_terminal_size().columns < COLUMNS_MIN:
            written.rich_markup_mode = None  # Plain lines, which fold.
        # Python's name of an argument's type says nothing to a reader.
        arguments = [
            _changed(each, display_type_rich=lambda ctx: None)
            for each in self.params
            if each.param_type_name == "argument"
        ]
        options = [each for each in self.params if each.param_type_name == "option"]
        written.params = arguments + options
        if not ctx.meta.get(HELP_ALL):
            shown = [_changed(each, rich_help_panel=None) for each in self.shown_options()]
            written.params = arguments + shown
            written._help_all = _changed(self._help_all, hidden=True)
            if left := len(self.params) - len(written.params):
                written.epilog = f"{left} more: {ctx.command_path} {HELP_ALL}"
        super(TwoHelps, written).format_help(ctx, formatter)  # type: ignore[misc]


def _changed(option: Any, **attributes: Any) -> Any:
    """Return an option with other attributes, for the help alone."""
    found = copy(option)
    vars(found).update(attributes)
    return found


class HelpGroup(TwoHelps, TyperGroup):
    """A group of commands."""

    def rows(self, ctx: Any) -> list[tuple[str, str]]:
        """Return each command, and the first sentence of what it does."""
        return [
            (name, str(each.get_short_help_str(LINE_CHARS_MAX)))
            for name in self.list_commands(ctx)
            if (each := self.get_command(ctx, name)) is not None
        ]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in lines that fold; none is cut."""
        with formatter.section("Commands"):
            formatter.write_dl(self.rows(ctx))


class PlaceCommand(TwoHelps, TyperCommand):
    """A command whose options may be properties of its place."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of a call; those that may be left out are in brackets."""
        options, *arguments = super().collect_usage_pieces(ctx)
        needed = [
            f"{each.opts[0]} {each.metavar}"
            for each in self.params
            if each.param_type_name == "option" and each.required
        ]
        # Typer puts an argument that must be there in braces.
        return [*(each.replace("{", "").replace("}", "") for each in arguments), *needed, options]

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
        verb = " ".join(_words_of(ctx))
        options = {opt[2:]: each for each in self.params for opt in each.opts}
        values: dict[str, Any] = {}
        for key, value in found.defaults.get(verb, {}).items():
            if key == "yes":
                raise BadValue(
                    "a question is answered on the command line alone; take yes out of the place's "
                    f"table. place={name} table={verb}",
                    code="K118",
                )
            if key not in options:
                raise BadValue(
                    f"the place's table has an option that this command lacks; correct it. "
                    f"place={name} table={verb} option={key}",
                    code="K118",
                )
            is_one = options[key].multiple and isinstance(value, str)
            values[options[key].name] = (value,) if is_one else value
        return values


def _words_of(ctx: Any) -> list[str]:
    """Return the words that call a command, without the program's."""
    return [] if ctx.parent is None else [*_words_of(ctx.parent), ctx.info_name]


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


MARKUP: Final = "markdown"
"""What help texts are written in."""


def import_home(home: str) -> Any:
    """Return what lies at ``module:attribute``: a command's function, or a group of Typer's."""
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)


class LazyGroup(HelpGroup):
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


class _Commands(UserDict[str, Any]):
    """Commands by name, each made when it is looked up; after them those ``made`` already."""

    def __init__(self, homes: Mapping[str, str], made: Mapping[str, Any]) -> None:
        super().__init__({**dict.fromkeys(homes), **made})
        self._homes = homes

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _make(name, import_home(self._homes[name]))
        return self.data[name]


def _make(name: str, found: Any) -> Any:
    """Return the command or group as Typer makes them of what is registered."""
    if isinstance(found, typer.Typer):
        own = found.info.cls
        group = own if isinstance(own, type) else HelpGroup
        return get_group_from_info(
            TyperInfo(found, cls=group), pretty_exceptions_short=True, rich_markup_mode=MARKUP,
            suggest_commands=True,
        )  # fmt: skip
    return get_command_from_info(
        CommandInfo(name, cls=PlaceCommand, callback=found),
        pretty_exceptions_short=True,
        rich_markup_mode=MARKUP,
    )
