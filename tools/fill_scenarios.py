"""Fills the last column of the scenario table: which tests name each scenario's id.

    python tools/fill_scenarios.py            rewrite docs/design/cleaning.md
    python tools/fill_scenarios.py --check    end with 1 when it would change

A test names a scenario by its id (`CT24`, `X13`) anywhere in its file: name, docstring, parameter
or comment. Ids may be in lower case inside a test's name.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "cleaning.md"
FAMILIES = "CT|CM|CI|CL|CP|MR|OM|TX|CK|RB|LS|PS|LL|UL|LM|LC|X|K"
ID = re.compile(
    rf"(?<![A-Za-z0-9\\])({FAMILIES})([0-9]{{2}})(?![0-9])"  # CT24 in prose or a parameter
    rf"|_({FAMILIES.lower()})([0-9]{{2}})(?=_|\()"  # ct24 in a function's name
)
ROW = re.compile(rf"\| ((?:{FAMILIES})[0-9]{{2}}) \| (.+?) \|.*\|")


def named_scenarios() -> dict[str, list[str]]:
    """Return the test files that name each id."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for scenario in ("".join(groups).upper() for groups in ID.findall(path.read_text("utf-8"))):
            found[scenario].add(str(path.relative_to(ROOT / "tests")))
    return {scenario: sorted(paths) for scenario, paths in found.items()}


def filled(text: str) -> str:
    """Return the page with the last column renewed."""
    named = named_scenarios()

    def renewed(match: re.Match[str]) -> str:
        paths = ", ".join(f"`{path}`" for path in named.get(match[1], []))
        return f"| {match[1]} | {match[2]} | {paths} |"

    return "\n".join(ROW.sub(renewed, line) for line in text.split("\n"))


def main() -> None:
    """Rewrite the page or check it."""
    text = PAGE.read_text("utf-8")
    renewed = filled(text)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(renewed, "utf-8")
    elif renewed != text:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} is out of date; run make docs")


if __name__ == "__main__":
    main()
