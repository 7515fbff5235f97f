"""Damages whole data directories at random and does to them all that keeplast can do to one.

A case is its number: the number seeds everything, so that a failure can be run again. Unlike the
shrinking tests of single files, anything in the directory may be hit: records, indexes, snapshots,
checkpoints, identity files, their names, what kind of file they are and how large they claim to be.

What must hold: nothing but a :class:`CorruptError`, :class:`RefusedError` or :class:`InvalidError`
comes out, or the operating system's own word where something is no regular file; a call that
fails leaves the partition as it was; nothing outside the directory is touched; time and memory
stay bounded.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from keeplast.api.open_log import open_log
from keeplast.cli.show.log import view_partition
from keeplast.columns import kernel
from keeplast.config.layers import SettingSources
from keeplast.config.selection import select_partitions
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format import checkpoint, leader_epoch, meta_properties, partition_metadata
from keeplast.format.checksum import crc32, crc32c
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    REPLICATION_CHECKPOINT,
)
from keeplast.format.message_set import read_entries
from keeplast.inspect.log_scan import RowSample
from keeplast.log.files import LocalFiles
from keeplast.survey.report import RoundReport
from tests.support.bounded_work import SECONDS_MAX
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    COMPACT,
    PARTITION,
    SMALL_SEGMENTS,
    clean_request,
    coordinator,
    last_round,
)

MEMORY_BYTES_MAX = 1 << 30
"""Growth of this process over all cases of a run. A case works with 32 MiB, and with a few times
the largest batch: one that claims to fill a whole file is read to see whether it does."""

SPARSE_BYTES_MAX = 64 << 20
EXPECTED = (CorruptError, RefusedError, InvalidError, OSError)
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".vectors", ".log.bak", "")
STAGES = ("", "", ".swap", ".cleaned", ".deleted", ".0a1b.deleted", ".tmp")
NUMBERS = [-1, 0, 1, 13, 14, 255, 1 << 30, (1 << 31) - 1, -(1 << 31)]


class FuzzFailure(AssertionError):
    """Something came out that must not; the message names the case."""


@dataclass(slots=True)
class Tally:
    """What a run of cases came to."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    grown_bytes: int = 0


def fuzz(
    scratch: Path,
    numbers: Iterable[int],
    *,
    progressed: Callable[[Tally], None] | None = None,
) -> Tally:
    """Run the cases ``numbers``; FuzzFailure at the first that fails."""
    template = write_data_directory(scratch / "template")
    tally = Tally()
    kernel.load()  # to compile them takes longer than a case may
    run_case(template, scratch / "warm-up", -1, Tally())
    peak = _peak_bytes()
    for number in numbers:
        started = time.process_time()
        run_case(template, scratch / "case", number, tally)
        tally.cases += 1
        tally.slowest_seconds = max(tally.slowest_seconds, time.process_time() - started)
        tally.grown_bytes = _peak_bytes() - peak
        if tally.slowest_seconds > SECONDS_MAX:
            raise FuzzFailure(f"too slow. case={number} seconds={tally.slowest_seconds:.1f}")
        if tally.grown_bytes > MEMORY_BYTES_MAX:
            raise FuzzFailure(f"too much memory. case={number} bytes={tally.grown_bytes}")
        if progressed is not None and tally.cases % 1000 == 0:
            progressed(tally)
    return tally


def write_data_directory(root: Path) -> Path:
    """Write a sound data directory with one partition and every file that a broker keeps."""
    directory = write_mixed_log(root)
    for name, offset in (
        (CLEANER_CHECKPOINT, 20),
        (LOG_START_CHECKPOINT, 0),
        (REPLICATION_CHECKPOINT, 62),
    ):
        (root / name).write_bytes(checkpoint.encode_offsets({PARTITION: offset}))
    identity = meta_properties.MetaProperties(1, "cluster", 1)
    (root / META_PROPERTIES).write_bytes(meta_properties.encode(identity))
    (directory / PARTITION_METADATA).write_bytes(
        partition_metadata.encode(partition_metadata.PartitionMetadata(bytes(range(16))))
    )
    epochs = [leader_epoch.LeaderEpoch(0, 0), leader_epoch.LeaderEpoch(3, 30)]
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(leader_epoch.encode(epochs))
    return root


