"""What the work page shows, as plain values: what is next, what needs somebody, receipts. Pure.

Texts are as they are; the template escapes them. A page is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.cleaner.selection import Choice
from keeplast.model.duration import duration_text
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count
from keeplast.service.console.pages import REMEDIES, Query, ShownTime, log_url, moment
from keeplast.service.console.view import ConsoleView
from keeplast.service.live import LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine

QUEUE_MAX = 50


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
