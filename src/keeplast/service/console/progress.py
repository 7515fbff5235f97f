"""How far the rounds under way are, as pages and documents show it. Pure.

A per cent is the share of all that a round reads, in both passes; where the bytes of several rounds
cannot be told apart, none of them has one of its own.
"""

from __future__ import annotations

from typing import Any

from keeplast.cleaner.selection import Choice
from keeplast.model.escapes import printable
from keeplast.service.console.view import ViewSource
from keeplast.service.live import Progress

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
    """Return how far one round is: ``percent`` and ``pass`` are null where nobody can tell, and
    ``words``, which say both, empty.
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
