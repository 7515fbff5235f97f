"""Words and figures that several pages share: errors, remedies, running rounds, times. Pure.

The rules that a reader must not break:

- A remedy is true of its place. What makes a skipped log be tried again is another thing in a
  directory, in a store and in a live cluster. It says whose the next step is, a person's or a
  round's, or that there is none.
- A round that may end before what it was to take promises no end.
- The date until which something is kept is never shown earlier than it is.

An error in short is its sentence, and where it is. Values stand last in an error, as
``name=value``; the page of a log has all of it. A time is shown as how far away it is, and when
that is. A per cent is the share of all that a round reads, in both passes. Where the bytes of
several rounds cannot be kept apart, none of them has one of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.erasure import BasisKind
from keeplast.cleaner.log_order import Choice
from keeplast.cleaner.reasons import (
    MIN_LAG,
    DirtyEnough,
    HoldLimit,
    KeptLimit,
    LagLimit,
    Limit,
    Overdue,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.clock import time_text, utc_text
from keeplast.errors import CorruptError
from keeplast.inspect.status import ErasedBy, LogStatus
from keeplast.model.partition import LogRegion, range_text
from keeplast.model.text import (
    NEAR_MS,
    duration_text,
    format_bytes,
    format_count,
    precise_duration_text,
    precise_relative_text,
    printable,
)
from keeplast.service.console.standing import holder_of, place_head, skipped_class
from keeplast.service.console.strip import SegmentPart, region_bytes
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.live import Progress
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import DAMAGE, release_command, release_words


def brief(reason: str) -> str:
    """Return an error's sentence and where it is: the name of a file, and the position in it.

    Values stand last, as ``name=value``; what is left out of them is on the log's own page.
    """
    if _VALUES.search(reason) is None:
        return reason
    path, position = place_in(reason)
    where = [] if path is None else [path.rpartition("/")[2]]
    where += [] if position is None else [f"at byte {position}"]
    sentence = sentence_of(reason)
    return f"{sentence}: {' '.join(where)}" if where else sentence


def place_in(reason: str) -> tuple[str | None, int | None]:
    """Return the file that an error's values name, or the object, and the position in it."""
    path, position = _PATH.search(reason), _POSITION.search(reason)
    return (
        None if path is None else path[1].rstrip(),
        None if position is None else int(position[1]),
    )


def sentence_of(reason: str) -> str:
    """Return an error without the values that it ends with."""
    values = _VALUES.search(reason)
    return reason if values is None else reason[: values.start()]


_VALUES = re.compile(r"\. (?=\w+=)")
_PATH = re.compile(r"[. ] ?path=([^=]*?)(?= \w+=|$)")
_POSITION = re.compile(r" position=(\d+)")


Step = tuple[str, str]
"""What to do, and the command that does it, empty where there is none."""

_REMEDIES: dict[str, tuple[Step, ...]] = {
    "holes": (
        ("see what is missing", "keeplast verify {place} {one}"),
        ("restore it from a backup of the remote tier, or let the log start move beyond it", ""),
    ),
    "unreadable": (("nothing is known of the log until it can be read; {again}", ""),),
    "interrupted": (
        ("keeplast run ends the swap at its next look, and so does the broker's start, or",
         "keeplast clean {place} {one}"),
    ),
    "failing": (("nothing, unless it goes on; {again}", ""),),
    "retrying": (("nothing, unless it goes on; {again}", ""),),
    "refused": (("change the setting that is named; {again}", ""),),
    "paused": (("let its rounds go on", "keeplast pause {place} --topic {topic} --resume"),),
    "owned elsewhere": (("nothing: its owner cleans it", ""),),
}  # fmt: skip
_HELD: dict[type[Limit], tuple[Step, ...]] = {
    LagLimit: (("it is overdue: let min.compaction.lag.ms be shorter than max.compaction.lag.ms, "
                "or wait until the dates of its records have passed", ""),),
    TransactionLimit: (("it is overdue: end the transaction that is open, with "
                        "kafka-transactions.sh, and it is cleaned", ""),),
    WatermarkLimit: (("it is overdue: bring its replicas back, so that the high watermark moves",
                      ""),),
    KeptLimit: (("it is overdue: clean the store too, which still has the aborted transaction",
                 ""),),
}  # fmt: skip
_SKIPPED = State.SET_ASIDE.value
_OF_DIRECTORY = (
    ("see what is damaged", "keeplast inspect {path}"),
    ("end {what}", "systemctl stop {service}"),
    ("put the directory of the partition aside, out of the data directory", "mv {path} {aside}"),
    ("restore the whole partition directory, with its indexes, from a replica or a backup",
     "cp -a BACKUP/{partition} {place}/"),
    ("start it again, and the log is tried again, because its files have changed; as a service",
     "systemctl start {service}"),
    ("without a change it is tried by Try again now on its page, or by",
     "keeplast run {place} --retry"),
)  # fmt: skip
_OF_STORE = (
    ("restore the object from a backup", ""),
    ("have it tried again", "keeplast clean {place} {one}"),
)
_OF_CLUSTER = (
    ("restore the segment from a backup of the remote tier", ""),
    ("it is tried again when the log begins elsewhere, or by", "keeplast clean {place} {one}"),
)
_OF_DEFECT = (
    ("report the reason: it is a defect of keeplast", ""),
    ("the log is tried again when somebody asks for it", ""),
)
_WRONG = frozenset(_REMEDIES) - {"owned elsewhere", "paused"} | {_SKIPPED}
_DUE = frozenset(each.value for each in (State.OVERDUE, State.ELIGIBLE, State.EXPIRED))


