"""Command lines about a live cluster, the only place that knows how one is named to each verb.

Callers write every option as a place's property (``--storage``, ``--decisions``), whatever the
verb. The verbs of :data:`ATTACHED` take the brokers and the decision log by options of their own.
"""

from __future__ import annotations

GROUPS = frozenset({"erase", "hold"})
"""Verbs of two words."""
ATTACHED = frozenset(
    {
        "collect", "detach", "pause", "repair", "resume", "run", "status",
    }
)  # fmt: skip
OWN_NAMES = {"--decisions": "--store"}


def live_place(address: str) -> str:
    """Return the place of the brokers at ``HOST:PORT[,HOST:PORT…]``."""
    return f"kafka://{address}"


def live_call(address: str, *words: str) -> list[str]:
    """Return the arguments of ``keeplast`` for a verb over the brokers at ``address``.

    ``words`` are the verb, both words of a group's, and what comes after the place.
    """
    verb = words[0]
    if verb in ATTACHED:
        rest = [OWN_NAMES.get(each, each) for each in words[1:]]
        return ["attach", verb, "--bootstrap-server", address, *rest]
    names = 2 if verb in GROUPS else 1
    return [*words[:names], live_place(address), *words[names:]]
