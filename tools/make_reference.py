"""Writes the pages of ``docs/reference`` that the code decides; ``--check`` only compares.

A module of ``tools/reference`` makes each page or group of pages: settings, commands, exit codes,
glossary, metrics, places, JSON, compatibility, troubleshooting.

The rule that a reader must not break: there are no other sources. A page that differs from the
code, or a page of a command that is gone, fails the check.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
COMMAND = "tools/make_reference.py"
OWNED = ("commands/*.md",)
"""Where nothing lies but what is made here."""


def pages() -> dict[str, str]:
    """Return every page that is made, by its path below ``docs/reference``."""
    from tools.make_troubleshooting import troubleshooting_page
    from tools.reference import (
        command_pages,
        compatibility_page,
        glossary_page,
        json_page,
        limit_page,
        metric_page,
        place_page,
        setting_page,
    )
    from tools.reference.text import NOTICE

    return {
        "settings.md": setting_page.page(),
        "metrics.md": metric_page.page(),
        "compatibility.md": compatibility_page.page(),
        "json.md": json_page.page(),
        "glossary.md": glossary_page.page(),
        "limits.md": limit_page.page(),
        "places.md": place_page.page(),
        "troubleshooting.md": troubleshooting_page(NOTICE),
        **command_pages.pages(),
    }


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them and return 1 when one differs."""
    made = pages()
    there = {path for pattern in OWNED for path in REFERENCE.glob(pattern)}
    stale = sorted(there - {REFERENCE / name for name in made})
    if "--check" not in arguments:
        for name, text in made.items():
            path = REFERENCE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for path in stale:
            path.unlink()
        return 0
    differing = [
        path
        for name, text in made.items()
        if not (path := REFERENCE / name).exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in (*differing, *stale):
        print(f"{path.relative_to(ROOT)} differs from the code; run {COMMAND}", file=sys.stderr)
    return 1 if differing or stale else 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.exit(main(sys.argv[1:]))
