"""What simulated worlds are made of: seeds, moods, tallies, failures, guards that are missed.

A world has its model, its happenings and what its mood draws; see :mod:`.tier_world` (hosts of a
store), :mod:`.owners_world` (a broker's directory next to a store) and :mod:`.live_world` (a live
cluster's tiered topic). Whatever they run is stopped by :mod:`.tier_world_tasks`, and the disk,
the objects and the database that fail are those of :mod:`.tier_world_stores`.

The rule that a reader must not break: the same seed gives the same run. Whatever is drawn here is
drawn in the order in which worlds have always drawn it.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Engine

from keeplast.errors import CompactionError
from keeplast.model.topic_config import TopicConfig
from tests.support.tier_world_stores import open_database_in_memory

Trace = Callable[[str], None]
Simulate = Callable[..., Any]
Weighted = Sequence[tuple[Callable[[], Any], float]]


class Mood(Struct, frozen=True, kw_only=True):
    """How likely what is in a run, and how the topic is set."""

    topic: TopicConfig
    has_transactions: bool
    dies: float
    fails: float
    events: int


@dataclass(slots=True)
class Tally:
    """What was survived and seen."""

    guarded: ClassVar[tuple[str, ...]] = ()
    """What a guard is for: each has to occur in runs that are worth something."""

    runs: int = 0
    events: int = 0

    def add(self, other: Any) -> None:
        """Count ``other`` in."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def never_happened(self) -> tuple[str, ...]:
        """Return the guarded interleavings that never occurred."""
        return tuple(each for each in self.guarded if not self.happened[each])

    @property
    def happened(self) -> Counter[str]:
        """How often what is guarded occurred."""
        raise NotImplementedError

    def counts(self) -> list[str]:
        """Return each count with its name."""
        ints = [each.name for each in fields(self) if each.type == "int"]
        return [f"{getattr(self, name):>12,} {name.replace('_', ' ')}" for name in ints]


def draw_happening(dice: random.Random, events: Weighted) -> Callable[[], Any]:
    """Return what happens next, each as often as it weighs."""
    return dice.choices([each for each, _ in events], [weight for _, weight in events])[0]


@contextmanager
def seeded_secrets(seed: int) -> Iterator[None]:
    """Let ids and keys of hashes, which are drawn at random, be the same in every run of a seed."""
    dice = random.Random(f"secrets {seed}")
    real = secrets.token_hex, secrets.randbits

    def token_hex(nbytes: int | None = None) -> str:
        return dice.randbytes(32 if nbytes is None else nbytes).hex()

    def randbits(k: int) -> int:
        return dice.getrandbits(k)

    secrets.token_hex, secrets.randbits = token_hex, randbits
    try:
        yield
    finally:
        secrets.token_hex, secrets.randbits = real


class Failure(AssertionError):
    """A seed that fails, and how to see it again."""


def failure(seed: int, error: Exception, lines: Sequence[str], world: str = "") -> Failure:
    """Return the report of a run that ended with ``error``: its last events, how to see it again.

    ``lines`` is the trace of the run; ``world`` are the arguments that choose its world.
    """
    last = "\n".join([line for line in lines if not line.startswith(" ") or "Error" in line][-25:])
    return Failure(
        f"seed {seed}: {type(error).__name__}: {error}\n{last}\n"
        f"replay: make simulate ARGS='{world}--seed {seed} --trace'"
    )


def run_seed(
    make: Callable[[Engine, Trace], Any], seed: int, engine: Engine | None, trace: Trace | None,
    world: str = "",
) -> Any:  # fmt: skip
    """Do one run of what ``make`` begins, and close it.

    Failure names the seed, what was wrong, and the last events; ``world`` is the argument of
    ``make simulate`` that chooses the world.
    """
    lines: list[str] = []
    engine = open_database_in_memory() if engine is None else engine
    with seeded_secrets(seed):
        try:
            with closing(make(engine, lines.append if trace is None else trace)) as made:
                return made.run()
        except Exception as error:
            raise failure(seed, error, lines, world) from error


class Guard(Struct, frozen=True):
    """A guard of the product that ``without`` takes away, and seeds of which one fails then."""

    without: Callable[[pytest.MonkeyPatch], None]
    seeds: Iterable[int]
    may_fail: Callable[[int], bool] = lambda seed: True
    """The seeds that may fail at all."""

    def __str__(self) -> str:
        return self.without.__name__

    def check_missed(self, simulate: Simulate, engine: Engine, candidates: int) -> None:
        """A seed fails without it that passes with it.

        The seeds that are known are tried, then as many of the first ones: a change of the product
        changes all runs.
        """
        first = itertools.islice(filter(self.may_fail, itertools.count()), candidates)
        for seed in itertools.chain(self.seeds, first):
            with pytest.MonkeyPatch.context() as patch:
                self.without(patch)
                is_missed = fails(simulate, seed, engine)
            if is_missed:
                simulate(seed, engine)
                return
        raise AssertionError(f"no run misses it. guard={self}")


def fails(simulate: Simulate, seed: int, engine: Engine) -> bool:
    """Say whether a run finds something; what does not even run fails too, and proves nothing."""
    try:
        simulate(seed, engine)
    except Failure as failed:
        return isinstance(failed.__cause__, AssertionError | CompactionError | FileNotFoundError)
    return False


def with_any_group_ends(made: Any, **changes: Any) -> Any:
    """Replace fields as msgspec does, but for the promise of where an output ends."""
    changes.pop("keeps_group_ends", None)
    return replace(made, **changes)
