"""Sizes as people write them."""

from __future__ import annotations

import pytest

from keeplast.errors import InvalidError
from keeplast.model.text import find_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("256m", 256 << 20), ("1 GiB", 1 << 30), ("0", 0), ("x", None), ("7d", None)],
)
def test_a_size_has_a_unit_or_none(text: str, size: int | None) -> None:
    assert size == find_size(text)


@pytest.mark.parametrize("text", ["0", "1", "31m"])
def test_too_little_is_refused_with_the_least_that_works(text: str) -> None:
    with pytest.raises(InvalidError, match=rf"at least 32m\. --memory='{text}'"):
        parse_size(text, "--memory", least=32 << 20)


def test_the_least_itself_is_enough() -> None:
    assert 32 << 20 == parse_size("32m", "--memory", least=32 << 20)
