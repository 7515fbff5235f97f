"""A log drawn to scale as parts of a strip: where each begins, how wide it is, which zone it is in.

Lengths are bytes, in thousandths of the strip; what is there gets :data:`PART_MIN` at least, so
that none disappears. Every part has a name and words beside its colour. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from keeplast.cleaner.reasons import (
    BoundNote,
    HoldLimit,
    LagLimit,
    Limit,
    NothingBelow,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.inspect.status import LogStatus
from keeplast.model.size import format_bytes
from keeplast.service.attached_status import AttachedStatus
from keeplast.store.status import Place, RegionName, TierStatus

WIDTH = 1000
PART_MIN = 4
PARTS_MAX = 200
"""A strip of more segments is drawn by zones."""


class Zone(StrEnum):
    """What a part of a log is to the next round."""

    CLEAN = "clean"
    DIRTY = "dirty"
    HELD = "held back"
    UNSTABLE = "unstable"
    ACTIVE = "active"
    HIDDEN = "hidden"


_REGIONS = {
    RegionName.CLEANED: Zone.CLEAN,
    RegionName.DIRTY: Zone.DIRTY,
    RegionName.UNCLEANABLE: Zone.HELD,
    RegionName.UNSTABLE: Zone.UNSTABLE,
    RegionName.ACTIVE: Zone.ACTIVE,
}


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A segment and its zone: offsets ``[start, end)``; times None where nobody looked.

    ``place`` says in which tier it is, of a store only.
    """

    zone: Zone
    start: int
    end: int
    size_bytes: int
    first_ms: int | None = None
    largest_ms: int | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class StripPart:
    """A drawn part: from ``x``, ``width`` wide, in thousandths; ``words`` say all of it."""

    zone: Zone
    x: float
    width: float
    words: str
    start: int


@dataclass(frozen=True, slots=True)
class StripMark:
    """An offset that matters, at ``x``; ``anchor`` keeps its label inside of the picture."""

    label: str
    offset: int
    x: float

    @property
    def anchor(self) -> str:
        """Return which end of the label stands at ``x``."""
        return "start" if self.x < WIDTH / 2 else "end"


def log_parts(log: LogStatus) -> tuple[SegmentPart, ...]:
    """Return the segments of a log, each with its zone; one is clean that begins below the dirty
    ones, as in Kafka.
    """
    bound, first_dirty = log.figures.cleanable.bound, log.figures.first_dirty
    held = _held_zone(_limit(log))
    ends = [*(each.base_offset for each in log.segments[1:]), log.log_end]
    parts = []
    for index, (segment, end) in enumerate(zip(log.segments, ends, strict=True)):
        if segment.base_offset < first_dirty and end <= max(first_dirty, bound):
            zone = Zone.CLEAN if end <= first_dirty else Zone.DIRTY
        elif segment.base_offset < bound:
            zone = Zone.DIRTY
        elif index == len(log.segments) - 1:
            zone = Zone.ACTIVE
        else:
            zone = held
        largest = segment.largest_timestamp_ms
        parts.append(
            SegmentPart(
                zone, segment.base_offset, end, segment.size_bytes,
                segment.first_batch_timestamp_ms, None if largest < 0 else largest,
            )
        )  # fmt: skip
    return tuple(parts)


def tier_parts(status: TierStatus) -> tuple[SegmentPart, ...]:
    """Return the segments of a partition in a store."""
    return tuple(
        SegmentPart(
            _REGIONS[each.region], each.base_offset, each.end_offset, each.size_bytes,
            place=each.place.value,
        )
        for each in status.segments
    )  # fmt: skip


def attached_parts(status: AttachedStatus) -> tuple[SegmentPart, ...]:
    """Return what brokers serve of an attached partition: clean below what rounds have cleaned."""
    return tuple(
        SegmentPart(
            Zone.CLEAN if each.end <= status.cleaned_to else Zone.DIRTY, each.start, each.end,
            each.size_bytes, largest_ms=each.largest_ms,
            place="served, compacted" if each.is_compacted else "served, a broker's",
        )
        for each in status.served
    )  # fmt: skip


