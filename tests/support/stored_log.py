"""A log of a script in a store, and what becomes of it there, at any time."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import assume
from msgspec.structs import replace

from keeplast.errors import RefusedError
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.survey.report import RoundReport
from tests.support.broker_directory import BrokerDirectory, crashing_at
from tests.support.log_script import START_MS, Operation, write_script
from tests.support.observed_files import Crash
from tests.support.partition_maker import PARTITION

GRACE_MS = 3_000
CLEANER = CleanerConfig(producer_id_expiration_ms=10**15)


class StoredLog(BrokerDirectory):
    """A store that has something of the log, as hypothesis assumes."""

    def __init__(self, root: Path, script: tuple[Operation, ...], topic: TopicConfig) -> None:
        super().__init__(root, topic)
        write_script(script, self.path, replace(topic, segment_bytes=1 << 20))
        self.at(START_MS)
        self.import_all()
        self._owners = 0
        assume(self.state.routes)

    def at(self, now_ms: int) -> None:
        self.clock.advance(now_ms - self.clock.now_ms())

    def clean(self) -> RoundReport:
        report = self.tiered.clean(
            PARTITION, cleaner=CLEANER, grace_ms=GRACE_MS, force=True, expired=True,
            memory_bytes=MEMORY_BYTES_MIN,
        )  # fmt: skip
        assert report.failure is None
        return report

    def begin_again(self) -> None:
        """Go on as a process that has just begun, and remembers nothing."""
        self._owners += 1
        self.take_over(f"owner {self._owners}")

    def step(self, what: str, number: int, now_ms: int) -> None:
        """Let something happen; ``number`` is the change of the metadata before which it dies."""
        self.at(now_ms)
        match what:
            case "round":
                self.clean()
            case "undo":
                # Refused once a request wants keys to be gone, and by what was written since.
                with contextlib.suppress(RefusedError):
                    self.tiered.undo.put_back(PARTITION, grace_ms=GRACE_MS)
            case "collect":
                self.tiered.collect(PARTITION)
            case "sweep":
                self.clean()
                self.tiered.collect(PARTITION, garbage_age_ms=GRACE_MS)
            case "crash":
                try:
                    with crashing_at(self, number):
                        self.clean()
                except Crash:
                    self.begin_again()
