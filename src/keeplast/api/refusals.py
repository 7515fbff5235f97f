"""What a kind of place cannot do, why, and what to do there instead: one table of *verb by place*.

The docs' table is generated from it, and every refusal is worded here. A verb that is not in it can
be done in every kind of place.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.config.place_properties import PlaceKind
from keeplast.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kind of place cannot do something, and what to do instead; without a full stop."""

    why: str
    instead: str


REFUSALS: dict[tuple[str, PlaceKind], Refusal] = {
    ("plan --compare", PlaceKind.STORE): Refusal(
        "two strategies are compared in a data directory alone",
        "write the log into one with keeplast tier export, and compare there",
    ),
    ("plan --compare", PlaceKind.CLUSTER): Refusal(
        "two strategies are compared in a data directory alone",
        "compare in a broker's data directory",
    ),
    ("clean --expired", PlaceKind.CLUSTER): Refusal(
        "a live cluster's topic is not due for what has expired alone",
        "leave --expired out: such a round drops it too, and --force does one now",
    ),
    **{
        (verb, kind): refusal
        for kind in (PlaceKind.STORE, PlaceKind.CLUSTER)
        for verb, refusal in {
            "verify AFTER": Refusal(
                f"a {kind} is judged by itself: its metadata tells what is live",
                "leave AFTER out; logs that were exported are compared as directories",
            ),
            "verify --replicas": Refusal(
                "replicas lie in brokers' data directories",
                "compare two of those: keeplast verify ONE OTHER --replicas",
            ),
            "verify --receipt-head": Refusal(
                f"a {kind}'s commits keep the heads of its receipts",
                "leave --receipt-head out: --receipt FILE is held against those heads",
            ),
            "verify --now-ms": Refusal(
                f"a {kind} is judged as it is now",
                "leave --now-ms out",
            ),
        }.items()
    },
    ("configure", PlaceKind.CLUSTER): Refusal(
        "brokers keep the settings of a live cluster, and the place's table those of keeplast",
        'write the table of the topic, [place.NAME.topic."T"], into keeplast.toml',
    ),
    ("undo", PlaceKind.CLUSTER): Refusal(
        "a round of a live cluster's topics is not put back: brokers may have let its segments go",
        "restore the topic from a state as of an earlier point: keeplast export --as-of",
    ),
}


def refused(verb: str, kind: PlaceKind, where: str) -> RefusedError:
    """Return the refusal of a verb; ``where`` names the place in the message."""
    found = REFUSALS[verb, kind]
    return RefusedError(f"{found.why}; {found.instead}. place={where}")
