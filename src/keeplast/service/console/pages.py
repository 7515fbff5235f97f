"""What the overview shows, as plain values: rows, filters, paging. Pure.

Texts are as they are; the templates escape them. A page is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.log_order import Choice
from keeplast.cleaner.reasons import MAX_LAG, MIN_RATIO
from keeplast.clock import utc_text
from keeplast.inspect.status import LogStatus
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.text import format_bytes, format_count, precise_duration_text, without_folders
from keeplast.service.attached_outlook import PartitionOutlook
from keeplast.service.console.lines import ROUND_OVER, Line, topic_strip
from keeplast.service.console.standing import (
    holder_of,
    last_days,
    reason_of,
    setting_number,
    state_badge,
)
from keeplast.service.console.strip import (
    SegmentPart,
    StripPart,
    by_region,
    hidden_parts,
    parts_of,
    regions_in_tier,
    twin_of,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import (
    NAMES_MAX,
    NO_TIME,
    ShownTime,
    Step,
    brief,
    deadline,
    deadline_words,
    held_until,
    held_words,
    moment,
    next_round_words,
    no_date_words,
    ordinal,
    remedy_of,
    running_document,
    running_end_words,
    running_words_of,
)
from keeplast.service.live import LiveProgress
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import above_words

ROWS = 50
"""Partitions or receipts on one page."""

T = TypeVar("T")
_ZEROS = re.compile(r"\b0{8,}(?=\d)")
"""What is left out of a segment's name where there is little room."""


class Row(Struct, frozen=True):
    """One partition in the overview.

    ``hidden`` is what brokers of a live cluster do not serve. ``local`` is what of a store's lies
    on a host, next to what ``strip`` has of objects.

    ``deadline_of``, ``erased_of`` and ``last_of`` say which offsets the time above them is about.
    ``next_words`` say why the last round did not do what is due, and what will; ``running_words``
    and ``running_of`` what the one under way does, in the places of reason and ``deadline_of``.
    ``badge`` stands for the state of a log that is being cleaned, or whose round has ended since
    the look; ``badge_why`` is how far it is, ``begun`` when it began. ``cleanable_of`` says what
    else is dirty where nothing can be cleaned. ``remedy`` is what to do, empty where nothing is
    wrong. ``held`` says until when the log is held back and by what, ``has_hold`` that a command
    ends it.
    """

    partition: TopicPartition
    state: str
    reason: str
    strip: tuple[StripPart, ...] = ()
    twin: str = ""
    hidden: tuple[StripPart, ...] = ()
    hidden_twin: str = ""
    local: tuple[StripPart, ...] = ()
    ratio: str = ""
    ratio_of: str = ""
    size: str = ""
    cleanable: str = ""
    cleanable_of: str = ""
    deadline: ShownTime = NO_TIME
    deadline_of: str = ""
    erased: ShownTime = NO_TIME
    erased_of: str = ""
    erased_why: str = ""
    last: ShownTime = NO_TIME
    last_of: str = ""
    next_words: str = ""
    running_words: str = ""
    running_of: str = ""
    badge: str = ""
    badge_why: str = ""
    begun: ShownTime = NO_TIME
    state_badge: str = ""
    remedy: tuple[Step, ...] = ()
    held: str = ""
    has_hold: bool = False

    @property
    def url(self) -> str:
        """Return where the log's page is."""
        return log_url(self.partition)

    @property
    def short_reason(self) -> str:
        """Return the reason without the values that an error ends with; the log's page has all."""
        return brief(self.reason) if self.remedy else self.reason

    @property
    def list_reason(self) -> str:
        """Return the reason in as few words as a list has room for; a tip has all of them."""
        if self.begun.iso:
            return self.reason.partition(": ")[0].rpartition("; ")[2]
        return self.held or _ZEROS.sub("…", self.short_reason)


class Paged(Struct, Generic[T], frozen=True):
    """One page of many: numbers begin at 1."""

    items: tuple[T, ...]
    page: int
    pages: int
    total: int