def hidden_parts(status: AttachedStatus) -> tuple[SegmentPart, ...]:
    """Return what lies in the remote tier and is not served: replaced, on its way in or out."""
    return tuple(
        SegmentPart(
            Zone.HIDDEN, each.start, each.end, each.size_bytes, largest_ms=each.largest_ms,
            place=each.use.value,
        )
        for each in status.others
    )  # fmt: skip


def _limit(log: LogStatus) -> Limit | None:
    if isinstance(log.decision, NothingBelow):
        return log.decision.limit
    return next((note.limit for note in log.notes if isinstance(note, BoundNote)), None)


def _held_zone(limit: Limit | None) -> Zone:
    if isinstance(limit, TransactionLimit | WatermarkLimit):
        return Zone.UNSTABLE
    return Zone.HELD if isinstance(limit, LagLimit | HoldLimit) else Zone.ACTIVE


def zone_bytes(parts: Sequence[SegmentPart]) -> dict[Zone, int]:
    """Return the bytes of each zone that has any."""
    found: dict[Zone, int] = {}
    for each in parts:
        found[each.zone] = found.get(each.zone, 0) + each.size_bytes
    return {zone: found[zone] for zone in Zone if found.get(zone)}


def by_zone(parts: Sequence[SegmentPart]) -> tuple[StripPart, ...]:
    """Return a strip of one part a zone."""
    sizes = zone_bytes(parts)
    starts = {zone: min(each.start for each in parts if each.zone is zone) for zone in sizes}
    return _laid(
        [(zone, size, f"{zone.value} {format_bytes(size)}", starts[zone])
         for zone, size in sizes.items()]
    )  # fmt: skip


def by_segment(parts: Sequence[SegmentPart]) -> tuple[StripPart, ...]:
    """Return a strip of one part a segment; by zones when there are too many."""
    if len(parts) > PARTS_MAX:
        return by_zone(parts)
    return _laid([(each.zone, each.size_bytes, part_words(each), each.start) for each in parts])


def local_strip(parts: Sequence[SegmentPart], *, is_local: bool) -> tuple[StripPart, ...]:
    """Return the second line of a tier's strip: what lies in one tier, at its place in the log."""
    wanted = (Place.LOCAL, Place.BOTH) if is_local else (Place.REMOTE, Place.BOTH)
    drawn = by_segment(parts)
    if len(drawn) != len(parts):
        return drawn
    return tuple(shape for shape, part in zip(drawn, parts, strict=True) if part.place in wanted)


def part_words(part: SegmentPart) -> str:
    """Return a segment in words."""
    where = "" if part.place is None else f", {part.place}"
    return (
        f"{part.zone.value}: segment {part.start}, offsets {part.start} to {part.end}, "
        f"{format_bytes(part.size_bytes)}{where}"
    )


def marks_of(
    parts: Sequence[SegmentPart], offsets: Sequence[tuple[str, int]]
) -> tuple[StripMark, ...]:
    """Return where labelled offsets stand in the strip of ``parts``."""
    shapes = _laid([(each.zone, each.size_bytes, "", each.start) for each in parts])
    return tuple(StripMark(label, offset, _x(parts, shapes, offset)) for label, offset in offsets)


def _x(parts: Sequence[SegmentPart], shapes: Sequence[StripPart], offset: int) -> float:
    for part, shape in zip(parts, shapes, strict=True):
        if offset < part.end:
            inside = max(offset - part.start, 0) / max(part.end - part.start, 1)
            return round(shape.x + inside * shape.width, 1)
    return float(WIDTH)


def _laid(found: Sequence[tuple[Zone, int, str, int]]) -> tuple[StripPart, ...]:
    """Return parts side by side that fill the strip."""
    least = min(PART_MIN, WIDTH / max(len(found), 1))
    total = sum(size for _, size, _, _ in found) or 1
    widths = [max(size * WIDTH / total, least) for _, size, _, _ in found]
    scale, x = WIDTH / (sum(widths) or 1), 0.0
    parts = []
    for (zone, _, words, start), width in zip(found, widths, strict=True):
        parts.append(StripPart(zone, round(x, 1), round(width * scale, 1), words, start))
        x += width * scale
    return tuple(parts)