class Need(StrEnum):
    """Whose the next step is, in the order of a page; the values are its headings."""

    PERSON = "A person should look"
    ROUND = "A round is due, or under way"
    NONE = "No round is due now"


def need_of(state: str, *, is_at_work: bool = False) -> Need:
    """Return whose the next step is; ``is_at_work`` of a log whose round is under way, or over."""
    if state in _WRONG:
        return Need.PERSON
    return Need.ROUND if is_at_work or state in _DUE else Need.NONE


def is_wrong(state: str) -> bool:
    """Say whether a person should look."""
    return state in _WRONG


def remedy_of(view: ConsoleView, each: PartitionStatus) -> tuple[Step, ...]:
    """Return what to do about a log, in order; empty where nothing is wrong.

    A file that is damaged has its own remedy, and so has a defect of keeplast.
    """
    place, partition = place_head(view)["place"], each.partition
    if each.hold is not None:
        return ((release_words(each.hold), release_command(each.hold, place)),)
    if each.is_overdue and each.limit is not None:
        return _HELD.get(type(each.limit), ())
    is_damage = isinstance(each.error, CorruptError) and each.state is State.UNREADABLE
    steps = _REMEDIES.get(each.state, ())
    if each.state is State.SET_ASIDE and skipped_class(each) not in (None, *DAMAGE):
        steps = _OF_DEFECT
    elif view.status is not None and (is_damage or each.state is State.SET_ASIDE):
        steps = _OF_DIRECTORY
    elif each.state is State.SET_ASIDE:
        steps = _OF_STORE if view.attached is None else _OF_CLUSTER
    topic, path = shlex.quote(partition.topic), f"{place}/{partition}"
    values = {
        "place": shlex.quote(place), "partition": shlex.quote(str(partition)), "topic": topic,
        "one": f"--topic {topic} --partition {partition.partition}", "path": shlex.quote(path),
        "aside": shlex.quote(f"{place.rstrip('/')}.{partition}.damaged"),
        "again": _next_try(view, each), "service": "keeplast-run" if view.snapshot else "kafka",
        "what": "the loop that runs here; as a service" if view.snapshot else
        "what works here, as a broker",
    }  # fmt: skip
    # Files of an object store are moved by its own tools.
    return tuple(
        (words.format_map(values),
         line.format_map(values) if "://" not in place or line.startswith("keeplast") else "")
        for words, line in steps
    )  # fmt: skip


def steps_text(steps: Iterable[Step]) -> str:
    """Return what to do in one line."""
    return "; ".join(": ".join(filter(None, each)) for each in steps)


def _next_try(view: ConsoleView, each: PartitionStatus) -> str:
    """Say when keeplast comes back to what failed by itself."""
    if view.snapshot is None:
        return "this page looks again by itself, and keeplast run tries again"
    at = moment(each.retry_at_ms, view.now_ms)
    when = "at its next look" if not at.iso or at.at_ms <= view.now_ms else f"at {at.minute}"
    return f"keeplast tries again {when}, {ordinal(max(each.failures, 1) + 1)} try"


def held_until(each: PartitionStatus, now_ms: int) -> str:
    """Say until when a log is held back, and by what; empty where no date ends that."""
    match holder_of(each) or each.limit:
        case HoldLimit() as limit:
            return f"until {moment(limit.until_ms, now_ms).minute} by the hold {limit.name}"
        case LagLimit() as limit:
            until = moment(now_ms + limit.lag_ms - limit.age_ms, now_ms)
            return f"until {until.minute} by {MIN_LAG} ({duration_text(limit.lag_ms)})"
    return ""


_NO_DATES = {
    BasisKind.SET_ASIDE: "never, while skipped",
    BasisKind.UNREADABLE: "never, while unreadable",
    BasisKind.FAILING: "not known: rounds fail",
    BasisKind.HELD: "not known: held back",
    BasisKind.NO_MAX_LAG: "no deadline set",
    BasisKind.UNDATED: "not known: no timestamp",
}


def no_date_words(erased: Iterable[ErasedBy | None], count: int) -> str:
    """Say in a cell why old values of ``count`` logs have no date; empty where all have one.

    The pages of the logs have the whole sentences.
    """
    found = [_NO_DATES.get(each.basis.kind, "no date") for each in erased
             if each is not None and each.by_ms is None]  # fmt: skip
    alike = sum(each == found[0] for each in found)
    some = "" if alike == count else f"{format_count(alike)} of {format_count(count)}: "
    return some + found[0] if found else ""


