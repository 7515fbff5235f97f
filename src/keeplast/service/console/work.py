"""What the work page shows, as plain values: what needs attention, receipts, growth. Pure.

Texts are as they are; the template escapes them. A page is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from keeplast.clock import time_text
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes, format_count, format_counted
from keeplast.service.console.anatomy import SettingRow, setting_rows
from keeplast.service.console.pages import (
    ROWS,
    Query,
    log_url,
    state_counts,
)
from keeplast.service.console.standing import (
    entries,
    facts_by_partition,
    reason_of,
    state_badge,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import (
    NO_TIME,
    ShownTime,
    brief,
    is_wrong,
    moment,
    place_in,
    remedy_of,
    sentence_of,
)
from keeplast.service.receipt_shelf import ReceiptLine
from keeplast.service.snapshot import AttachedTotals, PartitionFacts
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import seconds_text
from keeplast.tier.state.kept_rounds import RoundSums

QUEUE_MAX = 50
DUE = (State.OVERDUE.value, State.ELIGIBLE.value, State.EXPIRED.value)
DAYS = 30
DAY_MS = 86_400_000
BUDGET_KEYS = (
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor", "log.cleaner.backoff.ms", "log.cleaner.expired.rounds",
)  # fmt: skip
"""What bounds rounds, of the settings that count for all of them."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition that is set aside, fails, is refused or has a hole: what, where, what to do.

    ``path`` and ``position`` are None where the error names none, ``badge`` is the state as it is
    shown.
    """

    partition: TopicPartition
    state: str
    reason: str
    path: str | None
    position: int | None
    since_ms: int | None
    remedy: str
    badge: str

    @property
    def url(self) -> str:
        """Return where the log's page is."""
        return log_url(self.partition)

    @property
    def where(self) -> str:
        """Return file and position in words, empty where none is known."""
        at = "" if self.position is None else f"at byte {self.position}"
        return " ".join(each for each in (self.path or "", at) if each)

    @property
    def short_reason(self) -> str:
        """Return the reason without the values that an error ends with, but for where it is."""
        return sentence_of(self.reason) if self.where else brief(self.reason)

    def as_document(self) -> dict[str, Any]:
        """Return what the document says of it."""
        return {
            "topic": self.partition.topic, "partition": self.partition.partition,
            "state": self.state, "reason": self.reason, "path": self.path,
            "position": self.position, "since_ms": self.since_ms, "remedy": self.remedy,
        }  # fmt: skip


def troubles(view: ConsoleView) -> list[Trouble]:
    """Return what needs attention, the most urgent first; whose it is elsewhere, its owner's."""
    facts, found = facts_by_partition(view), entries(view)
    known = {each.partition for each in found}
    # What a loop cannot even look at, the watcher next to it may not have.
    alone = (
        PartitionStatus(partition, told.state, told.reason)
        for partition, told in facts.items()
        if partition not in known
    )
    return [
        _trouble(view, each, facts.get(each.partition))
        for each in (*found, *alone)
        if is_wrong(each.state)
    ]


