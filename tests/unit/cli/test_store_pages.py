"""The pages on stores are followed, line by line: what they show is what is printed.

A page that shows something else is found, and only what differs from run to run is not compared.
The longest page is followed next to those on live clusters, and not here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.placed_logs import make_store
from tests.unit.cli.conftest import Run
from tools.followed_pages import LONGEST, STORE_PAGES, follow_all, is_shown, stores


@pytest.mark.parametrize("page", [each for each in STORE_PAGES if each != LONGEST])
def test_a_page_shows_what_is_printed(tmp_path: Path, page: str) -> None:
    with stores(tmp_path) as followed:
        assert [] == follow_all(followed, [page])


def test_metadata_that_is_the_newest_needs_no_accepting(
    tmp_path: Path, keeplast: Callable[..., Run]
) -> None:
    url = make_store(tmp_path)
    for options in ((), ("--accept-metadata", "--yes")):
        run = keeplast("repair", url, *options)
        assert (0, True) == (run.code, "nothing to repair" in run.out)
    document = keeplast("repair", url, "--accept-metadata", "--json").document
    assert (False, False, []) == (
        document["is_older"], document["done"], document["partitions"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("first until 2026-11-29 02:36:40", "first until 2026-12-01 12:00:00", True),
        ("orders-0   501 KiB", "orders-0 1.03 MiB", True),
        ("segment KGZJzdMNQBKldHO-16Y6WQ", "segment eSz91qXeT5OI2gPVHXxT6g", True),
        ("2,000 -> 500", "2,000 -> 501", False),
        ("orders-0: paused", "orders-1: paused", False),
        ("retention.ms=-1", "retention.ms=-2", False),
        ("a", "a\nb", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("…\nd", "d", True),
    ],
)
def test_a_line_is_the_same_but_for_times_sizes_and_ids(
    shown: str, printed: str, same: bool
) -> None:
    assert same == is_shown(shown.splitlines(), printed.splitlines())


def test_a_wrong_line_and_a_command_that_fails_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo a\nb\n$ echo c\nc\n$ false\n$ false # exit code 1\n```\n")
    with stores(tmp_path / "place") as followed:
        text, found = followed.follow(page)
    assert ["page.md: $ echo a", "page.md: $ false"] == [each.splitlines()[0] for each in found]
    assert "$ echo a\na\n$ echo c\nc\n" in text