def paged(found: Sequence[T], page: int, rows: int = ROWS) -> Paged[T]:
    """Return one page; a number beyond the last one gives the last."""
    pages = max(1, -(-len(found) // rows))
    page = min(page, pages)
    return Paged(tuple(found[(page - 1) * rows : page * rows]), page, pages, len(found))


def topic_url(topic: str) -> str:
    """Return where a topic's page is."""
    return f"/topic/{quote(topic, safe='')}"


def log_url(partition: TopicPartition) -> str:
    """Return where a log's page is."""
    return f"/log/{quote(partition.topic, safe='')}/{partition.partition}"


def partition_rows(
    view: ConsoleView, found: Sequence[Line], now_ms: int, live: LiveProgress | None = None
) -> list[Row]:
    """Return a row for each of a page's partitions, of a topic for its most urgent one.

    They are as ``live`` heard of them since the look. ``now_ms`` is the page's clock, from which
    ages count.
    """
    places, firsts = queue_words(view, live), [each.first for each in found]
    return [
        with_progress(row_of(view, each, now_ms, places.get(each.partition, "")), live, now_ms)
        for each in firsts
    ]


def topic_rows(
    view: ConsoleView, found: Sequence[Line], now_ms: int, live: LiveProgress | None = None
) -> list[Row]:
    """Return a row for each of a page's topics: its most urgent partition with the topic's sums."""
    first = partition_rows(view, found, now_ms, live)
    return [_summed(view, each, row, now_ms) for each, row in zip(found, first, strict=True)]


def _summed(view: ConsoleView, line: Line, row: Row, now_ms: int) -> Row:
    strip, twin = topic_strip(line)
    undated = no_date_words((each.erased_by for each in line.parts), len(line.parts))
    latest = next((each for each in line.parts if each.last_round is not None
                   and each.last_round.at_ms == line.last), line.first)  # fmt: skip
    last, last_of = _last(view, latest, now_ms)
    rounds = [each.last_round for each in line.parts if each.last_round is not None]
    if len(rounds) > 1:
        read, left = sum(e.bytes_read for e in rounds), sum(e.bytes_written for e in rounds)
        some = "" if len(rounds) == len(line.parts) else f"{format_count(len(rounds))} of "
        last_of = (
            f"{format_bytes(read)} to {format_bytes(left)}, in {some}"
            f"{format_count(len(line.parts))} logs, the first of these rounds "
            f"{utc_text(min(each.at_ms for each in rounds))}"
        )
    return replace(
        row, strip=strip, twin=twin, ratio="" if line.ratio is None else f"{line.ratio:.3f}",
        size="" if line.size is None else format_bytes(line.size),
        cleanable="" if line.dirty is None else format_bytes(line.dirty),
        deadline=row.deadline if line.due is None else deadline(line.due, now_ms),
        last=last, last_of=last_of,
        erased=ShownTime(undated) if undated else moment(line.gone, now_ms),
        erased_why=row.erased_why if undated and not row.erased.iso else "",
    )  # fmt: skip


def queue_words(view: ConsoleView, live: LiveProgress | None) -> dict[TopicPartition, str]:
    """Say when the round of each that is due begins, as far as the queue shows it.

    Rounds begin together: as many as there are workers follow when all that run have ended.
    """
    queue, running = upcoming(view, live), () if live is None else live.progress.running
    slots = 0 if view.snapshot is None or not running else view.snapshot.slots
    names = [str(each.partition) for each in running[:NAMES_MAX]]
    if len(running) > len(names):
        names.append(f"{format_count(len(running) - len(names))} more")
    ended = (
        f"{', '.join(names[:-1])} and {names[-1]} have"
        if names[1:]
        else f"{names[0]} has"
        if names
        else ""
    )
    return {
        each.partition: f"it begins when {ended} ended"
        if place <= slots
        else f"it is {ordinal(place)} in the queue"
        for place, each in enumerate(queue, start=1)
    }


def upcoming(view: ConsoleView, live: LiveProgress | None) -> tuple[Choice, ...]:
    """Return what is due for a round and not of this turn, in the order it would be taken in.

    The loop's snapshot is older than its turn: what runs, or has just ended, is due in it still.
    """
    queue = () if view.snapshot is None else view.snapshot.queue
    taken = set() if live is None else set(live.progress.taken)
    return tuple(each for each in queue if each.partition not in taken)


def with_progress(row: Row, live: LiveProgress | None, now_ms: int) -> Row:
    """Return a row with the badge of its round, where one is under way or ended since the look."""
    if live is None:
        return row
    progress = live.progress
    for each in progress.running:
        if each.partition == row.partition:
            its = running_document(each, progress)
            # What a round in waves has left so far has the time of its own beginning.
            is_this = row.last.at_ms >= progress.since_ms
            last, last_of = (NO_TIME, "the running one") if is_this else (row.last, row.last_of)
            return replace(
                row, badge=its["badge"], badge_why=its["words"], next_words="", last=last,
                last_of=last_of, begun=moment(progress.since_ms, max(now_ms, progress.since_ms)),
                reason=row.running_words or row.reason,
                deadline_of=row.running_of or row.deadline_of,
            )  # fmt: skip
    if progress.has_ended(row.partition):
        why = "the next look shows its state"
        return replace(
            row, badge=ROUND_OVER, badge_why=why, next_words="",
        )  # fmt: skip
    return row


def row_of(view: ConsoleView, each: PartitionStatus, now_ms: int, turn: str = "") -> Row:
    """Return the row of a partition; ``turn`` says when its round begins, empty if not known."""
    row = _plain_row(view, each, now_ms, turn)
    limit, what = setting_number(view, each, MIN_RATIO), "of closed segments"
    if each.log is None:
        what = "of what brokers serve" if each.stored is None else "of what is in object storage"
    return replace(
        row, state_badge=state_badge(each),
        remedy=remedy_of(view, each), held=held_until(each, view.now_ms),
        has_hold=holder_of(each) is not None,
        ratio_of="" if not row.ratio else what if limit is None else f"{what}; limit {limit:g}",
    )  # fmt: skip


def _plain_row(view: ConsoleView, each: PartitionStatus, now_ms: int, turn: str) -> Row:
    erased, why = _erased(each, now_ms)
    last, last_of = _last(view, each, now_ms)
    reason = reason_of(view, each)
    if each.state is State.REFUSED:
        # What is refused for a setting names the file that says it.
        reason = without_folders(reason, view.place)
    row = Row(
        each.partition, each.state.value, reason, erased=erased, erased_why=why, last=last,
        last_of=last_of,
    )  # fmt: skip
    cleanable, log = each.cleanable, each.log
    if cleanable is None:
        known = each.state in (State.REFUSED, State.NOT_COMPACTED)
        return replace(row, deadline=ShownTime(
            f"none: it is {each.state.value}" if known else "not known: it was not read"
        ))  # fmt: skip
    parts, hidden = parts_of(each), hidden_parts(each)
    has_local = each.stored is not None and each.stored.local_bytes is not None
    row = replace(
        row, strip=regions_in_tier(parts, is_local=False) if has_local else by_region(parts),
        twin=twin_of(parts), hidden=by_region(hidden),
        hidden_twin=twin_of(hidden) if hidden else "",
        local=regions_in_tier(parts, is_local=True) if has_local else (),
        ratio=f"{cleanable.ratio:.3f}", size=format_bytes(each.size_bytes or 0),
        cleanable=format_bytes(cleanable.cleanable_bytes), deadline=_due(view, each, now_ms),
    )  # fmt: skip
    return row if log is None else _with_log(row, each, log, parts, turn)


def _with_log(
    row: Row, each: PartitionStatus, log: LogStatus, parts: Sequence[SegmentPart], turn: str
) -> Row:
    """Return the row of a log whose files were read, with what they say of its rounds."""
    cleanable = log.figures.cleanable
    is_split = bool(cleanable.cleanable_bytes) and cleanable.bound < log.log_end
    return replace(
        row, cleanable_of=held_words(log, parts),
        deadline_of=deadline_words(log) if row.deadline.iso else "",
        erased_of=f"with {above_words(log)}" if is_split else "",
        next_words=next_round_words(each, log, turn), running_words=running_words_of(log),
        running_of=running_end_words(log),
    )  # fmt: skip


def _last(view: ConsoleView, each: PartitionStatus, now_ms: int) -> tuple[ShownTime, str]:
    """Return when the last round was, and what it did or who."""
    last = each.last_round
    if last is not None:
        return moment(last.at_ms, now_ms), (
            f"{format_bytes(last.bytes_read)} to {format_bytes(last.bytes_written)}, below offset "
            f"{last.end_offset}"
        )
    day = last_days(view).get(each.partition)
    return (NO_TIME, "") if day is None else (moment(day.sums.last_ms, now_ms), f"on {day.host}")


def _due(view: ConsoleView, each: PartitionStatus, now_ms: int) -> ShownTime:
    """Return by when a round is due at the latest, or why there is no such date."""
    log = each.log
    if log is not None and log.figures.first_dirty >= log.log_end:
        return ShownTime("nothing is dirty")
    if each.deadline_ms is not None:
        return deadline(each.deadline_ms, now_ms)
    if (setting_number(view, each, MAX_LAG) or 0) >= INT64_MAX:
        return ShownTime("no limit: max.compaction.lag.ms is not set")
    if each.state is State.CLEAN:
        return ShownTime("nothing is dirty")
    return ShownTime("not known" if log is None else "no date: what is dirty has no timestamp")


def _old_words(outlook: PartitionOutlook) -> str:
    """Say in a cell by when old values are gone; the page of the log has the whole sentence."""
    if outlook.old is None:
        return ""
    if outlook.old.after_round_ms is None:
        return "no date"
    return f"no date; {precise_duration_text(outlook.old.after_round_ms)} after its round"


def _erased(each: PartitionStatus, now_ms: int) -> tuple[ShownTime, str]:
    erased = each.erased_by
    if erased is None:
        return NO_TIME, "" if each.outlook is None else _old_words(each.outlook)
    if erased.is_gone:
        return ShownTime("nothing left"), erased.why
    if erased.by_ms is None:
        return ShownTime(no_date_words([erased], 1)), erased.why
    return moment(erased.by_ms, now_ms), erased.why
