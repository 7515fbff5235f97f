"""What a round wants to become live on a cluster: segments of the remote tier, and their place.

Pure values. The rule: **outputs cover exactly what their sources covered**, offset by offset and
epoch by epoch, or a broker has a hole where a consumer is reset; tiering.md I-1, I-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from keeplast.errors import InvariantError
from keeplast.format.remote_log_metadata import EpochStart, RemoteLogSegment, TopicIdPartition


@dataclass(frozen=True, slots=True)
class Swap:
    """Outputs that take the place of ``sources``; both ascend by offset, without a hole.

    Sources may lie over one another, outputs may not. Outputs are announced, complete and were read
    back; ``cleaned_to`` is the first offset that is not clean when this and everything before it is
    live. ``cleaned_for`` is where the round ends, exclusive, whose records have decided what is
    left; None is the end of the sources. ``first_dirty`` and ``expires_below`` are
    those of :class:`~keeplast.tier.state.attached.Decision`.
    """

    partition: TopicIdPartition
    sources: tuple[RemoteLogSegment, ...]
    outputs: tuple[RemoteLogSegment, ...]
    cleaned_to: int
    cleaned_for: int | None = None
    first_dirty: int = 0
    expires_below: int = 0

    def __post_init__(self) -> None:
        """Raise InvariantError unless the outputs cover what the sources covered."""
        if not self.sources or not self.outputs:
            raise InvariantError(f"a swap needs sources and outputs. partition={self.partition}")
        for before, after in pairwise(self.outputs):
            if after.start_offset != before.end_offset + 1:
                raise InvariantError(
                    "outputs of a swap have a hole or overlap. "
                    f"end_offset={before.end_offset} next_start={after.start_offset}"
                )
        reach = self.sources[0].end_offset
        for before, after in pairwise(self.sources):
            if not before.start_offset <= after.start_offset <= reach + 1:
                raise InvariantError(
                    "sources of a swap have a hole or do not ascend. "
                    f"end_offset={reach} next_start={after.start_offset}"
                )
            reach = max(reach, after.end_offset)
        had, has = (_cover(each) for each in (self.sources, self.outputs))
        if had != has:
            raise InvariantError(f"a swap changes what is covered. sources={had} outputs={has}")


def merged_epochs(sources: Sequence[RemoteLogSegment]) -> tuple[EpochStart, ...]:
    """Return the epochs of all ``sources``, each with its smallest start, ascending."""
    starts: dict[int, int] = {}
    for source in sources:
        for each in source.epochs:
            starts[each.epoch] = min(each.start_offset, starts.get(each.epoch, each.start_offset))
    return tuple(EpochStart(epoch, starts[epoch]) for epoch in sorted(starts))


def covered(segments: Sequence[RemoteLogSegment]) -> tuple[int, int]:
    """Return the first and the last offset, both inclusive, of ascending segments."""
    return segments[0].start_offset, max(each.end_offset for each in segments)


def _cover(segments: Sequence[RemoteLogSegment]) -> tuple[int, int, tuple[EpochStart, ...]]:
    return *covered(segments), merged_epochs(segments)
