"""The power goes before any operation of ``clean --to``.

The source is never written to. A target says of itself that it is incomplete from before its first
file until after its checkpoint names the partition: then the same call begins again, and a
whole one is refused.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import RefusedError
from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT, INCOMPLETE
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.crash_exploration import read_image
from tests.support.crash_logs import CRASH_LOGS, CrashLog
from tests.support.crashing_files import CrashingFiles, Image, Mode, digest
from tests.support.observed_files import Crash
from tests.support.partition_maker import PARTITION, clean_request, last_round

STATES_PER_POINT = 6


class Copying:
    """``clean --to`` of one log, whole and crashed at every operation."""

    def __init__(self, log: CrashLog, root: Path) -> None:
        self._log = log
        self.source, self.target = root / "source", root / "target"
        self.target.mkdir()
        self.before = log.image(self.source)
        whole = CrashingFiles(self.before)
        self.report = self.clean(whole)
        self.operations = len(whole.operations)
        self.whole = whole.image()

    def clean(self, files: CrashingFiles) -> RoundReport:
        request = clean_request(self.source / str(PARTITION), topic=self._log.topic)
        coordinator = Coordinator(
            LocalRunner(cores=1, files=files), SystemClock(), files, NoEvents()
        )
        try:
            return last_round(coordinator.clean(replace(request, target=self.target)))
        except RefusedError as error:
            return RoundReport(failure=error)

    def states(self) -> Iterator[tuple[str, Image]]:
        """Yield what the disk can hold after a crash at each operation, each state once."""
        seen: set[bytes] = set()
        for point in range(self.operations + 1):
            crashed = CrashingFiles(self.before)
            crashed.crash_at = point
            with contextlib.suppress(Crash):
                self.clean(crashed)
            dice = random.Random(point)
            for mode in Mode:
                for state in crashed.survivors(dice, mode=mode, limit=STATES_PER_POINT):
                    if (key := digest(state)) not in seen:
                        seen.add(key)
                        yield f"crash before operation {point} of {self.operations}", state

    def is_finished(self, image: Image) -> bool:
        data, _ = image.get(self.target, {}).get(CLEANER_CHECKPOINT, (b"", 0))
        return decode_offsets(data).get(PARTITION) == self.report.end_offset if data else False

    def source_of(self, image: Image) -> Image:
        return {path: image[path] for path in image if self.source in (path, *path.parents)}

    def contents(self, image: Image) -> list[bytes]:
        found = read_image(image, self.target / str(PARTITION))
        return [repr(batch).encode() for batch in found.batches]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", ["merged", "vanishing tails", "emptied", "split"])
def test_no_crash_touches_the_source_or_passes_half_a_target_for_whole(
    tmp_path: Path, name: str
) -> None:
    copying = Copying(CRASH_LOGS[name], tmp_path)
    assert copying.report.failure is None
    assert copying.is_finished(copying.whole)
    states = finished = refused = cleaned_again = 0
    for where, state in copying.states():
        states += 1
        assert copying.source_of(copying.before) == copying.source_of(state), where
        if copying.is_finished(state):
            finished += 1
            assert copying.contents(copying.whole) == copying.contents(state), where
        partition = state.get(copying.target / str(PARTITION), {})
        files = CrashingFiles(state)
        again = copying.clean(files)
        if partition.keys() - {f"{INCOMPLETE}.tmp"} and INCOMPLETE not in partition:
            refused += 1
            assert isinstance(again.failure, RefusedError), where
            assert copying.is_finished(state), where
            continue
        cleaned_again += bool(partition)
        assert again.failure is None, where
        assert copying.is_finished(files.image()), where
        assert copying.contents(copying.whole) == copying.contents(files.image()), where
    print(f"{name}: {copying.operations + 1} crash points, {states} distinct states")
    assert finished >= refused > 0
    assert cleaned_again > refused
    assert states > copying.operations
