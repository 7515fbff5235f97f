"""The two things that the demo cleans, each with a judge that knows what must remain.

A git history is judged by git: the last value of every path must be what ``git ls-tree`` says. The
sample of a real broker is judged by its own reader's state before the cleaning."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

import keeplast
from keeplast.cli.demo.history import PARTITION, GitHistory, write_topic
from keeplast.cli.demo.reading import LogReading, read_log
from keeplast.clock import Clock
from keeplast.config.layers import PartitionChoice
from keeplast.config.selection import select_partitions
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.run.coordinator import Coordinator
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest, PartitionRequest

SAMPLES = Path(keeplast.__path__[0]) / "samples"
SAMPLE = SAMPLES / "broker-4.3.0"
SAMPLE_TOPIC = "orders"


class CleaningOutcome(Struct, frozen=True):
    """One log before and after, and the keys whose final value is not what it must be."""

    name: str
    facts: tuple[str, ...]
    judge: str
    before: LogReading
    after: LogReading
    checkpoint: int | None
    wrong_keys: tuple[bytes, ...]
    seconds: float
    reports: tuple[CleanReport, ...]

    @property
    def is_equal(self) -> bool:
        """True when a reader gets exactly what it must."""
        return not self.wrong_keys

    def as_document(self) -> dict[str, object]:
        """Return the part's document."""
        return {
            "name": self.name,
            "equal": self.is_equal,
            "keys": len(self.after.state),
            "wrong_keys": len(self.wrong_keys),
            "before": _counts(self.before),
            "after": _counts(self.after),
            "cleaner_checkpoint": self.checkpoint,
            "seconds": self.seconds,
            "cleanings": [report.to_json() for report in self.reports],
        }


def clean_git_history(
    history: GitHistory, root: Path, coordinator: Coordinator, files: FileSystem, clock: Clock
) -> CleaningOutcome:
    """Replay ``history`` into the new data directory ``root``, clean it twice, ask git."""
    replay = write_topic(history, root, files)
    path = root / str(PARTITION)
    before = read_log(path, files)
    request = CleanRequest(
        partitions=(PartitionRequest(PARTITION, path, replay.topic),),
        rounds=None,
        # A history that fits into the active segment is closed first: brokers never clean that one.
        roll_active=len(before.segments) == 1,
    )
    started = clock.seconds()
    reports = _clean_twice(request, coordinator)
    seconds = clock.seconds() - started
    after = read_log(path, files)
    commits = f"{replay.commits:,} commit{'' if replay.commits == 1 else 's'}"
    shallow = " of a shallow clone" if history.is_shallow() else ""
    return CleaningOutcome(
        name="git history",
        facts=(
            f"{commits}{shallow}, {replay.records:,} changes of paths, written to {PARTITION}",
            "key = path, value = mode and blob id, deletion = tombstone, time = commit time",
        ),
        judge=f"git ls-tree -r {history.head[:12]}",
        before=before,
        after=after,
        checkpoint=read_checkpoint(files, root, CLEANER_CHECKPOINT).get(PARTITION),
        wrong_keys=_wrong_keys(dict(history.tree()), after.state),
        seconds=seconds,
        reports=reports,
    )


def clean_broker_sample(
    root: Path, coordinator: Coordinator, files: FileSystem, clock: Clock
) -> CleaningOutcome:
    """Clean a copy of the directory that a broker wrote, with the settings it had there."""
    shutil.copytree(SAMPLE, root)
    selection = select_partitions(root, files, PartitionChoice(topics=(SAMPLE_TOPIC,)))
    [partition] = selection.partitions
    before = read_log(partition.path, files)
    started = clock.seconds()
    # The broker holds its own cleaner back, with a ratio that nothing exceeds.
    request = CleanRequest(selection.partitions, rounds=None, force=True)
    reports = _clean_twice(request, coordinator)
    seconds = clock.seconds() - started
    after = read_log(partition.path, files)
    checkpoints = read_checkpoint(files, root, CLEANER_CHECKPOINT)
    return CleaningOutcome(
        name="data directory of a Kafka 4.3.0 broker",
        facts=(
            f"{partition.partition} as the broker left it, settings from its metadata log",
            "overwritten keys, tombstones, transactions committed and aborted; none, lz4, zstd",
        ),
        judge="a read-committed reader before the cleaning",
        before=before,
        after=after,
        checkpoint=checkpoints.get(partition.partition),
        wrong_keys=_wrong_keys(before.state, after.state),
        seconds=seconds,
        reports=reports,
    )


def _clean_twice(
    request: CleanRequest, coordinator: Coordinator
) -> tuple[CleanReport, CleanReport]:
    """Clean until done, and once more from the start of the log.

    Tombstones get their horizon by being copied once; with no retention the next copy drops them.
    """
    first = coordinator.clean(request)
    return first, coordinator.clean(replace(request, roll_active=False, first_dirty_offset=0))


def _wrong_keys(
    expected: Mapping[bytes, bytes], actual: Mapping[bytes, bytes]
) -> tuple[bytes, ...]:
    keys = sorted(expected.keys() | actual.keys())
    return tuple(key for key in keys if expected.get(key) != actual.get(key))


def _counts(log: LogReading) -> dict[str, int]:
    return {
        "segments": len(log.segments),
        "bytes": log.size_bytes,
        "records": log.records,
        "tombstones": log.tombstones,
    }
