"""What a check answers: shared by who judges a log and who tells of it again from a receipt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The answer of one check."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNJUDGED = "cannot be judged"


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """What judged a log that has an owner, and as of what: the owner's epoch, and how far the log
    was clean. ``clean_to`` is the first offset that was not. Earlier versions named a command.
    """

    by: str
    epoch: int
    clean_to: int

    @property
    def words(self) -> str:
        """Return all of it, as every list shows it."""
        return f"{self.by}, epoch {self.epoch}, clean to {self.clean_to}"
