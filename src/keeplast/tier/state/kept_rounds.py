"""What a round in a store has kept of what it replaced, and whether it can be put back. Pure.

Of a partition the rounds that are kept are numbered in the order in which they began, without one
between them that is not kept: so the newest is undone by what it left alone, and then the one
before. Where a round was done in chunks, what a later one replaced of an earlier one's is no part
of it: a swap goes from what the round found to what it left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keeplast.model.undo import KeptGroup, KeptSegment, UndoBar, UndoRefusal, may_return
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.routing import Route
from keeplast.tier.state.segment import RemoteSegment, is_within_lineage

LOG = ".log"


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a round asks for that is to be kept: its name, and for how long from each commit on.

    ``chunk`` is the name of the chunk that commits; that of the first is the round's.
    """

    round: str
    chunk: str
    retention_ms: int


@dataclass(frozen=True, slots=True)
class KeptSwap:
    """Neighbours that a round found, and what it left in their place: one range, both ascending."""

    sources: tuple[Route, ...]
    outputs: tuple[Route, ...]

    @property
    def base_offset(self) -> int:
        """Return where the range begins."""
        return self.sources[0].base_offset

    @property
    def last_offset(self) -> int:
        """Return where the range ends, inclusive."""
        return self.sources[-1].last_offset

    def is_below(self, log_start: int) -> bool:
        """Say whether nothing of the range is left."""
        return self.last_offset < log_start

    def may_return(self, log_start: int) -> bool:
        """Say whether no source has gone below the log start as a whole."""
        return may_return((each.last_offset + 1 for each in self.sources), log_start)


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A round that can be undone until ``until_ms``, exclusive; ``chunks`` are their names.

    ``first_dirty`` and ``cleaned_for`` are what the partition had before the round, and what the
    round left of both. ``segments`` are the sources that wait, replaced, by id: one that is missing
    there waits no more.
    """

    number: int
    chunks: tuple[str, ...]
    kept_at_ms: int
    until_ms: int
    first_dirty: tuple[int, int]
    cleaned_for: tuple[int, int]
    swaps: tuple[KeptSwap, ...]
    segments: Mapping[str, RemoteSegment]

    @property
    def round(self) -> str:
        """Return the name of the round."""
        return self.chunks[0]

    @property
    def source_ids(self) -> list[str]:
        """Return the ids of all that would come back, ascending by offset."""
        return [each.segment_id for swap in self.swaps for each in swap.sources]

    @property
    def output_ids(self) -> list[str]:
        """Return the ids of all that would go, ascending by offset."""
        return [each.segment_id for swap in self.swaps for each in swap.outputs]

    def groups(self, state: PartitionState) -> list[KeptGroup]:
        """Return what goes and comes back, as receipts tell it."""
        known = {**state.segments, **self.segments}

        def told(routes: Sequence[Route]) -> tuple[KeptSegment, ...]:
            found = [known[each.segment_id] for each in routes if each.segment_id in known]
            return tuple(
                KeptSegment(each.base_offset, each.size_bytes, each.files[LOG].crc32c)
                for each in found
            )

        return [
            KeptGroup(swap.last_offset + 1, told(swap.sources), told(swap.outputs), False)
            for swap in self.swaps
        ]


def joined_swap(
    known: Iterable[KeptSwap], sources: Sequence[Route], outputs: Sequence[Route]
) -> tuple[KeptSwap, tuple[KeptSwap, ...]]:
    """Return a swap by a round that has made ``known``, from what the round found.

    Also those of ``known`` that are a part of it now: what they left is among ``sources``.
    """
    gone = {each.segment_id for each in sources}
    parts = tuple(swap for swap in known if any(each.segment_id in gone for each in swap.outputs))
    made = {each.segment_id for swap in parts for each in swap.outputs}
    found = [each for swap in parts for each in swap.sources]
    found += [each for each in sources if each.segment_id not in made]
    left = [each for swap in parts for each in swap.outputs if each.segment_id not in gone]
    return KeptSwap(tuple(sorted(found)), tuple(sorted([*left, *outputs]))), parts


def find_bar(state: PartitionState, kept: KeptRound) -> UndoRefusal | None:
    """Return why the newest round that is kept cannot be put back by what ``state`` says of it.

    Whether the objects are what was stored is not asked.
    """
    routes = {each.segment_id: each for each in state.routes}
    for swap in kept.swaps:
        if not swap.may_return(state.log_start):
            return UndoRefusal(UndoBar.LOG_START, state.log_start)
        live = [each for each in swap.outputs if each.last_offset >= state.log_start]
        if any(routes.get(each.segment_id) != each for each in live):
            return UndoRefusal(UndoBar.CHANGED, swap.base_offset)
    if state.first_dirty() != max(kept.first_dirty[1], state.log_start):
        return UndoRefusal(UndoBar.CHECKPOINT, state.first_dirty())
    for route in (each for swap in kept.swaps for each in swap.sources):
        source = kept.segments.get(route.segment_id)
        if source is None:
            return UndoRefusal(UndoBar.COPY, route.base_offset)
        if not is_within_lineage(source, state.lineage, state.remote_end):
            return UndoRefusal(UndoBar.CHANGED, route.base_offset)
    return None


def routes_back(state: PartitionState, kept: KeptRound) -> tuple[Route, ...]:
    """Return the routes of ``state``, in which nothing bars it, with all swaps put back.

    What retention took of the outputs from below is not read again.
    """
    gone = set(kept.output_ids)
    routes = [each for each in state.routes if each.segment_id not in gone]
    for swap in kept.swaps:
        live = [each for each in swap.outputs if each.last_offset >= state.log_start]
        first, *others = swap.sources
        routes += [replace(first, base_offset=max(first.base_offset, live[0].base_offset)), *others]
    return tuple(sorted(routes))
