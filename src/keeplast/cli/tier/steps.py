"""What ``keeplast tier expire``, ``collect`` and ``export`` do to each partition.

A fault of one partition is told and stops no other; the greatest exit code counts. Imported only
when it is known that the packages of the tier are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.frame.command import Result
from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cli.frame.guard import error_document
from keeplast.cli.show.expiry import expiry_table
from keeplast.cli.show.fault import fault_text
from keeplast.cli.show.outcome import ends_line
from keeplast.cli.show.output import print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.rows import new_table
from keeplast.cli.tier.options import GraceOptions, OwnedCall, StoreCall
from keeplast.clock import SystemClock
from keeplast.errors import CompactionError
from keeplast.log.files import LocalFiles
from keeplast.model.document import shown_fields
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count, format_counted
from keeplast.run.receipt import Receipt
from keeplast.service.receipts import receipt_to
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, TieredStore
from keeplast.survey.receipt_clock import clock_notes
from keeplast.survey.report import CleanReport, ExpiryReport, PartitionReport
from keeplast.survey.wording import sentences
from keeplast.tier.metadata.collection import Collected
from keeplast.tier.state.partition_state import PartitionState

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Step(Generic[Done]):
    """What is done to a partition, and how what came of it is said: for programs, for people.

    ``ends`` counts partitions by what happened to them, for the last line; None where what is
    ``shown`` has one.
    """

    act: Callable[[TieredStore, TopicPartition], Done]
    document: Callable[[Done], dict[str, Any]]
    shown: Callable[[Mapping[TopicPartition, Done]], Sequence[RenderableType]]
    ends: Callable[[Collection[Done]], Mapping[str, int]] | None = None


def do_each(
    store: TieredStore, partitions: Sequence[TopicPartition], step: Step[Done], *, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Do a step for each partition, and show what came of all of them."""
    done: dict[TopicPartition, Done] = {}
    documents, code = [], DONE
    for each in partitions:
        try:
            done[each] = step.act(store, each)
            facts = step.document(done[each])
        except (CompactionError, OSError) as error:
            say(f"{each}: {fault_text(error)}", kind="error")
            code = max(code, error_exit_code(error))
            facts = {"error": error_document(error)["error"]}
        documents.append({"topic": each.topic, "partition": each.partition, **facts})
    if done and not as_json:
        print_result(*step.shown(done))
    if step.ends is not None and not as_json:
        failed = len(partitions) - len(done)
        print_result(*[""] * bool(done), ends_line(step.ends(done.values()), failed=failed))
    return code, {"partitions": documents}


def each_partition(
    call: StoreCall,
    step: Step[Any],
    *,
    as_json: bool,
    broker_config: Path | None = None,
    with_forgotten: bool = False,
    assumes_retention: bool = False,
) -> Result:
    """Do a step for each chosen partition, and show what came of it.

    ``with_forgotten`` takes those in that were given up; ``assumes_retention`` says that the step
    removes what retention lets go, whose assumed defaults are said.
    """
    with call.opened(broker_config=broker_config) as opened:
        gone = opened.forgotten() if with_forgotten else ()
        also = [each for each in gone if call.scope.includes(each)]
        # Where nothing but these fits, that is no mistake.
        known = any(call.scope.includes(each) for each in opened.partitions())
        chosen = call.chosen(opened) if known or not also else []
        assumed = {}
        if assumes_retention:
            assumed = call.say_assumed(opened, chosen, broker_config, cleans=False)
        code, document = do_each(opened, sorted([*chosen, *also]), step, as_json=as_json)
        return code, document | ({"assumed": assumed} if assumes_retention else {})


def receipt_writer(path: Path | None) -> Receipt | None:
    """Return what appends receipts; warns when the clock is behind the last one there."""
    for note in sentences(clock_notes(LocalFiles(), path, SystemClock().now_ms())):
        say(note, kind="warning")
    return receipt_to(LocalFiles(), path)


def expiry_step(
    call: OwnedCall, grace: GraceOptions, receipt: Path | None, log_start: int | None
) -> Step[ExpiryReport]:
    """Let go what retention and the log start offset let go."""
    write_line = receipt_writer(receipt)

    def act(store: TieredStore, each: TopicPartition) -> ExpiryReport:
        return store.expire(
            each, takes_over=call.take_over, grace_ms=grace.milliseconds, receipt=write_line,
            log_start=log_start,
        )  # fmt: skip

    def document(done: ExpiryReport) -> dict[str, Any]:
        return {
            "log_start": done.log_start, "segments": len(done.segments), "bytes": done.bytes,
            "notes": list(done.notes),
        }  # fmt: skip

    return Step(act, document, _expired_parts, _count_expired)


