"""Fills the last column of the scenario tables: which tests name each scenario's id.

    python tools/fill_scenarios.py            rewrite the pages
    python tools/fill_scenarios.py --check    end with 1 when one would change

A test names a scenario by its id (`CT24`, `X13`, `ST-8`, `I-14`, `AT-2`) anywhere in its file:
name, docstring, parameter or comment. In a test's name ids are in lower case: `ct24`, `st_8`. Ids
of attached topics are short (`P2`), so only files about them count. There a row without a test
says `not tested:` and why, and one without a test on brokers `on a model:`.

A cell of many files has each folder once, and its modules without `test_` and `.py`, so that the
cell is not longer than a reader takes in (tools/prose/styles/keeplast/Cells.yml).
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

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
ATTACHED_ID = re.compile(r"(?<![A-Za-z0-9-])(AT-|R-|[PCZR])([0-9]{1,2})(?![0-9A-Za-z])")
EVERYWHERE = ("**/test_*.py",)
ATTACHED = (
    "kafka/test_attach*.py", "unit/attach/test_*.py", "unit/cluster/**/test_*.py",
    "unit/format/test_remote_log_metadata.py", "simulation/test_live_world.py", "spark/test_*.py",
    "services/test_attached_*.py",
)  # fmt: skip
CONTRACTS = ("support/metadata_contract.py",)
"""Files of tests that others inherit."""
CELL_MAX = 160


def named_scenarios(
    pattern: re.Pattern[str], joint: str, files: tuple[str, ...]
) -> dict[str, list[str]]:
    """Return the test files that name each id; ``joint`` is between its letters and its number."""
    tests = ROOT / "tests"
    found: dict[str, set[str]] = defaultdict(set)
    paths = {path for each in files for path in tests.glob(each)}
    if files == EVERYWHERE:
        paths |= {tests / name for name in CONTRACTS}
    for path in sorted(paths):
        for groups in pattern.findall(path.read_text("utf-8")):
            family, number = [group for group in groups if group]
            found[f"{family.upper()}{joint}{number}"].add(str(path.relative_to(tests)))
    return {scenario: sorted(paths) for scenario, paths in found.items()}


def cell(paths: Sequence[str]) -> str:
    """Return a row's last cell: the files, in the order of their paths."""
    if len(", ".join(paths)) <= CELL_MAX:
        return ", ".join(f"`{path}`" for path in paths)
    return "; ".join(
        f"`{folder}/` {', '.join(each.stem.removeprefix('test_') for each in files)}"
        for folder, files in groupby(map(PurePosixPath, paths), lambda path: path.parent)
    )


def filled(text: str, pattern: re.Pattern[str], joint: str, files: tuple[str, ...]) -> str:
    """Return a page with the last column renewed."""
    named = named_scenarios(pattern, joint, files)

    def renewed(match: re.Match[str]) -> str:
        return f"| {match[1]} | {match[2]} | {cell(named.get(match[1], []))} |"

    row = re.compile(rf"\| ((?:{FAMILIES}|ST|I|AT-|R-|P|C|Z|R){joint}[0-9]{{1,2}}) \| (.+?) \|.*\|")
    return "\n".join(row.sub(renewed, line) for line in text.split("\n"))


def unexplained(text: str) -> list[str]:
    """Return the rows that have neither a test nor a reason, or both; so of tests on brokers."""
    rows = re.findall(r"^\| [A-Z]+-?[0-9]+ \| .* \|$", text, re.MULTILINE)
    return [
        each
        for each in rows
        if each.endswith("|  |") != ("not tested:" in each)
        or ("`kafka/" not in each) != any(says in each for says in ("not tested:", "on a model:"))
    ]


DESIGN = ROOT / "docs" / "contributing" / "design"
REASONED = DESIGN / "attached-scenarios.md"
PAGES = {
    DESIGN / "cleaning.md": (CLEANING_ID, "", EVERYWHERE),
    DESIGN / "tiering-scenarios.md": (TIER_ID, "-", EVERYWHERE),
    REASONED: (ATTACHED_ID, "", ATTACHED),
}


def main() -> None:
    """Rewrite the pages or check them."""
    for page, (pattern, joint, files) in PAGES.items():
        text = page.read_text("utf-8")
        renewed = filled(text, pattern, joint, files)
        if page == REASONED and (rows := unexplained(renewed)):
            raise SystemExit(
                f"{page.relative_to(ROOT)} has rows without a test or a reason, or with both:\n"
                + "\n".join(rows)
            )
        if "--check" not in sys.argv[1:]:
            page.write_text(renewed, "utf-8")
        elif renewed != text:
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date; run make reference")


if __name__ == "__main__":
    main()
