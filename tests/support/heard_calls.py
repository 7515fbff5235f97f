"""Calls that the code under test makes, heard by a test before the code itself does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keeplast.run.receipt import Receipt


def hear(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, heard: Callable[..., object]
) -> None:
    """Have each call of ``owner.name`` made of ``heard`` first, with the same arguments.

    A method of a class is heard with its object. What ``heard`` raises is raised in the place of
    the call; what it returns is not used.
    """
    whole = getattr(owner, name)

    def hearing(*arguments: Any, **named: Any) -> Any:
        heard(*arguments, **named)
        return whole(*arguments, **named)

    monkeypatch.setattr(owner, name, hearing)


def appending(lines: list[bytes]) -> Receipt:
    """Return a receipt that is kept in ``lines`` alone."""

    def append(line: bytes) -> bytes:
        lines.append(line)
        return line

    return append