def _trouble(view: ConsoleView, each: PartitionStatus, facts: PartitionFacts | None) -> Trouble:
    reason, mark = reason_of(view, each), each.set_aside or each.failing
    path, position = place_in(reason)
    since_ms = None if facts is None else facts.set_aside_since_ms
    if mark is not None:
        path, position, since_ms = mark.path, mark.position, mark.since_ms
    return Trouble(
        each.partition, each.state.value, reason, path, position, since_ms,
        remedy_of(view, each), state_badge(each),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DueLine:
    """A partition that is worth a round; ``owner`` is the owner that does it, empty without one."""

    partition: TopicPartition
    state: str
    reason: str
    owner: str = ""


def due_lines(view: ConsoleView) -> list[DueLine]:
    """Return what is due or overdue, on every host, the most urgent first."""
    return [
        DueLine(
            each.partition, each.state.value, reason_of(view, each),
            "" if each.stored is None else each.stored.owner,
        )
        for each in entries(view)
        if each.state in DUE
    ]  # fmt: skip


def others_words(view: ConsoleView) -> str:
    """Say how many partitions neither wait for a round nor for a person, by their states."""
    found = [each.words for each in state_counts(view)
             if each.state not in DUE and not is_wrong(each.state)]  # fmt: skip
    return ", ".join(found)


def since(trouble: Trouble, now_ms: int) -> ShownTime:
    """Return since when; it may have been set aside by the turn that this look began."""
    at_ms = trouble.since_ms
    return NO_TIME if at_ms is None else moment(at_ms, max(now_ms, at_ms))


def receipts_found(view: ConsoleView, query: Query) -> list[ReceiptLine]:
    """Return the receipts whose partition, kind, reasons or verdict have the text, newest first."""
    wanted = query.text.casefold()
    found = [
        each
        for each in reversed(view.receipts)
        if not wanted
        or wanted in f"{each.partition} {receipt_words(each)} {each.verdict}".casefold()
    ]
    if query.sort == "size":
        found.sort(key=lambda each: -(0 if each.round is None else each.round.bytes_read))
    elif query.sort == "name":
        found.sort(key=lambda each: str(each.partition))
    return found


def receipt_document(line: ReceiptLine) -> dict[str, Any]:
    """Return a receipt in short for the document; the files have all of it."""
    found = line.round
    return {
        "kind": line.kind,
        "now_ms": line.at_ms,
        "topic": None if line.partition is None else line.partition.topic,
        "partition": None if line.partition is None else line.partition.partition,
        "first_dirty": line.first,
        "end_offset": line.end,
        "bytes_read": None if found is None else found.bytes_read,
        "bytes_written": None if found is None else found.bytes_written,
        "messages_read": None if found is None else found.records_read,
        "messages_written": None if found is None else found.records_written,
        "seconds": None if found is None else found.seconds,
        "removed": dict(line.removed),
        "has_ended": line.has_ended,
        "words": line.words,
        "verdict": line.verdict or None,
    }


def work_document(view: ConsoleView) -> dict[str, Any]:
    """Return the page's document without what runs; of receipts the newest :data:`ROWS`."""
    newest = tuple(reversed(view.receipts))[:ROWS]
    return {
        "troubles": [each.as_document() for each in troubles(view)],
        "due": [
            {
                "topic": each.partition.topic, "partition": each.partition.partition,
                "state": each.state, "reason": each.reason, "owner": each.owner or None,
            }
            for each in due_lines(view)
        ],
        "caps": cap_lines(view),
        "budgets": [asdict(each) for each in budgets(view)],
        "days": [
            {"day_ms": each.at_ms, "rounds": each.rounds, "came_bytes": each.came_bytes,
             "freed_bytes": each.freed_bytes, "hosts": each.hosts}
            for each in growth_of(view).days
        ],
        "receipts_held": len(view.receipts),
        "receipts": [receipt_document(each) for each in newest],
    }  # fmt: skip


def slots_words(view: ConsoleView, live: Mapping[str, Any] | None) -> str:
    """Say how many rounds go on at once, and when the next ones begin; empty where nothing runs."""
    if view.snapshot is None or live is None:
        return ""
    slots, running = view.snapshot.slots, len(live["running"])
    if slots == 1:
        return "One round at a time."
    if not running:
        return f"Up to {slots} rounds at once."
    return (
        f"{format_counted(running, 'round')} under way, up to {slots} at once: they begin "
        "together, and the next ones when the last of them has ended."
    )


def receipt_words(line: ReceiptLine) -> str:
    """Return what a receipt says, without its figures."""
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


@dataclass(frozen=True, slots=True)
class DayOfRounds:
    """What the rounds of one day did, UTC: bytes that came since the rounds before, and went.

    ``compared`` are the rounds that show what came, because one before them is known. ``hosts`` are
    those that did them, of a store.
    """

    at_ms: int
    rounds: int = 0
    compared: int = 0
    came_bytes: int = 0
    freed_bytes: int = 0
    hosts: tuple[str, ...] = ()

    @property
    def date(self) -> str:
        """Return the day."""
        return time_text(self.at_ms)[:10]


@dataclass(frozen=True, slots=True)
class Growth:
    """The last 30 days by the receipts, the newest day first; days without a round are left out.

    ``size_bytes`` is what all logs have now that could be looked at.
    """

    days: tuple[DayOfRounds, ...]
    size_bytes: int

    @property
    def words(self) -> str:
        """Return all days in a sentence; what came is said where a round before it is known."""
        rounds = sum(each.rounds for each in self.days)
        freed = sum(each.freed_bytes for each in self.days)
        came = sum(each.came_bytes for each in self.days)
        sums = f"{format_counted(rounds, 'round')} freed {format_bytes(freed)} in sum"
        now = f"all logs that could be read have {format_bytes(self.size_bytes)} now"
        if not any(each.compared for each in self.days):
            return (
                f"{sums}; what was appended between rounds is known of a log from its second one "
                f"on; {now}"
            )
        return (
            f"{sums}, and between rounds {format_bytes(came)} {'was' if came == 1 else 'were'} "
            f"appended; {now}"
        )


def growth_of(view: ConsoleView) -> Growth:
    """Return what rounds of the last days did, as far as the receipts that are kept show it.

    What came to a log is what a round read beyond what the one before it had left. Before the first
    round that is known of a log nothing counts as come: its size at that time is not known.
    """
    first_ms = (view.now_ms // DAY_MS - DAYS + 1) * DAY_MS
    if view.tiers or view.round_days:
        return _growth_of_store(view, first_ms)
    left: dict[TopicPartition, int] = {}
    days: dict[int, DayOfRounds] = {}
    for line in view.receipts:
        found = line.round
        if found is None or line.partition is None or not line.has_ended:
            continue
        before, left[line.partition] = left.get(line.partition), found.bytes_written
        if not first_ms <= line.at_ms <= view.now_ms:
            continue
        at_ms = line.at_ms // DAY_MS * DAY_MS
        day = days.get(at_ms, DayOfRounds(at_ms))
        came = 0 if before is None else max(found.bytes_read - before, 0)
        days[at_ms] = DayOfRounds(
            at_ms, day.rounds + 1, day.compared + (before is not None), day.came_bytes + came,
            day.freed_bytes + max(found.bytes_read - found.bytes_written, 0),
        )  # fmt: skip
    return Growth(tuple(days[at_ms] for at_ms in sorted(days, reverse=True)), _size_now(view))


def _growth_of_store(view: ConsoleView, first_ms: int) -> Growth:
    """Return the same of a store, whose metadata keep it of every host."""
    sums: dict[int, RoundSums] = {}
    hosts: dict[int, set[str]] = {}
    for each in view.round_days:
        if first_ms <= each.day_ms <= view.now_ms:
            sums[each.day_ms] = sums.get(each.day_ms, RoundSums()) + each.sums
            hosts.setdefault(each.day_ms, set()).add(each.host)
    return Growth(
        tuple(
            DayOfRounds(
                at_ms, found.rounds, found.rounds, found.came_bytes,
                max(found.bytes_read - found.bytes_written, 0), tuple(sorted(hosts[at_ms])),
            )
            for at_ms, found in sorted(sums.items(), reverse=True)
        ),
        _size_now(view),
    )  # fmt: skip


def _size_now(view: ConsoleView) -> int:
    return sum(each.size_bytes or 0 for each in entries(view))


def cap_lines(view: ConsoleView) -> list[str]:
    """Return what of a live cluster's caps was used, nothing where none count."""
    totals = None if view.snapshot is None else view.snapshot.tier
    if not isinstance(totals, AttachedTotals):
        return []
    lines = [
        f"in the last 24 hours, of all hosts: {format_count(totals.swaps)} of "
        f"{format_counted(totals.swaps_max, 'swap')}, {format_count(totals.metadata_records)} of "
        f"{format_counted(totals.metadata_records_max, 'record')} of the metadata topic",
        f"since this loop began: {format_counted(totals.requests, 'request')} to the remote tier, "
        f"{format_bytes(totals.moved_bytes)} read and written",
    ]
    if totals.slow_downs or totals.waited_seconds >= 1:
        lines.append(
            f"told to slow down {format_counted(totals.slow_downs, 'time')}, waited "
            f"{seconds_text(totals.waited_seconds)} to keep to the caps"
        )
    return lines


def budgets(view: ConsoleView) -> tuple[SettingRow, ...]:
    """Return what bounds rounds, and who said it; nothing where no settings are known."""
    if view.settings is None:
        return ()
    return setting_rows(view.settings, "", keys=BUDGET_KEYS)
