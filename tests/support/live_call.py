"""Command lines about a live cluster, the only place that knows how one is named to each verb.

Callers write every option as a place's property (``--storage``, ``--decisions``).
"""

from __future__ import annotations

GROUPS = frozenset({"erase", "hold"})
"""Verbs of two words."""


def live_place(address: str) -> str:
    """Return the place of the brokers at ``HOST:PORT[,HOST:PORT…]``."""
    return f"kafka://{address}"


def live_call(address: str, *words: str) -> list[str]:
    """Return the arguments of ``keeplast`` for a verb over the brokers at ``address``.

    ``words`` are the verb, both words of a group's, and what comes after the place.
    """
    names = 2 if words[0] in GROUPS else 1
    return [*words[:names], live_place(address), *words[names:]]
