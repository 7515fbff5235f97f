"""What a store keeps of its rounds: replaced segments that can be put back, and sums by day. Pure.

The kept rounds of a partition are numbered in the order in which they began, without one between
them that is not kept. So the newest is undone by what it left alone, and then the one before. Where
a round was done in chunks, what a later one replaced of an earlier one's is no part of it. A swap
goes from what the round found to what it left.

The sums say what rounds did in a store, by day and host: figures that its metadata keep a month.
Nothing is decided by them. What cannot be read of them counts as nothing, and fails no commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.model.partition import TopicPartition
from keeplast.model.undo import KeptGroup, KeptSegment, UndoBar, UndoRefusal, may_return
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, Route, is_within_lineage

LOG = ".log"


class Keeping(Struct, frozen=True):
    """What a round asks for that is to be kept: its name, and for how long from each commit on.

    ``chunk`` is the name of the chunk that commits; that of the first is the round's.
    """

    round: str
    chunk: str
    retention_ms: int


class KeptSwap(Struct, frozen=True):
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


class KeptRound(Struct, frozen=True):
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
        """Return what goes and comes back, as receipts show it."""
        known = {**state.segments, **self.segments}

        def shown(routes: Sequence[Route]) -> tuple[KeptSegment, ...]:
            found = [known[each.segment_id] for each in routes if each.segment_id in known]
            return tuple(
                KeptSegment(each.base_offset, each.size_bytes, each.files[LOG].crc32c)
                for each in found
            )

        return [
            KeptGroup(swap.last_offset + 1, shown(swap.sources), shown(swap.outputs), False)
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


DAY_MS = 86_400_000
DAYS_KEPT = 31
HOSTS_MAX = 32
"""Of one partition in one day; further ones are left out."""
PREFIX = "rounds/"
HOST_CHARS_MAX = 255


class RoundSums(Struct, frozen=True):
    """Sums over ``rounds``; the last of them ended at ``last_ms``.

    ``came_bytes`` are those of the dirty sections: what came since the rounds before.
    """

    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    came_bytes: int = 0
    milliseconds: int = 0
    last_ms: int = 0

    def __add__(self, other: RoundSums) -> RoundSums:
        """Return the sums of both."""
        names = [name for name in RoundSums.__struct_fields__ if name != "last_ms"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return RoundSums(**sums, last_ms=max(self.last_ms, other.last_ms))


class RoundDay(Struct, frozen=True):
    """What the rounds of one host did with a partition on the day from ``day_ms`` on, UTC."""

    partition: TopicPartition
    day_ms: int
    host: str
    sums: RoundSums


class KeptDay(Struct, frozen=True):
    """One day of one partition as it is kept, by host."""

    hosts: Mapping[str, RoundSums]

    def encode(self) -> str:
        """Return the text that is kept."""
        hosts = {
            host: [getattr(sums, name) for name in RoundSums.__struct_fields__]
            for host, sums in self.hosts.items()
        }
        return json.dumps({"hosts": hosts}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> KeptDay | None:
        """Return what a text says, None when it is none of ours."""
        try:
            found = json.loads(text)
            count = len(RoundSums.__struct_fields__)
            return cls(
                {
                    str(host): RoundSums(*(int(each) for each in sums))
                    for host, sums in found["hosts"].items()
                    if len(sums) == count
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None


def key_of(row_id: int, day: int) -> str:
    """Return the name of the fact that keeps a day, in days since 1970, of a partition's row."""
    return f"{PREFIX}{row_id}/{day}"


def parse_key(key: str) -> tuple[int, int] | None:
    """Return row and day of a fact's name, None when it is another fact's."""
    parts = key.removeprefix(PREFIX).split("/")
    if not key.startswith(PREFIX) or len(parts) != 2 or not all(map(str.isdigit, parts)):
        return None
    return int(parts[0]), int(parts[1])


def with_round(day: KeptDay | None, host: str, done: RoundSums) -> KeptDay:
    """Return a day, None for one that begins, once a round of ``host`` is done."""
    known = {} if day is None else dict(day.hosts)
    name = host[:HOST_CHARS_MAX]
    if name in known or len(known) < HOSTS_MAX:
        known[name] = known.get(name, RoundSums()) + done
    return KeptDay(known)
