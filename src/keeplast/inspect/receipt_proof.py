"""Holds receipts against the files they are about: sizes, batches, checksums, what is gone.

The rule that a reader must not break: a line is written before its wave is put in place, and groups
become live from the lowest up. So what an interrupted round leaves is the first groups of its lines
in place and the others as they were found. Any other state is not one of that round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from keeplast.inspect.log_facts import LogFacts
from keeplast.inspect.verified_log import Check, Finding, Findings, VerificationReport, VerifiedLog
from keeplast.model.document import Verdict
from keeplast.survey.receipt_book import RoundReceipt, SegmentEntry
from keeplast.survey.receipt_chain import ChainReport


class Print(NamedTuple):
    """The bytes of a segment: how many, and their CRC-32C."""

    size_bytes: int
    crc32c: int


Prints = Mapping[int, Print]
"""The segments of a log by base offset."""


class ReceiptGroup(Struct, frozen=True):
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
    """Return the groups of all waves in the receipt, ascending."""
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
    ``before``. Where none fits wholly the nearest is taken: check receipt then says what differs. A
    round that put nothing in place leads nowhere; empty when there is no other.

    Empty too where the newest had ended before ``before``, and ``after`` is the same log, with no
    cleaner checkpoint that has moved. ``clean_to`` are those of both, None where a directory has
    none.
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

    For a log whose segments an owner replaces and never changes. A round is in it as long as one of
    its outputs is, byte for byte; no round wrote what was left alone. ``by_size`` is for segments
    that may not be what was written any more. Where no round wrote the very bytes of one, the
    newest counts that wrote as many there.
    """
    return _listed(receipts, _Writers(receipts).of(log, by_size=by_size))


def rounds_behind(
    receipts: Sequence[RoundReceipt], log: Prints, *, by_size: bool = False
) -> tuple[RoundReceipt, ...]:
    """Return the rounds that a log has come of, in the order of ``receipts``.

    Those of :func:`rounds_within`, and those whose output such a round has read, by its checksum. A
    round that put nothing in place is in neither.
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
    """Say whether no closed segment differs but by expiry; above them a log may have grown."""
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


def check_receipt(
    rounds: Sequence[RoundReceipt],
    left: tuple[VerifiedLog, LogFacts] | None,
    right: tuple[VerifiedLog, LogFacts],
    *,
    checkpoint: int | None = None,
) -> Findings:
    """Return where inputs of the first round or outputs of the last one are other files.

    Where the last one was interrupted, what it has not put in place must be as it was found.
    ``checkpoint`` is the cleaner checkpoint of the log: above the end of a round it says that the
    round was not. The active segment may have grown since: a broker may have gone on.
    """
    findings = Findings()
    first, last = rounds[0], rounds[-1]
    if left is not None:
        for segment in first.inputs:
            is_active = segment is first.inputs[-1]
            if is_active and _was_rolled(segment, left[0]):
                continue
            _check_segment("before", segment, left, findings, grows=is_active)
    groups = groups_of(last)
    in_place = groups[: _in_place(last, right, checkpoint)]
    outputs = [output for group in in_place for output in group.outputs]
    for segment in outputs:
        if not _has_expired(segment, last, right[0]):
            _check_segment("after", segment, right, findings, grows=False)
    sources = {segment.base_offset for group in in_place for segment in group.inputs}
    bases = {output.base_offset for output in outputs}
    found = {s.base_offset for s in right[0].segments}
    for base in sorted((sources - bases) & found):
        findings.add("after: a segment that was merged into another is still there", offset=base)
    for segment in last.inputs:
        if segment.base_offset not in sources and not _has_expired(segment, last, right[0]):
            _check_segment("after", segment, right, findings, grows=segment is last.inputs[-1])
    if len(in_place) == len(groups):
        _check_records(last, bases, right[1], findings)
    return findings


def interruption(
    last: RoundReceipt, right: tuple[VerifiedLog, LogFacts], checkpoint: int | None
) -> tuple[str, ...]:
    """Return what to report of a round that did not come to its end, nothing of any other."""
    count, wanted = _in_place(last, right, checkpoint), len(groups_of(last))
    if count == wanted and last.has_ended:
        return ()
    more = "" if last.has_ended else "; more were to follow"
    return (
        f"the last round was interrupted: {count} of the {wanted} groups that its receipt names "
        f"are in place, the others are as it found them{more}",
    )


def _in_place(
    last: RoundReceipt, right: tuple[VerifiedLog, LogFacts], checkpoint: int | None
) -> int:
    """Return how many groups of a round must be in place: all that may be said of it otherwise."""
    groups = len(groups_of(last))
    was_finished = (
        checkpoint is not None
        and last.clean_to is not None
        and last.clean_to < last.end_offset <= checkpoint
    )
    if was_finished:
        return groups
    count = count_in_place(last, prints_of(right))
    return groups if count is None else count


def prints_of(log: tuple[VerifiedLog, LogFacts]) -> Prints:
    """Return the sums that every segment's bytes are known by."""
    return {
        s.base_offset: Print(s.size_bytes, log[1].segments[s.base_offset].crc32c)
        for s in log[0].segments
    }


