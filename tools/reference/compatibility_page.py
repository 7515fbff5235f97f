"""The page of what keeplast was tried with, from ``compatibility.toml`` next to this module.

The rule that a reader must not break: a row says *in CI* only where a step of ``.ci/run`` runs it.
A test holds versions against the files that decide them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tools.reference.tables import described
from tools.reference.text import NOTICE

TABLE = Path(__file__).with_name("compatibility.toml")
HEAD = f"""# Compatibility

{NOTICE}

The releases and services that keeplast was tried with, and how each was tried.

*In CI* is tried with every change. *By hand* was tried once, on that date. *Not* was never tried.
"""


def areas() -> list[dict[str, Any]]:
    """Return the table, area by area."""
    found: list[dict[str, Any]] = tomllib.loads(TABLE.read_text("utf-8"))["area"]
    return found


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for area in areas():
        rows = [
            (row["what"], ", ".join(row["versions"]), _how(row), row["note"]) for row in area["row"]
        ]
        parts.append(f"\n## {area['title']}\n\n")
        parts.append(described(("what", "versions", "tested", "note"), rows))
    return "".join(parts)


def _how(row: dict[str, Any]) -> str:
    return {"ci": "in CI", "no": "not", "hand": f"by hand, {row.get('date')}"}[row["how"]]
