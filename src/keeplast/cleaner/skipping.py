"""Which segments a round need not read, from what is known of their batches beforehand.

A segment of the clean section that no dirty key is in stays as it is, byte for byte, unless time
alone changes it: a tombstone that expires or gets its horizon, a marker, an empty batch that
nobody needs any more, a format that is converted. :func:`stays` says no whenever that is possible;
skipping must never change what remains (I-22). KIP-1272 leaves these conditions out; tiering.md
section 9.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EMPTIES_MAX = 1024


@dataclass(frozen=True, slots=True)
class SegmentContents:
    """What of a segment's batches a round in which no key matches could change.

    ``unstamped`` are batches with tombstones and without a delete horizon, ``horizon_ms`` the
    earliest horizon, None without one. ``keyless`` are records, the others batches.
    ``transactional`` counts markers too. ``empties`` are producer id and last offset of the batches
    without records; ``more_empties`` says that there are more than could be noted.
    """

    keyless: int = 0
    tombstones: int = 0
    unstamped: int = 0
    horizon_ms: int | None = None
    transactional: int = 0
    old_format: int = 0
    empties: tuple[tuple[int, int], ...] = ()
    more_empties: bool = False


def stays(
    contents: SegmentContents, *, now_ms: int, last_offset: int, last_records: NDArray[np.int64],
    expires_nothing: bool = False,
) -> bool:  # fmt: skip
    """Say whether a round at ``now_ms`` leaves the segment as it is when no key of it is dirty.

    ``last_offset`` is the segment's own, whose batch always stays. ``last_records`` are those of
    :func:`~keeplast.cleaner.producers.last_records`: an empty batch stays while its producer's
    state rests on it. A round that ``expires_nothing`` sets no horizon and heeds none.
    """
    if contents.keyless or contents.transactional or contents.old_format:
        return False
    if not expires_nothing:
        has_passed = contents.horizon_ms is not None and contents.horizon_ms <= now_ms
        if contents.unstamped or has_passed:
            return False
    if contents.more_empties:
        return False
    needed = set(zip(last_records[:, 0].tolist(), last_records[:, 1].tolist(), strict=True))
    return all(each[1] == last_offset or each in needed for each in contents.empties)


def has_no_events(contents: SegmentContents) -> bool:
    """Say whether no transaction runs through the segment.

    Where versions rank, the clean section is read for its winners. A segment without a dirty key
    has none, but what follows it must know of its markers.
    """
    return not contents.transactional
