"""A log drawn to scale as parts of a strip: where each begins, how wide it is, in which region.

Lengths are bytes, in thousandths of the strip. A part that is there gets :data:`PART_MIN` at least,
so that none disappears. That widens the strip by no more than :data:`WIDENED_MAX`; with more such
parts each gets less. So **no part stands further than that from its place**, and a mark stands
where the drawn parts show its offset. Every part has a name and words, not its colour alone. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest

from msgspec import Struct

from keeplast.inspect.status import LogStatus
from keeplast.model.partition import LogRegion, range_text
from keeplast.model.text import format_bytes, format_counted
from keeplast.service.attached_outlook import PartitionOutlook
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.status import PartitionStatus
from keeplast.store.status import Place

WIDTH = 1000
PART_MIN = 4
WIDENED_MAX = 50
"""So much of a strip goes to what would be narrower than can be seen."""
PARTS_MAX = 60
"""A part of a strip of more segments is several neighbours of one region."""


class SegmentPart(Struct, frozen=True):
    """A segment and its region: offsets ``[start, end)``; times None where not looked at.

    ``place`` says in which tier it is, of a store only; ``number`` is its place in the table.
    """

    region: LogRegion
    start: int
    end: int
    size_bytes: int
    first_ms: int | None = None
    largest_ms: int | None = None
    place: str | None = None
    number: int = 0


class StripPart(Struct, frozen=True):
    """A drawn part: from ``x``, ``width`` wide, in thousandths; ``words`` say all of it.

    It begins with the segment that has this ``number`` in the table.
    """

    region: LogRegion
    x: float
    width: float
    words: str
    start: int
    number: int = 0


class StripMark(Struct, frozen=True):
    """An offset that matters, at ``x``; ``anchor`` keeps its label inside of the picture."""

    label: str
    offset: int
    x: float

    @property
    def anchor(self) -> str:
        """Return which end of the label stands at ``x``."""
        return "start" if self.x < WIDTH / 2 else "end"


def log_parts(log: LogStatus) -> tuple[SegmentPart, ...]:
    """Return the segments of a log, each with its region."""
    return tuple(
        SegmentPart(
            region, each.base_offset, end, each.size_bytes, each.first_timestamp_ms,
            None if each.largest_timestamp_ms < 0 else each.largest_timestamp_ms,
        )
        for each, end, region in zip(log.segments, log.ends, log.regions, strict=True)
    )  # fmt: skip


def parts_of(each: PartitionStatus) -> tuple[SegmentPart, ...]:
    """Return the segments of a partition, of a live cluster those that brokers serve."""
    if each.log is not None:
        return log_parts(each.log)
    if each.stored is not None:
        return tuple(
            SegmentPart(
                part.region, part.base_offset, part.end_offset, part.size_bytes,
                place=part.place.value,
            )
            for part in each.stored.segments
        )  # fmt: skip
    return () if each.attached is None else _attached_parts(each.attached, each.outlook)


def offsets_of(each: PartitionStatus) -> list[tuple[str, int]]:
    """Return the offsets that matter to rounds, ascending as far as they are ordered."""
    log, stored, attached = each.log, each.stored, each.attached
    if log is not None:
        return [
            ("log start", log.log_start), ("first dirty", log.figures.first_dirty),
            ("cleanable to", log.figures.cleanable.bound), ("log end", log.log_end),
        ]  # fmt: skip
    if stored is not None:
        ends = [("remote end", stored.remote_end)]
        if stored.local_bytes is not None:
            ends.append(("log end", stored.log_end))
        return [
            ("log start", stored.log_start), ("first dirty", stored.first_dirty),
            ("cleanable to", stored.cleanable_to), *ends,
        ]  # fmt: skip
    if attached is None:
        return []
    last = attached.remote.remote_end
    begins = [("log start", attached.remote.log.start), ("clean to", attached.cleaned_to)]
    return begins if last is None else [*begins, ("remote end", last + 1)]


def _attached_parts(
    status: AttachedStatus, outlook: PartitionOutlook | None
) -> tuple[SegmentPart, ...]:
    """Return what is served, in the regions of the outlook; of one that failed by what is clean."""
    regions = [] if outlook is None else [each.region for each in outlook.segments]
    cleaned_to = status.cleaned_to
    return tuple(
        SegmentPart(
            region or (LogRegion.CLEAN if each.end <= cleaned_to else LogRegion.DIRTY),
            each.start, each.end, each.size_bytes, largest_ms=each.largest_ms,
            place="served, compacted" if each.is_compacted else "served, a broker's",
        )
        for each, region in zip_longest(status.served, regions)
    )  # fmt: skip


def hidden_parts(each: PartitionStatus) -> tuple[SegmentPart, ...]:
    """Return what lies in the remote tier and is not served: replaced, on its way in or out.

    Of a live cluster alone.
    """
    return tuple(
        SegmentPart(
            LogRegion.HIDDEN, each.start, each.end, each.size_bytes, largest_ms=each.largest_ms,
            place=each.use.value,
        )
        for each in (() if each.attached is None else each.attached.others)
    )  # fmt: skip


def region_bytes(parts: Sequence[SegmentPart]) -> dict[LogRegion, int]:
    """Return the bytes of each region that has any."""
    found: dict[LogRegion, int] = {}
    for each in parts:
        found[each.region] = found.get(each.region, 0) + each.size_bytes
    return {region: found[region] for region in LogRegion if found.get(region)}


def by_region(parts: Sequence[SegmentPart]) -> tuple[StripPart, ...]:
    """Return a strip of one part a region."""
    return _drawn([each for each in _grouped(parts, _region_of) if _bytes_of(each)], _region_words)


def by_segment(parts: Sequence[SegmentPart]) -> tuple[StripPart, ...]:
    """Return a strip of one part a segment; of neighbours in one part when there are too many."""
    return _drawn(_shown_groups(parts), _group_words)


def in_tier(parts: Sequence[SegmentPart], *, is_local: bool) -> tuple[StripPart, ...]:
    """Return one of two lines of a tier's strip: what lies in one tier, at its place in the log."""
    return _of_places(_shown_groups(parts), _group_words, is_local=is_local)


