"""Where a broker's log begins and ends is where the store's does, there and back again.

ST-31, ST-32.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import RefusedError
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    segment_file,
)
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.store.intake import directory_bounds
from tests.support.broker_directory import FILES, BrokerDirectory
from tests.support.partition_maker import COMPACT, PARTITION

DELETES = replace(
    COMPACT, segment_bytes=1 << 20, cleanup_policy=frozenset({"compact", "delete"}),
    retention_ms=-1,
)  # fmt: skip


@pytest.fixture(params=[None, DELETES], ids=["compact", "compact,delete"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerDirectory:
    made = BrokerDirectory(tmp_path, request.param)
    made.path.mkdir(parents=True)
    return made


def test_records_deleted_before_an_import_are_not_readable_again(broker: BrokerDirectory) -> None:
    broker.append("a", "b", "c")
    broker.append("d", "e")
    broker.delete_before(2)
    state = broker.import_all()
    assert (2, 5) == (state.log_start, state.remote_end)
    assert {2: "c", 3: "d", 4: "e"} == broker.values()
    assert () == broker.tiered.verify(PARTITION)


def test_segments_that_were_deleted_are_not_copied_though_their_files_are_still_there(
    broker: BrokerDirectory,
) -> None:
    broker.append("a", "b", "c")
    broker.append("d", "e")
    broker.delete_before(4)
    state = broker.import_all()
    assert ([3], 4) == ([route.base_offset for route in state.routes], state.log_start)
    assert {4: "e"} == broker.values()


def test_an_export_says_where_its_log_starts_inside_of_a_segment(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b", "c")
    root = broker.export().parent
    assert {} == read_checkpoint(FILES, root, LOG_START_CHECKPOINT)
    broker.delete_before(2)
    broker.copy()
    root = broker.export().parent
    assert {PARTITION: 2} == read_checkpoint(FILES, root, LOG_START_CHECKPOINT)


def test_an_export_leaves_no_older_line_of_another_log_start(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b", "c")
    root = broker.root / "out"
    root.mkdir()
    update_checkpoint(FILES, root, LOG_START_CHECKPOINT, {PARTITION: 2})
    broker.tiered.export(PARTITION, root / str(PARTITION))
    assert {} == read_checkpoint(FILES, root, LOG_START_CHECKPOINT)


@pytest.mark.parametrize("takes_in", ["copy", "import"])
def test_a_later_delete_is_followed(broker: BrokerDirectory, takes_in: str) -> None:
    broker.append("a", "b", "c")
    broker.import_with("d", "e")
    broker.append("f")
    broker.delete_before(4)
    state = broker.copy() if takes_in == "copy" else broker.import_all()
    assert (4, 6) == (state.log_start, state.remote_end)
    assert {4: "e", 5: "f"} == broker.values()
    assert [0] == [each.segment.base_offset for each in broker.store.orphans(PARTITION)]


def test_a_delete_of_all_that_was_copied_is_followed(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    broker.append("c", "d")
    broker.delete_before(3)
    state = broker.copy()
    assert (3, 4) == (state.log_start, state.remote_end)
    assert {3: "d"} == broker.values()
    assert () == broker.tiered.verify(PARTITION)


def test_a_log_start_never_moves_back(broker: BrokerDirectory) -> None:
    broker.append("a", "b", "c")
    broker.delete_before(2)
    broker.import_all()
    broker.note(log_start=1)
    assert 2 == broker.copy().log_start


def test_a_receipt_has_a_line_of_what_was_deleted(broker: BrokerDirectory) -> None:
    broker.append("a", "b", "c")
    broker.import_with("d")
    broker.delete_before(3)
    lines: list[bytes] = []
    broker.tiered.copy_directory(PARTITION, broker.path, receipt=lines.append)
    assert [[0]] == [[s["base"] for s in json.loads(each)["expiry"]["segments"]] for each in lines]


def test_a_log_start_whose_segments_and_line_are_gone_is_followed_by_its_epochs(
    broker: BrokerDirectory,
) -> None:
    """A compacted topic has no retention that could have moved it; else it stays in the store."""
    broker.append("a", "b")
    broker.import_with("c", "d")
    broker.delete_before(2, removes_below=2)
    (broker.path.parent / LOG_START_CHECKPOINT).unlink()
    start = 0 if broker.topic is DELETES else 2
    assert start == broker.copy().log_start
    assert dict(list(enumerate("abcd"))[start:]) == broker.values()


def test_a_log_of_which_nothing_was_copied_yet_begins_where_its_directory_does_by_then(
    broker: BrokerDirectory,
) -> None:
    """An import that ended before its first segment has left a log start."""
    broker.append("a", "b")
    broker.append("c", "d")
    broker.tiered.create(PARTITION, {"cleanup.policy": "compact"})
    broker.delete_before(2, removes_below=2)
    (broker.path.parent / LOG_START_CHECKPOINT).unlink()
    assert 2 == broker.import_all().log_start


def test_segments_that_a_host_has_let_go_from_its_disk_alone_stay_in_the_store(
    tmp_path: Path,
) -> None:
    """Its leader epochs begin where they did: the log start has not moved."""
    broker = BrokerDirectory(tmp_path)
    broker.path.mkdir(parents=True)
    broker.append("a", "b")
    broker.import_with("c", "d")
    for path in broker.path.glob(f"{0:020d}.*"):
        path.unlink()
    assert 0 == broker.copy().log_start


@pytest.mark.parametrize("watermark", [0, 1, 3, 4, 7])
def test_unreplicated_records_are_not_imported_and_come_later(
    tmp_path: Path, watermark: int
) -> None:
    broker = BrokerDirectory(tmp_path)
    broker.path.mkdir(parents=True)
    expected = dict(enumerate("abcdefg"))
    broker.append("a", "b", "c")
    broker.append("d", "e")
    broker.append("f", "g", rolls=False)
    broker.note(high_watermark=watermark)
    state = broker.import_all()
    assert watermark == state.remote_end
    assert {k: v for k, v in expected.items() if k < watermark} == broker.values()
    assert () == broker.tiered.verify(PARTITION)
    broker.note(high_watermark=7)
    assert 7 == broker.import_all().remote_end
    assert expected == broker.values()
    assert () == broker.tiered.verify(PARTITION)


def test_a_directory_without_a_high_watermark_is_imported_to_its_end(
    broker: BrokerDirectory,
) -> None:
    broker.append("a", "b", rolls=False)
    assert 2 == broker.import_all().remote_end


@pytest.mark.parametrize("outcome", [ControlType.COMMIT, ControlType.ABORT])
def test_a_transaction_that_is_cut_by_the_high_watermark_ends_as_it_did(
    broker: BrokerDirectory, outcome: ControlType
) -> None:
    broker.append("a", rolls=False)
    broker.append_transaction("t", outcome)
    broker.append("z", rolls=False)
    broker.note(high_watermark=2)
    broker.import_all()
    broker.note(high_watermark=4)
    broker.import_all()
    expected = {0: "a", 3: "z"} | ({1: "t"} if outcome is ControlType.COMMIT else {})
    assert expected == broker.values()


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_log_start_beyond_the_logs_end_deletes_nothing(
    broker: BrokerDirectory, is_imported: bool
) -> None:
    broker.append("a", "b")
    if is_imported:
        broker.import_all()
    broker.note(log_start=3)
    with pytest.raises(RefusedError, match="log_start=3 log_end=2"):
        broker.import_all()
    if is_imported:
        with pytest.raises(RefusedError, match="log_start=3 log_end=2"):
            broker.copy()
        assert {0: "a", 1: "b"} == broker.values()
    broker.note(log_start=2)
    assert (2, 2) == ((state := broker.import_all()).log_start, state.remote_end)


@pytest.mark.parametrize(("checkpoint", "first_dirty"), [(2, 2), (3, 3), (4, 0)])
def test_a_cleaner_checkpoint_beyond_the_logs_end_is_another_logs(
    broker: BrokerDirectory, checkpoint: int, first_dirty: int
) -> None:
    broker.append("a", "b")
    broker.append("c")
    update_checkpoint(FILES, broker.path.parent, CLEANER_CHECKPOINT, {PARTITION: checkpoint})
    assert first_dirty == broker.import_all().first_dirty()


class CutFiles(LocalFiles):
    """Cuts one file to ``size_bytes`` just before it is opened for the first time."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path, self.left, self.size_bytes = path, 1, size_bytes

    def open_read(self, path: Path) -> ReadHandle:
        if path == self.path and self.left:
            self.left -= 1
            os.truncate(path, self.size_bytes)
        return super().open_read(path)


def test_an_end_that_a_new_leader_cuts_is_not_taken_for_lost(broker: BrokerDirectory) -> None:
    """The log start lies below the end that is left, though not below what was read first."""
    broker.append("a", "b", "c", rolls=False)
    log = broker.path / segment_file(0, LOG)
    kept = [each for each in read_batches(log.read_bytes()) if each.base_offset < 2]
    broker.note(log_start=2)
    files = CutFiles(log, sum(each.size_bytes for each in kept))
    bounds = directory_bounds(files, PARTITION, broker.path, broker.clock)
    assert (0, 2, 2) == (files.left, bounds.log_start, bounds.high_watermark)
