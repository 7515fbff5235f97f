"""What to do where something is wrong, and whose the next step is: a person's, a round's, nobody's.

What a reader must not break: the words are true of the place. What makes a skipped log be tried
again is another thing in a directory, in a store and in a live cluster. Pure.
"""

from __future__ import annotations

from enum import StrEnum

from keeplast.service.console.standing import Entry, is_damaged, is_defect
from keeplast.service.console.view import ConsoleView
from keeplast.service.status import State

_REMEDIES = {
    "holes": "keeplast verify names what is missing; restore it from a backup of the remote "
    "tier, or let the log start move beyond it",
    "unreadable": "look at the reason; nothing is known of the log",
    "interrupted": "keeplast clean, or the broker's start, ends the swap; keeplast run does at its "
    "next look",
    "failing": "nothing, unless it goes on: it is tried again by itself",
    "retrying": "nothing, unless it goes on: it is tried again by itself",
    "refused": "the reason says what to set",
    "owned elsewhere": "nothing: its owner cleans it",
}
_SKIPPED = State.SET_ASIDE.value
_OF_DIRECTORY = (
    "with the broker stopped and the loop paused or ended, restore the whole partition directory, "
    "with its indexes, from a replica or a backup: it is tried again when its files have changed, "
    "by Try again now on its page, or by keeplast run --retry"
)
_OF_UNREADABLE = (
    "with the broker stopped, restore the whole partition directory, with its indexes, from a "
    "replica or a backup: the log is looked at again by itself"
)
_OF_STORE = (
    "restore the object from a backup: it is tried again when somebody asks for it, or by keeplast "
    "clean"
)
_OF_CLUSTER = (
    "restore the segment from a backup of the remote tier: it is tried again when somebody asks "
    "for it, by keeplast clean, or when the log begins elsewhere"
)
_OF_DEFECT = (
    "report the reason: it is a defect of keeplast. It is tried again when somebody asks for it"
)
_WRONG = frozenset(_REMEDIES) - {"owned elsewhere"} | {_SKIPPED}
_DUE = frozenset(each.value for each in (State.OVERDUE, State.ELIGIBLE, State.EXPIRED))


class Need(StrEnum):
    """Whose the next step is, in the order of a page; the values are its headings."""

    PERSON = "Something is wrong: a person should look"
    ROUND = "A round is due, or under way"
    NONE = "No round is known to be due"


def need_of(state: str, *, is_at_work: bool = False) -> Need:
    """Return whose the next step is; ``is_at_work`` of a log whose round is under way, or over."""
    if state in _WRONG:
        return Need.PERSON
    return Need.ROUND if is_at_work or state in _DUE else Need.NONE


def is_wrong(state: str) -> bool:
    """Say whether a person should look."""
    return state in _WRONG


def remedy_of(view: ConsoleView, state: str, entry: Entry | None) -> str:
    """Return what to do about a log in ``state``; empty where nothing is wrong.

    What stands in the way of ``entry``, None where there is no look at it, has its own remedy: a
    file that is damaged, or a defect of keeplast.
    """
    if state == State.UNREADABLE.value and entry is not None and is_damaged(entry):
        return _OF_UNREADABLE
    if state != _SKIPPED:
        return _REMEDIES.get(state, "")
    if entry is not None and is_defect(entry):
        return _OF_DEFECT
    if view.status is not None:
        return _OF_DIRECTORY
    return _OF_STORE if view.attached is None else _OF_CLUSTER
