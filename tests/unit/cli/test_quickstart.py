"""README and quick start work line by line in a fresh clone, and again by who starts over."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.page_steps import ROOT, PageShell, Step, keeplast_program, read_steps

PAGES_WITH_FILES = (
    "README.md",
    "docs/tutorials/clean-a-copy.md",
    "docs/how-to/choose-a-strategy.md",
    "docs/how-to/erase-a-person.md",
    "docs/how-to/first-clean.md",
    "docs/how-to/guarantee-a-deadline.md",
    "docs/how-to/keep-a-window.md",
    "docs/how-to/restore-as-of.md",
    "docs/how-to/run-as-a-service.md",
    "docs/how-to/take-back-a-mistake.md",
    "docs/how-to/verify-a-clean.md",
    "docs/how-to/export-to-parquet.md",
    "docs/tutorials/object-storage.md",
    "docs/how-to/back-up-a-store.md",
    "docs/how-to/move-to-object-storage.md",
    "docs/how-to/store-as-a-service.md",
    "docs/how-to/store-cut-and-forget.md",
)
FOLLOWED = (
    "docs/how-to/first-clean.md",
    "docs/how-to/guarantee-a-deadline.md",
    "docs/how-to/keep-a-window.md",
    "docs/how-to/restore-as-of.md",
    "docs/how-to/run-as-a-service.md",
    "docs/how-to/take-back-a-mistake.md",
    "docs/how-to/verify-a-clean.md",
)
"""Pages of one task that need nothing but a clone."""
FIRST = "rm -rf build/try && mkdir -p build/try"
DATED = "keeplast status"
"""Its output depends on the day, and of a store on the host's name."""
NOW_MS = 1_795_953_600_000
"""When pages are followed: later on the markers of a store's log take more bytes."""
THEN = f"""\
from keeplast.cli.main import main
from keeplast.clock import SystemClock
SystemClock.now_ms = lambda _: {NOW_MS}
main()
"""


@pytest.fixture
def clone(tmp_path: Path) -> PageShell:
    """A clone in which nothing was built."""
    (tmp_path / "src").symlink_to(ROOT / "src")
    return PageShell(tmp_path, programs={"keeplast": keeplast_program(THEN)})


def steps_in_a_clone(page: str) -> list[Step]:
    """Return what a page has its reader type once there is a place for it."""
    steps = read_steps((ROOT / page).read_text("utf-8"))
    return steps[[step.command for step in steps].index(FIRST) :]


@pytest.mark.repeats("tests/unit/cli/test_quickstart.py::test_a_page_shows_what_is_printed")
def test_the_quick_start_works_in_a_fresh_clone_and_twice(clone: PageShell) -> None:
    steps = steps_in_a_clone("docs/tutorials/clean-a-copy.md")
    assert len(steps) > 8
    clone.follow(steps)
    clone.follow(steps[:3])
    assert not (clone.root / "build" / "try" / "data" / "broker-4.3.0").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/object-storage.md"])
def test_a_page_shows_what_is_printed(clone: PageShell, page: str) -> None:
    steps = steps_in_a_clone(page)
    assert len(steps) >= 5
    clone.follow([replace(each, shown=()) if DATED in each.command else each for each in steps])


@pytest.mark.repeats("tests/unit/cli/test_quickstart.py::test_a_page_shows_what_is_printed")
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_of_one_task_works_in_a_fresh_clone(clone: PageShell, page: str) -> None:
    """Its commands end with 0; clocks, names of rounds and heads differ from what it shows."""
    clone.follow(
        [replace(step, shown=()) for step in steps_in_a_clone(page) if "build/try" in step.command]
    )


def test_no_other_page_writes_files() -> None:
    found = {
        str(page.relative_to(ROOT))
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if any("build/try" in step.command for step in read_steps(page.read_text("utf-8")))
    }
    assert set(PAGES_WITH_FILES) == found


@pytest.mark.parametrize("page", PAGES_WITH_FILES)
def test_a_page_makes_room_before_it_writes(page: str) -> None:
    assert FIRST == next(
        step.command
        for step in read_steps((ROOT / page).read_text("utf-8"))
        if "build/try" in step.command
    )
