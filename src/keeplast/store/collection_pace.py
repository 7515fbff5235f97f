"""When what may be removed of a partition is looked for: at once, or now and then."""

from __future__ import annotations

from collections.abc import Iterable

from keeplast.tier.state.partition_state import Orphan

COLLECT_MS = 60 * 60 * 1000
"""Objects without a row are looked for this often; replaced segments as soon as they may go."""


def is_collection_due(orphans: Iterable[Orphan], last_ms: int | None, *, now_ms: int) -> bool:
    """Say whether to collect: a grace has passed, or the last collection, at ``last_ms``, is long
    ago. None says that there was none; one in the future is that of a clock that was ahead."""
    if any(orphan.not_before_ms <= now_ms for orphan in orphans):
        return True
    return last_ms is None or not 0 <= now_ms - last_ms < COLLECT_MS
