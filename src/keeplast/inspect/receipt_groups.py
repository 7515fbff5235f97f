"""Holds the groups of a receipt against a log: which are in place, and which were never put there.

A line is written before its wave is put in place, and groups become live from the lowest up. So
what an interrupted round leaves is the first groups of its lines in place and the others as they
were found. Anything else is no state of that round, and nobody may take it for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from keeplast.survey.receipt_book import RoundReceipt, SegmentEntry


class Print(NamedTuple):
    """The bytes of a segment: how many, and their CRC-32C."""

    size_bytes: int
    crc32c: int


Prints = Mapping[int, Print]
"""The segments of a log by base offset."""


@dataclass(frozen=True, slots=True)
class ReceiptGroup:
    """What one group was made of, and what of it: it is in place, or as found, or either."""

    inputs: tuple[SegmentEntry, ...]
    outputs: tuple[SegmentEntry, ...]

    def is_in_place(self, log: Prints, expired: frozenset[int]) -> bool:
        """Say whether the outputs are there and nothing else of the inputs is."""
        return _stand(self.outputs, log, expired) and not _others(self.inputs, self.outputs, log)

    def is_as_found(self, log: Prints, expired: frozenset[int]) -> bool:
        """Say whether the inputs are there and nothing else of the outputs is."""
        return _stand(self.inputs, log, expired) and not _others(self.outputs, self.inputs, log)


def groups_of(receipt: RoundReceipt) -> tuple[ReceiptGroup, ...]:
    """Return the groups of all waves that the receipt tells of, ascending."""
    inputs = {segment.base_offset: segment for segment in receipt.inputs}
    outputs: list[list[SegmentEntry]] = []
    for output in receipt.outputs:
        # Of a group's outputs only the first has sources.
        if output.sources or not outputs:
            outputs.append([])
        outputs[-1].append(output)
    return tuple(
        ReceiptGroup(
            tuple(inputs[base] for base in group[0].sources if base in inputs), tuple(group)
        )
        for group in outputs
    )


def count_in_place(receipt: RoundReceipt, log: Prints) -> int | None:
    """Return how many groups are in place, when all others are as they were found; else None."""
    groups = groups_of(receipt)
    count = 0
    while count < len(groups) and groups[count].is_in_place(log, receipt.expired):
        count += 1
    rest = groups[count:]
    return count if all(group.is_as_found(log, receipt.expired) for group in rest) else None


def choose_rounds(
    receipts: Sequence[RoundReceipt],
    *,
    before: Prints | None,
    after: Prints,
    clean_to: tuple[int | None, int | None] = (None, None),
) -> tuple[RoundReceipt, ...]:
    """Return the rounds that lead from one log to another.

    They end with the newest that explains ``after``, and begin with the newest that found
    ``before``. Where none fits wholly the nearest is taken: check receipt then says what differs.
    A round of which nothing was put in place leads nowhere; empty when there is no other. Empty too
    where the newest had ended before ``before``, and ``after`` is the same log, with no cleaner
    checkpoint that has moved: ``clean_to`` are those of both, None where a directory has none.
    """
    receipts = [each for each in receipts if _has_happened(each, after)]
    if not receipts:
        return ()
    last = max(range(len(receipts)), key=lambda i: (_rate_explanation(receipts[i], after), i))
    if before is None:
        return (receipts[last],)
    newest, (clean_before, clean_after) = receipts[last], clean_to
    has_moved = clean_after is not None and clean_after > (
        newest.end_offset if clean_before is None else clean_before
    )
    if not has_moved and _is_behind(newest, before) and _is_same(before, after, newest.expired):
        return ()
    first = max(range(last + 1), key=lambda i: (_share(receipts[i].inputs, before), i))
    return tuple(receipts[first : last + 1])


def rounds_within(
    receipts: Sequence[RoundReceipt], log: Prints, *, by_size: bool = False
) -> tuple[RoundReceipt, ...]:
    """Return the rounds that wrote a segment of ``log``, in the order of ``receipts``.

    For a log whose segments an owner replaces and never changes: a round is in it as long as one of
    its outputs is, byte for byte; what was left alone nobody wrote. ``by_size`` is for segments
    that may not be what was written any more: where no round wrote the very bytes of one, the
    newest counts that wrote as many there.
    """
    return _listed(receipts, _Writers(receipts).of(log, by_size=by_size))


def rounds_behind(
    receipts: Sequence[RoundReceipt], log: Prints, *, by_size: bool = False
) -> tuple[RoundReceipt, ...]:
    """Return the rounds that a log has come of, in the order of ``receipts``.

    Those of :func:`rounds_within`, and those of which such a one has read an output, told by its
    checksum. What nobody put in place is in neither.
    """
    writers = _Writers(receipts)
    chosen = writers.of(log, by_size=by_size)
    # Inputs are of earlier rounds alone, so that one pass from the newest on finds them all.
    for number in range(len(receipts) - 1, -1, -1):
        if number in chosen:
            for each in receipts[number].inputs:
                found = writers.exact.get((each.base_offset, each.size_bytes, each.crc32c), ())
                chosen.update(earlier for earlier in found if earlier < number)
    return _listed(receipts, chosen)


class _Writers:
    """Which rounds, by their numbers, wrote what: outputs that are no inputs, whose checksums were
    taken. By base offset, size and checksum, and by base offset and size.
    """

    def __init__(self, receipts: Sequence[RoundReceipt]) -> None:
        self.exact: dict[tuple[int, int, int | None], list[int]] = {}
        self._alike: dict[tuple[int, int], list[int]] = {}
        for number, receipt in enumerate(receipts):
            found = {(s.base_offset, s.size_bytes, s.crc32c) for s in receipt.inputs}
            for s in receipt.outputs:
                name = (s.base_offset, s.size_bytes, s.crc32c)
                if s.crc32c is not None and name not in found:
                    self.exact.setdefault(name, []).append(number)
                    self._alike.setdefault(name[:2], []).append(number)

    def of(self, log: Prints, *, by_size: bool) -> set[int]:
        """Return those that wrote a segment of ``log``."""
        chosen: set[int] = set()
        for base, found in log.items():
            exact = self.exact.get((base, found.size_bytes, found.crc32c), ())
            alike = self._alike.get((base, found.size_bytes), ()) if by_size else ()
            chosen.update(exact or alike[-1:])
        return chosen


def _listed(receipts: Sequence[RoundReceipt], numbers: Set[int]) -> tuple[RoundReceipt, ...]:
    return tuple(each for number, each in enumerate(receipts) if number in numbers)


def _has_happened(receipt: RoundReceipt, after: Prints) -> bool:
    """Say whether anything of a round was put in place.

    Otherwise all that it found is there still, and something is not as it would have left it. The
    last segment that it found is active, and may have grown.
    """
    found = receipt.inputs[:-1]
    is_as_found = _share(found, after) == 1.0 if found else False
    return not is_as_found or _share(receipt.outputs, after) == 1.0


def _is_behind(receipt: RoundReceipt, log: Prints) -> bool:
    """Say whether a log is what a round left, and not at the same time what it found.

    A round that changes nothing finds what it leaves, and its receipt may then be held against it.
    """
    return (
        count_in_place(receipt, log) is not None
        and bool(receipt.inputs)
        and _share(receipt.inputs[:-1], log) < 1.0
    )


def _is_same(before: Prints, after: Prints, expired: frozenset[int]) -> bool:
    """Say whether no closed segment differs but by expiry; behind them a log may have grown."""
    active = max(before)
    closed = {base: found for base, found in before.items() if base < active}
    kept = {base: found for base, found in after.items() if base < active}
    gone = closed.keys() - kept.keys()
    return gone <= expired and all(closed.get(base) == found for base, found in kept.items())


def _rate_explanation(receipt: RoundReceipt, after: Prints) -> float:
    """Return which part of its outputs a round explains: in place, or rightly not."""
    if count_in_place(receipt, after) is not None:
        return 1.0
    return _share(receipt.outputs, after)


def _stand(segments: Sequence[SegmentEntry], log: Prints, expired: frozenset[int]) -> bool:
    return all(
        s.base_offset in expired if s.base_offset not in log else _fits(s, log) for s in segments
    )


def _others(
    segments: Sequence[SegmentEntry], present: Sequence[SegmentEntry], log: Prints
) -> set[int]:
    kept = {segment.base_offset for segment in present}
    return {s.base_offset for s in segments if s.base_offset in log} - kept


def _fits(segment: SegmentEntry, log: Prints) -> bool:
    found = log.get(segment.base_offset)
    return (
        found is not None
        and found.size_bytes == segment.size_bytes
        and segment.crc32c in (None, found.crc32c)
    )


def _share(segments: Sequence[SegmentEntry], log: Prints) -> float:
    """Return which part of ``segments`` is there with the bytes they have."""
    return sum(_fits(segment, log) for segment in segments) / max(len(segments), 1)
