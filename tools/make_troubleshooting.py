"""Makes ``docs/reference/troubleshooting.md``: each code, and the wordings that have it.

The words about a code are those of ``src/keeplast/messages.toml``, the wordings those of the places
in the source that name it, read from the syntax tree: what a message fills in is shown as ``…``.
The page is written and compared by ``tools/make_reference.py``.

The rule that a reader must not break: nothing is imported from the source but the catalogue and the
errors of the operating system; a wording that this module does not find is on no page.
"""

from __future__ import annotations

import ast
import errno
import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from keeplast import errors
from keeplast.service.catalogue import AREAS, ENTRY_PARTS, read_entries
from tools.check_prose import wording

SOURCE = Path(__file__).resolve().parents[1] / "src" / "keeplast"
CODED = frozenset({
    "InvalidError", "RefusedError", "InterruptedSwapError", "CorruptError", "UnavailableError",
    "ConflictError", "FencedError", "CommitUnknownError", "StoppedError", "InvariantError",
    "MovedError", "BadValue",
})  # fmt: skip
"""Classes whose every call names a code."""
DOCS = SOURCE.parents[1] / "docs"
CODE = re.compile(r"(?:^|\[)(K[1-9]\d{2})\]?$")
HOLE = "…"
WORDING_CHARS_MAX = 300
HEAD = """# Troubleshooting by message

{notice}

Look up the code at the end of a message: its cause, what is safe now, and what to do.

`keeplast help K214` prints the same without a network. With `--json` the field `code` has the code.
The end of a message shows its values, as in `path=… offset=…`. Below, `…` stands for a value.
"""


class Site(Struct, frozen=True):
    """A place that makes an error: its code where it stands there as text, else the expression."""

    path: Path
    line: int
    error: str
    code: str | None
    wording: str


@functools.cache
def trees(source: Path) -> tuple[tuple[Path, ast.Module], ...]:
    """Return the modules below a folder with their syntax trees, in the order of their names."""
    return tuple(
        (path, ast.parse(path.read_text("utf-8"))) for path in sorted(source.rglob("*.py"))
    )


def find_sites(source: Path) -> Iterator[Site]:
    """Yield the calls of classes that have codes, in the order of their files."""
    for path, tree in trees(source):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in CODED:
                code = next(
                    (each.value for each in node.keywords if each.arg in ("code", None)), None
                )
                words = wording(node.args[0], HOLE) if node.args else ""
                text = None if code is None else ast.unparse(code).strip("'")
                yield Site(path, node.lineno, _name(node.func), text, words)


def find_codes(source: Path) -> set[str]:
    """Return each code that stands in the source as a text, or in brackets at the end of one."""
    return {
        found[1]
        for _, tree in trees(source)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (found := CODE.search(node.value)) is not None
    }


def _name(function: ast.expr) -> str:
    return getattr(function, "id", "") or getattr(function, "attr", "")


def wordings(source: Path) -> dict[str, list[str]]:
    """Return the wordings of each code, without those that are a hole alone, each once."""
    found: dict[str, dict[str, None]] = {}
    for site in find_sites(source):
        # The pairs at the end repeat what each message has.
        words = re.sub(rf"(?:[.;]? *--?)?\s*[\w.-]+={HOLE}.*$", "", site.wording).strip(" .:;")
        if site.code and words.strip(f"{HOLE} .;:/"):
            found.setdefault(site.code, {})[words[:WORDING_CHARS_MAX]] = None
    for number, (code, _) in errors.SYSTEM_ERRORS.items():
        found.setdefault(code, {})[f"{os.strerror(number).lower()} ({errno.errorcode[number]})"] = (
            None
        )
    return {code: sorted(words) for code, words in found.items()}


def troubleshooting_page(notice: str) -> str:
    """Return the page."""
    known, entries = wordings(SOURCE), read_entries()
    lines = [HEAD.format(notice=notice), "| codes | about |", "|---|---|"]
    for area, about in AREAS.items():
        first = min(code for code in entries if code.startswith(area))
        anchor = re.sub(r"[^\w -]", "", f"{first} {entries[first]['title']}".lower())
        lines.append(f"| [{area}xx](#{anchor.replace(' ', '-')}) | {about} |")
    for code in sorted(entries):
        lines += _entry(code, entries[code], known.get(code, []))
    return "\n".join(lines) + "\n"


def _link(found: re.Match[str]) -> str:
    """Return a link to a page of ``docs`` that is there, else its name."""
    page = found[1].removeprefix("reference/")
    target = page if page != found[1] else f"../{page}"
    return f"[{page}]({target})" if (DOCS / found[1]).exists() else found[0]


def _entry(code: str, entry: Mapping[str, str], known: list[str]) -> list[str]:
    lines = ["", f'<a id="{code.lower()}"></a>', "", f"## {code}: {entry['title']}", ""]
    for name, heading in ENTRY_PARTS.items():
        text = re.sub(r"`([a-z]+/[a-z-]+\.md)`", _link, entry[name])
        lines += [f"**{heading}.** {text}", ""]
    if known:
        lines += ["Messages:", "", *(f"* `` {each} ``" for each in known), ""]
    return lines[:-1]