def _was_rolled(active: SegmentEntry, before: VerifiedLog) -> bool:
    """Say whether the round found an empty active segment that a roll had put above ``before``."""
    newest = before.segments[-1].base_offset
    return active.size_bytes == 0 and active.base_offset == before.end > newest


def _has_expired(segment: SegmentEntry, last: RoundReceipt, log: VerifiedLog) -> bool:
    """Say whether a segment is gone because a later line of the receipts says that it expired."""
    is_there = any(s.base_offset == segment.base_offset for s in log.segments)
    return not is_there and segment.base_offset in last.expired


def _check_segment(
    side: str,
    segment: SegmentEntry,
    log: tuple[VerifiedLog, LogFacts],
    findings: Findings,
    *,
    grows: bool,
) -> None:
    base = segment.base_offset
    found = next((s for s in log[0].segments if s.base_offset == base), None)
    if found is None:
        findings.add(f"{side}: the segment is missing", offset=base)
        return
    facts = log[1].segments[base]
    size = found.size_bytes
    if size != segment.size_bytes and not (grows and size > segment.size_bytes):
        findings.add(
            f"{side}: the segment has {size} bytes, the receipt says {segment.size_bytes}",
            offset=base,
        )
    elif segment.batches is not None and facts.batches != segment.batches:
        findings.add(
            f"{side}: the segment has {facts.batches} batches, the receipt says {segment.batches}",
            offset=base,
        )
    elif segment.crc32c is not None and facts.crc32c != segment.crc32c:
        findings.add(
            f"{side}: the segment's bytes have CRC-32C {facts.crc32c:#010x}, the receipt says "
            f"{segment.crc32c:#010x}",
            offset=base,
        )


def _check_records(
    last: RoundReceipt, outputs: set[int], facts: LogFacts, findings: Findings
) -> None:
    """Count the records of all outputs; a set of an old format has no number of them."""
    written = [facts.segments[base] for base in outputs if base in facts.segments]
    count = sum(segment.records for segment in written)
    if any(segment.has_old_format for segment in written):
        return
    if len(written) == len(outputs) and count != last.messages_written:
        findings.add(
            f"after: the outputs hold {count} records, the receipt says {last.messages_written}"
        )


def with_check(report: VerificationReport, chain: ChainReport) -> VerificationReport:
    """Return a report with the check of a receipt that it had none of, by its chain alone."""
    found = Findings()
    for problem in chain.problems:
        found.add(f"chain: {problem}")
    check = found.check("receipt", f"the receipt is as it was written; {chain.sentence}")
    return replace(report, checks=(*report.checks, check))


def with_chain(report: VerificationReport, chain: ChainReport) -> VerificationReport:
    """Return a report whose check of the receipt says what the receipt's chain proves.

    A receipt that was changed is no receipt of anything: the check is broken then.
    """

    def checked(check: Check) -> Check:
        if check.name != "receipt":
            return check
        claim = f"{check.claim}; {chain.sentence}"
        if not chain.problems:
            return replace(check, claim=claim)
        found = tuple(Finding(f"chain: {problem}") for problem in chain.problems)
        return replace(
            check, claim=claim, verdict=Verdict.BROKEN, findings=(*found, *check.findings),
            count=check.count + len(found),
        )  # fmt: skip

    return replace(report, checks=tuple(checked(each) for each in report.checks))
