"""Before a round: what it will take, which rounds fit on a disk, what must be proven first.

A round's receipt and checkpoint are proven before anything is replaced. A round that found out
afterwards would leave segments replaced without a report, and the next receipt would be about a log
that no receipt describes. A trial is undone again. Rounds that share a disk must fit on it
together, and some of it stays free.

How work is cut and what a plan shows rest on a sample of bounded size, where sizes alone do not
say. Damage found there fails a plan. It does not decide how work is cut, because the pass that
meets it reports it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.cleaner.plan import RoundPlan, find_chunk_end
from keeplast.cleaner.shapes import (
    WHOLE,
    Ground,
    StageSeconds,
    Workload,
    choose_shapes,
    share_of,
    why_whole,
)
from keeplast.clock import Clock
from keeplast.errors import CompactionError, RefusedError, UnavailableError, making
from keeplast.format.filename import CLEAN_SHUTDOWN, CLEANER_CHECKPOINT, LOCK, META_PROPERTIES
from keeplast.log.files import FileSystem, reading
from keeplast.log.paths import is_object_path
from keeplast.log.root_files import HOLDS_NAME, REQUESTS_NAME
from keeplast.model.topic_config import Shape
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.round_state import (
    Round,
    disk_needed_bytes,
    failed_report,
    planned_report,
    shape_fields,
)
from keeplast.survey.estimate import estimate_round
from keeplast.survey.receipt_book import VERSIONS
from keeplast.survey.report import Estimate, RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.sample import SampleChoice, read_sample
from keeplast.survey.survey import Survey

ROOM_BYTES = 1 << 20
"""What must be free where a receipt or a checkpoint goes: more than a line of either takes."""

PROBE = ".keeplast-probe"
"""A file in a data directory that tries what its store allows. With more after the name, it tries
whether executors of Spark see it.
"""
PROBE_MS_MAX = 3_600_000
"""Nothing looks at a probe that is older: its writer ended before removing it."""

NAMES_TAKEN = (
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    LOCK,
    "keeplast-set-aside",
    "keeplast-failing",
    "keeplast-receipts.history",
    HOLDS_NAME,
    REQUESTS_NAME,
    "keeplast.toml",
)
"""What brokers and keeplast look for in a data directory, with the checkpoints, by these names."""


BEGINNINGS = tuple(
    b'{"version":%d,"topic":%s' % (version, value) for version in VERSIONS for value in (b'"', b"n")
)
"""What a line of a receipt begins with; what was asked for of all partitions has no topic."""


def prove_receipt(files: FileSystem, path: Path | None, partitions: Collection[Path] = ()) -> None:
    """Raise RefusedError unless a line can be appended to ``path``; None wants no receipt.

    A file there that is no receipt is refused too: a line at its end would damage it. So is a name
    that has another meaning to some reader. So is any name in one of the directories
    ``partitions``: a file there is taken for a part of the log, or removed with it.
    """
    if path is None:
        return
    if _is_taken(path, partitions):
        raise RefusedError(
            "the receipt would be taken for a file of a log or of its data directory; give it "
            f"another name, outside of partitions. --receipt={path}",
            code="K159",
        )
    try:
        _try_receipt(files, path)
    except OSError as error:
        raise RefusedError(
            "the receipt cannot be written; name another file, or leave --receipt out. "
            f"--receipt={path} problem={error}",
            code="K159",
        ) from error


def leave_receipt(files: FileSystem, path: Path, partitions: Collection[Path]) -> None:
    """Make sure that there is a receipt file: an empty one says that nothing was changed.

    A reader that asks by its name then knows it from a wrong name. Errors are those of
    :func:`prove_receipt`.
    """
    if not files.exists(path):
        prove_receipt(files, path, partitions)
        files.open_write(path, append=True).close()


def _is_taken(path: Path, partitions: Collection[Path]) -> bool:
    name = path.name.removesuffix(".tmp")
    if name in NAMES_TAKEN or name.endswith(("-checkpoint", ".checkpoint")):
        return True
    around = path.resolve().parents
    return any(each.resolve() in around for each in partitions)


def _try_receipt(files: FileSystem, path: Path) -> None:
    if not path.name or not path.parent.is_dir():
        raise RefusedError(
            f"there is no directory for the receipt; {making(path.parent)}, or name another. "
            f"--receipt={path}",
            code="K111",
        )
    if path.is_symlink():
        raise RefusedError(
            f"the receipt is a link; name the file itself. --receipt={path}", code="K159"
        )
    if files.is_directory(path):
        raise RefusedError(
            f"the receipt is a directory; name a file in it. --receipt={path}", code="K159"
        )
    is_new = not files.exists(path)
    if not is_new:
        _check_content(files, path)
    files.open_write(path, append=True).close()
    if is_new:
        files.unlink(path)
    _check_room(files, path.parent, "the receipt")


def prove_checkpoints(files: FileSystem, root: Path) -> None:
    """Raise OSError unless the checkpoints of a data directory can be replaced.

    RefusedError where there is no room for them; UnavailableError where a store does not let a
    round write and delete.
    """
    if is_object_path(root):
        # A round removes what it replaces. One name: a probe that may not be removed does not heap.
        files.write_durable(root / PROBE, b"probe")
        files.unlink(root / PROBE)
        return  # the room of a store has no end
    # The name under which a checkpoint is written before it takes the place of the old one.
    probe = root / f"{CLEANER_CHECKPOINT}.tmp"
    files.open_write(probe).close()
    # One that stays is empty, means nothing to a broker, and is written over by the checkpoint.
    with contextlib.suppress(OSError):
        files.unlink(probe)
    _check_room(files, root, "the checkpoints")


def unready_roots(files: FileSystem, roots: Iterable[Path], now_ms: int) -> dict[Path, Exception]:
    """Return why no round can be ended in these data directories; those that are ready are not in
    it. What is left of old probes at ``now_ms`` goes."""
    unready: dict[Path, Exception] = {}
    for root in roots:
        try:
            prove_checkpoints(files, root)
            _sweep_probes(files, root, now_ms)
        except (RefusedError, UnavailableError, OSError) as error:
            unready[root] = error
    return unready


def _sweep_probes(files: FileSystem, root: Path, now_ms: int) -> None:
    """Remove the probes of processes that ended before they did."""
    if is_object_path(root):
        return  # executors are asked about disks alone
    for name in files.listdir(root):
        if name.startswith(f"{PROBE}-"):
            with contextlib.suppress(OSError):
                age_ms = now_ms - files.stat(root / name).mtime_ns // 1_000_000
                if age_ms > PROBE_MS_MAX:
                    files.unlink(root / name)


def _check_content(files: FileSystem, path: Path) -> None:
    """Raise RefusedError unless the file begins as a receipt does, whole or cut off by a crash.

    Any other JSON too: what a cut-off line is taken for is removed before one is appended.
    """
    with reading(files, path) as handle:
        first = bytearray(min(handle.size_bytes, max(map(len, BEGINNINGS))))
        del first[handle.pread_into(memoryview(first), 0) :]
    if not any(first.startswith(each[: len(first)]) for each in BEGINNINGS):
        raise RefusedError(
            f"what is there is no receipt, and would be damaged; name another. --receipt={path}",
            code="K159",
        )


def _check_room(files: FileSystem, place: Path, what: str) -> None:
    free = files.free_bytes(place)
    if free < ROOM_BYTES:
        raise RefusedError(
            f"no room for {what}; free some. path={place} needed_bytes={ROOM_BYTES} "
            f"free_bytes={free}",
            code="K228",
        )


RESERVE_BYTES_MIN = 64 << 20
RESERVE_SHARE = 50
"""One in so many free bytes stays free, and 64 MiB at least."""


def usable_bytes(files: FileSystem, place: Path) -> int:
    """Return the bytes that may be written on the volume of ``place``; below 0 for none."""
    free = files.free_bytes(place)
    return free - max(free // RESERVE_SHARE, RESERVE_BYTES_MIN)


def check_room(
    files: FileSystem, survey: Survey, plan: RoundPlan, source: Path, target: Path
) -> None:
    """Raise RefusedError when not even one group fits, or not the whole log at a target."""
    needed = disk_needed_bytes(survey, plan, is_in_place=target == source)
    room = usable_bytes(files, target)
    if needed > room:
        raise RefusedError(
            "not enough free disk; free some, or use --to another volume. "
            f"path={target} needed_bytes={needed} usable_bytes={max(room, 0)}",
            code="K228",
        )


def next_together(waiting: list[Round], files: FileSystem) -> tuple[list[Round], list[Round]]:
    """Return the rounds whose output fits on disk together, and those that must wait.

    A round that is too large even alone runs alone, in waves.
    """
    used = 0
    for i, round_ in enumerate(waiting):
        if not round_.site.shares_disk:
            continue
        room = usable_bytes(files, round_.site.target)
        needed = round_.bytes_to_stage()
        if i and used + needed > room:
            return waiting[:i], waiting[i:]
        round_.wave_bytes_max = room if needed > room else None
        used += needed
    return waiting, []


def cut(
    rounds: Sequence[Round], request: CleanRequest, runner: Runner, files: FileSystem, clock: Clock
) -> None:
    """Decide for every round of a call how its work is cut, and what memory a task of it has."""
    ground = Ground(runner.slots, None if runner.shares_memory else request.task_memory_bytes)
    bounds = [Workload.at_most(round_.plan) for round_ in rounds]
    share = share_of(bounds, ground.slots)
    workloads = [
        _look_at(round_, bound, ground, files, clock)
        if _depends_on_keys(bound, share, ground, request.shape)
        else bound
        for round_, bound in zip(rounds, bounds, strict=True)
    ]
    choices = choose_shapes(workloads, ground, asked=request.shape)
    for round_, choice in zip(rounds, choices, strict=True):
        round_.memory_bytes = max(request.memory_bytes // runner.slots, MEMORY_BYTES_MIN)
        round_.shape = choice
        if round_.site.chunk_bytes is not None:
            _cut_chunk(round_, round_.site.chunk_bytes, request, runner)


def _cut_chunk(round_: Round, chunk_bytes: int, request: CleanRequest, runner: Runner) -> None:
    """Have threads of one host do a chunk in waves; what is cut into stages is done at once."""
    if runner.shares_memory and request.shape is None:
        round_.shape = WHOLE
    if round_.shape.shape is not Shape.PARTITION:
        return
    plan = round_.plan
    round_.wave_bytes_max = plan.topic.segment_bytes
    if runner.shares_memory and not plan.is_expired_round:
        round_.plan = replace(plan, chunk_end=find_chunk_end(plan, chunk_bytes))


def foreseen(
    round_: Round, request: CleanRequest, files: FileSystem, clock: Clock, workspace: Workspace
) -> RoundReport:
    """Return bounds, groups and, from a sample, an estimate.

    Where the sample cannot be read the round would fail: the report has the error.
    """
    survey, plan = round_.survey, round_.plan
    disk_bytes = disk_needed_bytes(survey, plan, is_in_place=request.target is None)
    estimate, lacking = None, None
    if survey.sample is not None:
        try:
            estimate = _estimate(round_, survey.sample, files, clock, workspace)
        except (CompactionError, OSError) as error:
            return failed_report(survey, 0, error)
        except MemoryError as error:
            lacking = error
    return planned_report(survey, plan, disk_bytes, estimate, lacking, **shape_fields(round_))


def _depends_on_keys(bound: Workload, share: int, ground: Ground, asked: Shape | None) -> bool:
    """Say whether the choice for a round takes more than what its sizes and offsets allow."""
    if not ground.has_room_for(bound):
        return True
    is_free = ground.task_memory_bytes is not None and bound.plan.key_capacity is None
    return asked is None and is_free and why_whole(bound, share, ground) is None


def _look_at(
    round_: Round, bound: Workload, ground: Ground, files: FileSystem, clock: Clock
) -> Workload:
    """Return a round as a sample shows it, or ``bound`` where no sample shows it."""
    if round_.survey.sample is None:
        return bound
    try:
        estimate = _estimate(round_, round_.survey.sample, files, clock)
    except (CompactionError, OSError, MemoryError):
        return bound  # what is damaged will be said by the pass that meets it
    if estimate is None:
        return bound
    seconds = StageSeconds(estimate.index_seconds, estimate.seconds - estimate.index_seconds)
    keys = estimate.distinct_keys
    if keys is None and ground.has_room_for(bound):
        keys = bound.dirty_keys
    return Workload(round_.plan, estimate.messages_read, keys, seconds)


def _estimate(
    round_: Round,
    chosen: SampleChoice,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace | None = None,
) -> Estimate | None:
    sample = read_sample(
        chosen, round_.plan, round_.site.path, round_.hash_key, files, clock, workspace
    )
    return estimate_round(sample, round_.plan)
