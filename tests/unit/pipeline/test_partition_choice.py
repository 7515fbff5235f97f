"""Which partitions a query reads: what is named has to be there, what is a broker's, named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keeplast.errors import InvalidError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.pipeline.query_options import OptionTexts, read_choice

NAMES = ("assign", "subscribe", "subscribePattern")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with two topics, a broker's own, and a replica that is being deleted."""
    marked = f"orders-2.{'0' * 32}-delete"
    for name in ("orders-0", "orders-1", "prices-0", "__consumer_offsets-7", marked):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020d}.log").touch()
    return tmp_path


def chosen(path: Path, **given: str) -> list[str]:
    choice = read_choice(OptionTexts(given, NAMES, prefixes=("object.",)))
    directory = open_data_directory(path, LocalFiles())
    return [str(entry.partition) for entry in choice.chosen(directory, f"path={path}")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["orders-0", "orders-1", "prices-0"]),
        ({"subscribe": "prices, __consumer_offsets"}, ["__consumer_offsets-7", "prices-0"]),
        ({"subscribePattern": "o.*"}, ["orders-0", "orders-1"]),
        ({"SUBSCRIBEPATTERN": "__.*"}, ["__consumer_offsets-7"]),
        ({"assign": '{"orders":[1]}'}, ["orders-1"]),
    ],
)
def test_named_topics_are_read_and_else_all_but_the_brokers_own(
    root: Path, given: dict[str, str], expected: list[str]
) -> None:
    assert expected == sorted(chosen(root, **given))


def test_a_directory_that_is_given_itself_needs_no_name(root: Path) -> None:
    assert ["__consumer_offsets-7"] == chosen(root / "__consumer_offsets-7")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "order"}, "did you mean orders. topic=order"),
        ({"assign": '{"orders":[2]}'}, "assign=orders-2"),
        ({"subscribePattern": "nothing"}, "no partition to read"),
    ],
)
def test_a_missing_partition_is_refused(root: Path, given: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(expected)):
        chosen(root, **given)
