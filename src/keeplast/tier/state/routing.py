"""Which segment is read for which offsets: disjoint ranges without holes, ascending. Pure.

An offset that cleaning has removed belongs to a range all the same, and the read goes on behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keeplast.errors import ConflictError, invariant


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """``segment_id`` serves the offsets ``[base_offset, last_offset]``, both inclusive."""

    base_offset: int
    last_offset: int
    segment_id: str


def check_routes(routes: Sequence[Route]) -> None:
    """InvariantError unless the ranges ascend and leave no hole (I-14)."""
    for before, after in itertools.pairwise(routes):
        invariant(
            before.last_offset + 1 == after.base_offset,
            f"a hole or an overlap between two routes. before={before} after={after}",
        )
    for route in routes:
        invariant(route.base_offset <= route.last_offset, f"an empty route. route={route}")


def append_route(
    routes: Sequence[Route], segment_id: str, base_offset: int, last_offset: int, *, floor: int
) -> tuple[Route, ...]:
    """Return the routes with a copied segment at their end.

    It serves only what nobody serves yet and what lies at or above ``floor``, the first dirty
    offset: below it the cleaned segments count. ConflictError when it would leave a hole, or
    serves nothing.
    """
    start = max(base_offset, floor if routes else base_offset)
    if routes:
        start = max(start, routes[-1].last_offset + 1)
        if start != routes[-1].last_offset + 1:
            raise ConflictError(
                "a copied segment does not continue the remote log. "
                f"base_offset={base_offset} next_offset={routes[-1].last_offset + 1}"
            )
    if start > last_offset:
        raise ConflictError(
            "a copied segment has nothing that is not there. "
            f"base_offset={base_offset} last_offset={last_offset}"
        )
    return (*routes, Route(start, last_offset, segment_id))


def replace_routes(
    routes: Sequence[Route], sources: Iterable[str], outputs: Sequence[Route]
) -> tuple[Route, ...]:
    """Return the routes with those of ``sources`` replaced by ``outputs``, range for range.

    ConflictError when a source is not read any more, or the outputs do not cover exactly what the
    sources served: what the decision rested on has changed.
    """
    gone = set(sources)
    old = [route for route in routes if route.segment_id in gone]
    if {route.segment_id for route in old} != gone or not outputs:
        raise ConflictError(
            f"a segment to be replaced is not read any more. segments={sorted(gone)}"
        )
    check_routes(outputs)
    span = (old[0].base_offset, old[-1].last_offset)
    inside = [r for r in routes if span[0] <= r.base_offset <= span[1]]
    if inside != old or span != (outputs[0].base_offset, outputs[-1].last_offset):
        raise ConflictError(
            "the outputs do not cover what their sources serve. "
            f"sources={span} outputs={(outputs[0].base_offset, outputs[-1].last_offset)}"
        )
    kept = [route for route in routes if route.segment_id not in gone]
    return tuple(sorted([*kept, *outputs]))
