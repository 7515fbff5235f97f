"""Crashes while a round keeps what it replaces, while that is put back, and while it goes.

Whatever a disk has made of it, readers miss nothing and get nothing back, and what was kept can be
put back from there: then every file of the log is what it was before the round, byte for byte, and
the cleaner checkpoint too.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import RefusedError
from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    SNAPSHOT,
    TXN_INDEX,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.recovery import recover_swap
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undo import undo_newest
from keeplast.run.undoing import sweep_kept
from keeplast.survey.request import PartitionRequest
from tests.support.crash_exploration import RECEIPT, ReadersLaw, is_listed
from tests.support.crash_logs import CrashLog
from tests.support.crashing_files import CrashingFiles, Image, Mode, digest
from tests.support.observed_files import Crash
from tests.support.partition_maker import DAY_MS, NOW_MS, PARTITION, clean_request, last_round
from tests.support.turns import Turn

ROUNDS_MAX = 4
SHARES = 3
UNDO_BEGINNING = "keeplast-undo."


class UndoCrashes:
    """One log whose round keeps what it replaces; counts what was looked at."""

    def __init__(self, log: CrashLog, root: Path, *, limit: int, turn: Turn | None = None) -> None:
        """Clean ``log`` undisturbed; ``root`` is a real, empty directory, for the lock alone.

        Of the operations those are crashed in whose ``turn`` it is, without one all.
        """
        self.points = self.states = 0
        self.kept: list[Image] = []
        self._limit, self._turn = limit, turn or Turn(None)
        self._log = replace(log, topic=replace(log.topic, undo_retention_ms=DAY_MS))
        self._root, self.path = root, root / str(PARTITION)
        self._entry = PartitionEntry(PARTITION, self.path, None)
        self.before = log.image(root)
        # What an earlier crash left there is gone behind the round, and does not come back.
        recovered = CrashingFiles(self.before)
        recover_swap(recovered, self.path)
        self.before = recovered.image()
        self.law = ReadersLaw(self.before, self.path)
        whole = CrashingFiles(self.before, free_bytes=log.free_bytes)
        self.clean(whole)
        self.cleaned = whole.image()

    def clean(self, files: FileSystem) -> None:
        """Do a round that keeps what it replaces, with a receipt."""
        request = replace(
            clean_request(self.path, topic=self._log.topic), receipt=self._root / RECEIPT
        )
        runner = LocalRunner(cores=1, files=files)
        done = last_round(Coordinator(runner, SystemClock(), files, NoEvents()).clean(request))
        if done.failure is not None:
            raise done.failure

    def undo(self, files: FileSystem) -> bool:
        """Undo the newest round; False where nothing is kept."""
        done = undo_newest(
            files, self._entry, receipt=self._root / RECEIPT, now_ms=NOW_MS, warned=pytest.fail
        )
        return done is not None

    def sweep(self, files: FileSystem) -> None:
        """Let the time of all that is kept be over."""
        topic = replace(self._log.topic, undo_retention_ms=0)
        sweep_kept(files, PartitionRequest(PARTITION, self.path, topic), NOW_MS)

    def crash(
        self, start: Image, act: Callable[[FileSystem], object], check: Callable[[Image, str], None]
    ) -> None:
        """Crash before each operation of ``act``, and ``check`` what a disk may hold then."""
        whole = CrashingFiles(start, free_bytes=self._log.free_bytes)
        act(whole)
        seen: set[bytes] = set()
        points = range(len(whole.operations) + 1)
        for point in (each for each in points if self._turn.takes(each, SHARES)):
            self.points += 1
            crashed = CrashingFiles(start, free_bytes=self._log.free_bytes)
            crashed.crash_at = point
            with contextlib.suppress(Crash):
                act(crashed)
            where = f"operation {point} of {len(whole.operations)}"
            dice = random.Random(where)
            for mode in Mode:
                for state in crashed.survivors(dice, mode=mode, limit=self._limit):
                    key = digest(state)
                    if key not in seen:
                        seen.add(key)
                        self.states += 1
                        self.kept.append(state)
                        check(state, f"{where}, {mode}")

    def check_comes_back(self, state: Image, where: str) -> None:
        """Hold a state to the law, and put back from there what was before the round."""
        if is_listed(state, self.path):
            self.law.check(state, f"{where}, before a start")
        files = CrashingFiles(state)
        recover_swap(files, self.path)
        self.law.check(files.image(), where)
        for _ in range(ROUNDS_MAX):
            if not self.undo(files):
                break
        self.check_same(files.image(), where)

    def check_goes_on(self, state: Image, where: str) -> None:
        """As above; and a round from there ends where one ended that nothing interrupted."""
        self.check_comes_back(state, where)
        files = CrashingFiles(state, free_bytes=self._log.free_bytes)
        self.clean(files)
        self.law.check(files.image(), f"{where}, cleaned again")
        assert self.checkpoint(self.cleaned) == self.checkpoint(files.image()), where

    def check_swept(self, state: Image, where: str) -> None:
        """Find the log as it was; what is kept is put back as a whole, or it goes."""
        assert self.content(self.cleaned) == self.content(state), where
        files = CrashingFiles(state)
        try:
            undone = self.undo(files)
        except RefusedError:
            undone = False  # of the lists of a round in waves some have gone
        if undone:
            self.check_same(files.image(), where)
        else:
            assert self.content(self.cleaned) == self.content(files.image()), where
        files = CrashingFiles(state)
        self.sweep(files)
        kept = [name for name in files.image()[self.path] if parse_undo_file(name) is not None]
        assert [] == kept, where
        assert self.content(self.cleaned) == self.content(files.image()), where

    def check_same(self, image: Image, where: str) -> None:
        """Find all files of the log as they were before the round, and nothing else of a swap."""
        assert self.content(self.before) == self.content(image), where
        assert self.checkpoint(self.before) == self.checkpoint(image), where
        strange = [
            name
            for name in image[self.path].keys() - self.before[self.path].keys()
            # What no list names goes with the next sweep; an empty index says nothing.
            if not name.startswith(UNDO_BEGINNING) and not name.endswith(TXN_INDEX)
        ]
        assert [] == strange, where

    def content(self, image: Image) -> dict[str, tuple[bytes, int]]:
        """Return bytes and times of the log's files; an empty transaction index is as good as
        none, and brokers write a snapshot again that a start-up has taken away."""
        return {
            name: (data, 0 if name.endswith(SNAPSHOT) else mtime)
            for name, (data, mtime) in image[self.path].items()
            if (parsed := parse_segment_file(name)) is not None
            and not parsed.stage
            and (data or not name.endswith(TXN_INDEX))
        }

    def checkpoint(self, image: Image) -> int | None:
        """Return the partition's line of the cleaner checkpoint."""
        data, _ = image[self._root].get(CLEANER_CHECKPOINT, (b"", 0))
        return decode_offsets(data).get(PARTITION)
