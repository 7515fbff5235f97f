"""The power goes before any operation of a round, or of its undo, and then a state is asked for.

Whatever is found on the disk: as of every offset the state is that of a plain replay of all that
was ever written, or it is refused; and behind a start-up it is refused where something is gone for
a record at or behind the offset, and nowhere else.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import RefusedError
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import CLEANED_FOR, CLEANER_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.recovery import recover_swap
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_view import load_reader_checkpoints, look_at_log
from keeplast.read.state_end import end_of_state
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undo import undo_newest
from tests.support.crash_exploration import read_image
from tests.support.crash_logs import room_for
from tests.support.crashing_files import (
    DEFAULT_FREE_BYTES,
    CrashingFiles,
    Image,
    Mode,
    digest,
    load_image,
)
from tests.support.observed_files import Crash
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean_request,
    last_round,
    one,
    write_partition,
)

CLEAN_TO = 4
LOG_END = 9
KEYS_OF_SEGMENTS = {
    # What is dirty takes from the clean section alone: nothing is missing behind the checkpoint.
    "from the clean section": {0: "ab", 2: "cd", 4: "ae", 6: "cf", 8: "g"},
    "from both": {0: "ab", 2: "cd", 4: "ae", 6: "ac", 8: "c"},
    "from the last segment": {0: "ab", 2: "cd", 4: "ef", 6: "dg", 8: "h"},
}
ROUNDS = {
    "one wave": (SMALL_SEGMENTS, DEFAULT_FREE_BYTES),
    "waves": (SMALL_SEGMENTS, room_for(150)),
    "merged": (COMPACT, DEFAULT_FREE_BYTES),
}


@dataclass
class ExaminedLog:
    """One log, what was ever written to it, and what was looked at."""

    root: Path
    topic: TopicConfig
    free_bytes: int
    before: Image
    history: tuple[tuple[int, bytes], ...]
    states: int = 0
    ends: set[int] = field(default_factory=set)
    """How far what was found had been cleaned."""

    @classmethod
    def make(
        cls, root: Path, keys: Mapping[int, str], topic: TopicConfig, free_bytes: int
    ) -> ExaminedLog:
        history = [(base + at, key.encode()) for base, each in keys.items()
                   for at, key in enumerate(each)]  # fmt: skip
        segments = {
            base: b"".join(one(base + at, key.encode(), b"%d" % (base + at))
                           for at, key in enumerate(each))
            for base, each in keys.items()
        }  # fmt: skip
        directory = write_partition(root, segments)
        (root / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: CLEAN_TO}))
        before = load_image(root)
        shutil.rmtree(directory)
        (root / CLEANER_CHECKPOINT).unlink()
        return cls(root, topic, free_bytes, before, tuple(history))

    @property
    def path(self) -> Path:
        return self.root / str(PARTITION)

    def clean(self, files: FileSystem) -> None:
        runner = LocalRunner(cores=1, files=files)
        request = clean_request(self.path, topic=self.topic)
        done = last_round(Coordinator(runner, SystemClock(), files, NoEvents()).clean(request))
        if done.failure is not None:
            raise done.failure

    def undo(self, files: FileSystem) -> None:
        entry = PartitionEntry(PARTITION, self.path, None)
        undo_newest(files, entry, receipt=None, now_ms=NOW_MS, warned=pytest.fail)

    def crash(
        self, start: Image, act: Callable[[FileSystem], None], *, limit: int = 2
    ) -> list[Image]:
        """Crash before each operation; check and return what a start-up makes of each state."""
        whole = CrashingFiles(start, free_bytes=self.free_bytes)
        act(whole)
        seen: set[bytes] = set()
        found = []
        for point in range(len(whole.operations) + 1):
            crashed = CrashingFiles(start, free_bytes=self.free_bytes)
            crashed.crash_at = point
            with contextlib.suppress(Crash):
                act(crashed)
            where = f"operation {point} of {len(whole.operations)}"
            for state in crashed.survivors(random.Random(where), mode=Mode.SUBSET, limit=limit):
                if digest(state) in seen:
                    continue
                seen.add(digest(state))
                self.states += 1
                self.check(state, f"{where}, as it is", is_settled=False)
                started = CrashingFiles(state)
                recover_swap(started, self.path)
                self.check(started.image(), where)
                found.append(started.image())
        return found

    def check(self, image: Image, where: str, *, is_settled: bool = True) -> None:
        """Ask for the state as of every offset."""
        files, clock = CrashingFiles(image), SystemClock()
        try:
            view = look_at_log(
                PARTITION, self.path, load_reader_checkpoints(files, self.root), files, clock
            )
        except RefusedError:
            assert not is_settled, where
            return
        left = {record.offset: record for record in read_image(image, self.path).records()}
        line = read_checkpoint(files, self.root, CLEANER_CHECKPOINT).get(PARTITION, 0)
        is_cleaned = len(left) < len(self.history)
        cleaned_to = 8 if is_cleaned else line
        self.ends.add(cleaned_to)
        for end in range(LOG_END + 1):
            try:
                shown_to = end_of_state(view, end, None, files, clock)
            except RefusedError:
                assert not is_settled or end < cleaned_to, f"{where}: {end}"
                continue
            shown = {record.key: offset for offset, record in left.items() if offset < shown_to}
            assert {key: offset for offset, key in self.history if offset < end} == shown, (
                f"{where}: {end}"
            )
            assert not is_settled or end >= cleaned_to, f"{where}: {end}"


@pytest.fixture(autouse=True)
def in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounds begin for which there is no room at once, as when the disk fills behind that."""
    monkeypatch.setattr("keeplast.run.directory_place.check_room", lambda *_: None)


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("keys", "how"),
    [
        ("from the clean section", "one wave"),
        ("from the clean section", "waves"),
        ("from the clean section", "merged"),
        ("from the last segment", "waves"),
        ("from both", "merged"),
    ],
)
def test_after_every_crash_of_a_round_no_state_is_shown_wrong(
    tmp_path: Path, keys: str, how: str
) -> None:
    log = ExaminedLog.make(tmp_path, KEYS_OF_SEGMENTS[keys], *ROUNDS[how])
    for started in log.crash(log.before, log.clean):
        again = CrashingFiles(started)
        log.clean(again)
        log.check(again.image(), "cleaned again")
        assert CLEANED_FOR not in again.image()[log.path]
    assert log.ends == {CLEAN_TO, 8}
    assert log.states > 30


