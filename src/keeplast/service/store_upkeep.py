"""What is done by hand with a store: rounds, expiry, collection and removals.

The rule: what only its user can want lost is planned first, and done when it is agreed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.config.layers import PartitionChoice
from keeplast.errors import CompactionError, InvalidError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.model.document import shown_fields
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.run.expiry import failed_expiry
from keeplast.run.receipt import Receipt
from keeplast.service.store_choice import ROUNDS_MAX, StoreSettings, choose_partitions, share_of
from keeplast.service.upkeep import PartitionOutcome, UpkeepReport, UpkeepTerms, outcome_of
from keeplast.store.removal import Removal
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import PartitionReport, RoundReport, describe_error


def plan_store(
    store: TieredStore, chosen: Sequence[TopicPartition], *, force: bool, expired: bool
) -> tuple[PartitionReport, ...]:
    """Return what a round of each partition would do, by rows and indexes."""
    return tuple(
        PartitionReport(at.topic, at.partition, (store.plan(at, force=force, expired=expired),))
        for at in chosen
    )


def clean_store(
    store: TieredStore,
    chosen: Sequence[TopicPartition],
    runner: Runner,
    settings: StoreSettings,
    receipt: Receipt | None,
    *,
    force: bool,
    expired: bool,
    progressed: Callable[[int], None],
    finished: Callable[[TopicPartition, RoundReport], None],
) -> tuple[PartitionReport, ...]:
    """Do a round of each partition, as many side by side as there is work; faults are reported."""
    # A chosen shape cuts each round for all there is; else partitions go side by side.
    width = 1 if settings.shape is not None else min(len(chosen), runner.slots, ROUNDS_MAX)
    cleaner = share_of(settings.cleaner(), runner, width)

    def do_round(at: TopicPartition) -> RoundReport:
        try:
            progressed(0)
            return store.clean(
                at, lambda files: nullcontext(runner), progressed=progressed, cleaner=cleaner,
                takes_over=settings.takes_over, grace_ms=settings.grace_ms, receipt=receipt,
                force=force, expired=expired, memory_bytes=settings.memory_bytes,
                task_memory_bytes=settings.task_memory_bytes, shape=settings.shape,
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error)

    reports = []
    with ThreadPoolExecutor(max(width, 1), "keeplast-round") as pool:
        for at, report in zip(chosen, pool.map(do_round, chosen), strict=True):
            finished(at, report)
            reports.append(PartitionReport(at.topic, at.partition, (report,)))
    return tuple(reports)


def expire_store(
    store: TieredStore,
    chosen: Sequence[TopicPartition],
    *,
    takes_over: bool,
    grace_ms: int,
    receipt: Receipt | None,
) -> tuple[PartitionReport, ...]:
    """Let go what retention and the log start let go of each partition; faults are in reports."""
    reports = []
    for at in chosen:
        try:
            done = store.expire(at, takes_over=takes_over, grace_ms=grace_ms, receipt=receipt)
        except (CompactionError, OSError) as error:
            done = failed_expiry(None, error)
        reports.append(PartitionReport(at.topic, at.partition, (), done))
    return tuple(reports)


def collect_store(
    store: TieredStore, scope: PartitionChoice, terms: UpkeepTerms, garbage_age_ms: int
) -> UpkeepReport:
    """Remove replaced segments whose grace has passed, and objects that no row names.

    Partitions that were given up are among the chosen; where only they fit, that is no mistake.
    """
    gone = [each for each in store.forgotten() if scope.includes(each)]
    known = any(scope.includes(each) for each in store.partitions())
    chosen = choose_partitions(store, scope) if known or not gone else []

    def act(at: TopicPartition) -> Iterator[Mapping[str, Any]]:
        found = store.collect(at, takes_over=terms.takes_over, garbage_age_ms=garbage_age_ms)
        yield {
            "collected_segments": found.segments, "collected_objects": found.objects,
            "collected_bytes": found.bytes, "waiting": found.waiting,
        }  # fmt: skip

    return UpkeepReport(_each(sorted([*chosen, *gone]), act))


def restore_store(store: TieredStore, *, accepts_metadata: bool) -> UpkeepReport:
    """Say what metadata lack that were restored from a backup, and let them count if agreed to."""
    found = store.restoration.accept() if accepts_metadata else store.restoration.plan()
    return UpkeepReport(
        tuple(
            PartitionOutcome(gap.partition, shown_fields(gap, "partition")) for gap in found.gaps
        ),
        {"is_older": found.is_refused, "done": found.is_accepted},
        waits=found.is_refused and not found.is_accepted,
    )


def truncate_store(
    store: TieredStore,
    scope: PartitionChoice,
    terms: UpkeepTerms,
    end: int | Path,
    *,
    grace_ms: int,
    receipt: Receipt | None,
) -> UpkeepReport:
    """End each chosen log at ``end``, or where the data directory ``end`` has no more of it."""
    chosen = choose_partitions(store, scope)
    paths: dict[TopicPartition, Path] = {}
    if isinstance(end, Path):
        directory = open_data_directory(end, LocalFiles())
        found = [(each, directory.find(each)) for each in chosen]
        paths = {each: entry.path for each, entry in found if entry is not None}
        chosen = list(paths)
        if not chosen:
            raise InvalidError(
                f"none of the store's partitions is in the directory. --truncate-to={end}",
                code="K343",
            )
    elif len(chosen) != 1:
        raise InvalidError(
            "an offset is one partition's; name it with --topic and --partition. "
            f"--truncate-to={end} partitions={len(chosen)}",
            code="K102",
        )
    offset = None if isinstance(end, Path) else end

    def act(at: TopicPartition) -> Removal:
        if not terms.is_agreed:
            return store.removals.plan_truncation(at, offset, directory=paths.get(at))
        return store.removals.truncate(
            at, offset, directory=paths.get(at), takes_over=terms.takes_over, receipt=receipt,
            grace_ms=grace_ms,
        )  # fmt: skip

    return _removals(store, chosen, act)


def forget_store(
    store: TieredStore,
    scope: PartitionChoice,
    terms: UpkeepTerms,
    *,
    grace_ms: int,
    receipt: Receipt | None,
) -> UpkeepReport:
    """Give partitions up; InvalidError where no topic is named, or it was done before."""
    if not scope.topics:
        raise InvalidError(
            "name what to give up with --topic, and --partition for one of it", code="K102"
        )
    gone = [each for each in store.forgotten() if scope.includes(each)]
    if gone and not any(scope.includes(each) for each in store.partitions()):
        raise InvalidError(
            "given up already; keeplast collect removes the objects. "
            f"partitions={', '.join(map(str, gone))}",
            code="K334",
        )

    def act(at: TopicPartition) -> Removal:
        if not terms.is_agreed:
            return store.removals.plan_forgetting(at)
        return store.removals.forget(
            at, takes_over=terms.takes_over, receipt=receipt, grace_ms=grace_ms
        )

    return _removals(store, choose_partitions(store, scope), act)


def _removals(
    store: TieredStore,
    chosen: Sequence[TopicPartition],
    remove: Callable[[TopicPartition], Removal],
) -> UpkeepReport:
    """Remove, or plan it; what would be lost and was not agreed to waits.

    A hold whose point goes is named: its states can no longer be read.
    """
    held, now_ms = store.holds.all(), store.holds.now_ms()

    def act(at: TopicPartition) -> Iterator[Mapping[str, Any]]:
        found = remove(at)
        mine = (each.hold for each in held if each.hold.partition == at)
        yield {
            "done": found.done, "is_empty": found.is_empty, "removal": found.kind,
            "start": found.start, "end": found.end, "segments": found.segments,
            "bytes": found.bytes, "records": found.records, "cut_segment": found.cut_base,
            "asked": found.asked, "is_cleaned_by": found.is_cleaned_by,
            "holds": [
                each.name for each in mine if each.is_in_force(now_ms) and each.offset > found.start
            ],
            **({"is_detached": found.done} if found.kind == "forget" else {}),
        }  # fmt: skip

    outcomes = _each(chosen, act)
    planned = [each.facts for each in outcomes if each.failure is None]
    return UpkeepReport(
        outcomes, waits=any(not (each["done"] or each["is_empty"]) for each in planned)
    )


def _each(
    chosen: Sequence[TopicPartition],
    act: Callable[[TopicPartition], Iterator[Mapping[str, Any]]],
) -> tuple[PartitionOutcome, ...]:
    return tuple(outcome_of(at, partial(act, at)) for at in chosen)