def held_words(log: LogStatus, parts: Sequence[SegmentPart]) -> str:
    """Say what is dirty where nothing can be cleaned yet; empty elsewhere."""
    if log.figures.cleanable.cleanable_bytes:
        return ""
    sizes = region_bytes(parts)
    held = sizes.get(LogRegion.UNCLEANABLE, 0) + sizes.get(LogRegion.UNSTABLE, 0)
    return f"cleanable now; {format_bytes(held)} held back" if held else ""


def deadline_words(log: LogStatus) -> str:
    """Say which offsets a deadline is about; empty where all of the log is."""
    first, bound = log.figures.first_dirty, log.figures.cleanable.bound
    if not log.figures.cleanable.cleanable_bytes:
        return "nothing closed can be cleaned yet"
    return range_text(first, bound) if bound < log.log_end else ""


def running_words_of(log: LogStatus) -> str:
    """Return what a round under way does, as of a look before it; empty where that is not known."""
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
    """Say why a last round left what is due, where its end shows it, and what will do it.

    Empty where no round is due.
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


MINUTE_MS = 60_000


class ShownTime(Struct, frozen=True):
    """A time for people; ``iso`` and ``at_ms`` are for machines, ``iso`` empty where none is.

    ``is_deadline`` says that it counts on as late, not as ago.
    """

    text: str
    iso: str = ""
    title: str = ""
    at_ms: int = 0
    is_deadline: bool = False

    @property
    def minute(self) -> str:
        """Return the time to the minute, the next one where it has seconds: a date is kept by then;
        empty without one.
        """
        if not self.iso:
            return ""
        text = utc_text(-(-self.at_ms // MINUTE_MS) * MINUTE_MS)
        return f"{text[:16]} UTC" if len(text) == len(self.title) else self.title


NO_TIME = ShownTime("")


def moment(at_ms: int | None, now_ms: int) -> ShownTime:
    """Return a time, how far away it is first."""
    if at_ms is None:
        return NO_TIME
    text = time_text(at_ms)
    iso = f"{text[:10]}T{text[11:19]}Z" if len(text) == 23 and at_ms >= 0 else ""
    return ShownTime(precise_relative_text(at_ms, now_ms), iso, utc_text(at_ms), at_ms)


def deadline(at_ms: int | None, now_ms: int) -> ShownTime:
    """Return by when something is due; past that, for how long it is overdue."""
    found = moment(at_ms, now_ms)
    if at_ms is None or at_ms + NEAR_MS > now_ms:
        return found
    return replace(
        found, text=f"overdue for {precise_duration_text(now_ms - at_ms)}", is_deadline=True
    )


CLEANING = "cleaning"
NAMES_MAX = 4
"""So many rounds under way are named in a line."""


def progress_document(source: ViewSource) -> dict[str, Any] | None:
    """Return how far the rounds under way are, None where nothing runs."""
    live = source.live
    if live is None:
        return None
    found = live.progress
    return {
        "running": [running_document(each, found) for each in found.running],
        "since_ms": found.since_ms,
        "read_bytes": found.read_bytes,
        "planned_bytes": found.planned_bytes,
        "percent": found.percent,
        "idle_until_ms": found.idle_until_ms,
        "words": _live_words(source),
        "serial": found.serial,
    }


def running_document(choice: Choice, progress: Progress) -> dict[str, Any]:
    """Return how far one round is.

    ``percent`` and ``pass`` are null where they are not known, and ``words``, which say both,
    empty.
    """
    its = progress.of(choice.partition)
    at = None if its is None else its.at
    return {
        "topic": choice.partition.topic,
        "partition": choice.partition.partition,
        "why": choice.why,
        "percent": None if its is None else its.percent,
        "pass": at,
        "words": ", ".join(
            each for each in ("" if its is None else f"{its.percent} % of both passes", at) if each
        ),
        "badge": CLEANING if its is None else f"{CLEANING} {its.percent} %",
    }


def _live_words(source: ViewSource) -> str:
    live, control = source.live, source.control
    if live is None:
        return ""
    found = live.progress
    if control is not None and control.is_paused and not found.running:
        return "paused"
    if not found.running:
        return "idle" if found.idle_until_ms is not None else "looking"
    rounds = [(each.partition, found.of(each.partition)) for each in found.running[:NAMES_MAX]]
    names = [
        f"{partition} {its.percent} %" if its is not None else str(partition)
        for partition, its in rounds
    ]
    left = len(found.running) - len(names)
    words = ", ".join(names) + (f" and {left} more" if left else "")
    if any(its is None for _, its in rounds) and found.planned_bytes:
        words += f": {found.percent} %"
    return printable(f"cleaning {words}")
