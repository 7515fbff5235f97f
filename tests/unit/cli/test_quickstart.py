"""README and quick start work line by line in a fresh clone, and again by who begins anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.page_steps import ROOT, PageShell, Step, read_steps

PAGES_WITH_FILES = (
    "README.md",
    "docs/tutorials/clean-a-copy.md",
    "docs/how-to/backup.md",
    "docs/how-to/run.md",
    "docs/how-to/strategies.md",
    "docs/how-to/tier.md",
    "docs/reference/data-source.md",
)
FIRST = "rm -rf build/try && mkdir -p build/try"
DATED = "keeplast status"
"""What it prints depends on the day."""


@pytest.fixture
def clone(tmp_path: Path) -> PageShell:
    """A clone in which nobody has built anything."""
    (tmp_path / "src").symlink_to(ROOT / "src")
    return PageShell(tmp_path)


def steps_in_a_clone(page: str) -> list[Step]:
    """Return what a page has its reader type once there is a place for it."""
    steps = read_steps((ROOT / page).read_text("utf-8"))
    begin = [step.command for step in steps].index(FIRST)
    return steps[begin:]


@pytest.mark.repeats("tests/unit/cli/test_quickstart.py::test_the_readme_shows_what_is_printed")
def test_the_quick_start_works_in_a_fresh_clone_and_twice(clone: PageShell) -> None:
    steps = steps_in_a_clone("docs/tutorials/clean-a-copy.md")
    assert len(steps) > 8
    clone.follow(steps)
    clone.follow(steps[:3])
    assert not (clone.root / "build" / "try" / "data" / "broker-4.3.0").exists()


def test_the_readme_shows_what_is_printed(clone: PageShell) -> None:
    steps = steps_in_a_clone("README.md")
    assert len(steps) >= 5
    clone.follow([replace(each, shown=()) if DATED in each.command else each for each in steps])


def test_no_other_page_writes_files() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {
        str(page.relative_to(ROOT))
        for page in pages
        if any("build/try" in step.command for step in read_steps(page.read_text("utf-8")))
    }
    assert set(PAGES_WITH_FILES) == found


@pytest.mark.parametrize("page", PAGES_WITH_FILES)
def test_a_page_makes_room_before_it_writes(page: str) -> None:
    steps = [
        step.command
        for step in read_steps((ROOT / page).read_text("utf-8"))
        if "build/try" in step.command
    ]
    assert steps[0] == FIRST
