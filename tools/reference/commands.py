"""What there is to say of each command, taken from Click's structures: pages and man pages read it.

The rule that a reader must not break: nothing is said here that ``--help`` does not say. What is
missing on a page is missing in the help, and is written there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from msgspec import Struct

from keeplast.cli.frame import command as frame
from keeplast.cli.main import GROUPS, LOG_FILE, PLACES, VOICE_FLAGS, app

SHARED_MIN = 20
"""What says the same in so many commands is described once, on the page of all commands."""
EXAMPLE = re.compile(r"^Example: `([^`]+)`$")
EXIT_CODES = (
    (frame.DONE, "Done; skipped partitions included."),
    (frame.CHECK_FAILED, "A check failed."),
    (frame.USAGE, "Usage: an argument or a setting cannot be used. Correct it."),
    (frame.CORRUPT, "Corrupt input. Other partitions went on."),
    (frame.REFUSED, "Refused: understood, and not safe to do. The message says why."),
    (frame.FAILED, "Failed: the disk, the network, the runner, or a defect of keeplast."),
    (frame.INTERRUPTED, "Stopped by SIGINT (Ctrl-C)."),
    (frame.TERMINATED, "Stopped by SIGTERM."),
)


class Parameter(Struct, frozen=True):
    """An option or an argument: its spellings, what it takes, what it says, and its default.

    ``panel`` is the heading under which ``--help-all`` shows it, empty for the first ones.
    """

    names: tuple[str, ...]
    metavar: str
    about: str
    default: str
    panel: str
    is_required: bool
    is_argument: bool

    @property
    def spelling(self) -> str:
        """Return how it is written, such as ``--topic T``."""
        if self.is_argument:
            return self.metavar
        return " ".join(filter(None, (", ".join(self.names), self.metavar)))

    @property
    def sentence(self) -> str:
        """Return what it says, with its default at the end."""
        is_said = not self.default or "Default:" in self.about
        return self.about if is_said else f"{self.about} Default: {self.default}."

    @property
    def said(self) -> tuple[str, str]:
        """Return what is the same where it is the same option."""
        return self.spelling, self.sentence


class Command(Struct, frozen=True):
    """A command that does something: its name, call, sentences, example and parameters.

    ``shown`` are the options that ``--help`` shows, ``rest`` those that ``--help-all`` adds.
    """

    name: str
    usage: str
    about: str
    body: tuple[str, ...]
    examples: tuple[str, ...]
    arguments: tuple[Parameter, ...]
    shown: tuple[Parameter, ...]
    rest: tuple[Parameter, ...]

    @property
    def page(self) -> str:
        """Return the name of its page, such as ``hold-add``."""
        return self.name.replace(" ", "-")


def root() -> Any:
    """Return Click's group of all commands."""
    return typer.main.get_command(app)


def voice() -> tuple[Parameter, ...]:
    """Return the options of keeplast itself."""
    return tuple(_parameter(each) for each in root().params if not each.hidden)


def voice_anywhere() -> tuple[Parameter, ...]:
    """Return those of them that may stand anywhere on the line of a command."""
    known = {*VOICE_FLAGS, LOG_FILE}
    return tuple(each for each in voice() if known & set(each.names))


@cache
def all_commands() -> tuple[Command, ...]:
    """Return every command, in the order of the first screen."""
    found = root()
    order = [name for names in GROUPS.values() for name in names]
    rest = [name for name in found.commands if name not in order]
    return tuple(
        _command(words, each)
        for name in (*order, *rest)
        for words, each in _leaves(found.commands[name], name)
    )


def by_group() -> dict[str, list[Command]]:
    """Return the commands under the headings of the first screen; the first heading is empty."""
    heading = {name: title for title, names in GROUPS.items() for name in names}
    found: dict[str, list[Command]] = {title: [] for title in GROUPS}
    for each in all_commands():
        found[heading[each.name.partition(" ")[0]]].append(each)
    return found


@cache
def shared() -> tuple[Parameter, ...]:
    """Return what most commands take alike; ``PLACE`` is one of them."""
    found = [
        each for command in all_commands()
        for each in (*command.arguments, *command.shown, *command.rest)
    ]  # fmt: skip
    counts = Counter(each.said for each in found)
    first = {each.said: each for each in reversed(found)}
    return tuple(first[said] for said, count in counts.items() if count >= SHARED_MIN)


def is_shared(parameter: Parameter) -> bool:
    """Return whether a parameter is described on the page of all commands."""
    return parameter.said in {each.said for each in shared()}


def place_words() -> str:
    """Return what a place is, as the first screen says it."""
    return PLACES


def _leaves(found: Any, words: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(found, "commands"):
        yield words, found
        return
    for name, each in found.commands.items():
        yield from _leaves(each, f"{words} {name}")


def _command(name: str, found: Any) -> Command:
    paragraphs = [" ".join(each.split()) for each in found.help.split("\n\n")]
    examples = [match[1] for each in paragraphs if (match := EXAMPLE.match(each))]
    about, *body = [each for each in paragraphs if not EXAMPLE.match(each)]
    shown = found.shown_options()
    options = [each for each in found.params if each.param_type_name == "option"]
    return Command(
        name=name,
        usage=" ".join(["keeplast", name, *found.collect_usage_pieces(found.context_class(found))]),
        about=about,
        body=tuple(body),
        examples=tuple(examples),
        arguments=tuple(_parameter(e) for e in found.params if e.param_type_name == "argument"),
        shown=tuple(_parameter(each) for each in options if each in shown),
        rest=tuple(_parameter(e) for e in options if e not in shown and not e.hidden),
    )


def _parameter(found: Any) -> Parameter:
    is_argument = found.param_type_name == "argument"
    names = (*found.opts, *found.secondary_opts)
    default = found.default() if callable(found.default) else found.default
    if isinstance(default, bool):
        # Of a pair such as --retention/--no-retention the one that counts; of a flag nothing.
        default = (
            (found.opts if default else found.secondary_opts)[0] if found.secondary_opts else ""
        )
    default = getattr(default, "value", default)
    return Parameter(
        names=() if is_argument else tuple(sorted(names, key=lambda name: name[:2] != "--")),
        metavar=_metavar(found, is_argument),
        about=" ".join((found.help or "").split()),
        default="" if default is None or default == () else str(default),
        panel=getattr(found, "rich_help_panel", None) or "",
        is_required=bool(found.required),
        is_argument=is_argument,
    )


def _metavar(found: Any, is_argument: bool) -> str:
    if is_argument and found.nargs == -1:
        return f"{found.metavar}..."
    if found.metavar:
        return str(found.metavar)
    if is_argument:
        return str(found.name).upper()
    if getattr(found, "is_flag", False):
        return ""
    choices = getattr(getattr(found, "type_descriptor", None), "annotation", None)
    members = getattr(choices, "__members__", None)
    return "|".join(str(each.value) for each in members.values()) if members else "VALUE"
