"""How fast rounds in a store may be, and are taken to be for bounds that rest on it.

Apart from the pace of a local daemon because it needs what the tier needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.runner import Runner
from keeplast.service.status import daemon_pace
from keeplast.store.erasure import TierPace
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, GRACE_MS_DEFAULT


def share_of(cleaner: CleanerConfig, runner: Runner, rounds: int) -> CleanerConfig:
    """Return the settings of each of so many rounds that a runner does side by side.

    Threads share one throttle; the tasks of a cluster know of no other round's.
    """
    if runner.shares_memory or cleaner.io_limit is None:
        return cleaner
    return replace(cleaner, io_bytes_per_second=cleaner.io_limit / max(rounds, 1))


def tier_pace(cleaner: CleanerConfig, sizes: Sequence[int]) -> TierPace:
    """Return the pace over logs of these sizes in bytes, one after another on a slow disk.

    Without replicas: a store that is filled by ``import`` or ``copy`` has none of its own.
    """
    pace = daemon_pace(cleaner, None)
    return TierPace(
        every_ms=pace.backoff_ms, round_ms=sum(pace.duration_ms(size) for size in sizes),
        grace_ms=GRACE_MS_DEFAULT, garbage_age_ms=GARBAGE_AGE_MS_DEFAULT, has_followers=False,
    )  # fmt: skip
