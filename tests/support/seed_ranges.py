"""What ranges of seeds came to, a line of JSON each, and what several come to together.

The rule: **each seed counts once.** Lines in which one seed went well twice are refused; a seed
that failed counts as not run, until a line in which it goes well.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec import Struct

from keeplast.errors import InvalidError

LINES_MAX = 100_000
SEEDS_MAX = 10_000_000


class SeedRange(Struct, frozen=True):
    """Seeds ``first`` to ``end``, exclusive, of a world, as they came out on one state of the code.

    ``code`` is the commit, ``day`` the date. ``tally`` has the counts of those that went well.
    """

    world: str
    first: int
    end: int
    code: str
    day: str
    failed: tuple[int, ...]
    tally: Any

    def went_well(self) -> list[int]:
        """Return the seeds that did not fail."""
        failed = set(self.failed)
        return [seed for seed in range(self.first, self.end) if seed not in failed]


class RangesSum(Struct, frozen=True):
    """Several ranges together; ``spans`` are the seeds that went well, ends exclusive."""

    tally: Any
    spans: tuple[tuple[int, int], ...]
    failed: tuple[int, ...]
    codes: tuple[str, ...]


def line_of(found: SeedRange) -> str:
    """Return a range as a line of its file."""
    counts: dict[str, object] = {}
    for each in fields(found.tally):
        value = getattr(found.tally, each.name)
        counts[each.name] = sorted(value.items()) if isinstance(value, Counter) else value
    made = {name: getattr(found, name) for name in found.__struct_fields__}
    return json.dumps({**made, "tally": counts}, separators=(",", ":"))


def read_ranges(paths: Sequence[Path], tallies: dict[str, Callable[[], Any]]) -> list[SeedRange]:
    """Return the ranges in files; ``tallies`` makes the empty tally of each world.

    InvalidError, with the file and the line, for what cannot be read.
    """
    found: list[SeedRange] = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(found) >= LINES_MAX:
                raise InvalidError(f"too many ranges; add up fewer files. most={LINES_MAX}")
            try:
                found.append(_range_of(json.loads(line), tallies))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidError(
                    "a range of seeds cannot be read; take the line out and run its seeds again. "
                    f"file={path} line={number} problem={error!r}"
                ) from error
    return found


def add_up(ranges: Iterable[SeedRange]) -> RangesSum:
    """Return what ranges of one world come to.

    InvalidError for none, for several worlds, and for a seed that went well twice.
    """
    total: Any = None
    world = ""
    well: set[int] = set()
    failed: set[int] = set()
    codes: dict[str, None] = {}
    for each in ranges:
        if total is None:
            total, world = type(each.tally)(), each.world
        if each.world != world:
            raise InvalidError(f"ranges of several worlds. first={world} other={each.world}")
        mine = each.went_well()
        twice = well.intersection(mine)
        if twice:
            raise InvalidError(
                "a seed would count twice; take one of its ranges out. "
                f"seed={min(twice)} range={each.first}:{each.end} code={each.code}"
            )
        well.update(mine)
        failed.update(each.failed)
        codes[each.code] = None
        total.add(each.tally)
    if total is None:
        raise InvalidError("no range of seeds to add up")
    return RangesSum(total, _spans_of(well), tuple(sorted(failed - well)), tuple(codes))


def _range_of(made: Any, tallies: dict[str, Callable[[], Any]]) -> SeedRange:
    tally = tallies[made["world"]]()
    names = {each.name for each in fields(tally)}
    if set(made["tally"]) != names:
        odd = sorted(names ^ set(made["tally"]))
        raise ValueError(f"other counts than this version has: {odd}")
    for name, value in made["tally"].items():
        if isinstance(getattr(tally, name), Counter):
            value = Counter({_key_of(what): int(count) for what, count in value})
        elif not isinstance(value, int):
            raise ValueError(f"not a count: {name}")
        setattr(tally, name, value)
    first, end, failed = int(made["first"]), int(made["end"]), tuple(map(int, made["failed"]))
    if not 0 <= first < end <= first + SEEDS_MAX:
        raise ValueError(f"no range of seeds: {first}:{end}")
    if tally.runs != end - first - len(set(failed)) or not all(first <= e < end for e in failed):
        raise ValueError(f"not as many runs as the range has seeds: {tally.runs}")
    return SeedRange(made["world"], first, end, str(made["code"]), str(made["day"]), failed, tally)


def _key_of(what: Any) -> Any:
    return tuple(what) if isinstance(what, list) else what


def _spans_of(seeds: set[int]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for seed in sorted(seeds):
        if spans and spans[-1][1] == seed:
            spans[-1] = spans[-1][0], seed + 1
        else:
            spans.append((seed, seed + 1))
    return tuple(spans)
