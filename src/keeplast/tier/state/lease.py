"""A leader's lease of a partition: that its process was alive, by a number that grows. Pure.

What a reader must not break: a lease fences nobody. That is done by leader epoch and holder, in
every transaction; a lease says only when it is worth to take over. No clocks are compared: who
waits sees by its own monotonic clock how long the number has stayed the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 3_600_000
PREFIX = "lease/"


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of the leader at ``epoch``, the process ``holder``; it renews it well within
    ``lease_ms``.

    ``number`` grows with each renewal. ``acknowledged`` is the leader's high watermark, exclusive:
    a host that has less of the log would lose what was promised.
    """

    epoch: int
    holder: str
    lease_ms: int
    acknowledged: int
    number: int = 0

    @property
    def fence(self) -> tuple[int, str | None]:
        """Return what is compared with a partition's own fence: whose lease it is."""
        return self.epoch, self.holder

    def renewed(self, acknowledged: int) -> Lease:
        """Return the next one of the same leader, whose high watermark never falls."""
        return replace(
            self, number=self.number + 1, acknowledged=max(self.acknowledged, acknowledged)
        )

    def encode(self) -> str:
        """Return the text that is kept."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> Lease | None:
        """Return what a text says, None when it is none of ours."""
        try:
            found = json.loads(text)
            numbers = {each.name: found[each.name] for each in fields(cls) if each.name != "holder"}
            if not all(type(each) is int and each >= 0 for each in numbers.values()):
                return None
            lease = cls(holder=str(found["holder"]), **numbers)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return lease if LEASE_MS_MIN <= lease.lease_ms <= LEASE_MS_MAX else None


def key_of(row_id: int) -> str:
    """Return the name of the fact that keeps the lease of a partition's row."""
    return f"{PREFIX}{row_id}"
