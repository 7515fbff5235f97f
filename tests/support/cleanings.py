"""Ways to clean one partition once: by the engine in this process, or by the command line.

Both give the partition's part of the JSON document that ``--json`` prints, so that a test can
compare what was done without knowing how it was asked for.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.cleaner.log_order import Order
from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.task import PartitionTask, Progressed, Runner, TaskResult
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.cases import KEY_MAP_BYTES, Json, RoundSettings, topic_config
from tests.support.replay import Cleaning
from tests.support.waiting import SECONDS_MAX

DONE = 0
FAILED_ON_INPUT = (3, 4)
"""Corrupt input, or refused."""

OF_THE_SHAPE = (
    "copied_bytes", "batches_decompressed", "decompressed_bytes", "batches_reused", "reused_bytes",
)  # fmt: skip
"""Counters that say how the work was cut (where windows end, what met in one memory), not what it
brought."""

TIMED = ("index_seconds", "clean_seconds", "total_seconds", "removal_seconds", "peak_rss_bytes")
"""Figures of a round that the machine has a part in."""

Alteration = Callable[[PartitionTask], PartitionTask]


class Reshaped:
    """A runner that cuts every round as it is given, whatever the planner chose."""

    def __init__(self, runner: Runner, choice: ShapeChoice) -> None:
        self._runner = runner
        self._choice = choice
        self.staged = 0

    @property
    def slots(self) -> int:
        return self._runner.slots

    @property
    def shares_memory(self) -> bool:
        return self._runner.shares_memory

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        reshaped = [
            replace(task, shape=self._choice) if task.plan.key_capacity is None else task
            for task in tasks
        ]
        self.staged += sum(task.is_staged for task in reshaped)
        return self._runner.run(reshaped, progressed)

    def __enter__(self) -> Reshaped:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Altered(Reshaped):
    """Cuts rounds so, and runs what ``alter`` makes of each task."""

    def __init__(self, runner: Runner, choice: ShapeChoice, alter: Alteration) -> None:
        super().__init__(runner, choice)
        self._alter = alter

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        return super().run([self._alter(task) for task in tasks], progressed)


def expects_no_transactions(task: PartitionTask) -> PartitionTask:
    """No snapshot and no index says that there are transactions."""
    return replace(task, plan=replace(task.plan, expects_transactions=False))


def note_first_dirty(
    data_directory: Path, partition: TopicPartition, settings: RoundSettings
) -> None:
    """Have the checkpoint say that the log is clean up to where a case begins.

    Kafka's cleaner is given where to begin and believes it; here the checkpoint would stay below.
    """
    files, first_dirty = LocalFiles(), settings.first_dirty
    known = read_checkpoint(files, data_directory, CLEANER_CHECKPOINT).get(partition)
    if first_dirty is not None and first_dirty > (known or 0):
        update_checkpoint(files, data_directory, CLEANER_CHECKPOINT, {partition: first_dirty})


def in_process(runner: Runner, *, is_bounded: bool = True) -> Cleaning:
    """Return a cleaning that calls the coordinator with ``runner``.

    ``is_bounded`` False frees the key map of a bound that no case reaches by default.
    """
    coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())

    def clean(data_directory: Path, partition: TopicPartition, settings: RoundSettings) -> Json:
        note_first_dirty(data_directory, partition, settings)
        report = coordinator.clean(
            CleanRequest(
                partitions=(
                    PartitionRequest(
                        partition,
                        data_directory / str(partition),
                        topic_config(settings.config),
                        CleanerConfig(
                            settings.key_map_bytes
                            if is_bounded or settings.key_map_bytes != KEY_MAP_BYTES
                            else None,
                            settings.load_factor,
                            settings.producer_id_expiration_ms,
                        ),
                    ),
                ),
                now_ms=settings.now_ms,
                is_unsafe=True,
                high_watermark=settings.high_watermark,
                first_dirty_offset=settings.first_dirty,
                uncleanable_offset=settings.uncleanable,
                force=settings.force,
                # What judges is Kafka: by its rules a log is overdue by its first batch.
                order=Order.KAFKA,
            )
        )
        document: Json = report.to_json()["partitions"][0]
        return document

    return clean


def by_command(command: list[str], *, runner: str) -> Cleaning:
    """Return a cleaning that starts ``command`` (``keeplast``) and reads what it prints."""

    def clean(data_directory: Path, partition: TopicPartition, settings: RoundSettings) -> Json:
        note_first_dirty(data_directory, partition, settings)
        arguments = [*command, "clean", str(data_directory), "--runner", runner, "--json"]
        arguments += ["--selection", "kafka", "--no-retention"]
        arguments += ["--topic", partition.topic, "--partition", str(partition.partition)]
        arguments += ["--now-ms", str(settings.now_ms), "--despite", "log-bounds"]
        arguments += ["--key-map-bytes", str(settings.key_map_bytes)]
        config = {
            **settings.config,
            "log.cleaner.io.buffer.load.factor": str(settings.load_factor),
            "producer.id.expiration.ms": str(settings.producer_id_expiration_ms),
        }
        for key, text in config.items():
            arguments += ["--config", f"{key}={text}"]
        for flag, offset in (
            ("--first-dirty-offset", settings.first_dirty),
            ("--uncleanable-offset", settings.uncleanable),
            ("--high-watermark", settings.high_watermark),
        ):
            if offset is not None:
                arguments += [flag, str(offset)]
        if settings.force:
            arguments += ["--despite", "dirty-ratio"]
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        try:
            document: Json = json.loads(done.stdout)["partitions"][0]
        except ValueError:
            raise AssertionError(f"no JSON, exit {done.returncode}: {done.stderr}") from None
        expected_codes = FAILED_ON_INPUT if document.get("error") else (DONE,)
        assert done.returncode in expected_codes, (done.returncode, document.get("error"))
        return document

    return clean


def untimed(report: RoundReport) -> object:
    """Return what a round did and where it ended, however it was cut and long it took."""
    assert report.error is None, report.error
    assert report.stats is not None
    stats = replace(report.stats, **dict.fromkeys((*TIMED, *OF_THE_SHAPE), 0))
    return stats, report.reasons, report.groups, report.end_offset
