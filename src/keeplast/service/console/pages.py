"""What each page shows, as plain values: rows, filters, paging, tables. Pure but for no clock.

Texts are as they are; the templates escape them. A page is bounded: rows, segments, receipts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from keeplast.cleaner.selection import Choice
from keeplast.clock import time_text
from keeplast.config.definitions import DEFINITIONS
from keeplast.config.setting_rows import origin_text, shown_value
from keeplast.config.settings import Settings
from keeplast.model.duration import duration_text, relative_text
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count
from keeplast.service.console.strip import (
    SegmentPart,
    StripMark,
    StripPart,
    by_segment,
    by_zone,
    local_strip,
    log_parts,
    marks_of,
    tier_parts,
    zone_bytes,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.live import LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine
from keeplast.service.snapshot import PartitionCondition, PartitionFacts
from keeplast.service.status import PartitionStatus
from keeplast.service.status_words import detail_lines
from keeplast.store.status import TierStatus

ROWS = 50
"""Partitions or receipts on one page."""
SEGMENTS_MAX = 500
ROUNDS_MAX = 30
QUEUE_MAX = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShownTime:
    """A time for people; ``iso`` is for machines, empty where there is none."""

    text: str
    iso: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One partition in the overview."""

    partition: TopicPartition
    state: str
    reason: str
    strip: tuple[StripPart, ...] = ()
    twin: str = ""
    ratio: str = ""
    size: str = ""
    cleanable: str = ""
    deadline: ShownTime = ShownTime("")
    erased: ShownTime = ShownTime("")
    erased_why: str = ""
    last: str = ""

    @property
    def url(self) -> str:
        """Return where the log's page is."""
        return log_url(self.partition)

    @property
    def remedy(self) -> str:
        """Return what helps; empty where nothing is wrong."""
        return REMEDIES.get(self.state, "")


@dataclass(frozen=True, slots=True)
class Query:
    """What the URL asks for; anything else in it is refused before."""

    text: str = ""
    state: str = ""
    sort: str = ""
    page: int = 1

    def url(self, **changes: object) -> str:
        """Return the query of this page with something else in it."""
        asked = {"q": self.text, "state": self.state, "sort": self.sort, "page": self.page}
        asked |= changes
        left = {name: value for name, value in asked.items() if value not in ("", None, 1)}
        return f"?{urlencode(left)}" if left else "?"


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    """One page of many: numbers begin at 1."""

    items: tuple[T, ...]
    page: int
    pages: int
    total: int


