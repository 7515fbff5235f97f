"""What a check answers: shared by who judges a log and who tells of it again from a receipt."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The answer of one check."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNJUDGED = "cannot be judged"
