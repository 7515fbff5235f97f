"""``verify``, for every kind of place: by what is judged, the answer, and the verdict in a receipt.

The rule: judging needs the right to read and no other. Only where notes are asked for a line is
appended, to the receipt that was judged by: it is chained like every other line of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.sources import read_settings
from keeplast.errors import (
    CompactionError,
    InvalidError,
    RefusedError,
    code_of,
    error_text,
)
from keeplast.inspect.receipt_proof import with_chain
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.model.document import Verdict
from keeplast.model.partition import TopicPartition
from keeplast.run.foresight import prove_receipt
from keeplast.run.receipt import append_receipt, verdict_line
from keeplast.service.search_tasks import attempt
from keeplast.survey.receipt_book import (
    Entry,
    RoundReceipt,
    read_chain,
    read_entries,
    read_receipts,
    rounds_of,
)
from keeplast.survey.receipt_chain import ChainHead, ChainReport
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

EMPTY_RECEIPT = "the receipt file is empty: clean leaves it so when nothing was cleaned."
Judgement = VerificationReport | CompactionError | OSError
"""What a partition was found to be, or why it could not be judged at all."""


class VerifyTerms(Struct, frozen=True, kw_only=True):
    """By what logs are judged, and who hears of it.

    ``after`` are the cleaned logs, where the place has them from before; ``replicas`` says that the
    two are replicas. ``receipt`` is a file of receipts, and ``receipt_head`` the head of its chain
    that was kept elsewhere. ``notes`` appends each verdict to the receipt. ``now_ms`` is the clock
    of a round without a receipt. ``memory_bytes`` is for sorting keys. ``heard`` hears of each
    partition when it is judged, by its name; what ``progressed`` raises as a StoppedError ends all.
    """

    after: str | Path | None = None
    replicas: bool = False
    receipt: Path | None = None
    receipt_head: str | None = None
    notes: bool = False
    now_ms: int | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    heard: Callable[[str, Judgement], None] = lambda name, found: None
    planned: Callable[[int], None] = lambda count: None
    progressed: Callable[[int], None] = lambda count: None

    def require_receipt(self) -> None:
        """Raise InvalidError for what is about a receipt where none was given."""
        if self.receipt_head is not None and self.receipt is None:
            raise InvalidError(
                "--receipt-head is of a receipt; give --receipt FILE too.", code="K102"
            )
        if self.notes and self.receipt is None:
            raise InvalidError(
                "--note writes into a receipt; give --receipt FILE too.", code="K102"
            )


class VerifyAnswer(Struct, frozen=True):
    """The judgement of each partition by its name, and the receipt's chain where one was given.

    ``noted`` is how many verdicts were appended to the receipt, None where that was not asked for.
    """

    partitions: tuple[tuple[str, Judgement], ...]
    chain: ChainReport | None = None
    noted: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def reports(self) -> tuple[VerificationReport, ...]:
        """Return the reports of all partitions that could be judged."""
        return tuple(
            each for _, each in self.partitions if isinstance(each, VerificationReport)
        )  # fmt: skip

    @property
    def faults(self) -> tuple[CompactionError | OSError, ...]:
        """Return why the other partitions could not be judged."""
        return tuple(
            each for _, each in self.partitions if not isinstance(each, VerificationReport)
        )  # fmt: skip

    def fails(self, *, is_strict: bool) -> bool:
        """Return whether a check is broken or, if that is strict, cannot be judged."""
        verdicts = {each.verdict for each in self.reports}
        return (
            Verdict.BROKEN in verdicts
            or (is_strict and Verdict.UNJUDGED in verdicts)
            or (self.chain is not None and bool(self.chain.problems))
        )

    def document(self, fault_text: Callable[[Exception], str] = error_text) -> dict[str, Any]:
        """Return what documents say of it."""
        document: dict[str, Any] = {
            "partitions": [
                each
                if isinstance(each, VerificationReport)
                else {"partition": name, "error": fault_text(each), "code": code_of(each)}
                for name, each in self.partitions
            ],
            "warnings": self.warnings,
        }
        if self.chain is not None:
            document["receipt"] = {
                "sentence": self.chain.sentence,
                "is_tail_proven": self.chain.is_tail_proven,
                "host": None if self.chain.chain is None else self.chain.chain.host,
                "chains_elsewhere": len(self.chain.others),
                "problems": self.chain.problems,
            }
        if self.noted is not None:
            document["noted"] = self.noted
        return document


class ChosenPartition(Struct, frozen=True):
    """A partition that is to be judged; ``name`` is how the report calls it."""

    name: str
    partition: TopicPartition
    judge: Callable[[], VerificationReport]


def judge_each(
    chosen: Iterable[ChosenPartition],
    terms: VerifyTerms,
    files: FileSystem,
    chain: ChainReport | None,
    warnings: tuple[str, ...] = (),
) -> VerifyAnswer:
    """Judge partitions one after the other; a fault of one keeps no other from it.

    A verdict is noted as soon as it was heard. Raises StoppedError, and OSError where a note cannot
    be written.
    """
    found: list[tuple[str, Judgement]] = []
    noted = 0
    for each in chosen:
        judged: Judgement = attempt(each.judge)
        found.append((each.name, judged))
        terms.heard(each.name, judged)
        if terms.notes and terms.receipt is not None and isinstance(judged, VerificationReport):
            noted += _note_verdict(files, terms.receipt, each.partition, judged)
    return VerifyAnswer(tuple(found), chain, noted if terms.notes else None, warnings)


def read_judged_rounds(terms: VerifyTerms, files: FileSystem) -> tuple[RoundReceipt, ...]:
    """Return the rounds of the receipt of a log with an owner; none unless verdicts are noted.

    Called before anything is judged, which may take hours. InvalidError for a file that is not
    there, or no receipt; RefusedError for one to which nothing can be appended. The heads that are
    kept show whether a file without lines was emptied.
    """
    terms.require_receipt()
    if terms.receipt is None:
        return ()
    _require_file(terms.receipt, files)
    if not terms.notes:
        return ()
    _prove_note(files, terms.receipt, ())
    return read_receipts(terms.receipt, files)


def verify_directories(
    places: Sequence[Path],
    files: FileSystem,
    choice: PartitionChoice,
    sources: SettingSources,
    terms: VerifyTerms,
) -> VerifyAnswer:
    """Judge the partitions of the last of ``places``, by the first where there are two.

    InvalidError for places that do not fit together, and for a receipt of another directory.
    """
    _check_places(places, files, terms)
    is_empty = terms.receipt is not None and _is_empty(terms.receipt, files)
    entries: tuple[Entry, ...] = ()
    chain: ChainReport | None = None
    if terms.receipt is not None:
        entries = () if is_empty else read_entries(terms.receipt, files)
        if entries or terms.receipt_head is not None:
            head = terms.receipt_head
            kept = None if head is None else ChainHead.parse(head)
            chain = read_chain(terms.receipt, files, kept)
    pairs = find_pairs(places, files, choice, are_replicas=terms.replicas)
    described = {each.partition for each in entries if each.partition is not None}
    if described and described.isdisjoint(pair.partition for pair in pairs.found):
        # A receipt of another directory would pass for one of rounds that found nothing to do.
        raise InvalidError(
            "the receipt is about none of these partitions; give the receipt of this directory. "
            f"in_receipt={min(described)} partition={pairs.found[0].partition} "
            f"path={terms.receipt}",
            code="K620",
        )
    if terms.notes and terms.receipt is not None:
        # Before anything is judged, which may take hours.
        paths = [path for pair in pairs.found for path in (pair.before, pair.after)]
        _prove_note(files, terms.receipt, [path for path in paths if path is not None])
    settings = read_settings(pairs.root, files, sources)
    rounds = rounds_of(entries)

    def judge(pair: Pair) -> VerificationReport:
        verifier = Verifier(
            files,
            VerifySettings(
                topic=settings.topic_config(pair.partition.topic),
                cleaner=settings.cleaner_config(),
                now_ms=terms.now_ms,
                memory_bytes=terms.memory_bytes,
            ),
        )
        own = [each for each in rounds if each.partition == pair.partition]
        if pair.before is None:
            report = verifier.verify_in_place(pair.after, own)
        elif terms.replicas:
            report = verifier.verify_replicas(pair.before, pair.after)
        else:
            given = None if terms.receipt is None else own
            report = verifier.verify_pair(pair.before, pair.after, given)
        if chain is not None:
            report = with_chain(report, chain)
        if is_empty:
            note = f"{EMPTY_RECEIPT} receipt={terms.receipt}"
            report = replace(report, notes=(note, *report.notes))
        return report

    chosen = (
        ChosenPartition(pair.after.name, pair.partition, partial(judge, pair))
        for pair in pairs.found
    )
    return judge_each(chosen, terms, files, chain, settings.warnings)


class Pair(Struct, frozen=True):
    """One partition; ``before`` None where only the cleaned one is there."""

    partition: TopicPartition
    before: Path | None
    after: Path


class Pairs(Struct, frozen=True):
    """The pairs of a call, and the data directory whose settings count."""

    root: Path
    found: tuple[Pair, ...]


def find_pairs(
    places: Sequence[Path],
    files: FileSystem,
    choice: PartitionChoice,
    *,
    are_replicas: bool,
) -> Pairs:
    """Return the partitions of the last place with their counterparts in the first.

    InvalidError when a partition is only in one of them: a verdict on the rest would be taken for
    a verdict on all.
    """
    directories = [open_data_directory(place, files) for place in places]
    found = [_paths(each, choice) for each in directories]
    is_single = all(each.is_single for each in directories)
    if is_single and [len(each) for each in found] == [1, 1]:
        # Two directories that were named one by one may have any names.
        (before,), (after,) = found[0].values(), found[1].values()
        (partition,) = found[1]
        return Pairs(directories[1].root, (Pair(partition, before, after),))
    alone = found[0].keys() ^ found[-1].keys()
    if alone:
        what = "replica" if are_replicas else "log"
        raise InvalidError(
            f"a partition is in one directory only, there is no {what} to compare with; choose "
            f"with --topic. partition={min(alone)}",
            code="K623",
        )
    if not found[-1]:
        raise InvalidError(f"no partition to verify. path={places[-1]}", code="K623")
    return Pairs(
        directories[-1].root,
        tuple(
            Pair(partition, found[0][partition] if len(found) == 2 else None, path)
            for partition, path in found[-1].items()
        ),
    )


def _paths(directory: DataDirectory, choice: PartitionChoice) -> dict[TopicPartition, Path]:
    return {
        entry.partition: entry.path
        for entry in directory.partitions
        if entry.mark is None
        and entry.partition.topic != METADATA_TOPIC
        and choice.includes(entry.partition)
    }


def _check_places(places: Sequence[Path], files: FileSystem, terms: VerifyTerms) -> None:
    """Raise InvalidError unless there are as many directories as the call is about.

    One that is not there is said first.
    """
    terms.require_receipt()
    count = len(places)
    if terms.replicas and (terms.receipt is not None or count != 2):
        raise InvalidError(
            f"--replicas takes two directories and no receipt; leave the others out. "
            f"directories={count}",
            code="K101",
        )
    if count != 2 and not (count == 1 and terms.receipt is not None):
        for place in places:
            open_data_directory(place, files)
        raise InvalidError(
            "give BEFORE and AFTER, or --receipt FILE and the cleaned directory. "
            f"directories={count}",
            code="K102",
        )


def _is_empty(path: Path, files: FileSystem) -> bool:
    """Return whether no round has left a line in a receipt file; InvalidError for none."""
    _require_file(path, files)
    there = path.resolve()
    return not files.is_directory(there) and not files.stat(there).size_bytes


def _require_file(path: Path, files: FileSystem) -> None:
    """Raise InvalidError where there is no receipt: what it was to say cannot be judged."""
    if not files.exists(path.resolve()):
        raise InvalidError(
            "there is no such receipt file; name the one that clean --receipt wrote, or leave "
            f"--receipt out. --receipt={path}",
            code="K110",
        )


def _prove_note(files: FileSystem, receipt: Path, partitions: Collection[Path]) -> None:
    """Raise RefusedError unless a line can be appended to ``receipt``, outside ``partitions``."""
    try:
        prove_receipt(files, receipt, partitions)
    except RefusedError as error:
        raise RefusedError(
            f"the verdict cannot be noted; leave --note out to judge only. problem={error}",
            code="K622",
        ) from error


def _note_verdict(
    files: FileSystem, receipt: Path, partition: TopicPartition, report: VerificationReport
) -> bool:
    """Append the verdict on rounds, durably; False where no round was judged. Raises OSError."""
    if not report.rounds:
        return False
    line = verdict_line(
        partition,
        now_ms=SystemClock().now_ms(),
        verdict=report.verdict,
        rounds=report.rounds,
        broken=report.names(Verdict.BROKEN),
        unjudged=report.names(Verdict.UNJUDGED),
        judged_by=report.judged_by,
    )
    append_receipt(files, receipt, line)
    return True
