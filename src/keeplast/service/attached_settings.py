"""What ``attach run`` is asked for, as values; who wires the loop makes them from options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.attach.rounds.allowance import DaySum
from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, WhyWait
from keeplast.cluster.facts import TopicFacts
from keeplast.config.settings import Settings
from keeplast.model.keyless import Keyless
from keeplast.model.shape import Shape
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT

INTERVAL_MS_DEFAULT = 60_000
SWAPS_A_DAY, RECORDS_A_DAY = 500, 20_000
CAPS_DEFAULT = DaySum(SWAPS_A_DAY, RECORDS_A_DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedSettings:
    """What stays the same from start to end.

    ``address`` is the cluster's, as people type it. Without ``topics`` the loop is about what the
    decision log has as attached; with them about all partitions of those, or those of
    ``partitions``. ``settings_of`` reads anew what is wanted of topics. ``keep_sources_ms`` is
    written down with each swap, for whoever collects it. ``why_wait`` is asked whether brokers have
    heard of a swap before its sources go. ``takes_over`` takes partitions from other
    processes at the first claim of each. ``receipt`` is a file that takes a line of every wave and
    collection.
    """

    address: str
    settings_of: Callable[[Sequence[TopicFacts]], Settings]
    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    interval_ms: int = INTERVAL_MS_DEFAULT
    grace_ms: int = GRACE_MS_DEFAULT
    keep_sources_ms: int = 0
    why_wait: WhyWait | None = None
    caps: DaySum = CAPS_DEFAULT
    keyless: Keyless = Keyless.FAIL
    takes_over: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    shape: Shape | None = None
    receipt: Path | None = None
