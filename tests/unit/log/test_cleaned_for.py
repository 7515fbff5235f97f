"""How far a round has looked is noted next to the log, counts when it is true, and goes in time."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import keeplast
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.batch import encode_batch
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import CLEANED_FOR, CLEANER_CHECKPOINT
from keeplast.format.record import Record
from keeplast.inspect.status import find_status
from keeplast.log.checkpoints import (
    RoundNote,
    cleaned_for,
    drop_note,
    find_witness,
    note_round,
    settle_note,
    write_note,
)
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import PartitionFiles, list_partition
from keeplast.model.partition import INT64_MAX
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import PartitionRequest
from tests.support.partition_maker import NOW_MS, PARTITION, clean_request, one, write_partition

FILES = LocalFiles()
POLICY = keeplast.topic_config({"cleanup.policy": "compact"})


def told_from(partition: Path) -> int:
    return find_status(
        PartitionRequest(PARTITION, partition, POLICY),
        clean_request(partition),
        load_checkpoints(FILES, partition.parent),
        FILES,
        NOW_MS,
        timestamp_ahead_max_ms=INT64_MAX,
    ).earliest_as_of


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments: offsets [0, 2), [2, 4) and, active, [4, 5)."""
    return write_partition(
        tmp_path,
        {0: one(0, b"a") + one(1, b"b"), 2: one(2, b"a") + one(3, b"c"), 4: one(4, b"d")},
    )


def listed(partition: Path) -> PartitionFiles:
    return list_partition(partition, FILES)


def witness_of(partition: Path) -> tuple[int, int]:
    first = listed(partition).segments[0]
    return first.base_offset, first.size_bytes


def test_nothing_is_noted_of_a_log_that_no_round_has_touched(partition: Path) -> None:
    assert cleaned_for(listed(partition), FILES) is None


def test_a_note_counts_when_its_witness_is_gone(partition: Path) -> None:
    note_round(listed(partition), FILES, 4, witness=witness_of(partition), checkpoint=2)
    assert cleaned_for(listed(partition), FILES) is None
    with (partition / f"{0:020d}.log").open("ab") as log:
        log.write(b"more")
    assert cleaned_for(listed(partition), FILES) == 4


def test_what_an_earlier_note_says_counts_until_the_later_one_does(partition: Path) -> None:
    note_round(listed(partition), FILES, 3, witness=None, checkpoint=None)
    note_round(listed(partition), FILES, 4, witness=witness_of(partition), checkpoint=None)
    assert cleaned_for(listed(partition), FILES) == 3
    note_round(listed(partition), FILES, 2, witness=None, checkpoint=None)
    assert cleaned_for(listed(partition), FILES) == 3


def test_no_note_reaches_into_the_active_segment(partition: Path) -> None:
    note_round(listed(partition), FILES, 1000, witness=None, checkpoint=None)
    assert cleaned_for(listed(partition), FILES) == 4


def test_a_note_that_the_checkpoint_makes_needless_is_not_written(partition: Path) -> None:
    note_round(listed(partition), FILES, 2, witness=None, checkpoint=2)
    assert not (partition / CLEANED_FOR).exists()


def test_a_note_goes_with_the_checkpoint_that_says_as_much_and_no_earlier(partition: Path) -> None:
    note_round(listed(partition), FILES, 4, witness=None, checkpoint=2)
    for checkpoint, is_there in ((None, True), (3, True), (4, False), (4, False)):
        drop_note(partition, FILES, checkpoint)
        assert (partition / CLEANED_FOR).exists() is is_there


def test_a_note_of_what_was_put_back_goes_and_one_that_counts_stays(partition: Path) -> None:
    write_note(partition, FILES, RoundNote(4, None, None), like=0)
    settle_note(listed(partition), FILES)
    assert cleaned_for(listed(partition), FILES) == 4
    write_note(partition, FILES, RoundNote(4, witness_of(partition), None), like=0)
    settle_note(listed(partition), FILES)
    assert not (partition / CLEANED_FOR).exists()