def paged(found: Sequence[T], page: int) -> Paged[T]:
    """Return one page; a number beyond the last one gives the last."""
    pages = max(1, -(-len(found) // ROWS))
    page = min(page, pages)
    return Paged(tuple(found[(page - 1) * ROWS : page * ROWS]), page, pages, len(found))


def log_url(partition: TopicPartition) -> str:
    """Return where a log's page is."""
    return f"/log/{quote(partition.topic, safe='')}/{partition.partition}"


def moment(at_ms: int | None, now_ms: int) -> ShownTime:
    """Return a time, how far away it is first."""
    if at_ms is None:
        return ShownTime("")
    text = time_text(at_ms)
    iso = f"{text[:10]}T{text[11:19]}Z" if len(text) == 23 and at_ms >= 0 else ""
    return ShownTime(relative_text(at_ms, now_ms), iso, f"{text[:19]} UTC")


# The overview.

Entry = PartitionStatus | TierStatus


def entries(view: ConsoleView) -> tuple[Entry, ...]:
    """Return all partitions, the most urgent first."""
    if view.status is not None:
        return view.status.partitions
    return tuple(sorted(view.tiers, key=lambda each: (-each.ratio, each.partition)))


def state_of(entry: Entry, facts: PartitionFacts | None = None) -> str:
    """Return the state of a partition in a word or two."""
    if isinstance(entry, PartitionStatus):
        return entry.state.value
    if facts is not None:
        return facts.state.value
    if entry.uncleanable_reason:
        return PartitionCondition.SET_ASIDE.value
    return "dirty" if entry.cleanable_bytes else "clean"


def _facts_by_partition(view: ConsoleView) -> dict[TopicPartition, PartitionFacts]:
    if view.snapshot is None or view.status is not None:
        return {}
    return {each.partition: each for each in view.snapshot.partitions}


_SORTS: dict[str, Callable[[Entry], tuple[object, ...]]] = {
    "name": lambda each: (each.partition,),
    "size": lambda each: (-_size(each), each.partition),
    "ratio": lambda each: (-_ratio(each), each.partition),
}
SORTS = ("", *_SORTS)


def chosen(view: ConsoleView, query: Query) -> list[Entry]:
    """Return the partitions that a query is about, in its order; all of them without one."""
    wanted = query.text.casefold()
    facts = _facts_by_partition(view)
    found = [
        each
        for each in entries(view)
        if (not wanted or wanted in str(each.partition).casefold())
        and (not query.state or state_of(each, facts.get(each.partition)) == query.state)
    ]
    if query.sort:
        found.sort(key=_SORTS[query.sort])
    return found


def state_counts(view: ConsoleView) -> list[tuple[str, int]]:
    """Return how many partitions are in each state, in the order of need."""
    facts = _facts_by_partition(view)
    return list(
        Counter(state_of(each, facts.get(each.partition)) for each in entries(view)).items()
    )


def overview_rows(view: ConsoleView, found: Sequence[Entry]) -> list[Row]:
    """Return a row for each of a page's partitions."""
    facts = _facts_by_partition(view)
    return [_row(view, each, facts.get(each.partition)) for each in found]


def _row(view: ConsoleView, each: Entry, facts: PartitionFacts | None) -> Row:
    if isinstance(each, PartitionStatus):
        return _directory_row(each, view.now_ms)
    parts = tier_parts(each)
    reason = each.uncleanable_reason or ("" if facts is None else facts.reason)
    return Row(
        each.partition, state_of(each, facts), reason, by_zone(parts), twin_of(parts),
        f"{each.ratio:.3f}", format_bytes(each.remote_bytes), format_bytes(each.cleanable_bytes),
    )  # fmt: skip


def _directory_row(each: PartitionStatus, now_ms: int) -> Row:
    erased, why = _erased(each, now_ms)
    last = each.last_round
    words = (
        ""
        if last is None
        else f"{relative_text(last.at_ms, now_ms)}: {format_bytes(last.bytes_read)} to "
        f"{format_bytes(last.bytes_written)}"
    )
    row = Row(
        each.partition, each.state.value, each.reason, erased=erased, erased_why=why, last=words
    )
    log = each.log
    if log is None:
        return row
    parts = log_parts(log)
    return Row(
        each.partition, each.state.value, each.reason, by_zone(parts), twin_of(parts),
        f"{log.figures.cleanable.ratio:.3f}", format_bytes(log.size_bytes),
        format_bytes(log.figures.cleanable.cleanable_bytes), moment(log.deadline_ms, now_ms),
        erased, why, words,
    )  # fmt: skip


def _erased(each: PartitionStatus, now_ms: int) -> tuple[ShownTime, str]:
    erased = each.erased_by
    if erased is None:
        return ShownTime(""), ""
    if erased.is_gone:
        return ShownTime("nothing left"), erased.why
    if erased.is_unknown:
        return ShownTime("?"), erased.why
    if erased.by_ms is None:
        return ShownTime("no bound"), erased.why
    return moment(erased.by_ms, now_ms), erased.why


def twin_of(parts: Sequence[SegmentPart]) -> str:
    """Return what a strip shows in words."""
    sizes = zone_bytes(parts)
    words = ", ".join(f"{zone.value} {format_bytes(size)}" for zone, size in sizes.items())
    return words or "empty"


def _ratio(entry: Entry) -> float:
    if isinstance(entry, TierStatus):
        return entry.ratio
    return 0.0 if entry.log is None else entry.log.figures.cleanable.ratio


def _size(entry: Entry) -> int:
    if isinstance(entry, TierStatus):
        return entry.remote_bytes
    return 0 if entry.log is None else entry.log.size_bytes


# One log.


@dataclass(frozen=True, slots=True)
class LogAnatomy:
    """All that is shown of one log; ``local`` is the second line of a tier's strip."""

    row: Row
    lines: tuple[str, ...]
    segments: tuple[SegmentPart, ...]
    segments_left: int
    strip: tuple[StripPart, ...]
    local: tuple[StripPart, ...]
    marks: tuple[StripMark, ...]
    rounds: tuple[ReceiptLine, ...]
    settings: tuple[SettingRow, ...]
    problems: tuple[str, ...]
    facts: PartitionFacts | None


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that counts: its value, who said it, and what it trades."""

    key: str
    value: str
    origin: str
    about: str
    is_default: bool


def find_entry(view: ConsoleView, partition: TopicPartition) -> Entry | None:
    """Return a partition of the view, None when it has no such."""
    return next((each for each in entries(view) if each.partition == partition), None)


def log_page(view: ConsoleView, entry: Entry, rounds: Sequence[ReceiptLine]) -> LogAnatomy:
    """Return the page of one log."""
    facts = view.facts(entry.partition)
    row = _row(view, entry, facts if view.status is None else None)
    settings, problems = _settings(view, entry.partition.topic)
    local: tuple[StripPart, ...] = ()
    if isinstance(entry, PartitionStatus):
        log = entry.log
        parts = () if log is None else log_parts(log)
        marks = (
            ()
            if log is None
            else marks_of(
                parts,
                [
                    ("log start", log.log_start),
                    ("first dirty", log.figures.first_dirty),
                    ("bound", log.figures.cleanable.bound),
                    ("log end", log.log_end),
                ],
            )
        )
        lines = tuple(detail_lines(entry, view.now_ms))
    else:
        parts = tier_parts(entry)
        marks = marks_of(
            parts,
            [
                ("log start", entry.log_start),
                ("first dirty", entry.first_dirty),
                ("cleanable to", entry.cleanable_to),
                ("remote end", entry.remote_end),
            ],
        )
        lines = tuple(_tier_lines(entry))
        local = local_strip(parts, is_local=True)
    return LogAnatomy(
        row, lines, parts[:SEGMENTS_MAX], max(len(parts) - SEGMENTS_MAX, 0), by_segment(parts),
        local, marks, tuple(reversed(rounds))[:ROUNDS_MAX], settings, problems, facts,
    )  # fmt: skip


def _tier_lines(status: TierStatus) -> list[str]:
    lines = [
        f"owner: {status.owner or 'nobody'}, epoch {status.leader_epoch}",
        f"in object storage: {format_bytes(status.remote_bytes)}, "
        f"{len(status.segments)} segments, offsets {status.log_start} to {status.remote_end}",
    ]
    if status.orphans:
        lines.append(
            f"waits to be collected: {format_count(status.orphans)} replaced segments, "
            f"{format_bytes(status.orphan_bytes)}"
        )
    if status.is_drifted:
        lines.append("the cached size has drifted from the sum: run keeplast tier verify")
    if status.holder is not None:
        lines.append(f"held by process {status.holder.pid} on {status.holder.host}")
    return lines


def _settings(view: ConsoleView, topic: str) -> tuple[tuple[SettingRow, ...], tuple[str, ...]]:
    settings: Settings | None = view.settings
    if settings is None or view.status is None:
        return (), ()
    found = [(each, settings.effective(each, topic)) for each in DEFINITIONS if each.has_effect]
    rows = tuple(
        SettingRow(
            definition.key, shown_value(definition, value.value),
            origin_text(definition, value, view.status.root), definition.about.replace("`", ""),
            value.is_default,
        )
        for definition, value in found
    )  # fmt: skip
    return rows, tuple(settings.problems(topic))


# Work.


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition that is set aside, fails or is refused: what is wrong, where, what helps."""

    partition: TopicPartition
    state: str
    reason: str
    where: str
    since: ShownTime
    remedy: str

    @property
    def url(self) -> str:
        """Return where the log's page is."""
        return log_url(self.partition)


REMEDIES = {
    "set aside": "restore the file from a replica or a backup: it is tried again when its files "
    "change, or at the next start with run --retry",
    "unreadable": "look at the reason; nothing is known of the log",
    "failing": "nothing, unless it goes on: it is tried again by itself",
    "retrying": "nothing, unless it goes on: it is tried again by itself",
    "refused": "the reason says what to set",
    "owned elsewhere": "nothing: its owner cleans it",
}


def troubles(view: ConsoleView) -> list[Trouble]:
    """Return what needs somebody, the most urgent first."""
    found = []
    if view.status is not None:
        for each in view.status.partitions:
            if each.state.value not in REMEDIES:
                continue
            mark = each.set_aside or each.failing
            where = "" if mark is None or mark.path is None else mark.path
            if mark is not None and mark.position is not None:
                where += f" at {mark.position}"
            # It may have been set aside by the turn that this look began.
            since = (
                ShownTime("")
                if mark is None
                else moment(mark.since_ms, max(view.now_ms, mark.since_ms))
            )
            state = each.state.value
            found.append(Trouble(each.partition, state, each.reason, where, since, REMEDIES[state]))
    elif view.snapshot is not None:
        found = [
            Trouble(
                each.partition, each.state.value, each.reason, "",
                moment(each.set_aside_since_ms, view.now_ms), REMEDIES[each.state.value],
            )
            for each in view.snapshot.partitions
            if each.state.value in REMEDIES
        ]  # fmt: skip
    return found


def upcoming(view: ConsoleView, live: LiveProgress | None) -> tuple[Choice, ...]:
    """Return what is due for a round and not of this turn, in the order it would be taken in.

    The loop's snapshot is older than its turn: what runs, or has just ended, is due in it still.
    """
    queue = () if view.snapshot is None else view.snapshot.queue
    taken = set() if live is None else set(live.progress.taken)
    return tuple(each for each in queue if each.partition not in taken)


def receipts_found(view: ConsoleView, query: Query) -> list[ReceiptLine]:
    """Return the receipts whose partition, kind or reasons have the text, the newest first."""
    wanted = query.text.casefold()
    found = [
        each
        for each in reversed(view.receipts)
        if not wanted or wanted in f"{each.partition} {receipt_words(each)}".casefold()
    ]
    if query.sort == "size":
        found.sort(key=lambda each: -(0 if each.round is None else each.round.bytes_read))
    elif query.sort == "name":
        found.sort(key=lambda each: str(each.partition))
    return found


def receipt_words(line: ReceiptLine) -> str:
    """Return what a receipt says beside its figures."""
    if line.round is None:
        return f"{line.kind}: {line.words}"
    went = ", ".join(f"{format_count(count)} {name}" for name, count in line.removed) or "none"
    return went if line.has_ended else f"{went}; interrupted: more waves were to follow"


def throughput(line: ReceiptLine) -> str:
    """Return the bytes a second that a round read, empty without a duration."""
    found = line.round
    if found is None or found.seconds <= 0:
        return ""
    return f"{format_bytes(int(found.bytes_read / found.seconds))}/s"


def span(seconds: float) -> str:
    """Return how long something took."""
    return f"{seconds:.1f} s" if seconds < 120 else duration_text(int(seconds * 1000))
