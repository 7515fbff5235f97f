"""An error in short: its sentence, and where it is. Pure.

Values stand last in an error, as ``name=value``; the page of a log has all of it.
"""

from __future__ import annotations

import re


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