def run_case(template: Path, place: Path, number: int, tally: Tally) -> None:
    """Damage a copy of ``template`` in the way of ``number`` and work on it; -1 damages nothing."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place / "data")
    outside = place / "outside"
    outside.mkdir()
    for name in ("secret", "other.log"):
        (outside / name).write_bytes(b"not yours")
    dice = random.Random(number)
    if number >= 0:
        for _ in range(dice.randint(1, 4)):
            damage(place / "data", outside, dice)
    try:
        _use(place / "data", dice, tally)
    except EXPECTED as error:
        _fail(number, f"escaped: {error!r}", error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not have come out
        _fail(number, repr(error), error)
    found = sorted((path.name, path.read_bytes()) for path in outside.iterdir())
    if found != [("other.log", b"not yours"), ("secret", b"not yours")]:
        raise FuzzFailure(f"something outside the directory changed. case={number}")


def damage(data: Path, outside: Path, dice: random.Random) -> None:
    """Change one thing in a data directory."""
    paths = sorted(path for path in data.rglob("*") if path.is_file() and not path.is_symlink())
    # Nine in ten go to the partition's files, by their number and not by their size.
    path = dice.choice(paths)
    action = dice.randrange(20)
    if action < 16:
        content = bytearray(path.read_bytes() if path.stat().st_size < SPARSE_BYTES_MAX else b"")
        for _ in range(dice.randint(1, 3)):
            change(content, dice)
        if path.suffix == ".log" and dice.random() < 0.6:
            seal(content)
        path.write_bytes(content)
    elif action == 16:
        base = dice.choice([0, 10, 20, 30, 45, 60, 61, (1 << 63) - 1, 10**20 - 1])
        name = f"{base:020d}{dice.choice(SUFFIXES)}{dice.choice(STAGES)}"
        target = path.parent / name
        if not target.is_dir():
            path.rename(target)
    elif action == 17:
        os.truncate(path, dice.choice([0, 1, 16, 61, 1 << 16, SPARSE_BYTES_MAX]))
    elif action == 18:
        path.unlink()
    else:
        path.unlink()
        match dice.randrange(4):
            case 0:
                path.symlink_to(outside / dice.choice(["secret", "other.log", "nowhere"]))
            case 1:
                os.mkfifo(path)
            case 2:
                path.mkdir()
            case _:
                path.symlink_to(path)


def change(data: bytearray, dice: random.Random) -> None:
    """Flip, overwrite, put in or cut out a few bytes."""
    at = dice.randrange(len(data) + 1)
    if dice.random() < 0.3:
        at = min(at, dice.randrange(80))
    match dice.randrange(6):
        case 0 | 1 if at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        case 2:
            data[at : at + 4] = struct.pack(">i", dice.choice(NUMBERS))
        case 3:
            data[at:at] = dice.randbytes(dice.randint(1, 40))
        case 4:
            del data[at : at + dice.randint(1, 200)]
        case _:
            data[at : at + 8] = dice.choice([b"\x00", b"\xff", b"\x7f", b"\x80"]) * 8


def seal(data: bytearray) -> None:
    """Give every batch that still looks like one a right checksum: crafted, not rotten."""
    try:
        for entry in read_entries(bytes(data)):
            start, end = entry.position, entry.end
            if entry.magic == 2 and end - start > 21:
                struct.pack_into(">I", data, start + 17, crc32c(bytes(data[start + 21 : end])))
            elif entry.magic in (0, 1):
                struct.pack_into(">I", data, start + 12, crc32(bytes(data[start + 16 : end])))
    except CorruptError:
        return


def _use(data: Path, dice: random.Random, tally: Tally) -> None:
    partition = data / str(PARTITION)
    files = LocalFiles()
    _count(tally, "inspect", lambda: view_partition(partition, files, RowSample(True, 0, 1000)))
    _count(tally, "read", lambda: sum(1 for _ in open_log(partition).records()))
    sources = SettingSources(flags=("cleanup.policy=compact",), environment={})
    _count(tally, "select", lambda: select_partitions(data, files, sources=sources))
    request = clean_request(partition, topic=dice.choice([COMPACT, SMALL_SEGMENTS]))
    if dice.random() < 0.3:
        request = replace(request, first_dirty_offset=0)
    _count_round(tally, "plan", last_round(coordinator().plan(request, exact=True)))
    before = contents(partition)
    staged = [name for name in before if name.endswith((".swap", ".cleaned", ".deleted"))]
    report: RoundReport | None = None

    def clean() -> None:
        nonlocal report
        report = last_round(coordinator().clean(request))
        _count_round(tally, "clean", report)

    _count(tally, "call", clean)
    if (report is None or report.failure is not None) and not staged:
        # With staged files, the first thing that clean does is to finish what they stand for.
        after = contents(partition)
        changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
        if changed:
            raise FuzzFailure(f"failed and changed {sorted(changed)}: {report}")


def contents(directory: Path) -> dict[str, bytes]:
    """Return every name with its bytes; of what is no regular file, what it is."""
    found: dict[str, bytes] = {}
    for path in directory.iterdir():
        if path.is_symlink():
            found[path.name] = os.readlink(path).encode()
        elif path.is_file():
            size = path.stat().st_size
            found[path.name] = path.read_bytes() if size < SPARSE_BYTES_MAX else b"%d" % size
        else:
            found[path.name] = b"special"
    return found


def _count(tally: Tally, what: str, action: Callable[[], object]) -> None:
    """Run one action; what is expected to come out of it is counted by kind."""
    try:
        action()
    except EXPECTED as error:
        _count_error(tally, what, error)
    else:
        tally.outcomes[f"{what}: done"] += 1


def _count_round(tally: Tally, what: str, report: RoundReport) -> None:
    if report.failure is None:
        tally.outcomes[f"{what}: {'skipped' if report.skipped else 'done'}"] += 1
    elif isinstance(report.failure, EXPECTED):
        _count_error(tally, what, report.failure)
    else:
        raise report.failure


def _count_error(tally: Tally, what: str, error: Exception) -> None:
    if isinstance(error, CorruptError) and (error.path is None or error.position is None):
        raise FuzzFailure(f"{what}: error without a place: {error}")
    kind = "OSError" if isinstance(error, OSError) else type(error).__name__
    tally.outcomes[f"{what}: {kind}"] += 1


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _fail(number: int, problem: str, cause: Exception) -> NoReturn:
    raise FuzzFailure(f"{problem} case={number}") from cause