def test_a_note_may_be_read_by_readers_of_the_log(partition: Path) -> None:
    """A broker that may not read a file in a partition does not start."""
    (partition / f"{0:020d}.log").chmod(0o640)
    note_round(listed(partition), FILES, 4, witness=None, checkpoint=None)
    assert stat.S_IMODE((partition / CLEANED_FOR).stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"{}", b'{"version":2,"end":4,"witness":null,"before":null}',
        b'{"version":1,"end":-1,"witness":null,"before":null}',
        b'{"version":1,"end":4,"witness":[1],"before":null}',
        b'{"version":1,"end":4,"witness":null,"before":true}', b"\xff",
        b'{"version":1,"end":9223372036854775808,"witness":null,"before":null}',
    ],
)  # fmt: skip
def test_a_damaged_note_is_an_error_that_names_the_file(partition: Path, data: bytes) -> None:
    (partition / CLEANED_FOR).write_bytes(data)
    with pytest.raises(CorruptError, match="how far a round has looked is damaged") as raised:
        cleaned_for(listed(partition), FILES)
    assert str(partition / CLEANED_FOR) in str(raised.value)


def test_a_witness_is_the_first_segment_that_is_not_what_it_was() -> None:
    before = [(0, 10), (5, 20), (9, 5)]
    assert find_witness(before, [(0, 10), (5, 19), (9, 1)]) == (5, 20)
    assert find_witness(before, [(0, 10), (9, 5)]) == (5, 20)
    assert find_witness(before, before) is None


def test_a_note_says_where_states_begin_also_in_status(partition: Path) -> None:
    note_round(listed(partition), FILES, 3, witness=None, checkpoint=None)
    log = keeplast.open_log(partition)
    with pytest.raises(RefusedError, match="cleaned_to=3 end_offset=2"):
        log.state(POLICY, end_offset=2)
    assert log.state(POLICY, end_offset=3).keys() == {b"a", b"b"}
    assert told_from(partition) == 3


def test_a_round_leaves_no_note_and_a_target_takes_none_that_it_has_passed(
    partition: Path, tmp_path: Path
) -> None:
    note_round(listed(partition), FILES, 3, witness=None, checkpoint=None)
    target = tmp_path / "target"
    for given in (target, None):
        report = keeplast.open_log(partition).clean(POLICY, force=True, to=given)
        assert report.rounds[-1].failure is None
        place = partition if given is None else target / partition.name
        assert not (place / CLEANED_FOR).exists()
    assert told_from(partition) == 4


def test_a_delete_horizon_after_the_checkpoint_shows_a_round_without_a_note(
    tmp_path: Path,
) -> None:
    """As of a broker that crashed between its swap and its checkpoint."""
    horizon = encode_batch([Record(2, NOW_MS, b"b", None)], delete_horizon_ms=NOW_MS)
    partition = write_partition(
        tmp_path, {0: one(0, b"a") + one(1, b"b"), 2: horizon + one(3, b"c"), 4: one(4, b"d")}
    )
    log = keeplast.open_log(partition)
    with pytest.raises(RefusedError, match="horizon_offset=2 end_offset=4"):
        log.state(POLICY, end_offset=4)
    assert log.state(POLICY, end_offset=5).keys() == {b"a", b"c", b"d"}
    # A broker's round may end in the segment, and gives horizons behind its end too.
    checkpoint = partition.parent / CLEANER_CHECKPOINT
    checkpoint.write_bytes(encode_offsets({PARTITION: 3}))
    assert log.state(POLICY, end_offset=4).keys() == {b"a", b"c"}


def test_the_writer_of_a_note_need_not_read_it_to_drop_it(partition: Path) -> None:
    noted = note_round(listed(partition), FILES, 4, witness=None, checkpoint=2)
    assert noted == 4
    (partition / CLEANED_FOR).write_bytes(b"unread")
    for checkpoint, is_there in ((None, True), (3, True), (4, False)):
        drop_note(partition, FILES, checkpoint, noted=noted)
        assert (partition / CLEANED_FOR).exists() is is_there


def test_a_note_that_is_not_needed_says_no_end(partition: Path) -> None:
    assert note_round(listed(partition), FILES, 2, witness=None, checkpoint=2) is None


@pytest.mark.parametrize("flushes_name", [True, False])
def test_a_note_of_a_swap_leaves_the_flush_of_its_name_to_that(
    partition: Path, *, flushes_name: bool
) -> None:
    flushed: list[Path] = []

    class Flushing(LocalFiles):
        def fsync_directory(self, path: Path) -> None:
            flushed.append(path)
            super().fsync_directory(path)

    note_round(
        listed(partition), Flushing(), 4, witness=None, checkpoint=2, flushes_name=flushes_name
    )
    assert flushed == [partition] * flushes_name
    assert cleaned_for(listed(partition), FILES) == 4
