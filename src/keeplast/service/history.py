"""What the logs of a place were like, a day, a month and a year back: rings of figures. Pure.

Each topic, and all of them together, has a ring a :data:`SPANS`. A ring has a fixed number of
slots, so that a history is bounded however long a loop runs. What a reader must not break:

- A slot says which time it is of. One of another time counts as empty: a clock that steps, or a
  loop that rests, leaves nothing of the wrong day.
- A gap is not a 0. What is *measured* is missing (not a number) where no look was. What *rounds*
  did is 0 where there was none.
- What is measured is the greatest of its slot, whatever the order of looks; rounds are summed, but
  for the longest.

A round that leaves a log larger has freed less than nothing, and is counted so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.checksum import crc32c
from keeplast.service.snapshot import PartitionFacts

Figures = npt.NDArray[np.float32]
"""Numbers by :data:`NAMES`, along the last axis."""

NAMES = (
    "size_bytes", "dirty_ratio", "overdue_seconds", "longest_round_seconds", "freed_bytes",
    "rounds", "round_seconds",
)  # fmt: skip
SIZE, DIRTY, OVERDUE, LONGEST, FREED, ROUNDS, SECONDS = range(len(NAMES))
SUMS = FREED
"""From this one on figures are summed; before it the greatest of a slot counts."""
EMPTY = np.array([math.nan, math.nan, math.nan, 0, 0, 0, 0], np.float32)

Entry = tuple[str, int, tuple[float, ...]]
"""A topic, a time in milliseconds since 1970, and figures by :data:`NAMES`."""

ALL = ""
"""The name of the row that is of all topics."""
TOPICS_MAX = 2000
"""So many have rows of their own; further ones are in the sum alone."""

HEAD = b"keeplast-history 1 %08x"
"""The first line of the bytes that are kept: the format, and the CRC-32C of what follows."""
HISTORY_BYTES_MAX = 64 << 20
"""More than :data:`TOPICS_MAX` topics with the longest names take."""


class Span(Struct, frozen=True):
    """How far back a ring goes: ``slots``; ``bar_slots`` of them make a bar.

    Both begin at whole UTC times of their length. ``column`` is where the ring's first slot is.
    """

    name: str
    words: str
    bar: str
    slot_ms: int
    slots: int
    bar_slots: int
    column: int


SPANS = (
    Span("24h", "24 hours", "hour", 900_000, 24 * 4, 4, 0),
    Span("30d", "30 days", "day", 14_400_000, 30 * 6, 6, 24 * 4),
    Span("1y", "a year", "week", 86_400_000, 53 * 7, 7, 24 * 4 + 30 * 6),
)
SLOTS = sum(each.slots for each in SPANS)
"""The rings lie one after the other."""


class Series(Struct, frozen=True):
    """The figures of one topic, or of all, by slot of a span; the first begins at ``first_ms``."""

    span: Span
    first_ms: int
    slots: Figures

    @property
    def bars(self) -> Figures:
        """Return the figures by bar: what was measured at its greatest, rounds in sum."""
        parts = self.slots.reshape(-1, self.span.bar_slots, len(NAMES))
        peaks = np.fmax.reduce(parts[:, :, :SUMS], axis=1)
        return np.concatenate([peaks, parts[:, :, SUMS:].sum(axis=1)], axis=1)

    def sum_of(self, figure: int) -> float:
        """Return a figure of the rounds in the span, in sum; not a number where none is known."""
        return float(self.slots[:, figure].sum(dtype=np.float64))

    def with_rounds(self, other: Series) -> Series:
        """Return the series with what another one says of rounds, but for the longest."""
        slots = np.concatenate([self.slots[:, :SUMS], other.slots[:, SUMS:]], axis=1)
        return replace(self, slots=slots)


class History(Struct):
    """The rings of one place.

    ``topics`` are the rows, by name. ``numbers`` say by column which slot since 1970 it is of, -1
    none. ``values`` are figures by row and column.
    """

    topics: dict[str, int] = field(default_factory=dict)
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.full(SLOTS, -1, np.int64))
    values: Figures = field(default_factory=lambda: np.tile(EMPTY, (0, SLOTS, 1)))

    def add(self, found: Iterable[Entry], now_ms: int) -> None:
        """Keep entries, in any order; one that is dated after ``now_ms`` counts as of then."""
        entries = list(found)
        new = [each for each in dict.fromkeys(e[0] for e in entries) if each not in self.topics]
        if more := new[: TOPICS_MAX + 1 - len(self.topics)]:
            self.topics |= {each: row for row, each in enumerate(more, len(self.topics))}
            self.values = np.concatenate([self.values, np.tile(EMPTY, (len(more), SLOTS, 1))])
        entries = [each for each in entries if each[0] in self.topics]
        rows = np.array([self.topics[each[0]] for each in entries], np.int64)
        at = np.minimum(np.array([each[1] for each in entries], np.int64), now_ms)
        figures = np.array([each[2] for each in entries], np.float32).reshape(-1, len(NAMES))
        for span in SPANS:
            numbers = at // span.slot_ms
            columns = span.column + numbers % span.slots
            for number, column in sorted({*zip(numbers.tolist(), columns.tolist(), strict=True)}):
                # What is of a time that is still to come was kept by a clock that was wrong.
                if not number <= self.numbers[column] <= now_ms // span.slot_ms:
                    self.numbers[column] = number
                    self.values[:, column] = EMPTY
            kept = self.numbers[columns] == numbers
            where = rows[kept], columns[kept]
            np.fmax.at(self.values[:, :, :SUMS], where, figures[kept, :SUMS])
            np.add.at(self.values[:, :, SUMS:], where, figures[kept, SUMS:])

    def make_room(self, topics: Collection[str]) -> None:
        """Forget the topics that are gone, where those that are there would have no room."""
        if len(self.topics.keys() | set(topics)) > TOPICS_MAX + 1:
            kept = [each for each in self.topics if each == ALL or each in topics]
            self.values = self.values[[self.topics[each] for each in kept]]
            self.topics = {each: row for row, each in enumerate(kept)}

    def series(self, topic: str, span: Span, now_ms: int) -> Series:
        """Return a topic's figures up to the end of the bar that ``now_ms`` is in.

        None is known of a topic that there was no room for.
        """
        end = (now_ms // (span.slot_ms * span.bar_slots) + 1) * span.bar_slots
        numbers = np.arange(end - span.slots, end)
        columns = span.column + numbers % span.slots
        known = self.numbers[columns] == numbers
        none = EMPTY if topic in self.topics or len(self.topics) <= TOPICS_MAX else EMPTY + math.nan
        found = self.values[self.topics[topic], columns] if topic in self.topics else none
        slots = np.where(known[:, None], found, none)
        return Series(span, int(numbers[0]) * span.slot_ms, slots)

    def encode(self) -> bytes:
        """Return the bytes that are kept."""
        names = json.dumps(list(self.topics)).encode()
        body = b"%s\n%s%s" % (names, self.numbers.tobytes(), self.values.tobytes())
        return b"%s\n%s" % (HEAD % crc32c(body), body)


def read_history(data: bytes, path: object) -> History:
    """Return what :meth:`History.encode` wrote; CorruptError for what it did not."""
    head, _, body = data.partition(b"\n")
    names, _, rest = body.partition(b"\n")
    expected, end = HEAD % crc32c(body), 8 * SLOTS
    try:
        if head == expected:
            return History(
                {str(topic): row for row, topic in enumerate(json.loads(names))},
                np.frombuffer(rest[:end], np.int64).reshape(SLOTS).copy(),
                np.frombuffer(rest[end:], np.float32).reshape(-1, SLOTS, len(NAMES)).copy(),
            )
    except (ValueError, TypeError, RecursionError):
        pass
    raise CorruptError(
        "the history is damaged, or a newer keeplast wrote it", path=str(path), position=0,
        expected=expected.decode(), found=head[:60].decode(errors="replace"), code="K720",
    )  # fmt: skip


def look_entries(partitions: Iterable[PartitionFacts], at_ms: int) -> list[Entry]:
    """Return what a look measured, of each topic and of all; nothing of what it could not look at.

    Overdue is for how long the log that is most overdue has been: 0 where none is, missing where
    none has a deadline. Of what another host works on only the size is known.
    """
    sums: dict[str, tuple[float, ...]] = {}
    for each in partitions:
        figures = each.figures
        if figures is not None:
            ranges = figures.cleanable
            within = ranges.clean_bytes + ranges.cleanable_bytes
            has_date = figures.overdue_from_ms is not None or not ranges.cleanable_bytes
            late = figures.compaction_delay_ms / 1000 if has_date else _NO_DATE
            its = (within + figures.uncleanable_bytes, ranges.cleanable_bytes, within, late)
        elif each.tier is not None:
            its = (each.tier.remote_bytes, 0, 0, _NOT_KNOWN)
        else:
            continue
        for topic in (ALL, each.partition.topic):
            size, dirty, both, latest = sums.get(topic, (0, 0, 0, _NOT_KNOWN))
            sums[topic] = (size + its[0], dirty + its[1], both + its[2], max(its[3], latest))
    return [
        (
            topic, at_ms,
            (size, math.nan if late == _NOT_KNOWN else dirty / (both or 1),
             late if late >= 0 else math.nan, 0, 0, 0, 0),
        )
        for topic, (size, dirty, both, late) in sums.items()
    ]  # fmt: skip


_NO_DATE, _NOT_KNOWN = -1.0, -2.0


def round_entries(
    topic: str, at_ms: int, freed_bytes: int, seconds: float, count: int = 1
) -> list[Entry]:
    """Return what one round is, or ``count`` of them together, of its topic and of all."""
    figures = (math.nan, math.nan, math.nan, seconds, freed_bytes, count, seconds)
    return [(each, at_ms, figures) for each in (ALL, topic)]
