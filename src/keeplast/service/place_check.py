"""What a check of a place finds: reach, rights, release, clock and settings, one row each.

The rule: **a check changes nothing, and one that fails hides no other**: what cannot be looked at
is a row with its error. Only a PROBLEM would end a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from keeplast.errors import CompactionError, error_text
from keeplast.log.file_rights import right_words
from keeplast.model.redaction import without_secrets

Found = TypeVar("Found")


class CheckState(StrEnum):
    """How one thing stands."""

    OK = "ok"
    ABSENT = "absent"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class PartCheck:
    """One thing that was looked at; ``words`` say what was found.

    ``topic`` is None for all of the place. ``remedy`` is a line to type or what to do, empty where
    ``words`` say it.
    """

    name: str
    state: CheckState
    words: str
    topic: str | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PlaceCheck:
    """The rows of a place, and its topics; ``cluster_id`` and ``brokers`` are a live cluster's."""

    checks: tuple[PartCheck, ...]
    topics: tuple[str, ...] = ()
    cluster_id: str | None = None
    brokers: tuple[int, ...] = ()


def tried(name: str, look: Callable[[], Found]) -> Found | PartCheck:
    """Return what ``look`` returns, and its error as a problem."""
    try:
        return look()
    except (CompactionError, OSError) as error:
        return problem_of(name, error)


def problem_of(name: str, error: Exception) -> PartCheck:
    """Return an error as a row, without a secret."""
    words = without_secrets(error_text(error) + right_words(error))
    return PartCheck(name, CheckState.PROBLEM, words)
