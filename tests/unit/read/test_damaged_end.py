"""Where a log ends: in front of a batch that was never finished, and nowhere else.

Every reader says so: records, states, exports, streams, ``explain`` and ``verify``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast
from keeplast.errors import CompactionError, CorruptError, RefusedError
from keeplast.format.checkpoint import encode_offsets
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.log_end import SEARCH_BYTES_MAX, find_whole_batch
from keeplast.log.partition_log import Tail, find_tail, list_partition
from keeplast.model.document import Verdict
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import read_options
from tests.support.flipped import flip
from tests.support.heard_export import HeardExport
from tests.support.log_builder import LogBuilder
from tests.support.source_reading import read_log, view_of

PARTITION = TopicPartition("t", 0)
FILES = LocalFiles()
COMPACTED = keeplast.topic_config({"cleanup.policy": "compact"})
BATCHES = 40


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A closed segment, and an active one of 40 batches that no index leads into."""
    log = LogBuilder(tmp_path / "data/t-0", TopicConfig())
    append(log, 5)
    log.roll()
    append(log, BATCHES)
    log.close()
    return log


def append(log: LogBuilder, count: int) -> None:
    for _ in range(count):
        log.append(NewRecord(b"%d" % (log.log_end % 7), b"v" * 50, 1_700_000_000_000))


def active(log: LogBuilder) -> Path:
    return log.path(log.active_base)


def batch_bytes(log: LogBuilder) -> int:
    return active(log).stat().st_size // BATCHES


def replicated_to(log: LogBuilder, offset: int) -> None:
    path = log.directory.parent / "replication-offset-checkpoint"
    path.write_bytes(encode_offsets({PARTITION: offset}))


def by_records(directory: Path) -> None:
    list(keeplast.open_log(directory).records())


def by_state(directory: Path) -> None:
    keeplast.open_log(directory).state(COMPACTED)


def by_export(directory: Path) -> None:
    keeplast.export(directory.parent, directory.parent.parent / "out")


def by_view(directory: Path) -> None:
    view_of(directory)


def by_query(directory: Path) -> None:
    logs = Logs(read_options({"path": str(directory.parent)}, is_streaming=False))
    logs.look(logs.entries[0])


def by_explain(directory: Path) -> None:
    keeplast.explain(keeplast.open_log(directory), COMPACTED, key=b"3")


READERS = [by_records, by_state, by_export, by_view, by_query, by_explain]


@pytest.mark.parametrize("field", [8, 11, 16, 30, 70], ids=["size", "length", "magic", "crc", "v"])
@pytest.mark.parametrize("reader", READERS)
def test_a_bad_batch_that_whole_ones_follow_is_an_error_for_every_reader(
    log: LogBuilder, reader: Callable[[Path], None], field: int
) -> None:
    size = batch_bytes(log)
    flip(active(log), 10 * size + field, 4)
    # A round, which explain foresees, is refused over what a newer Kafka may have written.
    is_refused = reader is by_explain and field == 16
    with pytest.raises(
        RefusedError if is_refused else CorruptError,
        match=re.escape(f"path={active(log)} position={10 * size} "),
    ):
        reader(log.directory)


@pytest.mark.parametrize("reader", READERS)
def test_a_newer_kafkas_batches_are_no_end_of_the_log(
    log: LogBuilder, reader: Callable[[Path], None]
) -> None:
    data, size = bytearray(active(log).read_bytes()), batch_bytes(log)
    for number in range(10, BATCHES):
        data[number * size + 16] = 3
    active(log).write_bytes(data)
    with pytest.raises(RefusedError, match="a magic that is not known"):
        reader(log.directory)


@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_ends_below_its_high_watermark_is_an_error_for_every_reader(
    log: LogBuilder, reader: Callable[[Path], None]
) -> None:
    replicated_to(log, log.log_end)
    reader(log.directory)
    data = active(log).read_bytes()
    active(log).write_bytes(data[: -batch_bytes(log)])
    if reader is by_export:
        (log.directory.parent.parent / "out/_offsets.json").unlink()
    with pytest.raises(CompactionError, match=r"ends below its high watermark|something is there"):
        reader(log.directory)