def regions_in_tier(parts: Sequence[SegmentPart], *, is_local: bool) -> tuple[StripPart, ...]:
    """Return the same by regions."""
    return _of_places(_grouped(parts, _region_and_place_of), _region_words, is_local=is_local)


def brokers_line(status: AttachedStatus | None) -> tuple[StripPart, ...]:
    """Return the line of what only brokers have of an attached partition, empty where nothing is.

    Its bytes are not known: the line is the log from its start to its end by offsets.
    """
    if status is None:
        return ()
    log, remote_end = status.remote.log, status.remote.remote_end
    begin = log.start if remote_end is None else max(remote_end + 1, log.start)
    if begin >= log.end:
        return ()
    x = round(WIDTH * (begin - log.start) / (log.end - log.start), 1)
    width = round(max(WIDTH - x, PART_MIN), 1)
    words = f"{LogRegion.BROKERS_ONLY.words}: {range_text(begin, log.end)}"
    return (
        StripPart(LogRegion.BROKERS_ONLY, min(x, float(WIDTH - PART_MIN)), width, words, begin),
    )


def _region_of(part: SegmentPart) -> tuple[int, int]:
    return list(LogRegion).index(part.region), 0


def _region_and_place_of(part: SegmentPart) -> tuple[int, int]:
    """Return what parts of one region in one tier have in common, in the order of offsets."""
    places = [each.value for each in Place]
    return list(LogRegion).index(part.region), places.index(
        part.place
    ) if part.place in places else 0


Group = tuple[SegmentPart, ...]


