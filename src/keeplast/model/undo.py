"""What a wave of a round has kept, so that ``keeplast undo`` can put it back. Pure values.

The waves of a round have its ``attempt``, and all waves of a partition are numbered in the order in
which they were written. A wave also names the segments that it left alone: whether the log is still
what the round left is asked of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum, auto

from msgspec import Struct
from msgspec.structs import replace

from keeplast.model.partition import INT64_MAX


class UndoBar(StrEnum):
    """Why what a round has kept cannot be put back."""

    LATER_ROUND = auto()
    CHANGED = auto()
    CHECKPOINT = auto()
    LOG_START = auto()
    COPY = auto()
    NO_INDEX = auto()
    DAMAGED_LIST = auto()


class UndoRefusal(Struct, frozen=True):
    """A bar, with the offset that it is about: a segment's base, a checkpoint, or the log start."""

    bar: UndoBar
    offset: int | None = None


class KeptSegment(Struct, frozen=True):
    """A segment of a log: base offset, bytes of its ``.log``, their CRC-32C, None when not taken.

    ``inode`` is that of the ``.log``, 0 when it is not known; a copy of a directory has others.
    """

    base_offset: int
    size_bytes: int
    crc32c: int | None
    inode: int = 0


class KeptGroup(Struct, frozen=True):
    """Neighbouring segments and what took their place, both ascending, in [first base, end).

    Both are the same where the group was left alone.
    """

    end_offset: int
    sources: tuple[KeptSegment, ...]
    outputs: tuple[KeptSegment, ...]
    is_left_alone: bool

    @property
    def base_offset(self) -> int:
        """Return where the group begins."""
        return self.sources[0].base_offset

    def source_ends(self) -> tuple[int, ...]:
        """Return the end of each source, exclusive."""
        return (*(each.base_offset for each in self.sources[1:]), self.end_offset)


class KeptWave(Struct, frozen=True):
    """What one wave replaced; it counts until ``until_ms``, exclusive, and from ``kept_at_ms`` on.

    ``number`` is its place among all waves of the partition, ``wave`` the one in its round, from 1.
    ``checkpoint_before`` is the line of the cleaner checkpoint before the round, None without one;
    ``checkpoint_after`` the one after it, None where the round leaves it. It is known of the last
    wave. ``cleaned_for`` is how far rounds before it that the checkpoint left out had looked, None
    without any; it is known of the first wave.
    """

    number: int
    attempt: str
    wave: int
    is_last: bool
    kept_at_ms: int
    until_ms: int
    checkpoint_before: int | None
    checkpoint_after: int | None
    groups: tuple[KeptGroup, ...]
    cleaned_for: int | None = None

    def compared_bytes(self) -> int:
        """Return how much is read where all of it can be put back: what is in place, and copies."""
        read = [each for group in self.groups for each in group.outputs]
        read += [s for group in self.groups if not group.is_left_alone for s in group.sources]
        return sum(each.size_bytes for each in read if each.crc32c is not None)

    def is_over(self, now_ms: int, retention_ms: int) -> bool:
        """Say whether it is no longer to be kept, by what was set then and what is set now.

        A clock that was ahead keeps nothing for more than twice that time.
        """
        until_ms = min(self.until_ms, self.kept_at_ms + retention_ms)
        return now_ms >= until_ms or self.kept_at_ms > now_ms + retention_ms

    def kept_bases(self) -> set[int]:
        """Return the base offsets of the segments whose files were kept."""
        return {s.base_offset for g in self.groups if not g.is_left_alone for s in g.sources}


def may_return(source_ends: Iterable[int], log_start: int) -> bool:
    """Say whether the segments that a group replaced may come back: no source lies below the log
    start.

    ``source_ends`` are exclusive. A source that retention has passed may not come back, and without
    it the group cannot.
    """
    return min(source_ends) > log_start


def above_log_start(wave: KeptWave, log_start: int) -> KeptWave | None:
    """Return what of a wave may still be put back when the log starts at ``log_start``.

    Groups below it have gone. None when it lies in one that was replaced, above a source's end.
    """
    groups = tuple(group for group in wave.groups if group.end_offset > log_start)
    for group in groups:
        if not group.is_left_alone and not may_return(group.source_ends(), log_start):
            return None
    return wave if len(groups) == len(wave.groups) else replace(wave, groups=groups)


def encode_wave(wave: KeptWave) -> dict[str, object]:
    """Return a wave as JSON has it."""
    return {
        "wave": wave.wave,
        "is_last": wave.is_last,
        "kept_at_ms": wave.kept_at_ms,
        "until_ms": wave.until_ms,
        "checkpoint_before": wave.checkpoint_before,
        "checkpoint_after": wave.checkpoint_after,
        "cleaned_for": wave.cleaned_for,
        "groups": [
            {
                "end": group.end_offset,
                "left_alone": group.is_left_alone,
                "sources": [_encode_segment(each) for each in group.sources],
                "outputs": [_encode_segment(each) for each in group.outputs],
            }
            for group in wave.groups
        ],
    }


def decode_wave(document: Mapping[str, object], *, number: int, attempt: str) -> KeptWave:
    """Return the wave of a document; ValueError, KeyError or TypeError when it is none."""
    is_last = document["is_last"]
    if not isinstance(is_last, bool):
        raise TypeError("is_last is no truth value")
    wave = KeptWave(
        number,
        attempt,
        _number(document["wave"]),
        is_last,
        _number(document["kept_at_ms"]),
        _number(document["until_ms"]),
        _number_or_none(document["checkpoint_before"]),
        _number_or_none(document["checkpoint_after"]),
        tuple(_decode_group(each) for each in _list(document["groups"])),
        _number_or_none(document.get("cleaned_for")),
    )
    bases = [each.base_offset for group in wave.groups for each in group.sources]
    ends = [group.end_offset for group in wave.groups]
    inside = all(
        group.base_offset <= each.base_offset < group.end_offset
        for group in wave.groups
        for each in (*group.sources, *group.outputs)
    )
    if bases != sorted(set(bases)) or ends != sorted(set(ends)) or not inside:
        raise ValueError("segments out of order")
    return wave


def _encode_segment(segment: KeptSegment) -> dict[str, object]:
    return {
        "base": segment.base_offset,
        "bytes": segment.size_bytes,
        "crc32c": segment.crc32c,
        "inode": segment.inode,
    }


def _decode_group(value: object) -> KeptGroup:
    document = _mapping(value)
    sources, outputs = (
        tuple(_decode_segment(each) for each in _list(document[name]))
        for name in ("sources", "outputs")
    )
    if not sources or not outputs or not isinstance(document["left_alone"], bool):
        raise ValueError("a group without segments")
    return KeptGroup(_number(document["end"]), sources, outputs, document["left_alone"])


def _decode_segment(value: object) -> KeptSegment:
    document = _mapping(value)
    return KeptSegment(
        _number(document["base"]),
        _number(document["bytes"]),
        _number_or_none(document["crc32c"]),
        _number(document["inode"]),
    )


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2 * INT64_MAX + 1:
        raise TypeError("no number from 0 on")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value)
