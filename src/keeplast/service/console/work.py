"""What the work page shows, as plain values: what needs attention, receipts. Pure.

Texts are as they are; the template escapes them. A page is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from keeplast.cleaner.reasons import MAX_LAG
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes, format_count, format_counted
from keeplast.service.console.anatomy import SettingRow, saving_words, setting_rows
from keeplast.service.console.lines import Line, lines_of, state_counts
from keeplast.service.console.pages import ROWS, queue_words, upcoming
from keeplast.service.console.query import Query
from keeplast.service.console.standing import (
    entries,
    facts_by_partition,
    find_entry,
    holder_of,
    place_head,
    reason_of,
    state_badge,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import (
    Need,
    ShownTime,
    Step,
    brief,
    held_until,
    is_wrong,
    moment,
    need_of,
    place_in,
    remedy_of,
    sentence_of,
    steps_text,
)
from keeplast.service.live import LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine
from keeplast.service.snapshot import AttachedTotals
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import moment_text, release_command, seconds_text

QUEUE_MAX = 50
BUDGET_KEYS = (
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor", "log.cleaner.backoff.ms", "log.cleaner.expired.rounds",
)  # fmt: skip
"""What bounds rounds, of the settings that count for all of them."""


class Trouble(Struct, frozen=True):
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
    remedy: tuple[Step, ...]
    badge: str

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
            "position": self.position, "since_ms": self.since_ms,
            "remedy": steps_text(self.remedy),
        }  # fmt: skip


def troubles(view: ConsoleView) -> list[Trouble]:
    """Return what needs attention, the most urgent first; whose it is elsewhere, its owner's."""
    facts, found = facts_by_partition(view), entries(view)
    known = {each.partition for each in found}
    # What a loop cannot even look at, the watcher next to it may not have.
    alone = (
        PartitionStatus(partition, its.state, its.reason)
        for partition, its in facts.items()
        if partition not in known
    )
    return [
        trouble_of(view, each)
        for each in (*found, *alone)
        if is_wrong(each.state) or (each.is_overdue and each.state is State.HELD_BACK)
    ]


def trouble_of(view: ConsoleView, each: PartitionStatus) -> Trouble:
    """Return what is wrong with a partition, or late; what is late is so since its deadline."""
    reason, mark = reason_of(view, each), each.set_aside or each.failing
    facts = facts_by_partition(view).get(each.partition)
    path, position = place_in(reason)
    since_ms = each.deadline_ms if each.is_overdue else None
    if facts is not None and facts.set_aside_since_ms is not None:
        since_ms = facts.set_aside_since_ms
    if mark is not None:
        path, position, since_ms = mark.path, mark.position, mark.since_ms
    return Trouble(
        each.partition, each.state.value, reason, path, position, since_ms,
        remedy_of(view, each), state_badge(each),
    )  # fmt: skip


def due_lines(view: ConsoleView) -> list[dict[str, Any]]:
    """Return what is due or overdue, on every host, the most urgent first, and who does it."""
    return [
        {
            "topic": each.partition.topic, "partition": each.partition.partition,
            "state": each.state.value, "reason": reason_of(view, each),
            "owner": (each.stored and each.stored.owner) or None,
        }
        for each in entries(view)
        if need_of(each.state) is Need.ROUND
    ]  # fmt: skip


def next_rounds(
    view: ConsoleView,
    live: LiveProgress | None,
    now_ms: int,
    lines: Sequence[Line],
    topic: str | None = None,
) -> list[tuple[TopicPartition, str, str]]:
    """Return the next rounds of a topic, or of all: when and why, and what they would free.

    They are :data:`QUEUE_MAX` of the queue at most, and of ``lines`` the first that has a deadline.
    What is not known to be freed is empty.
    """
    places, queue = queue_words(view, live), upcoming(view, live)
    found = [
        (each.partition, f"{places[each.partition]}: {each.why}")
        for each in queue
        if topic in (None, each.partition.topic)
    ][:QUEUE_MAX]
    dated = [(each.due, each.first.partition) for each in lines
             if each.due is not None and each.states[0] == State.NOT_DUE]  # fmt: skip
    for due_ms, partition in sorted(dated)[:1]:
        found.append((partition, f"by {moment_text(due_ms, now_ms)}: {MAX_LAG}, or earlier if it "
                      "is dirty enough"))  # fmt: skip
    its = [(each, words, find_entry(view, each)) for each, words in found]
    return [
        (each, words, "" if entry is None or entry.last_round is None
         else saving_words(entry, entry.last_round))
        for each, words, entry in its
    ]  # fmt: skip


def held_logs(view: ConsoleView) -> list[tuple[PartitionStatus, str, str]]:
    """Return what is held back, until when and by what, and the command that ends a hold."""
    return [
        (each, held_until(each, view.now_ms) or reason_of(view, each),
         "" if hold is None else release_command(hold, place_head(view)["place"]))
        for each, hold in ((each, holder_of(each)) for each in entries(view))
        if each.state is State.HELD_BACK or hold is not None
    ]  # fmt: skip


def others_words(view: ConsoleView) -> str:
    """Say how many partitions neither wait for a round nor for a person, by their states."""
    return ", ".join(
        words for state, words in state_counts(lines_of(view)) if need_of(state) is Need.NONE
    )


def since(trouble: Trouble, now_ms: int) -> ShownTime:
    """Return since when; it may have been set aside by the turn that this look began."""
    return moment(trouble.since_ms, max(now_ms, trouble.since_ms or 0))


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
        "due": due_lines(view),
        "caps": cap_lines(view),
        "budgets": [asdict(each) for each in budgets(view)],
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
            f"asked to slow down {format_counted(totals.slow_downs, 'time')}, waited "
            f"{seconds_text(totals.waited_seconds)} to keep to the caps"
        )
    return lines


def budgets(view: ConsoleView) -> tuple[SettingRow, ...]:
    """Return what bounds rounds, and who said it; nothing where no settings are known."""
    if view.settings is None:
        return ()
    return setting_rows(view.settings, "", keys=BUDGET_KEYS)
