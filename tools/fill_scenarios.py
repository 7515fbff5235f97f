"""Fills the last column of the scenario tables: which tests name each scenario's id.

    python tools/fill_scenarios.py            rewrite the pages
    python tools/fill_scenarios.py --check    end with 1 when one would change

A test names a scenario by its id (`CT24`, `X13`, `ST-8`, `I-14`) anywhere in its file: name,
docstring, parameter or comment. In a test's name ids are in lower case: `ct24`, `st_8`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = "CT|CM|CI|CL|CP|MR|OM|TX|CK|RB|LS|PS|LL|UL|LM|LC|X|K"
CLEANING_ID = re.compile(
    rf"(?<![A-Za-z0-9\\])({FAMILIES})([0-9]{{2}})(?![0-9])"  # CT24 in prose or a parameter
    rf"|_({FAMILIES.lower()})([0-9]{{2}})(?=_|\()"  # ct24 in a function's name
)
TIER_ID = re.compile(
    r"(?<![A-Za-z0-9-])(ST|I)-([0-9]{1,2})(?![0-9])"  # ST-8 in prose
    r"|_(st|i)_?([0-9]{1,2})(?=_|\()"  # st_8 in a function's name
)
CONTRACTS = ("support/metadata_contract.py",)
"""Files of tests that others inherit."""


def named_scenarios(pattern: re.Pattern[str], joint: str) -> dict[str, list[str]]:
    """Return the test files that name each id; ``joint`` is between its letters and its number."""
    tests = ROOT / "tests"
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted([*tests.rglob("test_*.py"), *(tests / name for name in CONTRACTS)]):
        for groups in pattern.findall(path.read_text("utf-8")):
            family, number = [group for group in groups if group]
            found[f"{family.upper()}{joint}{number}"].add(str(path.relative_to(tests)))
    return {scenario: sorted(paths) for scenario, paths in found.items()}


def filled(text: str, pattern: re.Pattern[str], joint: str) -> str:
    """Return a page with the last column renewed."""
    named = named_scenarios(pattern, joint)

    def renewed(match: re.Match[str]) -> str:
        paths = ", ".join(f"`{path}`" for path in named.get(match[1], []))
        return f"| {match[1]} | {match[2]} | {paths} |"

    row = re.compile(rf"\| ((?:{FAMILIES}|ST|I){joint}[0-9]{{1,2}}) \| (.+?) \|.*\|")
    return "\n".join(row.sub(renewed, line) for line in text.split("\n"))


PAGES = {
    ROOT / "docs" / "design" / "cleaning.md": (CLEANING_ID, ""),
    ROOT / "docs" / "design" / "tiering-scenarios.md": (TIER_ID, "-"),
}


def main() -> None:
    """Rewrite the pages or check them."""
    for page, (pattern, joint) in PAGES.items():
        text = page.read_text("utf-8")
        renewed = filled(text, pattern, joint)
        if "--check" not in sys.argv[1:]:
            page.write_text(renewed, "utf-8")
        elif renewed != text:
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date; run make docs")


if __name__ == "__main__":
    main()
