"""Words and marks that the generated pages share.

The rule that a reader must not break: text of the code goes through :func:`cell` in a table, where
a bar would end the cell.
"""

from __future__ import annotations

import re

from keeplast.cli.main import HOMES
from keeplast.config.place_properties import PlaceKind
from keeplast.errors import Despite

COMMAND = "tools/make_reference.py"
NOTICE = f"<!-- Written by {COMMAND}; change the code, not this page. -->"
_VALUE = rf"(?: (?:[A-Z][A-Z_]+\b|{'|'.join(Despite)}|4g\b))?"
_OPTION = rf"--(?:as log\b|[a-z][a-z-]*{_VALUE})"
_CALL = (
    rf"\bkeeplast (?:{'|'.join(HOMES)})(?![\w-])"
    r"(?: (?:add|list|release|keys|requests|certify|check)\b)?"
    rf"(?: (?:{_OPTION}|[A-Z][A-Z_]+\b|sqlite:///FILE))*"
)
CODE = re.compile(rf"(?<![\w`-])({_CALL}|{_OPTION})(?![\w-])")
"""Calls and options in a sentence, with values in capital letters."""
KINDS = {
    PlaceKind.DIRECTORY: "data directory",
    PlaceKind.STORE: "store",
    PlaceKind.CLUSTER: "live cluster",
}


def cell(text: str) -> str:
    """Return text that may stand in a cell of a table."""
    return text.replace("|", "\\|")


def kind_words(kind: PlaceKind) -> str:
    """Return a kind of place as pages call it."""
    return KINDS[kind]


def code_words(text: str) -> str:
    """Return a sentence of a help with calls and options as code; what is code already stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(each if each.startswith("`") else CODE.sub(r"`\1`", each) for each in parts)