@pytest.mark.parametrize("crashes_in", ["clean", "undo"])
def test_an_undone_state_is_shown_again(tmp_path: Path, crashes_in: str) -> None:
    topic, free_bytes = ROUNDS["waves" if crashes_in == "clean" else "merged"]
    kept = replace(topic, undo_retention_ms=DAY_MS)
    log = ExaminedLog.make(tmp_path, KEYS_OF_SEGMENTS["from both"], kept, free_bytes)
    if crashes_in == "clean":
        found = log.crash(log.before, log.clean, limit=1)
    else:
        whole = CrashingFiles(log.before, free_bytes=free_bytes)
        log.clean(whole)
        found = log.crash(whole.image(), log.undo, limit=1)
    for started in found:
        undone = CrashingFiles(started)
        log.undo(undone)
        log.ends.clear()
        log.check(undone.image(), "undone")
        assert log.ends == {CLEAN_TO}
        assert CLEANED_FOR not in undone.image()[log.path]


def test_without_the_note_a_state_that_never_was_would_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examination is worth something: nothing else shows such a round."""
    log = ExaminedLog.make(
        tmp_path, KEYS_OF_SEGMENTS["from the clean section"], *ROUNDS["one wave"]
    )
    monkeypatch.setattr("keeplast.log.checkpoints.cleaned_for", lambda *_: None)
    with pytest.raises(AssertionError, match=r"operation .*: 4"):
        log.crash(log.before, log.clean)
