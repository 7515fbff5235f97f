"""What rounds did in a store, summed up by day and host: figures that its metadata keep a month.

Nothing is decided by them. What cannot be read of them counts as nothing, and fails no commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from keeplast.model.partition import TopicPartition

DAY_MS = 86_400_000
DAYS_KEPT = 31
HOSTS_MAX = 32
"""Of one partition in one day; further ones are left out."""
PREFIX = "rounds/"
HOST_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class RoundSums:
    """Sums over ``rounds``, the last of which ended at ``last_ms``.

    ``came_bytes`` are those of the dirty sections: what came since the rounds before.
    """

    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    came_bytes: int = 0
    milliseconds: int = 0
    last_ms: int = 0

    def __add__(self, other: RoundSums) -> RoundSums:
        """Return the sums of both."""
        names = [each.name for each in fields(RoundSums) if each.name != "last_ms"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return RoundSums(**sums, last_ms=max(self.last_ms, other.last_ms))


@dataclass(frozen=True, slots=True)
class RoundDay:
    """What the rounds of one host did with a partition on the day from ``day_ms`` on, UTC."""

    partition: TopicPartition
    day_ms: int
    host: str
    sums: RoundSums


@dataclass(frozen=True, slots=True)
class KeptDay:
    """One day of one partition as it is kept, by host."""

    hosts: Mapping[str, RoundSums]

    def encode(self) -> str:
        """Return the text that is kept."""
        hosts = {
            host: [getattr(sums, each.name) for each in fields(RoundSums)]
            for host, sums in self.hosts.items()
        }
        return json.dumps({"hosts": hosts}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> KeptDay | None:
        """Return what a text says, None when it is none of ours."""
        try:
            found = json.loads(text)
            count = len(fields(RoundSums))
            hosts = {
                str(host): RoundSums(*(int(each) for each in sums))
                for host, sums in found["hosts"].items()
                if len(sums) == count
            }
            return cls(hosts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None


def key_of(row_id: int, day: int) -> str:
    """Return the name of the fact that keeps a day, in days since 1970, of a partition's row."""
    return f"{PREFIX}{row_id}/{day}"


def parse_key(key: str) -> tuple[int, int] | None:
    """Return row and day of a fact's name, None when it is another fact's."""
    parts = key.removeprefix(PREFIX).split("/")
    if not key.startswith(PREFIX) or len(parts) != 2 or not all(map(str.isdigit, parts)):
        return None
    return int(parts[0]), int(parts[1])


def with_round(day: KeptDay | None, host: str, done: RoundSums) -> KeptDay:
    """Return a day, None for one that begins, once a round of ``host`` is done."""
    known = {} if day is None else dict(day.hosts)
    name = host[:HOST_CHARS_MAX]
    if name in known or len(known) < HOSTS_MAX:
        known[name] = known.get(name, RoundSums()) + done
    return KeptDay(known)
