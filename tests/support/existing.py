"""A value that must be there, of what may return None."""

from typing import TypeVar

T = TypeVar("T")


def existing(found: T | None) -> T:
    assert found is not None
    return found
