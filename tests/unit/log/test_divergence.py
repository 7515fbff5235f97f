"""Where a follower's log leaves its leader's, and how a log is cut or begun again."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.format import leader_epoch
from keeplast.format.batch import decode_batch, encode_batch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import Record
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.truncation import cut_torn_tail, find_divergence, restart_log
from tests.support.partition_maker import COMPACT, NOW_MS

Lineage = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("own", "own_end", "leader", "leader_end", "expected"),
    [
        pytest.param([(0, 0)], 10, [(0, 0)], 10, 10, id="the same"),
        pytest.param([(0, 0)], 10, [(0, 0)], 15, 10, id="behind"),
        pytest.param([(0, 0)], 15, [(0, 0), (1, 10)], 20, 10, id="wrote on after another led"),
        pytest.param([(0, 0), (2, 10)], 15, [(0, 0), (1, 8), (3, 12)], 20, 8, id="KIP-279"),
        pytest.param([(0, 0), (1, 10)], 15, [(0, 0)], 8, 8, id="leader lost its end"),
        pytest.param([], 0, [(0, 0)], 10, 0, id="new replica"),
        pytest.param([(0, 0)], 10, [(3, 100)], 120, 10, id="leader starts behind our end"),
        pytest.param([(0, 0), (1, 90)], 110, [(3, 100)], 120, 100, id="nothing in common"),
    ],
)
def test_divergence_follows_from_the_epochs(
    own: Lineage, own_end: int, leader: Lineage, leader_end: int, expected: int
) -> None:
    def entries(lineage: Lineage) -> list[LeaderEpoch]:
        return [LeaderEpoch(epoch, start) for epoch, start in lineage]

    assert expected == find_divergence(entries(own), own_end, entries(leader), leader_end)


def log_of(directory: Path, count: int) -> None:
    with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
        for i in range(count):
            log.append([NewRecord(b"k%d" % i, b"v", NOW_MS)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def test_a_torn_tail_is_cut_after_the_last_whole_batch(directory: Path) -> None:
    log_of(directory, 5)
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-3])
    cut = cut_torn_tail(LocalFiles(), directory)
    assert cut > 0
    with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
        assert log.log_end_offset == 4
    assert cut_torn_tail(LocalFiles(), directory) == 0


def test_an_epoch_that_a_crash_left_without_a_record_is_forgotten(directory: Path) -> None:
    """Or what is replicated there would be taken for that leader's."""
    log_of(directory, 5)
    path = directory / LEADER_EPOCH_CHECKPOINT
    path.write_bytes(leader_epoch.encode([LeaderEpoch(0, 0), LeaderEpoch(3, 5)]))
    assert cut_torn_tail(LocalFiles(), directory) == 0
    assert leader_epoch.decode(path.read_bytes()) == (LeaderEpoch(0, 0),)


def test_an_epoch_without_a_record_makes_room_for_the_next_leader(directory: Path) -> None:
    """Kafka: ``LeaderEpochFileCache.assign`` drops what is not monotonic."""
    log_of(directory, 5)
    path = directory / LEADER_EPOCH_CHECKPOINT
    path.write_bytes(leader_epoch.encode([LeaderEpoch(0, 0), LeaderEpoch(3, 5)]))
    with LogAppender(directory, LocalFiles(), topic=COMPACT, leader_epoch=8) as log:
        log.append([NewRecord(b"k", b"v", NOW_MS)])
    assert leader_epoch.decode(path.read_bytes()) == (LeaderEpoch(0, 0), LeaderEpoch(8, 5))


def test_a_leader_that_wrote_nothing_gives_its_epoch_to_no_record(directory: Path) -> None:
    """It led at epoch 3, follows now, and gets what the leader of epoch 1 had written there."""
    log_of(directory, 5)
    late = encode_batch([Record(5, NOW_MS, b"k", b"v")], leader_epoch=1)
    with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
        log.set_leader_epoch(3)
        log.append_stored(decode_batch(late))
    found = leader_epoch.decode((directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
    assert found == (LeaderEpoch(0, 0), LeaderEpoch(1, 5))


def test_a_log_begins_again_at_an_offset(directory: Path) -> None:
    log_of(directory, 5)
    restart_log(LocalFiles(), directory, 50)
    with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
        assert 50 == log.log_end_offset
    assert [f"{50:020d}.log"] == sorted(p.name for p in directory.glob("*.log"))
