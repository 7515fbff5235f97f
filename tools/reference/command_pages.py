"""The pages of commands: one a command, an index, and the page of exit codes.

The rule that a reader must not break: an option stands once. What most commands take alike is on
the index, and a command's page names it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from keeplast.errors import Despite
from tools.reference.commands import (
    EXIT_CODES,
    Command,
    Parameter,
    all_commands,
    by_group,
    is_shared,
    shared,
    voice,
)
from tools.reference.man_pages import MORE, panels
from tools.reference.place_page import refusal_points
from tools.reference.text import NOTICE, cell, code_words

SHARED = "options-of-most-commands"
INDEX_HEAD = f"""# Commands

{NOTICE}

Every command of keeplast, and the options that most of them take.

`keeplast COMMAND --help` shows the options that are used most, at most twelve. `--help-all` and the
pages here show all of them.
"""
SHARED_HEAD = """
## Options of most commands

A command's page names those that it takes; they are described here only.

"""
VOICE_HEAD = """
## Options of keeplast itself

`--quiet`, `--verbose` and `--log-file` may stand anywhere on a command's line.

"""
INDEX_END = """
## Words that many options share

* A size is a number of bytes, or a number with `k`, `m`, `g` or `t`.
* A span of time is a number with `s`, `min`, `h` or `d`.
* `--json` prints one document on stdout and nothing else. Progress and warnings go to stderr. Each
  document has a [schema](../json.md).
* `--despite LIMIT` goes past the limit that a refusal names. Each command has its own limits.
* The variable `NO_COLOR` switches colours off.
* `keeplast --install-completion` lets the shell complete commands and options.

Each command ends with one of a few [exit codes](../exit-codes.md).
"""
EXIT_HEAD = f"""# Exit codes

{NOTICE}

What the exit code of a command means, and what a script does with it.

| code | meaning |
|---|---|
"""
EXIT_END = """
Of several partitions the greatest code counts: one with damage makes it 3, although others went on.

Only 5 may pass by itself, where a disk, a network or a Spark worker was the cause. The codes 2, 3
and 4 come again until somebody acts on the message. The message is on stderr. With `--json` it is
also in the document, as `error`.
"""


def pages() -> dict[str, str]:
    """Return the pages by their path below ``docs/reference``."""
    found = {"commands/index.md": _index(), "exit-codes.md": _exit_codes()}
    for each in all_commands():
        found[f"commands/{each.page}.md"] = _page(each)
    return found


def _index() -> str:
    parts = [INDEX_HEAD]
    for heading, commands in by_group().items():
        parts.append(f"\n## {heading or 'Every day'}\n\n| command | what it does |\n|---|---|\n")
        parts += [
            f"| [`keeplast {each.name}`]({each.page}.md) | {cell(code_words(each.about))} |\n"
            for each in commands
        ]
    parts += [SHARED_HEAD, *_listed(shared()), VOICE_HEAD, *_listed(voice()), INDEX_END]
    return "".join(parts)


def _exit_codes() -> str:
    rows = [f"| {code} | {cell(about)} |\n" for code, about in EXIT_CODES]
    return "".join([EXIT_HEAD, *rows, EXIT_END])


def _page(command: Command) -> str:
    parts = [
        f"# keeplast {command.name}\n\n{NOTICE}\n\n{code_words(command.about)}\n\n```console\n"
    ]
    parts += [f"$ {each}\n" for each in command.examples]
    parts += ["```\n\n## Synopsis\n\n```text\n", f"{command.usage}\n```\n"]
    if command.body:
        parts.append("\n## Description\n")
        parts += [f"\n{code_words(each)}\n" for each in command.body]
    own = [each for each in command.arguments if not is_shared(each)]
    if own:
        parts += ["\n## Arguments\n\n", *_listed(own)]
    everywhere = [
        each for each in (*command.arguments, *command.shown, *command.rest) if is_shared(each)
    ]
    shown = [each for each in command.shown if not is_shared(each)]
    parts += ["\n## Options that `--help` shows\n\n"] if shown or everywhere else []
    parts += _listed(shown)
    names = [f"`{each.names[0] if each.names else each.metavar}`" for each in everywhere]
    if names:
        parts.append(f"* {', '.join(names)}: [as in most commands](index.md#{SHARED}).\n")
    rest = [each for each in command.rest if not is_shared(each)]
    if rest:
        parts.append("\n## Options that `--help-all` adds\n")
        headed = panels(rest)
        for panel, found in headed.items():
            parts += ["\n" if headed.keys() == {MORE} else f"\n### {panel}\n\n", *_listed(found)]
    parts += _refusals(command)
    parts.append(
        "\n## Result\n\nThe [exit code](../exit-codes.md) says how it ended. With `--json` it "
        f"prints a document: [its schema](../json.md#keeplast-{command.page}).\n"
    )
    return "".join(parts)


def _listed(parameters: Iterable[Parameter]) -> list[str]:
    return [
        f"* `{each.spelling}`: {_with_choices(each)}"
        + (" Required." if each.is_required and not each.is_argument else "")
        + "\n"
        for each in parameters
    ]


def _with_choices(parameter: Parameter) -> str:
    """Return what it says, with a point for each value that the text explains."""
    choices = list(Despite) if "--despite" in parameter.names else parameter.metavar.split("|")
    begins = re.compile(rf"(?:^|(?<=[.;] ))({'|'.join(map(re.escape, choices))}): ")
    text = begins.sub(r"\n    * `\1`: ", parameter.sentence)
    return code_words("\n".join(line.rstrip(" ;") for line in text.split("\n"))).strip()


def _refusals(command: Command) -> list[str]:
    points = refusal_points(command.name)
    return ["\n## Where it is refused\n\n", *points] if points else []