def test_a_bad_last_batch_below_the_high_watermark_is_an_error(log: LogBuilder) -> None:
    replicated_to(log, log.log_end)
    flip(active(log), active(log).stat().st_size - 20, 4)
    with pytest.raises(CorruptError, match="ends below its high watermark") as caught:
        view_of(log.directory)
    assert f"{log.log_end - 1}; crc mismatch" in str(caught.value)


def test_verify_finds_such_a_log_unreadable(log: LogBuilder) -> None:
    flip(active(log), 10 * batch_bytes(log) + 70, 4)
    report = Verifier(FILES, VerifySettings(COMPACTED)).verify_in_place(log.directory, ())
    assert Verdict.HOLDS != report.verdict
    assert "whole batches follow" in str(report.as_document())


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_an_unfinished_batch_beyond_the_high_watermark_ends_the_log_and_is_reported(
    log: LogBuilder, cut: int
) -> None:
    replicated_to(log, log.log_end - 1)
    data = active(log).read_bytes()
    active(log).write_bytes(data[:-cut])
    view = view_of(log.directory)
    assert log.log_end - 1 == view.log_end
    assert "t-0: the active segment 5 is torn at byte" in str(view.torn_words())
    assert log.log_end - 1 == len(read_log(log.directory))
    with pytest.warns(UserWarning, match="torn at byte"):
        by_records(log.directory)
    with pytest.warns(UserWarning, match="torn at byte"):
        by_state(log.directory)


def test_an_export_reports_the_unfinished_batch(log: LogBuilder, tmp_path: Path) -> None:
    active(log).write_bytes(active(log).read_bytes()[:-1])
    heard = HeardExport()
    keeplast.export(log.directory.parent, tmp_path / "out", events=heard)
    assert any("is torn at byte" in each for each in heard.notes)


def test_a_reader_that_accepts_loss_reads_the_records_below_the_high_watermark(
    log: LogBuilder,
) -> None:
    replicated_to(log, log.log_end + 9)
    given = {"path": str(log.directory.parent), "failOnDataLoss": "false"}
    logs = Logs(read_options(given, is_streaming=False))
    view = logs.look(logs.entries[0])
    assert log.log_end == view.log_end == view.high_watermark
    flip(active(log), 70, 4)
    with pytest.raises(CorruptError, match="whole batches follow"):
        logs.look(logs.entries[0])


def test_zeros_of_a_preallocated_segment_end_the_log(log: LogBuilder) -> None:
    with active(log).open("ab") as file:
        file.truncate(3 * SEARCH_BYTES_MAX)
    assert log.log_end == view_of(log.directory).log_end


def test_a_whole_batch_is_found_wherever_a_window_of_the_search_ends(log: LogBuilder) -> None:
    last = active(log).read_bytes()[-batch_bytes(log) :]
    sound = active(log).read_bytes()[: -batch_bytes(log)]
    for gap in (1, (1 << 20) - 9, (1 << 20) - 1, 1 << 20, (1 << 20) + 7, 5 << 20):
        active(log).write_bytes(sound + b"\xff" * gap + last)
        listing = list_partition(log.directory, FILES)
        tail = find_tail(listing, FILES)
        assert Tail(log.log_end - 1, len(sound), len(sound), tail.problem) == tail
        assert len(sound) + gap == find_whole_batch(listing.active, tail, FILES)


def test_a_batch_of_another_log_after_the_end_is_no_part_of_this_one(log: LogBuilder) -> None:
    """Below the end, or further than a segment reaches: a value may be a batch itself."""
    first = active(log).read_bytes()[: batch_bytes(log)]
    far = (log.active_base + (1 << 32)).to_bytes(8, "big") + first[8:]
    active(log).write_bytes(active(log).read_bytes() + b"\xff" * 30 + first + far)
    assert log.log_end == view_of(log.directory).log_end


def test_a_log_that_is_being_appended_to_is_read_as_far_as_it_is_whole(log: LogBuilder) -> None:
    """Whatever part of the next batches is there yet: a broker writes several at once."""
    replicated_to(log, log.log_end - 3)
    data, size = active(log).read_bytes(), batch_bytes(log)
    whole = len(data) - 3 * size
    for cut in range(whole, len(data) + 1, 7):
        active(log).write_bytes(data[:cut])
        expected = log.log_end - 3 + (cut - whole) // size
        assert expected == view_of(log.directory).log_end == len(read_log(log.directory))
