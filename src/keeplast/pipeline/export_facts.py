"""What an export says of itself, in files beside its topics: for whoever goes on from it.

``_state.json`` has how the records of each topic ranked, and whether tombstones are rows::

    {"format": 1, "tombstones": true,
     "topics": {"orders": {"strategy": "header", "strategy_header": "ver"}}}

An export without it was made by an earlier version, which wrote no tombstones; how its records
ranked nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from keeplast.errors import CorruptError
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig

OFFSETS_FILE = "_offsets.json"
ENDS_FILE = "_ending_offsets.json"
STATE_FILE = "_state.json"
FACTS_BYTES_MAX = 64 << 20

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """How topics ranked, by name: the strategy, and its header for ``header``, else None.

    ``tombstones`` says whether what deletes its key is a row.
    """

    tombstones: bool
    topics: Mapping[str, tuple[Strategy, str | None]]


def ranked_by(topic: TopicConfig) -> tuple[Strategy, str | None]:
    """Return what of a topic's settings says how its records rank."""
    is_named = topic.strategy is Strategy.HEADER
    return topic.strategy, topic.strategy_header if is_named else None


def encode_facts(topics: Mapping[str, TopicConfig], *, tombstones: bool) -> bytes:
    """Return the bytes of ``_state.json``."""
    ranks = {name: ranked_by(topic) for name, topic in topics.items()}
    document = {
        "format": _FORMAT,
        "tombstones": tombstones,
        "topics": {
            name: {"strategy": strategy.value, "strategy_header": header}
            for name, (strategy, header) in ranks.items()
        },
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def decode_facts(data: bytes) -> ExportFacts:
    """Return what ``_state.json`` says; CorruptError, to be located, when it says nothing."""
    try:
        found = json.loads(data)
        if found["format"] != _FORMAT or not isinstance(found["tombstones"], bool):
            raise ValueError(f"format {found['format']}, tombstones {found['tombstones']}")
        topics = {
            str(name): (Strategy(each["strategy"]), each["strategy_header"])
            for name, each in found["topics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"not what an export says of itself; export again: {error!r}") from error
    return ExportFacts(found["tombstones"], topics)


def decode_offsets(data: bytes, topic: str) -> dict[int, int]:
    """Return where to go on in each partition of ``topic``, none where it is not in the export.

    CorruptError, to be located, for what are no offsets.
    """
    try:
        found = json.loads(data)
        offsets = {int(number): int(offset) for number, offset in found.get(topic, {}).items()}
        if any(number < 0 or offset < 0 for number, offset in offsets.items()):
            raise ValueError(f"negative: {offsets}")
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptError(f"these are no offsets of an export; export again: {error!r}") from error
    return offsets
