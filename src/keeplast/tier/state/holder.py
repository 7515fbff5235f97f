"""Who has a partition: the process that holds it, and the lease of its leader. Pure.

A holder is one opened store of one process. Its random id is compared in every transaction, so that
of two processes with the same owner's name one alone can change anything. The rest serves decisions
without waiting, and people. A machine's boot and its process numbers show for certain that a
process is over; nothing on another machine does. Wrong answers cost work and never records.

A lease shows that a leader's process was alive, by a number that grows. What a reader must not
break: a lease fences no process. Leader epoch and holder do that, in every transaction; a lease
says only when a takeover is worth it. No clocks are compared: a process that waits sees by its own
monotonic clock how long the number has stayed the same.
"""

from __future__ import annotations

import json
import os
import socket
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

PROC = Path("/proc")
ID_BYTES = 16
STARTED_FIELD = 19
"""Where ``/proc/PID/stat`` has the start time, counted after the command's closing bracket."""


class Holder(Struct, frozen=True):
    """A process that may hold partitions.

    ``machine`` names one boot of one machine, and one table of process numbers on it; it is empty
    where the system does not say. ``started`` distinguishes processes of one number.
    """

    id: str
    host: str
    pid: int
    machine: str
    started: str

    def __str__(self) -> str:
        return f"process={self.pid} host={self.host}"

    def is_process_of(self, other: Holder) -> bool:
        """Say whether both are the same process, which opened two stores."""
        return (self.host, self.pid, self.machine, self.started) == (
            other.host, other.pid, other.machine, other.started,
        )  # fmt: skip

    def is_comparable(self, other: Holder) -> bool:
        """Say whether it can be seen if the other's process still runs."""
        return bool(self.machine) and self.machine == other.machine

    def knows_over(self, other: Holder) -> bool:
        """Say whether the other's process is over for certain."""
        return self.is_comparable(other) and _find_start(other.pid) != other.started

    def to_json(self) -> str:
        """Return it as text, without its id."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "id"}, sort_keys=True)

    @classmethod
    def of_json(cls, holder_id: str, text: str) -> Holder:
        """Return what :meth:`to_json` has written."""
        found = json.loads(text)
        known = {name: found[name] for name in cls.__struct_fields__ if name != "id"}
        return cls(holder_id, **known)


def new_holder() -> Holder:
    """Return this process as a holder that no store knows yet."""
    pid = os.getpid()
    # Not from a seed that a test may have set: it is compared, and nothing follows from its order.
    holder_id = os.urandom(ID_BYTES).hex()
    return Holder(holder_id, socket.gethostname(), pid, _machine(), _find_start(pid) or "")


@cache
def _machine() -> str:
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _find_start(pid: int) -> str | None:
    """Return when a process started, in the system's own count; None when it is over."""
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # After the command, which may hold spaces and brackets; Z and X wait for their parent only.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else rest[STARTED_FIELD - 1]


LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 3_600_000
PREFIX = "lease/"


class Lease(Struct, frozen=True):
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
            numbers = {name: found[name] for name in cls.__struct_fields__ if name != "holder"}
            if not all(type(each) is int and each >= 0 for each in numbers.values()):
                return None
            lease = cls(holder=str(found["holder"]), **numbers)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return lease if LEASE_MS_MIN <= lease.lease_ms <= LEASE_MS_MAX else None


def key_of(row_id: int) -> str:
    """Return the name of the fact that keeps the lease of a partition's row."""
    return f"{PREFIX}{row_id}"
