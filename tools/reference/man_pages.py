"""Man pages of keeplast and of each command, in roff, from what their helps say.

The rule that a reader must not break: text goes through :func:`escaped`, because a line that begins
with a dot or a quote is a request to roff, and a backslash begins an escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from keeplast import __version__
from tools.reference.commands import (
    EXIT_CODES,
    Command,
    Parameter,
    all_commands,
    by_group,
    place_words,
    voice,
    voice_anywhere,
)

ENVIRONMENT = (
    ("NO_COLOR", "No colours."),
    ("KEEPLAST_CONFIG", "The keeplast.toml that names places."),
    ("KEEPLAST_CACHE_DIR", "Where compiled code is kept."),
    ("KEEPLAST_LOG_SEGMENT_BYTES", "A setting of the cluster, and likewise every other one."),
    ("AWS_*, GOOGLE_*, AZURE_*", "Credentials of object stores, as their own tools take them."),
)
MORE = "More"
"""The heading of what has none."""
FILES = (
    (
        "keeplast.toml",
        "Names of places, and settings. In the data directory, or named by --config-file.",
    ),
    ("keeplast-receipts", "In a data directory: what keeplast run has done, a line a round."),
)


@cache
def pages() -> dict[str, str]:
    """Return every page by its file's name, such as ``keeplast-hold-add.1``."""
    found = {"keeplast.1": _overview()}
    for each in all_commands():
        found[f"keeplast-{each.page}.1"] = _page(each)
    return found


def escaped(text: str) -> str:
    """Return text as roff shows it; each line keeps its beginning, and a dash is a dash."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def _overview() -> str:
    lines = [
        *_title("keeplast"),
        ".SH NAME",
        "keeplast \\- log compaction for Kafka\\-format logs, outside the broker",
        ".SH SYNOPSIS",
        ".B keeplast",
        escaped("COMMAND PLACE [OPTIONS]"),
        ".SH DESCRIPTION",
        escaped(place_words()),
        ".SH COMMANDS",
    ]
    for heading, found in by_group().items():
        if heading:
            lines.append(f".SS {escaped(heading)}")
        for each in found:
            lines += [".TP", f".BR keeplast\\-{escaped(each.page)} (1)", escaped(each.about)]
    lines += [".SH OPTIONS", *_listed(voice())]
    lines += [*_ends(), ".SH SEE ALSO", escaped("keeplast COMMAND --help, keeplast --help-all")]
    return "\n".join(lines) + "\n"


def _page(command: Command) -> str:
    name = f"keeplast-{command.page}"
    lines = [
        *_title(name),
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(command.about.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {escaped(f'keeplast {command.name}')}",
        escaped(command.usage.removeprefix(f"keeplast {command.name} ")),
        ".SH DESCRIPTION",
        escaped(command.about),
    ]
    for paragraph in command.body:
        lines += [".PP", escaped(paragraph)]
    if command.arguments:
        lines += [".SH ARGUMENTS", *_listed(command.arguments)]
    lines += [".SH OPTIONS", *_listed(command.shown)]
    for panel, found in panels(command.rest).items():
        lines += [f".SS {escaped(panel)}", *_listed(found)]
    lines += [".SS Of every command", *_listed(voice_anywhere())]
    if command.examples:
        lines.append(".SH EXAMPLES")
        for each in command.examples:
            lines += [".PP", ".EX", escaped(each), ".EE"]
    return "\n".join([*lines, *_ends(), ".SH SEE ALSO", ".BR keeplast (1)"]) + "\n"


def panels(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    """Return parameters under the headings that ``--help-all`` gives them."""
    found: dict[str, list[Parameter]] = {}
    for each in parameters:
        found.setdefault(each.panel or MORE, []).append(each)
    return found


def _title(name: str) -> list[str]:
    return [
        '.\\" Written by tools/make_man.py; change the code, not this page.',
        f'.TH {escaped(name.upper())} 1 "" "keeplast {escaped(__version__)}" "keeplast"',
        # Words are neither torn nor stretched.
        ".nh",
        ".ad l",
    ]


def _listed(parameters: Iterable[Parameter]) -> list[str]:
    return [
        line
        for each in parameters
        for line in (".TP", f".B {escaped(each.spelling)}", escaped(each.sentence))
    ]


def _ends() -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, about in EXIT_CODES:
        lines += [".TP", f".B {code}", escaped(about)]
    for heading, rows in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines.append(f".SH {heading}")
        for name, about in rows:
            lines += [".TP", f".B {escaped(name)}", escaped(about)]
    return lines
