"""A state that is continued again and again is the state that a full export gives.

Random histories of two producers with transactions, deletes and rolls, of a directory and of a
store; between any two exports the log may be cleaned, with tombstones and all, or lose its
beginning, and an export may be killed at any change it makes. Some are as of an earlier point.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.cli.show.progress import ProgressEvents
from keeplast.errors import RefusedError
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT, LOG
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.truncation import noted_log_start, raise_log_start, retire_below
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.export import Export, export_state
from keeplast.pipeline.increment import VersionPlace
from keeplast.pipeline.source_options import SourceOptions, read_options
from keeplast.run.local_runner import LocalRunner
from keeplast.store.removal import expire_remote
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.round_files import ROOT
from tests.support.killed_python import killed
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS, PARTITION, SMALL_SEGMENTS, clean_at
from tests.support.source_reading import view_of
from tests.support.tiered_log import Tiered
from tests.support.turns import Turn, examples

SEND, COMMIT, ABORT, PLAIN, DELETE, ROLL, CLEAN, EXPORT, AS_OF, LOSE, KILL = range(11)
ACTS = [SEND, SEND, COMMIT, ABORT, PLAIN, PLAIN, DELETE, ROLL, CLEAN, EXPORT, AS_OF, LOSE, KILL]
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTS), st.integers(0, 1), st.integers(0, 47)), max_size=40
)
"""An act, which producer, and a number: of the key, how far in fifths, or before which change."""
COMPACT = replace(SMALL_SEGMENTS, cleanup_policy=frozenset({"compact"}))
VERSION_HEADER = "ver"
FIFTHS = 5
KEYS = 6
KILLS_MAX = 200


def rows_of(partition: Path) -> list[tuple[int, bytes, bytes]]:
    table = pq.read_table(partition, columns=["offset", "key", "value"], partitioning=None)
    return [(row["offset"], row["key"], row["value"]) for row in table.to_pylist()]


class Directory:
    """A data directory as what is exported."""

    def __init__(self, log: LogBuilder) -> None:
        self.directory = log.directory

    def options(self, given: dict[str, str]) -> SourceOptions:
        return read_options({"path": str(self.directory.parent), **given}, is_streaming=False)

    def point(self, fifths: int) -> int:
        """Return an offset between where the log begins and its latest, in fifths of the way."""
        log_start = noted_log_start(LocalFiles(), self.directory)
        return log_start + (view_of(self.directory).last_stable - log_start) * fifths // FIFTHS

    def clean(self, topic: TopicConfig) -> None:
        clean_at(self.directory, NOW_MS + 10**12, topic=topic)

    def lose(self, fifths: int, *, removes: bool) -> None:
        """Let the log begin later, by DeleteRecords, and with ``removes`` without its segments."""
        files, log_start = LocalFiles(), self.point(fifths)
        raise_log_start(files, self.directory, PARTITION, log_start, is_compacted=True)
        bases = [int(path.stem) for path in self.directory.glob(f"*{LOG}")]
        if removes:
            first = max(base for base in bases if base <= max(log_start, min(bases)))
            for path in retire_below(files, self.directory, first):
                path.unlink()


class Store:
    """A store, in SQLite and in files, as what is exported; what is new is copied before it is."""

    def __init__(self, log: LogBuilder, root: Path) -> None:
        self.log, self.root = log, root
        self.tiered: Tiered | None = None

    def copied(self) -> Tiered:
        if self.tiered is None:
            url = f"file://{self.root / 'objects'}"
            self.tiered = Tiered(self.root / "store", self.log.directory, url)
        else:
            self.tiered.take_in(self.log.directory)
        return self.tiered

    def options(self, given: dict[str, str]) -> SourceOptions:
        tiered = self.copied()
        recipe = LogDirectoryRecipe(ROOT, (shown_log(tiered.state, tiered.objects),))
        return read_options({"path": str(ROOT), **given}, is_streaming=False).of(recipe)

    def point(self, fifths: int) -> int:
        """Return an offset between where the log begins and its end in the store."""
        state = self.copied().state
        return state.log_start + (state.remote_end - state.log_start) * fifths // FIFTHS

    def clean(self, topic: TopicConfig) -> None:
        tiered = self.copied()
        tiered.clock.advance(10**10)
        if tiered.state.routes:
            tiered.clean(topic)

    def lose(self, fifths: int, *, removes: bool) -> None:
        """Let the log begin later; what lies wholly in front of that always goes."""
        log_start, tiered = self.point(fifths), self.copied()
        state = tiered.state
        if state.routes:
            expire_remote(
                tiered.store, state, COMPACT, tiered.clock.now_ms(), grace_ms=0,
                log_start=log_start,
            )  # fmt: skip


class Exports:
    """Exports of one log: continued, and each time in full as well."""

    def __init__(
        self, root: Path, source: Directory | Store, topic: TopicConfig, patch: pytest.MonkeyPatch
    ) -> None:
        self.source, self.target, self.full = source, root / "state", root / "full"
        self.root, self.topic, self.patch = root, topic, patch
        self.carried = 0
        self.made = 0
        self.kills = 0
        self.attempts = 0

    def compare(self, fifths: int | None = None) -> None:
        """Continue, and have the same rows as a full export; as of a point, or of the latest."""
        given = {}
        if fifths is not None:
            given["endingOffsets"] = json.dumps({"t": {"0": self.source.point(fifths)}})
        self.attempts += 1
        try:
            full = self._export(self.full / str(self.attempts), None, given)
        except RefusedError:
            before = self.state()
            with pytest.raises(RefusedError):
                self.go_on(given)
            assert before == self.state()
            return
        before = self.state()
        done = self.go_on(given)
        assert full.offsets() == done.offsets()
        assert rows_of(full.target / "t/partition=0") == self.state()
        if before is not None:
            self.check_changes(before, done)
        self.carried += done.partitions[0].carried_to is not None
        self.made += 1
        self.check_names()

    def check_changes(self, before: list[tuple[int, bytes, bytes]], done: Export) -> None:
        """Have the earlier state become the present one by what changed, a row a key."""
        place = self.target / "current/_changes"
        since = json.loads((place / "_since.json").read_text())
        if since["whole"]:
            # The log begins above all of the last version: no epoch says that it is the same log.
            assert all(offset < self.source.point(0) for offset, _, _ in before)
            return
        assert (self.target / since["since"]).parent == self.target / "versions"
        table = pq.read_table(place / "t/partition=0", partitioning=None).to_pylist()
        held = {key: (offset, value) for offset, key, value in before}
        for row in table:
            if row["deleted"]:
                del held[row["key"]]
            else:
                assert held.get(row["key"], (-1,))[0] != row["offset"]
                held[row["key"]] = row["offset"], row["value"]
        assert (
            len(table) == len({row["key"] for row in table}) == sum((done.changes or {}).values())
        )
        assert self.state() == sorted((offset, key, value) for key, (offset, value) in held.items())

    def go_on(self, given: dict[str, str] | None = None) -> Export:
        """Make the next version."""
        versions = VersionPlace(self.target)
        versions.check()
        with versions.held():
            done = self._export(versions.next(), versions, given or {})
            versions.settle(done.target, kept=2)
        return done

    def kill(self, at: int) -> list[str]:
        """Kill an export before a change; the last version is as it was, or there is a whole one.

        Returns the changes that it made.
        """
        self.attempts += 1
        before = self.state()
        try:
            full = self._export(self.full / str(self.attempts), None, {})
        except RefusedError:
            return []
        with killed(self.target.parent, at, self.patch) as kill:
            self.go_on()
        after = self.state()
        if after != before or not kill.is_dead:
            assert rows_of(full.target / "t/partition=0") == after
        self.kills += kill.is_dead
        self.made += not kill.is_dead
        return kill.operations

    def state(self) -> list[tuple[int, bytes, bytes]] | None:
        """Return the rows that a reader of the last version has, None without one."""
        if not (self.target / "current").is_symlink():
            return None
        return rows_of(self.target / "current/t/partition=0")

    def check_names(self) -> None:
        """Have two versions at most, and nothing next to them."""
        states = {path.name for path in self.root.iterdir() if "state" in path.name}
        assert {"state"} == states
        assert ["current", "versions"] == sorted(path.name for path in self.target.iterdir())
        names = [path.name for path in (self.target / "versions").iterdir()]
        assert all(name.isdigit() for name in names), names
        assert 1 <= len(names) <= 2, names
        if not self.kills:
            assert min(self.made, 2) == len(names)

    def _export(self, target: Path, versions: VersionPlace | None, given: dict[str, str]) -> Export:
        with LocalRunner(cores=1) as workers:
            return export_state(
                self.source.options(given), target, workers, ProgressEvents("exporting"),
                topic_config=lambda topic: self.topic, versions=versions,
            )  # fmt: skip


def play(
    root: Path,
    steps: list[tuple[int, int, int]],
    topic: TopicConfig,
    patch: pytest.MonkeyPatch,
    *,
    is_stored: bool = False,
) -> Exports:
    """Write a log as the steps say, and export where they say so and at the end."""
    directory = root / "data" / "t-0"
    log = LogBuilder(directory, COMPACT)
    epochs = leader_epoch.encode([LeaderEpoch(0, 0)])
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    producers = [log.producer(7), log.producer(8)]
    is_open = [False, False]
    source = Store(log, root) if is_stored else Directory(log)
    exports = Exports(root, source, topic, patch)
    acts: dict[int, Callable[[int, int], Any]] = {
        CLEAN: lambda who, drawn: source.clean(topic),
        EXPORT: lambda who, drawn: exports.compare(),
        AS_OF: lambda who, drawn: exports.compare(drawn % (FIFTHS + 1)),
        LOSE: lambda who, drawn: source.lose(drawn % FIFTHS, removes=bool(who)),
        KILL: lambda who, drawn: exports.kill(drawn),
    }
    for number, (step, who, drawn) in enumerate(steps):
        key = drawn % KEYS
        version = (number * 7919 % 11).to_bytes(8, "big")
        new = NewRecord(
            b"%d" % key, b"%d" % number, NOW_MS + number * 7919 % 13,
            ((VERSION_HEADER.encode(), version),) if number % 3 else (),
        )  # fmt: skip
        if step == SEND:
            producers[who].send_records(new)
            is_open[who] = True
        elif step in (PLAIN, DELETE):
            log.append(new if step == PLAIN else replace(new, value=None))
        elif step == ROLL and log.log_end > log.active_base:
            log.roll()
        elif step in (COMMIT, ABORT) and is_open[who]:
            producers[who].commit() if step == COMMIT else producers[who].abort()
            is_open[who] = False
        elif step in acts:
            acts[step](who, drawn)
    log.close()
    exports.compare()
    return exports


def ranked_by(strategy: Strategy, tombstones_ms: int) -> TopicConfig:
    header = VERSION_HEADER if strategy is Strategy.HEADER else None
    return replace(
        COMPACT, strategy=strategy, strategy_header=header, delete_retention_ms=tombstones_ms
    )


POINT_THEN_CUT = [
    (PLAIN, 0, 1), (SEND, 0, 2), (PLAIN, 0, 3), (PLAIN, 0, 1), (COMMIT, 0, 0),
    (AS_OF, 0, 4), (AS_OF, 0, 3), (AS_OF, 0, 2), (EXPORT, 0, 0), (AS_OF, 0, 4), (EXPORT, 0, 0),
]  # fmt: skip
"""Points that go back and forth over a transaction."""


@pytest.mark.parametrize("is_stored", [False, True], ids=["directory", "store"])
@given(
    steps=STEPS,
    strategy=st.sampled_from([Strategy.OFFSET, Strategy.OFFSET, *Strategy]),
    tombstones_ms=st.sampled_from([0, 86_400_000]),
)
@example(steps=POINT_THEN_CUT, strategy=Strategy.OFFSET, tombstones_ms=86_400_000)
@settings(max_examples=examples(40))
def test_a_continued_state_is_the_full_state(
    steps: list[tuple[int, int, int]], strategy: Strategy, tombstones_ms: int, is_stored: bool
) -> None:
    topic = ranked_by(strategy, tombstones_ms)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        exports = play(Path(root), steps, topic, patch, is_stored=is_stored)
        if strategy is not Strategy.OFFSET:
            assert exports.carried == 0


@pytest.mark.parametrize("is_stored", [False, True], ids=["directory", "store"])
def test_a_kill_at_any_change_leaves_a_whole_version_and_the_next_export_is_the_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool, turn: Turn
) -> None:
    steps = [(PLAIN, 0, 1), (EXPORT, 0, 0), (PLAIN, 0, 2), (EXPORT, 0, 0)]
    steps += [(DELETE, 0, 1), (PLAIN, 0, 3)]
    topic = ranked_by(Strategy.OFFSET, 86_400_000)
    for at in (number for number in range(KILLS_MAX) if turn.takes(number, 4)):
        last = [*steps, (KILL, 0, at)]
        exports = play(tmp_path / f"{at}", last, topic, monkeypatch, is_stored=is_stored)
        if not exports.kills:
            break
        shutil.rmtree(tmp_path / f"{at}")
    assert 20 < at < KILLS_MAX - 1


def test_a_delete_that_came_and_went_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [(PLAIN, 0, 1), (PLAIN, 0, 2), (EXPORT, 0, 0), (DELETE, 0, 1), (ROLL, 0, 0)]
    steps += [(CLEAN, 0, 0), (CLEAN, 0, 0), (PLAIN, 0, 3)]
    exports = play(tmp_path, steps, replace(COMPACT, delete_retention_ms=0), monkeypatch)
    assert exports.carried == 0
    kept = rows_of(tmp_path / "state/current/t/partition=0")
    assert [key for _, key, _ in kept] == [b"2", b"3"]


def test_uncleaned_records_are_carried_over_however_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [(PLAIN, 0, 1), (PLAIN, 0, 2), (EXPORT, 0, 0), (DELETE, 0, 1), (PLAIN, 0, 3)]
    steps += [(EXPORT, 0, 0)]
    exports = play(tmp_path, steps, replace(COMPACT, delete_retention_ms=0), monkeypatch)
    assert exports.carried == 2
    last, before = sorted((tmp_path / "state/versions").iterdir(), reverse=True)
    name = "t/partition=0/part-00000.parquet"
    # Nothing came since, so nothing was written.
    assert (last / name).samefile(before / name)