def _shown_groups(parts: Sequence[SegmentPart]) -> list[Group]:
    """Return what is drawn as one part each: twice :data:`PARTS_MAX` at most.

    Where regions and tiers change more often than that, those of one are drawn side by side.
    """
    most = -(-len(parts) // PARTS_MAX)
    runs = [tuple(its) for _, its in groupby(parts, _region_and_place_of)]
    if len(runs) > PARTS_MAX:
        runs = _grouped(parts, _region_and_place_of)
    return [run[at : at + most] for run in runs for at in range(0, len(run), most)]


def _grouped(
    parts: Sequence[SegmentPart], key: Callable[[SegmentPart], tuple[int, int]]
) -> list[Group]:
    # Regions ascend with offsets; a log whose do not is drawn region by region, and so bounded too.
    return [tuple(its) for _, its in groupby(sorted(parts, key=key), key)]


def _bytes_of(group: Group) -> int:
    return sum(part.size_bytes for part in group)


def _drawn(groups: Sequence[Group], words: Callable[[Group], str]) -> tuple[StripPart, ...]:
    return tuple(
        StripPart(
            group[0].region, round(x, 1), round(width, 1), words(group), group[0].start,
            group[0].number,
        )
        for group, (x, width) in zip(
            groups, _laid([_bytes_of(each) for each in groups]), strict=True
        )
    )  # fmt: skip


def _region_words(group: Group) -> str:
    return f"{group[0].region.words} {format_bytes(_bytes_of(group))}"


def _group_words(group: Group) -> str:
    if len(group) == 1:
        return part_words(group[0])
    size = _bytes_of(group)
    places = {part.place for part in group}
    (where,) = places if len(places) == 1 else (None,)
    return (
        f"{group[0].region.words}: {format_counted(len(group), 'segment')}, "
        f"{range_text(group[0].start, max(part.end for part in group))}, {format_bytes(size)}"
        + ("" if where is None else f", {where}")
    )


def _of_places(
    groups: Sequence[Group], words: Callable[[Group], str], *, is_local: bool
) -> tuple[StripPart, ...]:
    wanted = (Place.LOCAL if is_local else Place.REMOTE, Place.BOTH)
    return tuple(
        shape
        for shape, group in zip(_drawn(groups, words), groups, strict=True)
        if group[0].place in wanted
    )


def part_words(part: SegmentPart) -> str:
    """Return a segment in words."""
    where = "" if part.place is None else f", {part.place}"
    return (
        f"{part.region.words}: segment {part.start}, {range_text(part.start, part.end)}, "
        f"{format_bytes(part.size_bytes)}{where}"
    )


def marks_of(
    parts: Sequence[SegmentPart], offsets: Sequence[tuple[str, int]]
) -> tuple[StripMark, ...]:
    """Return where labelled offsets stand in the strip of ``parts``, as :func:`by_segment` draws
    it: by the bytes below them, of the segment that holds one by its offsets.
    """
    groups = _shown_groups(parts)
    laid = _laid([_bytes_of(each) for each in groups])
    return tuple(StripMark(label, offset, _x(groups, laid, offset)) for label, offset in offsets)


def _x(groups: Sequence[Group], laid: Sequence[tuple[float, float]], offset: int) -> float:
    for group, (x, width) in zip(groups, laid, strict=True):
        if all(offset >= part.end for part in group):
            continue
        size = _bytes_of(group)
        below = 0.0
        for part in group:
            if offset < part.end:
                share = max(offset - part.start, 0) / max(part.end - part.start, 1)
                inside = below + share * part.size_bytes
                return round(x + width * (inside / size if size else share), 1)
            below += part.size_bytes
    return float(WIDTH)


def _laid(sizes: Sequence[int]) -> list[tuple[float, float]]:
    """Return where parts of these sizes begin side by side, and how wide they are.

    They fill the strip. Those that would be narrower than can be seen are widened, all of them
    together to :data:`WIDENED_MAX` at most, and the others give it up in proportion.
    """
    total = sum(sizes)
    if not total:
        return [(WIDTH * at / len(sizes), WIDTH / len(sizes)) for at in range(len(sizes))]
    widths = [size * WIDTH / total for size in sizes]
    narrow = [each for each in widths if each < PART_MIN]
    if narrow:
        least = min(PART_MIN, WIDENED_MAX / len(narrow))
        widened = [max(each, least) for each in widths]
        gained = sum(widened) - WIDTH
        wide = sum(each for each in widths if each > least)
        # Who gives nothing below the least keeps all narrower than can be seen in sight.
        widths = [each if each <= least else each - gained * each / wide for each in widened]
    found, x = [], 0.0
    for width in widths:
        found.append((x, width))
        x += width
    return found


def twin_of(parts: Sequence[SegmentPart]) -> str:
    """Return what a strip shows in words."""
    sizes = region_bytes(parts)
    words = ", ".join(f"{region.words} {format_bytes(size)}" for region, size in sizes.items())
    return words or "empty"
