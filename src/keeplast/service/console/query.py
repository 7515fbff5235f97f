"""What a list's address asks for: words and fields in one box, an order, a page, a kind of rows.

``orders-1 state:failing,overdue size:>1g due:<1h``: all that stands there must fit. A number in a
word is a whole number: ``orders-1`` is not in ``orders-10``. What is asked for and cannot be meant
is said at the box, with what can. Times are away from now: ``due:<1h`` is within the hour, and
overdue too. Pure.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from keeplast.model.text import find_duration, find_size
from keeplast.service.console.lines import ROUND_OVER, Line
from keeplast.service.console.wording import CLEANING, Need
from keeplast.service.status import State
from keeplast.service.status_words import state_words

Test = Callable[[Line, int], bool]
"""Says whether a line fits at a time."""


class Column(Struct, frozen=True):
    """A column of lists: its name in addresses, its heading, and what orders its lines.

    ``descends`` says that the greatest are first until the other direction is asked for.
    """

    name: str
    words: str
    key: Callable[[Line], Any]
    descends: bool = False


STATE = "state"
COLUMNS = (
    Column("name", "Name", lambda line: line.first.partition),
    Column("partitions", "Partitions", lambda line: len(line.parts), descends=True),
    Column(STATE, "State, and why", lambda line: line.rank),
    Column("ratio", "Dirty ratio", lambda line: line.ratio, descends=True),
    Column("size", "Size", lambda line: line.size, descends=True),
    Column("dirty", "Dirty", lambda line: line.dirty, descends=True),
    Column("due", "Round due by", lambda line: line.due),
    Column("gone", "Old values gone by", lambda line: line.gone),
    Column("last", "Last round", lambda line: line.last, descends=True),
)
_BY_NAME = {each.name: each for each in COLUMNS}


class Query(Struct, frozen=True):
    """What the URL asks for; anything else in it is refused before.

    ``sort`` is a column, with ``-`` before it in its other direction. ``rows`` is empty for rows of
    one line.
    """

    text: str = ""
    sort: str = ""
    rows: str = ""
    page: int = 1

    def url(self, **changes: object) -> str:
        """Return the query of this page with something else in it."""
        asked = {"q": self.text, "sort": self.sort, "rows": self.rows, "page": self.page} | changes
        left = {name: value for name, value in asked.items() if value not in ("", None, 1)}
        return f"?{urlencode(left)}" if left else "?"

    def with_field(self, name: str, value: str, **changes: object) -> str:
        """Return the query with this field in place of the same; empty is without it."""
        words = [each for each in self.text.split() if not each.startswith(f"{name}:")]
        if value:
            words.append(f"{name}:{value.replace(' ', '-')}")
        return self.url(q=" ".join(words), page=1, **changes)

    @property
    def is_urgent(self) -> bool:
        """Say whether the most urgent are first."""
        return self.sort in ("", STATE)

    def headings(self, *, of_topics: bool) -> list[tuple[Column, str, str]]:
        """Return the columns of a list, where each heading leads, and how it orders, if it does."""
        by, goes_back = self.sort.removeprefix("-") or STATE, self.sort.startswith("-")
        return [
            (each, self.url(sort=("" if each.name != by or goes_back else "-") + each.name, page=1),
             "" if each.name != by else
             "descending" if each.descends is not goes_back else "ascending")
            for each in COLUMNS if of_topics or each.name != "partitions"
        ]  # fmt: skip

    def ordered(self, found: list[Line]) -> list[Line]:
        """Return lines, which are in the order of urgency, in this one; what is not known last."""
        column = _BY_NAME[self.sort.removeprefix("-") or STATE]
        known = [each for each in found if column.key(each) is not None]
        known.sort(key=column.key, reverse=column.descends is not self.sort.startswith("-"))
        return known + [each for each in found if column.key(each) is None]


def read_filter(text: str) -> tuple[Test, str]:
    """Return the test of all that stands in the box, and what of it cannot be meant, empty where
    all can. Where something cannot nothing fits.
    """
    tests: list[Test] = []
    for word in text.split():
        name, colon, value = word.partition(":")
        try:
            tests.append(_field(name.lower(), value) if colon else _named(word))
        except ValueError as error:
            return lambda line, now_ms: False, str(error)
    return lambda line, now_ms: all(fits(line, now_ms) for fits in tests), ""


def _named(word: str) -> Test:
    """Return the test of a word: a part of a partition's name, and of its numbers whole ones."""
    begin, end = (r"(?<!\d)" if word[0].isdigit() else "", r"(?!\d)" if word[-1].isdigit() else "")
    found = re.compile(begin + re.escape(word) + end, re.IGNORECASE)
    return lambda line, _: found.search(str(line.first.partition)) is not None


def _field(name: str, value: str) -> Test:
    """Return the test of a field; ValueError with what it can be where it is none."""
    if name in _FIELDS:
        return _FIELDS[name](name, value)
    raise ValueError(f"{name}: is no field. There are {', '.join(f'{each}:' for each in _FIELDS)}")


_STATES = {
    words.replace(" ", "-"): str(state)
    for state in (*State, CLEANING, ROUND_OVER)
    for words in (state, state_words(state))
}
_NEEDS = {"person": Need.PERSON, "round": Need.ROUND, "none": Need.NONE}


def _state(name: str, value: str) -> Test:
    asked = value.lower().split(",")
    if not _STATES.keys() >= set(asked):
        raise ValueError(f"{name}:{value} is no state. There are {', '.join(_STATES)}")
    wanted = {_STATES[each] for each in asked}
    return lambda line, _: not wanted.isdisjoint(line.states)


def _need(name: str, value: str) -> Test:
    if value not in _NEEDS:
        raise ValueError(f"{name}:{value} is not known. There are {', '.join(_NEEDS)}")
    return lambda line, _: line.need is _NEEDS[value]


_COMPARED = re.compile(r"(<=|>=|<|>)(.+)")
_COMPARE = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


_AWAY = {"due": 1, "gone": 1, "last": -1}
"""Columns of times, which are compared by how far they are ahead, or ago."""


def _figure(
    what: str, example: str, read: Callable[[str], float | None]
) -> Callable[[str, str], Test]:
    """Return what makes the test of a field with a figure; what is not known fits no figure."""

    def made(name: str, value: str) -> Test:
        match, key, away = _COMPARED.fullmatch(value), _BY_NAME[name].key, _AWAY.get(name)
        limit = None if match is None else read(match[2])
        if match is None or limit is None:
            raise ValueError(f"{name}:{value} is no {what} to compare with. Write {example}")
        compare: Callable[[float, float], bool] = _COMPARE[match[1]]

        def fits(line: Line, now_ms: int) -> bool:
            found = key(line)
            return found is not None and compare(
                found if away is None else away * (found - now_ms), limit
            )

        return fits

    return made


_FIELDS: dict[str, Callable[[str, str], Test]] = {
    "topic": lambda name, value: lambda line, _: line.topic == value, STATE: _state, "need": _need,
    **dict.fromkeys(("size", "dirty"), _figure("size", "size:>1g or dirty:<500m", find_size)),
    "ratio": _figure(
        "ratio", "ratio:>0.5",
        lambda text: float(text) if re.fullmatch(r"\d{1,3}(\.\d{1,9})?", text) else None,
    ),
    **dict.fromkeys(
        ("due", "gone", "last"), _figure("time", "due:<1h, gone:<7d, last:>30min", find_duration)
    ),
}  # fmt: skip
