"""Expires a log or deletes records, crashes at every operation, and examines every state.

The log then starts where it did or where it was to start, has all that lies behind that, and ends
where it ended. The next call ends as one that nothing interrupted, byte for byte.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.format.filename import LOG
from keeplast.format.message_set import read_batches
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.recovery import recover_swap
from keeplast.run.expiry import delete_records
from keeplast.survey.bounds import Checkpoints, find_bounds, load_checkpoints
from tests.support.crashing_files import CrashingFiles, Image, Mode, digest, load_image
from tests.support.expiring_log import (
    BOTH,
    RECORD_BYTES,
    expire,
    expiry_request,
    set_cleaner_checkpoint,
    set_log_start,
    write_log,
)
from tests.support.observed_files import Crash
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION

OLD_MS = NOW_MS - 1000
AGED = replace(BOTH, retention_ms=999)
SMALLER = replace(BOTH, retention_bytes=10 * RECORD_BYTES)


def _write_below_log_start(root: Path) -> Path:
    directory = write_log(root, segments=4)
    set_log_start(directory, 12)
    set_cleaner_checkpoint(directory, 5)
    return directory


def _write_old(root: Path) -> Path:
    directory = write_log(root, timestamp_ms=OLD_MS)
    set_cleaner_checkpoint(directory, 10)
    return directory


def _deleting(before_offset: int, *, removes: bool) -> Callable[[Path, FileSystem], object]:
    def act(directory: Path, files: FileSystem) -> object:
        return delete_records(
            expiry_request(directory).partitions[0],
            files,
            before_offset=before_offset,
            removes=removes,
            warned=pytest.fail,
        )

    return act


class Scenario(Struct, frozen=True):
    """A log, and the call that is interrupted."""

    write: Callable[[Path], Path]
    act: Callable[[Path, FileSystem], object]


SCENARIOS = {
    "all of a log, by time": Scenario(
        _write_old, lambda directory, files: expire(directory, AGED, files=files)
    ),
    "the oldest segment, by size": Scenario(
        write_log, lambda directory, files: expire(directory, SMALLER, files=files)
    ),
    "below the log start": Scenario(
        _write_below_log_start, lambda directory, files: expire(directory, COMPACT, files=files)
    ),
    "by all rules": Scenario(
        _write_below_log_start,
        lambda directory, files: expire(
            directory, replace(AGED, retention_bytes=5 * RECORD_BYTES), files=files
        ),
    ),
    "deleted records": Scenario(_write_below_log_start, _deleting(17, removes=False)),
    "deleted records, removed": Scenario(_write_below_log_start, _deleting(17, removes=True)),
}


@dataclass(slots=True)
class Found:
    """What a start-up would make of a directory."""

    log_start: int
    log_end: int
    batches: dict[int, bytes]


def found_in(files: CrashingFiles, directory: Path) -> Found:
    """Read a directory that a start-up has looked after."""
    listing = list_partition(directory, files)
    tail = find_tail(listing, files)
    checkpoints: Checkpoints = load_checkpoints(files, directory.parent)
    request = expiry_request(directory)
    bounds = find_bounds(PARTITION, request, checkpoints, listing, tail)
    image = files.image()[directory]
    batches = {
        batch.last_offset: image[name][0][batch.position : batch.position + batch.size_bytes]
        for name in sorted(image)
        if name.endswith(LOG)
        for batch in read_batches(image[name][0])
    }
    return Found(bounds.log_start, tail.log_end, batches)


class Crashes:
    """Interrupts one scenario everywhere; counts what was looked at, and keeps the states."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        """Carry out ``scenario`` undisturbed; ``root`` is a real, empty directory."""
        self.points = self.states = 0
        self.kept: list[Image] = []
        self._scenario = scenario
        self.directory = scenario.write(root)
        self._before_image = load_image(root)
        shutil.rmtree(self.directory)
        for path in root.iterdir():
            path.unlink()
        self.before = found_in(CrashingFiles(self._before_image), self.directory)
        whole = CrashingFiles(self._before_image)
        scenario.act(self.directory, whole)
        self._whole = _content(whole.image())
        self.after = found_in(whole, self.directory)
        self._operations = len(whole.operations)
        self._seen: set[bytes] = set()

    def run(self, *, limit: int, nested_every: int) -> None:
        """Crash before every operation, and in one of ``nested_every`` states once more."""
        for point in range(self._operations + 1):
            self.points += 1
            self._crash(self._before_image, point, limit, f"operation {point}", nested_every)

    def _crash(
        self, image: Image, point: int, limit: int, where: str, nested_every: int | None
    ) -> None:
        crashed = CrashingFiles(image)
        crashed.crash_at = point
        with contextlib.suppress(Crash):
            self._scenario.act(self.directory, crashed)
        dice = random.Random(where)
        for mode in (Mode.SUBSET, Mode.PREFIX):
            for number, state in enumerate(crashed.survivors(dice, mode=mode, limit=limit)):
                key = digest(state)
                if key in self._seen:
                    continue
                self._seen.add(key)
                self.states += 1
                self.kept.append(state)
                place = f"{where}, {mode} state {number}"
                operations = self._check(state, place)
                if nested_every is not None and self.states % nested_every == 0:
                    for again in range(operations):
                        self._crash(state, again, 2, f"{place}, then {again}", None)

    def _check(self, state: Image, where: str) -> int:
        """Examine what a crash left; return how many operations the next call takes."""
        files = CrashingFiles(state)
        recover_swap(files, self.directory)
        found = found_in(files, self.directory)
        assert found.log_start in (self.before.log_start, self.after.log_start), where
        assert found.log_end == self.before.log_end, where
        for last_offset, data in self.before.batches.items():
            if last_offset >= found.log_start:
                assert data == found.batches.get(last_offset), (where, last_offset)
        again = CrashingFiles(state)
        self._scenario.act(self.directory, again)
        assert self._whole == _content(again.image()), where
        return len(again.operations)


def _content(image: Image) -> dict[tuple[Path, str], bytes]:
    """Return every file's bytes; what writing atomically left half done does not count."""
    return {
        (directory, name): data
        for directory, files in image.items()
        for name, (data, _) in files.items()
        if not name.endswith(".tmp")
    }
