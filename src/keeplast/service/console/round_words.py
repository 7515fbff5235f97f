"""What the running round of a log in a directory does, and the next one; what it cannot take. Pure.

What a reader must not break: a round that may end before what it was to take promises no end.
"""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.cleaner.reasons import DirtyEnough, Overdue
from keeplast.inspect.status import LogStatus
from keeplast.model.duration import duration_text, precise_duration_text
from keeplast.model.offsets import range_text
from keeplast.model.size import format_bytes
from keeplast.service.console.strip import SegmentPart, Zone, zone_bytes
from keeplast.service.status import PartitionStatus


def held_words(log: LogStatus, parts: Sequence[SegmentPart]) -> str:
    """Say what is dirty where nothing can be cleaned yet; empty elsewhere."""
    if log.figures.cleanable.cleanable_bytes:
        return ""
    sizes = zone_bytes(parts)
    held = sizes.get(Zone.HELD, 0) + sizes.get(Zone.UNSTABLE, 0)
    return f"cleanable now; {format_bytes(held)} held back" if held else ""


def deadline_words(log: LogStatus) -> str:
    """Say which offsets a deadline is about; empty where all of the log is."""
    first, bound = log.figures.first_dirty, log.figures.cleanable.bound
    if not log.figures.cleanable.cleanable_bytes:
        return "nothing closed can be cleaned yet"
    return range_text(first, bound) if bound < log.log_end else ""


def running_words_of(log: LogStatus) -> str:
    """Say what a round that is under way does, as a look before it tells; empty where it cannot."""
    first, bound = log.figures.first_dirty, log.figures.cleanable.bound
    if not log.figures.cleanable.cleanable_bytes:
        return ""
    late_ms = log.figures.compaction_delay_ms
    late = f"overdue for {precise_duration_text(late_ms)}; " if late_ms else ""
    takes = f"{late}the running round takes {range_text(first, bound)}"
    if log.eligibility.rounds_max > 1:
        return f"{takes}, as far as its key map reaches"
    # What is clean is rewritten too: a value there goes when a dirty record has replaced it.
    old = f"old values whose newer record is below {bound}"
    if log.undo_retention_ms:
        kept = duration_text(log.undo_retention_ms)
        return f"{takes}: {old} are kept for undo then, and gone {kept} later"
    return f"{takes}: {old} go when it ends"


def running_end_words(log: LogStatus) -> str:
    """Say the same below a deadline; empty where a round's end is not the end of what it takes."""
    is_all = log.eligibility.rounds_max <= 1 and not log.undo_retention_ms
    return "these go when the running round ends" if is_all and running_words_of(log) else ""


def next_round_words(each: PartitionStatus, log: LogStatus, turn: str) -> str:
    """Say why a last round left what is due, where its end tells it, and what will do it; empty
    where no round is due.
    """
    if not isinstance(each.decision, Overdue | DirtyEnough):
        return ""
    first, bound = log.figures.first_dirty, log.figures.cleanable.bound
    last, words = each.last_round, []
    if last is not None and last.bound is not None and last.end_offset == first < last.bound:
        words.append(f"The last round ended below offset {first}: its key map was full.")
    when = f"; {turn}" if turn else ""
    words.append(f"The next round takes {range_text(first, bound)}{when}.")
    return " ".join(words)


def ordinal(number: int) -> str:
    """Return a number as a place in a row: 1st, 2nd, 3rd, 11th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"
