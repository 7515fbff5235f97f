"""What lists are about: a line for each partition, and one for each topic that sums its partitions.

Lists filter and order lines and draw those of one page. The rule that a reader must not break:
**lines are made once for a view, and kept with it**. So a page costs what it shows, and not ten
thousand partitions. Only the rounds under way are put in later. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.model.partition import LogRegion, TopicPartition
from keeplast.model.text import format_bytes, format_count
from keeplast.service.console.standing import entries, last_days
from keeplast.service.console.strip import (
    SegmentPart,
    StripPart,
    by_region,
    parts_of,
    twin_of,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import CLEANING, Need, is_wrong, need_of
from keeplast.service.live import LiveProgress
from keeplast.service.status import URGENCY, PartitionStatus, State
from keeplast.service.status_words import state_words
from keeplast.store.status import Place

ROUND_OVER = "round over"
_NEEDS = {need: place for place, need in enumerate(Need)}
_ORDER = {str(state): place for state, place in URGENCY.items()}


class Line(Struct, frozen=True):
    """A partition, or a topic; ``parts`` are the partitions in it, the most urgent one first.

    ``states`` are those of the first part as pages show them. One that is being cleaned has the
    state that it is in until the round ends, too, and one that is late ``overdue``. ``rank`` orders
    lines by urgency. Sizes are bytes, and times are milliseconds since 1970; None is not known.
    ``due`` is the first deadline of a round, ``gone`` when all old values are gone, and ``last``
    when the last round was.
    """

    parts: tuple[PartitionStatus, ...]
    states: tuple[str, ...]
    need: Need
    rank: tuple[float, ...]
    size: int | None
    clean: int | None
    dirty: int | None
    due: int | None
    gone: int | None
    last: int | None

    @property
    def first(self) -> PartitionStatus:
        """Return the most urgent partition."""
        return self.parts[0]

    @property
    def alike(self) -> int:
        """Return how many partitions are in the state of the first."""
        return sum(each.state is self.first.state for each in self.parts)

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self.first.partition.topic

    @property
    def ratio(self) -> float | None:
        """Return the dirty ratio, None where nothing is known of it."""
        if self.clean is None or self.dirty is None:
            return None
        return self.dirty / (self.clean + self.dirty) if self.dirty else 0.0


def lines_of(view: ConsoleView, live: LiveProgress | None = None) -> list[Line]:
    """Return a line for each partition, the most urgent first, as ``live`` heard of its round."""
    # Equals stay in the order of a status: the later, the dirtier.
    at_work, found = _at_work(live), view.kept(
        "lines",
        lambda: sorted((_line(view, each) for each in entries(view)), key=lambda line: line.rank),
    )  # fmt: skip
    return sorted((_at_work_line(each, at_work) for each in found), key=lambda line: line.rank)


def _line(view: ConsoleView, each: PartitionStatus) -> Line:
    late, state, cleanable = each.is_overdue, each.state, each.cleanable
    day = last_days(view).get(each.partition)
    last_ms = None if day is None else day.sums.last_ms
    need = need_of(state, is_at_work=late)
    due = None if state is State.CLEAN else each.deadline_ms
    return Line(
        (each,), (state.value,) if not late or state is State.OVERDUE else (state, State.OVERDUE),
        need, (_NEEDS[need], not late, URGENCY[state], math.inf if due is None else due),
        each.size_bytes, None if cleanable is None else cleanable.clean_bytes,
        None if cleanable is None else cleanable.cleanable_bytes, due,
        None if each.erased_by is None else each.erased_by.by_ms,
        last_ms if each.last_round is None else each.last_round.at_ms,
    )  # fmt: skip


def _at_work(live: LiveProgress | None) -> dict[TopicPartition, str]:
    """Return which partitions have a round under way, or one that has ended since the look."""
    if live is None:
        return {}
    progress = live.progress
    found = dict.fromkeys(progress.ended, ROUND_OVER)
    return found | {each.partition: CLEANING for each in progress.running}


def _at_work_line(line: Line, at_work: Mapping[TopicPartition, str]) -> Line:
    working = at_work.get(line.first.partition)
    if working is None:
        return line
    need = need_of(line.states[0], is_at_work=True)
    return replace(
        line, states=(working, *line.states) if working == CLEANING else (working,), need=need,
        rank=(_NEEDS[need], *line.rank[1:]),
    )  # fmt: skip


def topic_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the topics of partitions that are in the order of urgency, in that order too."""
    found: dict[str, list[Line]] = {}
    for each in lines:
        found.setdefault(each.topic, []).append(each)
    return [_summed(its) for its in found.values()]


