"""What a round replaced comes back byte for byte, or not at all, and goes when its time is over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.errors import RefusedError
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    parse_undo_file,
)
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.undo_files import read_kept
from keeplast.model.document import Verdict
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.run.events import NoEvents, RoundWork
from keeplast.run.expiry import delete_records
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.run.undo import UndoRound, drop_kept, find_undo, undo_newest
from keeplast.survey.receipt_book import read_chain, read_entries, read_receipts, rounds_of
from keeplast.survey.report import CleanReport, RoundReport
from tests.support.existing import existing
from tests.support.faulty_files import FaultyFiles
from tests.support.flipped import flip
from tests.support.log_builder import LogBuilder
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    clean_request,
    coordinator,
    last_round,
)

HOUR = 3_600_000
KEEPING = replace(COMPACT, undo_retention_ms=HOUR, segment_bytes=700)
FILES = UnsyncedFiles()
SEGMENT = 10
Content = dict[str, tuple[bytes, int]]


def new_log(root: Path) -> LogBuilder:
    log = LogBuilder(root / str(PARTITION), COMPACT)
    for segment in range(4):
        write(log, segment)
        log.roll()
    write(log, 4, 3)
    return log


def write(log: LogBuilder, seed: int, count: int = SEGMENT) -> None:
    for number in range(count):
        value = None if (seed + number) % 7 == 3 else b"%d" % log.log_end
        log.append(NewRecord(b"%d" % ((seed * number) % 5), value, NOW_MS + log.log_end))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a log of four closed segments of ten records; keys come again."""
    new_log(tmp_path / "data").close()
    return tmp_path / "data"


def clean(
    root: Path,
    *,
    topic: TopicConfig = KEEPING,
    files: FileSystem | None = None,
    clock: Clock | None = None,
    **wishes: object,
) -> RoundReport:
    return last_round(cleaned(root, topic=topic, files=files, clock=clock, **wishes))


def cleaned(
    root: Path,
    *,
    topic: TopicConfig = KEEPING,
    files: FileSystem | None = None,
    clock: Clock | None = None,
    **wishes: object,
) -> CleanReport:
    request = replace(clean_request(root / str(PARTITION), topic=topic), **wishes)
    return coordinator(files=files, clock=clock or ManualClock(NOW_MS)).clean(request)


def undo(root: Path, *, files: FileSystem = FILES, writes: bool = True) -> UndoRound | None:
    (entry,) = open_data_directory(root, files).partitions
    return undo_newest(
        files, entry, receipt=root / "keeplast-receipts", now_ms=NOW_MS, writes=writes,
        warned=pytest.fail,
    )  # fmt: skip


def listed(root: Path) -> tuple[UndoRound, ...]:
    (entry,) = open_data_directory(root, FILES).partitions
    return find_undo(FILES, entry)


