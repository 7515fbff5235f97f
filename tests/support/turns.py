"""How much of a large matrix a run takes: all of it, or the share whose turn it is today.

A matrix proves one promise on many cases. Every run proves every promise on some of them, and
after as many days as a matrix has shares all of it has run. The turn is a number, the day by
default; pytest prints it, and the same number takes the same share again.

A case must not depend on which of its neighbours run. What hypothesis draws has a long form, too:
``--long`` draws as many examples as a test says of it, other ones in every run. Without it a test
draws the same ones until it changes; ``--hypothesis-seed`` draws others.
"""

from __future__ import annotations

from hypothesis import settings
from msgspec import Struct

EXAMPLES_WHOLE = 100
EXAMPLES_SHARE = 10
"""How many examples hypothesis draws for a test that does not say."""
EXAMPLES_MIN = 2
PROFILE = "keeplast"
LONG_PROFILE = "keeplast, long forms"
"""What conftest loads, the second one with ``--long``; hypothesis hands it out on demand."""


def examples(count: int, *, long: int | None = None) -> int:
    """Return how many examples to draw for a test of which a run of everything draws ``count``.

    A run of the long forms draws ``long``, where a test has one.
    """
    if long is not None and settings.get_current_profile_name() == LONG_PROFILE:
        return long
    return max(EXAMPLES_MIN, count * settings().max_examples // EXAMPLES_WHOLE)


class Turn(Struct, frozen=True):
    """Which share of a matrix a run takes; a ``number`` of None takes all of it."""

    number: int | None

    def takes(self, position: int, shares: int) -> bool:
        """Return whether the case at ``position``, from 0, is in the share whose turn it is."""
        return self.number is None or position % shares == self.number % shares

    def seeds(self, count: int, shares: int) -> range:
        """Return the seeds of ``[0, count)`` whose turn it is: neighbours, always as many."""
        if self.number is None:
            return range(count)
        size = -(-count // shares)
        start = min(self.number % shares * size, count - size)
        return range(start, start + size)