_FOLDS: Mapping[str, Callable[[list[int]], int]] = {
    "size": sum, "clean": sum, "dirty": sum, "due": min, "gone": max, "last": max,
}  # fmt: skip


def _summed(its: Sequence[Line]) -> Line:
    known = {
        name: [value for each in its if (value := getattr(each, name)) is not None]
        for name in _FOLDS
    }
    sums: dict[str, Any] = {
        name: fold(known[name]) if known[name] else None for name, fold in _FOLDS.items()
    }
    return replace(its[0], parts=tuple(each.first for each in its), **sums)


def topic_strip(line: Line) -> tuple[tuple[StripPart, ...], str]:
    """Return one strip that sums the logs of a line, and what it shows in words.

    Of a store the objects alone, as sizes do.
    """
    sums: dict[LogRegion, int] = {}
    for each in line.parts:
        # A topic may have ten thousand logs: their segments are summed as they are.
        found: Iterable[tuple[LogRegion, int]] = (
            [(part.region, part.size_bytes) for part in parts_of(each)
             if part.place != Place.LOCAL.value]
            if each.log is None
            else zip(each.log.regions, [part.size_bytes for part in each.log.segments], strict=True)
        )  # fmt: skip
        for region, size in found:
            sums[region] = sums.get(region, 0) + size
    summed = [SegmentPart(region, 0, 0, size) for region, size in sums.items()]
    return by_region(summed), twin_of(summed)


def state_counts(lines: Iterable[Line]) -> list[tuple[str, str]]:
    """Return the states of partitions in the order of need, and how many are in each, in words.

    One that is being cleaned counts as that, and in the state that the round is for. One that is
    late counts as overdue, and in the state that keeps it.
    """
    counts: Counter[str] = Counter()
    in_work: Counter[str] = Counter()
    for each in lines:
        counts.update(each.states)
        in_work.update(each.states[1:] if each.states[0] == CLEANING else ())
    needs = {each: need_of(each, is_at_work=each in (CLEANING, ROUND_OVER)) for each in counts}
    return [
        (each, f"{format_count(counts[each])} {state_words(each)}"
         + (f" ({format_count(in_work[each])} cleaning)" if in_work[each] else ""))
        for each in sorted(counts, key=lambda each: (_NEEDS[needs[each]], _ORDER.get(each, 0)))
    ]  # fmt: skip


def wrong_words(states: Iterable[str]) -> str:
    """Say what logs are that a person should look at, in the words of their states."""
    return " or ".join(dict.fromkeys(map(state_words, states))) or state_words(State.SET_ASIDE)


def wrong_of(view: ConsoleView) -> tuple[int, str]:
    """Return how many logs of the place a person should look at, and what they are, in words."""
    found = view.kept("wrong", lambda: [e.state for e in entries(view) if is_wrong(e.state)])
    return len(found), wrong_words(found)


def totals_of(lines: Sequence[Line], freed: float) -> list[tuple[str, str, str]]:
    """Return what stands above a list of these partitions: words, a figure, and a filter.

    The filter shows the partitions that count; it is empty where all do. ``freed`` is what the
    rounds of the last 30 days freed, as far as receipts show it; not a number is not known.
    """
    topics = len({each.topic for each in lines})
    among = f" in {format_count(topics)} topics" if topics > 1 else ""
    counts = Counter(state for each in lines for state in each.states)
    wrong = [each.states[0] for each in lines if each.need is Need.PERSON]
    return [
        ("partitions", format_count(len(lines)) + among, ""),
        ("size", format_bytes(sum(each.size or 0 for each in lines)), ""),
        ("dirty", format_bytes(sum(each.dirty or 0 for each in lines)), ""),
        (State.OVERDUE, format_count(counts[State.OVERDUE]), "state:overdue"),
        (State.HELD_BACK, format_count(counts[State.HELD_BACK]), "state:held-back"),
        (wrong_words(wrong), format_count(len(wrong)), "need:person"),
        ("freed in 30 days", "not known" if math.isnan(freed) else format_bytes(round(freed)), ""),
    ]  # fmt: skip
