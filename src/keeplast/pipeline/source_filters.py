"""What a query's filters say about which part of a log has to be read.

Only used where it was asked for: Spark 4.1 to 4.3 keep the plan of a source's last query in the
DataFrame and use it for the next one, so that pushed filters would apply to queries without them.

Only conjunctions of plain comparisons arrive here, and everything is given back to Spark, which
applies it again: what is concluded may be too wide and never too narrow. A filter that says nothing
about topic, partition, offset or timestamp says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.read.log_ranges import ALL, Wanted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is left to read: None stands for every topic, or every partition."""

    wanted: Wanted = ALL
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def holds(self, partition: TopicPartition) -> bool:
        """Say whether records of ``partition`` can match."""
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


def push(pushed: Pushed, filters: Iterable[Filter]) -> Pushed:
    """Return what all of ``filters`` together leave of ``pushed`` to read."""
    for each in filters:
        pushed = _push(pushed, each)
    return pushed


def _push(pushed: Pushed, each: Filter) -> Pushed:
    if isinstance(each, In):
        return _push_values(pushed, each.attribute, each.value)
    if isinstance(each, EqualTo | EqualNullSafe):
        return _push_values(pushed, each.attribute, (each.value,))
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return _push_lower(pushed, each.attribute, each.value, isinstance(each, GreaterThan))
    if isinstance(each, LessThan | LessThanOrEqual):
        return _push_upper(pushed, each.attribute, each.value, isinstance(each, LessThan))
    return pushed


def _push_values(pushed: Pushed, attribute: tuple[str, ...], values: tuple[object, ...]) -> Pushed:
    """Take into account that a column has one of some values."""
    known = [value for value in values if value is not None]
    if not known:
        return pushed
    match attribute:
        case ("topic",):
            return replace(pushed, topics=_both(pushed.topics, (str(v) for v in known)))
        case ("partition",):
            return replace(pushed, partitions=_both(pushed.partitions, _integers(known)))
        case ("offset",) | ("timestamp",):
            lower = _push_lower(pushed, attribute, min(known), False)  # type: ignore[type-var]
            return _push_upper(lower, attribute, max(known), False)  # type: ignore[type-var]
    return pushed


def _both(first: frozenset[_T] | None, second: Iterable[_T]) -> frozenset[_T]:
    return frozenset(second) if first is None else first & frozenset(second)


def _integers(values: Iterable[object]) -> Iterable[int]:
    return (value for value in values if isinstance(value, int))


def _push_lower(
    pushed: Pushed, attribute: tuple[str, ...], value: object, is_strict: bool
) -> Pushed:
    wanted = pushed.wanted
    match attribute, value:
        case ("offset",), int():
            first = min(value + is_strict, INT64_MAX)
            wanted = replace(wanted, first_offset=max(wanted.first_offset, first))
        case ("timestamp",), datetime() if value.tzinfo is not None:
            # Milliseconds are whole: whatever is not before the value is not before its ceiling.
            first_ms = -((_EPOCH - value) // _MILLISECOND)
            wanted = replace(wanted, first_ms=max(wanted.first_ms, first_ms))
    return replace(pushed, wanted=wanted)


def _push_upper(
    pushed: Pushed, attribute: tuple[str, ...], value: object, is_strict: bool
) -> Pushed:
    wanted = pushed.wanted
    match attribute, value:
        case ("offset",), int():
            end = min(value + (not is_strict), INT64_MAX)
            wanted = replace(wanted, end_offset=min(wanted.end_offset, end))
        case ("timestamp",), datetime() if value.tzinfo is not None:
            wanted = replace(wanted, last_ms=min(wanted.last_ms, _floor_ms(value)))
    return replace(pushed, wanted=wanted)


def _floor_ms(value: datetime) -> int:
    return (value - _EPOCH) // _MILLISECOND
