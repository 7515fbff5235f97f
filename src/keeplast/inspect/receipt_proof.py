"""Holds receipts against the files they are about: sizes, batches, checksums, what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.inspect.log_facts import LogFacts
from keeplast.inspect.receipt_groups import Print, Prints, count_in_place, groups_of
from keeplast.inspect.verdicts import Check, Finding, Findings, VerificationReport
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.model.verdict import Verdict
from keeplast.survey.receipt_book import RoundReceipt, SegmentEntry
from keeplast.survey.receipt_chain import ChainReport


def check_receipt(
    rounds: Sequence[RoundReceipt],
    left: tuple[VerifiedLog, LogFacts] | None,
    right: tuple[VerifiedLog, LogFacts],
    *,
    checkpoint: int | None = None,
) -> Findings:
    """Return where inputs of the first round or outputs of the last one are other files.

    Where the last one was interrupted, what it has not put in place must be as it was found.
    ``checkpoint`` is the cleaner checkpoint of the log: behind the end of a round it says that the
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
            is_active = segment is last.inputs[-1]
            _check_segment("after", segment, right, findings, grows=is_active)
    if len(in_place) == len(groups):
        _check_records(last, bases, right[1], findings)
    return findings


def interruption(
    last: RoundReceipt, right: tuple[VerifiedLog, LogFacts], checkpoint: int | None
) -> tuple[str, ...]:
    """Return what to tell of a round that did not come to its end, nothing of any other."""
    count, told = _in_place(last, right, checkpoint), len(groups_of(last))
    if count == told and last.has_ended:
        return ()
    more = "" if last.has_ended else "; more were to follow"
    return (
        f"the last round was interrupted: {count} of the {told} groups that its receipt tells of "
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
    """Return what the bytes of every segment are told by."""
    return {
        s.base_offset: Print(s.size_bytes, log[1].segments[s.base_offset].crc32c)
        for s in log[0].segments
    }


def _was_rolled(active: SegmentEntry, before: VerifiedLog) -> bool:
    """Say whether the round found an empty active segment that a roll had put behind ``before``."""
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
    """Count the records of all outputs; a set of an old format tells its number to nobody."""
    written = [facts.segments[base] for base in outputs if base in facts.segments]
    count = sum(segment.records for segment in written)
    if any(segment.has_old_format for segment in written):
        return
    if len(written) == len(outputs) and count != last.messages_written:
        findings.add(
            f"after: the outputs hold {count} records, the receipt says {last.messages_written}"
        )


def chain_check(chain: ChainReport) -> Check:
    """Return the check of a receipt of which nothing is judged but its chain."""
    found = Findings()
    for problem in chain.problems:
        found.add(f"chain: {problem}")
    return found.check("receipt", f"the receipt is as it was written; {chain.sentence}")


def with_check(report: VerificationReport, chain: ChainReport) -> VerificationReport:
    """Return a report with the check of a receipt that it had none of."""
    return replace(report, checks=(*report.checks, chain_check(chain)))


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
