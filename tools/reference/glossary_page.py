"""The page of all words, from ``glossary.toml``, which the console's help is made of too."""

from __future__ import annotations

from keeplast.service.catalogue import read_entries
from tools.reference.text import NOTICE

HEAD = f"""# Glossary

{NOTICE}

This page explains each word that keeplast's outputs and pages use, in one line.

Kafka's word wins when Kafka has one. Ranges are half-open, `[start, end)`; a name with `last` is
inclusive.
"""


def page() -> str:
    """Return the page."""
    lines = [HEAD]
    for area, words in read_entries("glossary").items():
        lines += [f"## {area}", "", "| word | means |", "|---|---|"]
        lines += [f"| {word} | {meaning} |" for word, meaning in words.items()]
        lines.append("")
    return "\n".join(lines)
