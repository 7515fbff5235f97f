"""What leaves the short form repeats a test that stays in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct

from tests.conftest import UNPROVEN, unproven

HERE = "tests/unit/test_a.py"


def test_each_test_that_is_left_out_repeats_one_that_runs(pytestconfig: pytest.Config) -> None:
    assert [] == pytestconfig.stash[UNPROVEN]


class Item(Struct, frozen=True):
    """A test, with the marks it has."""

    nodeid: str
    mark: pytest.Mark | None = None
    root: Path = Path()

    @property
    def parent(self) -> str:
        return self.nodeid.partition("::")[0]

    @property
    def name(self) -> str:
        return self.nodeid.rpartition("::")[2].partition("[")[0]

    @property
    def config(self) -> Any:
        return type("Config", (), {"rootpath": self.root})

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark if name == "repeats" else None


def repeating(name: str, *proof: str, root: Path = Path()) -> Item:
    return Item(f"{HERE}::{name}", pytest.mark.repeats(*proof).mark, root)


def found(left: list[Item], kept: list[Item]) -> Iterator[str]:
    return unproven(cast(list[pytest.Item], left), cast(list[pytest.Item], kept))


@pytest.mark.parametrize(
    ("left", "is_proven"),
    [
        (repeating("test_x[big]"), True),
        (repeating("test_y[big]"), False),
        (repeating("test_y", f"{HERE}::test_x"), True),
        (repeating("test_y", f"{HERE}::test_z"), False),
        (repeating("test_y", "tests/unit/test_none.py::test_z"), False),
        (Item(f"{HERE}::test_y"), True),
    ],
)
def test_a_repetition_needs_what_it_repeats(left: Item, is_proven: bool) -> None:
    kept = Item(f"{HERE}::test_x[small]")
    assert ([] if is_proven else [left.nodeid]) == list(found([left], [kept]))


def test_what_is_repeated_may_lie_in_a_file_that_is_not_collected(tmp_path: Path) -> None:
    (tmp_path / "test_b.py").touch()
    assert [] == list(found([repeating("test_y", "test_b.py::test_z", root=tmp_path)], []))
