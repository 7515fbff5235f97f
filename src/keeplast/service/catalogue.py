"""What each word, code and setting means: a page of help each, that is read where keeplast is.

The rule that a reader must not break: nothing is worded here. ``glossary.toml`` has the words,
``messages.toml`` the codes, the definitions have the settings; the pages of the documents are made
of the same. Texts have the documents' markup.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from msgspec import Struct
from msgspec.structs import replace

from keeplast.config.definitions import DEFINITIONS

ENTRY_PARTS = {"cause": "Cause", "safe": "What is safe", "do": "What to do"}
SETTINGS = "Settings"
AREAS = {
    "K1": "usage and settings",
    "K2": "directories and logs",
    "K3": "object storage and stores",
    "K4": "live clusters",
    "K5": "Spark and the machine",
    "K6": "holds, erasure, undo and proofs",
    "K7": "console and service",
    "K8": "why a log is not cleaned",
    "K9": "defects",
}
_NAMES = re.compile(r"\*\*(.+?)\*\*|`(.+?)`|\*(.+?)\*")
_LINK = re.compile(r"\[(.+?)\]\(.+?\)")


class HelpEntry(Struct, frozen=True):
    """What one name means: ``parts`` are headings, which may be empty, and texts."""

    name: str
    title: str
    area: str
    parts: tuple[tuple[str, str], ...]


def read_entries(name: str = "messages") -> dict[str, dict[str, str]]:
    """Return the catalogue of messages: title, cause, safe and do of each code.

    ``glossary`` is the other one: what each word of each part of the glossary means.
    """
    return tomllib.loads((resources.files("keeplast") / f"{name}.toml").read_text("utf-8"))


def help_name(words: str) -> str:
    """Return how the page of a word, a code or a setting is addressed."""
    return "-".join(re.findall(r"[a-z0-9.]+", words.casefold()))


@cache
def help_entries() -> Mapping[str, HelpEntry]:
    """Return every page of help by its address, the words first; read once."""
    found: dict[str, HelpEntry] = {}
    for area, words in read_entries("glossary").items():
        for word, meaning in words.items():
            names = list(_NAMES.finditer(word))
            # What several words mean is said of all of them, in their order.
            said = f"{word}: {meaning}" if len(names) > 1 else meaning
            for each in names:
                title = each[1] or each[2] or each[3]
                name = help_name(title)
                # A word that means two things has one page.
                first = found.get(name, HelpEntry(name, title, area, ()))
                found[name] = replace(first, parts=(*first.parts, ("", _LINK.sub(r"\1", said))))
    for setting in DEFINITIONS:
        idle = () if setting.idle is None else (("Without effect", setting.idle),)
        found[setting.key] = HelpEntry(
            setting.key, setting.key, SETTINGS, (("", setting.about), *idle)
        )
    for code, entry in read_entries().items():
        parts = tuple((heading, entry[part]) for part, heading in ENTRY_PARTS.items())
        area = f"Codes {code[:2]}xx: {AREAS[code[:2]]}"
        found[help_name(code)] = HelpEntry(
            help_name(code), f"{code}: {entry['title']}", area, parts
        )
    return found