def _expired_parts(done: Mapping[TopicPartition, ExpiryReport]) -> list[RenderableType]:
    """Return what went and why, and a line for each partition that nothing limits."""
    reports = [PartitionReport(each.topic, each.partition, (), done[each]) for each in done]
    table = expiry_table(CleanReport(tuple(reports)), "expired", explains=True)
    lines = [
        f"{printable(str(each))}: nothing expires: no limit of its policy applies, and nothing "
        f"lies below the log start {found.log_start}"
        for each, found in done.items()
        if not found.segments and not found.notes
    ]
    return [*([] if table is None else [table]), *([""] if table and lines else []), *lines]


def _count_expired(done: Collection[ExpiryReport]) -> dict[str, int]:
    changed = [each for each in done if each.segments]
    amount = _amount(
        segments=sum(len(each.segments) for each in changed),
        size=sum(each.bytes for each in changed),
    )
    return {f"expired ({amount})": len(changed), "had nothing to expire": len(done) - len(changed)}


def _amount(*, segments: int, size: int) -> str:
    return f"{format_counted(segments, 'segment')}, {format_bytes(size)}"


def collection_step(call: OwnedCall, garbage_age_ms: int | None) -> Step[Collected]:
    """Remove replaced segments whose grace has passed, and objects that nobody names."""
    age = GARBAGE_AGE_MS_DEFAULT if garbage_age_ms is None else garbage_age_ms

    def act(store: TieredStore, each: TopicPartition) -> Collected:
        return store.collect(each, takes_over=call.take_over, garbage_age_ms=age)

    return Step(act, shown_fields, _collected_parts, _count_collected)


def _count_collected(done: Collection[Collected]) -> dict[str, int]:
    changed = [each for each in done if each.objects]
    amount = _amount(
        segments=sum(each.segments for each in changed), size=sum(each.bytes for each in changed)
    )
    return {
        f"collected ({amount})": len(changed),
        "had nothing to collect": len(done) - len(changed),
    }


def _collected_parts(done: Mapping[TopicPartition, Collected]) -> list[RenderableType]:
    table = new_table("partition", ">segments", ">objects", ">removed", ">in grace")
    for each, found in done.items():
        table.add_row(
            Text(printable(str(each))), format_count(found.segments), format_count(found.objects),
            format_bytes(found.bytes), format_count(found.waiting),
        )  # fmt: skip
    in_grace = sum(found.waiting for found in done.values())
    if not in_grace:
        return [table]
    words = format_counted(in_grace, "replaced segment")
    return [table, "", f"{words} in grace: removed by a later call, when that has passed"]


def export_step(to: Path) -> Step[tuple[Path, PartitionState]]:
    """Write a partition as a directory below ``to``, and say what of its state that holds."""

    def act(store: TieredStore, each: TopicPartition) -> tuple[Path, PartitionState]:
        state = store.state(each)
        with ProgressEvents(f"writing {each}") as events:
            events.planned(state.effective_bytes())
            store.export(each, to / str(each), events.progressed)
        return to / str(each), state

    def document(done: tuple[Path, PartitionState]) -> dict[str, Any]:
        path, state = done
        return {
            "path": str(path), "segments": len(state.routes), "bytes": state.effective_bytes(),
            "log_end": state.remote_end,
        }  # fmt: skip

    def ends(done: Collection[tuple[Path, PartitionState]]) -> dict[str, int]:
        amount = _amount(
            segments=sum(len(state.routes) for _, state in done),
            size=sum(state.effective_bytes() for _, state in done),
        )
        return {f"exported ({amount}) to {printable(str(to))}": len(done)}

    return Step(act, document, _exported_parts, ends)


def _exported_parts(
    done: Mapping[TopicPartition, tuple[Path, PartitionState]],
) -> list[RenderableType]:
    table = new_table("partition", ">segments", ">bytes", ">log", "written to")
    for each, (path, state) in done.items():
        table.add_row(
            Text(printable(str(each))), format_count(len(state.routes)),
            format_bytes(state.effective_bytes()), f"{state.log_start}..{state.remote_end}",
            Text(printable(str(path))),
        )  # fmt: skip
    return [table]