def content(root: Path) -> Content:
    """Return bytes and time of every file that is part of the log."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (root / str(PARTITION)).iterdir()
        if parse_undo_file(path.name) is None
    }


def files_from(found: Content, start: int, end: int = INT64_MAX) -> Content:
    """Return the files of segments that begin in [start, end)."""
    named = {name: value for name, value in found.items() if name[:20].isdigit()}
    return {name: value for name, value in named.items() if start <= int(name[:20]) < end}


def kept(root: Path) -> list[str]:
    names = os.listdir(root / str(PARTITION))
    return sorted(name for name in names if name.startswith("keeplast-undo"))


def checkpoint(root: Path) -> int | None:
    return read_checkpoint(FILES, root, CLEANER_CHECKPOINT).get(PARTITION)


def test_a_round_is_undone_byte_for_byte_with_its_checkpoint(root: Path) -> None:
    before = content(root)
    report = clean(root)
    assert report.failure is None
    assert (40, True) == (checkpoint(root), content(root) != before)
    (found,) = listed(root)
    assert (True, None, 40) == (found.is_in_place, found.refusal, found.end)
    done = existing(undo(root))
    assert (done.segments, done.round) == (found.segments, found.round)
    assert before == content(root)
    assert checkpoint(root) is None
    assert [] == kept(root)
    assert undo(root) is None


@pytest.mark.parametrize("shape", Shape)
def test_a_round_that_was_cut_into_tasks_is_undone_too(root: Path, shape: Shape) -> None:
    before = content(root)
    assert clean(root, shape=shape, topic=replace(KEEPING, segment_bytes=14)).failure is None
    (wave,) = read_kept(FILES, root / str(PARTITION)).waves
    segments = [each for group in wave.groups for each in (*group.sources, *group.outputs)]
    assert all(each.crc32c is not None for each in segments)
    undo(root)
    assert (before, []) == (content(root), kept(root))


def test_nothing_is_kept_unless_that_is_set(root: Path) -> None:
    clean(root, topic=replace(KEEPING, undo_retention_ms=0))
    assert [] == kept(root)


def test_records_appended_since_stay(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    before = content(tmp_path)
    active = f"{log.active_base:020d}.log"
    clean(tmp_path)
    write(log, 9)
    log.close()
    undo(tmp_path)
    after = content(tmp_path)
    assert before.keys() == after.keys()
    assert {active} == {name for name in before if before[name][0] != after[name][0]}


def test_rounds_are_undone_from_the_newest_to_the_oldest(tmp_path: Path) -> None:
    log, states = new_log(tmp_path), []
    for turn in range(3):
        states.append((content(tmp_path), checkpoint(tmp_path)))
        clean(tmp_path)
        write(log, turn + 2)
        log.roll()
    log.close()
    refusals = [each.refusal for each in listed(tmp_path)]
    assert [None, "a later round has to be undone first"] == refusals[:2]
    for before, offset in reversed(states):
        assert undo(tmp_path) is not None
        now = content(tmp_path)
        # Of the active segment of then more is there by now.
        *closed, active = sorted(name for name in before if name.endswith(".log"))
        assert {name: before[name] for name in closed} == {name: now[name] for name in closed}
        assert now[active][0].startswith(before[active][0])
        assert offset == checkpoint(tmp_path)
    assert undo(tmp_path) is None


def test_a_round_in_waves_is_undone_as_a_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(root)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + 800)
    topic = replace(KEEPING, segment_bytes=14)
    # One that keeps what it replaces needs the room of all of it.
    assert isinstance(clean(root, topic=topic, files=files).failure, RefusedError)
    assert (before, []) == (content(root), kept(root))
    monkeypatch.setattr("keeplast.run.directory_place.check_room", lambda *_: None)
    clean(root, topic=topic, files=files)
    assert len([name for name in kept(root) if ".json." in name]) > 1
    (found,) = listed(root)
    assert (0, 40, None) == (found.first, found.end, found.refusal)
    undo(root)
    assert (before, []) == (content(root), kept(root))


def test_the_checkpoint_goes_back_to_where_it_was(root: Path) -> None:
    update_checkpoint(FILES, root, CLEANER_CHECKPOINT, {PARTITION: 10})
    before = content(root)
    clean(root)
    assert 40 == checkpoint(root)
    undo(root)
    assert (10, before) == (checkpoint(root), content(root))


def test_trying_it_changes_nothing(root: Path) -> None:
    clean(root)
    after, names = content(root), kept(root)
    found = existing(undo(root, writes=False))
    assert found.is_in_place
    assert (after, names, 40) == (content(root), kept(root), checkpoint(root))


def touch_output(root: Path) -> None:
    path = root / str(PARTITION) / f"{0:020d}.log"
    flip(path)


def lose_output(root: Path) -> None:
    (root / str(PARTITION) / f"{0:020d}.log").unlink()


def touch_copy(root: Path) -> None:
    name = next(name for name in kept(root) if name.endswith(".log.kept"))
    path = root / str(PARTITION) / name
    flip(path)


def lose_copy(root: Path) -> None:
    name = next(name for name in kept(root) if name.endswith(".log.kept"))
    (root / str(PARTITION) / name).unlink()


def lose_index(root: Path) -> None:
    name = next(name for name in kept(root) if name.endswith(".timeindex.kept"))
    (root / str(PARTITION) / name).unlink()


def damage_list(root: Path) -> None:
    name = next(name for name in kept(root) if name.endswith(".json.kept"))
    path = root / str(PARTITION) / name
    path.write_bytes(path.read_bytes().replace(b'"wave":1', b'"wave":2'))


def move_checkpoint(root: Path) -> None:
    update_checkpoint(FILES, root, CLEANER_CHECKPOINT, {PARTITION: 41})


def move_log_start(root: Path) -> None:
    update_checkpoint(FILES, root, LOG_START_CHECKPOINT, {PARTITION: 15})


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (touch_output, "is not what the round left"),
        (lose_output, "the log start has moved to 40"),
        (touch_copy, "missing or damaged"),
        (lose_copy, "missing or damaged"),
        (lose_index, "no index files"),
        (damage_list, "the list of what the round has kept is damaged"),
        (move_checkpoint, "the cleaner checkpoint says 41"),
        (move_log_start, "the log start has moved to 15"),
    ],
)
def test_an_undo_that_would_lose_records_is_refused(
    root: Path, spoil: Callable[[Path], None], why: str
) -> None:
    clean(root, topic=replace(KEEPING, segment_bytes=1 << 20))
    spoil(root)
    after, offset, names = content(root), checkpoint(root), kept(root)
    with pytest.raises(RefusedError, match=why):
        undo(root)
    assert (after, offset, names) == (content(root), checkpoint(root), kept(root))


def test_kept_rounds_go_when_their_time_is_over(root: Path) -> None:
    clock = ManualClock(NOW_MS)
    clean(root, clock=clock)
    names = kept(root)
    clock.advance(HOUR - 1)
    clean(root, clock=clock, force=False)
    assert names == kept(root)
    clock.advance(1)
    clean(root, clock=clock, force=False)
    assert [] == kept(root)


def test_a_shorter_time_counts_for_what_is_kept_already(root: Path) -> None:
    clean(root)
    clean(root, topic=replace(KEEPING, undo_retention_ms=0), force=False)
    assert [] == kept(root)


def test_a_clock_that_was_ahead_keeps_nothing_for_long(root: Path) -> None:
    clean(root, clock=ManualClock(NOW_MS + 10 * HOUR))
    clean(root, clock=ManualClock(NOW_MS), force=False)
    assert [] == kept(root)


def test_the_log_start_takes_what_is_kept_below_it(root: Path) -> None:
    """A group goes that is wholly below, and all of a round of which a group has lost a source."""
    topic = replace(KEEPING, segment_bytes=14, cleanup_policy=frozenset({"compact", "delete"}))
    before = content(root)
    clean(root, topic=topic)
    request = clean_request(root / str(PARTITION), topic=topic).partitions[0]
    delete_records(request, FILES, before_offset=10, removes=True, warned=pytest.fail)
    assert not any(f".{0:020d}.log" in name for name in kept(root))
    assert any(f".{10:020d}.log" in name for name in kept(root))
    undo(root)
    assert files_from(before, 10) == files_from(content(root), 10)
    merged = replace(topic, segment_bytes=1 << 20)
    clean(root, topic=merged)
    delete_records(request, FILES, before_offset=20, removes=True, warned=pytest.fail)
    assert [] == kept(root)


def test_kept_rounds_can_be_dropped_before_their_time(root: Path) -> None:
    clean(root)
    after = content(root)
    (entry,) = open_data_directory(root, FILES).partitions
    assert 1 == drop_kept(FILES, entry)
    assert ([], after) == (kept(root), content(root))
    assert 0 == drop_kept(FILES, entry)


def test_what_an_interrupted_undo_had_still_to_remove_goes_with_the_next(root: Path) -> None:
    clean(root)
    after = content(root)
    for path in (root / str(PARTITION)).glob("keeplast-undo.*.json.kept"):
        path.unlink()  # lists go first
    left = kept(root)
    assert (True, None) == (bool(left), undo(root, writes=False))
    assert (left, None) == (kept(root), undo(root))
    assert ([], after) == (kept(root), content(root))


def test_names_like_ours_that_nothing_kept_harm_nothing(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    names = [f"keeplast-undo.{n}.{n:020d}.json.kept" for n in range(4)]
    paths = [root / str(PARTITION) / name for name in names]
    paths[0].mkdir()
    paths[1].symlink_to(secret)
    paths[2].write_bytes(b"[" * 100_000)
    paths[3].with_name(f"keeplast-undo.3.{0:020d}.log.kept").write_bytes(b"")
    before = content(root)
    assert clean(root).failure is None
    assert (names[0], b"not yours") == (kept(root)[0], secret.read_bytes())
    undo(root)
    assert (before, [names[0]]) == (content(root), kept(root))


def test_the_oldest_rounds_give_way_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.run.undoing.ROUNDS_MAX", 2)
    log = new_log(tmp_path)
    rounds = []
    for turn in range(4):
        log.roll()
        assert clean(tmp_path).failure is None
        rounds.append(listed(tmp_path)[0].round)
        write(log, turn)
    log.close()
    assert rounds[:1:-1] == [each.round for each in listed(tmp_path)]


def test_a_log_that_is_verified_after_an_undo_is_what_it_was(root: Path, tmp_path: Path) -> None:
    receipt = root / "keeplast-receipts"
    shutil.copytree(root, tmp_path / "before")
    clean(root, receipt=receipt)
    undo(root)
    report = Verifier(LocalFiles(), VerifySettings(topic=COMPACT)).verify_pair(
        tmp_path / "before" / str(PARTITION),
        root / str(PARTITION),
        read_receipts(receipt, LocalFiles()),
    )
    assert [] == [each for each in report.checks if each.verdict is Verdict.BROKEN]


def test_a_volume_without_links_refuses_the_round_and_the_log_stays(root: Path) -> None:
    class NoLinks(UnsyncedFiles):
        def link(self, source: Path, target: Path) -> None:
            raise PermissionError(1, "Operation not permitted", str(source))

    before = content(root)
    report = clean(root, files=NoLinks())
    assert isinstance(report.failure, RefusedError)
    assert "undo.retention.ms" in str(report.failure)
    assert (before, []) == (content(root), kept(root))


@pytest.mark.parametrize("verb", ["link", "rename"])
def test_a_disk_that_fails_once_leaves_a_log_that_can_be_undone(root: Path, verb: str) -> None:
    before = content(root)
    counting = FaultyFiles(frozenset({verb}), 5, fail_at=None)
    clean(root, files=counting)
    undo(root)
    for number in range(counting.count):
        clean(root, files=FaultyFiles(frozenset({verb}), 5, fail_at=number))
        while listed(root):
            undo(root)
        now = content(root)
        # A start-up, and so a recovery, takes snapshots of what a swap covers away.
        assert before == now, number
        assert checkpoint(root) is None


def test_a_name_that_cannot_be_given_leaves_no_file(root: Path) -> None:
    clean(root)
    names = sorted(each.name for each in (root / str(PARTITION)).iterdir())
    for number in range(5):
        with pytest.raises(OSError, match=r".*"):
            undo(root, files=FaultyFiles(frozenset({"link"}), 5, fail_at=number))
        assert names == sorted(each.name for each in (root / str(PARTITION)).iterdir()), number


def test_an_index_that_is_a_link_is_none_that_was_kept(root: Path, tmp_path: Path) -> None:
    clean(root)
    path = sorted((root / str(PARTITION)).glob("keeplast-undo.*.index.kept"))[0]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    names = sorted(each.name for each in (root / str(PARTITION)).iterdir())
    with pytest.raises(RefusedError, match="missing or damaged"):
        undo(root)
    assert names == sorted(each.name for each in (root / str(PARTITION)).iterdir())


def test_a_target_gets_nothing_of_what_is_kept(root: Path, tmp_path: Path) -> None:
    clean(root)
    clean(root, target=tmp_path / "to", force=True)
    assert [] == kept(tmp_path / "to")
    assert kept(root)


def test_the_receipt_names_it_and_verify_goes_by_the_files(root: Path, tmp_path: Path) -> None:
    receipt = root / "keeplast-receipts"
    shutil.copytree(root, tmp_path / "before")
    clean(root, receipt=receipt)
    undo(root)
    entries = read_entries(receipt, LocalFiles())
    assert ["RoundReceipt", "UndoReceipt"] == [type(each).__name__ for each in entries]
    assert not read_chain(receipt, LocalFiles()).problems
    clean(root, receipt=receipt, topic=replace(KEEPING, segment_bytes=14))
    first, _, last = read_entries(receipt, LocalFiles())
    assert (last,) == rounds_of(read_entries(receipt, LocalFiles()))
    assert first not in rounds_of(read_entries(receipt, LocalFiles()))
    report = Verifier(LocalFiles(), VerifySettings(topic=COMPACT)).verify_pair(
        tmp_path / "before" / str(PARTITION),
        root / str(PARTITION),
        read_receipts(receipt, LocalFiles()),
    )
    assert [] == [each for each in report.checks if each.verdict is Verdict.BROKEN]


class _Heard(NoEvents):
    """Adds up what is planned and what is read."""

    def __init__(self) -> None:
        self.planned_bytes = 0
        self.read_bytes: list[int] = []

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        self.planned_bytes += total_bytes

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        assert self.planned_bytes
        self.read_bytes.append(read_bytes)


@pytest.mark.parametrize("writes", [False, True])
def test_the_bytes_to_compare_are_reported_before_and_while_they_are_read(
    root: Path, writes: bool
) -> None:
    clean(root)
    heard = _Heard()
    (entry,) = open_data_directory(root, FILES).partitions
    done = undo_newest(
        FILES, entry, receipt=None, now_ms=NOW_MS, writes=writes, warned=pytest.fail, events=heard
    )
    assert done is not None
    assert len(heard.read_bytes) > 1
    assert heard.planned_bytes == sum(heard.read_bytes)
    assert heard.planned_bytes > done.bytes
