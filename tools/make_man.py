"""Writes the man pages of keeplast and of each of its commands.

    python tools/make_man.py DIR        DIR/keeplast.1, DIR/keeplast-clean.1, ...

The rule that a reader must not break: it needs no package but keeplast's own, because who
builds a package calls it from a clean environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USAGE = "python tools/make_man.py DIR"


def main(arguments: list[str]) -> int:
    """Write the pages below the directory that is named, and say how many."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(f"name the directory for the man pages: {USAGE}", file=sys.stderr)
        return 2
    from tools.reference.man_pages import pages

    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    found = pages()
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(found)} man pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.exit(main(sys.argv[1:]))
