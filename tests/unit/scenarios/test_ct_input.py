"""Kafka's LogCleanerTest: large, damaged and oddly written batches (cleaning.md section 8.1)."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.compression import Codec, compress
from keeplast.format.message_set import read_batches
from tests.support import legacy_sets
from tests.support.log_builder import record_of, text
from tests.support.scenario_log import FOREVER, SMALL, ScenarioLog, small_workspace
from tests.unit.scenarios.conftest import MakeLog

MIB = 1 << 20
ODD = {text(key): FOREVER for key in (1, 3, 5, 7, 9)}
LARGE = replace(SMALL, segment_bytes=4 * MIB, segment_index_bytes=MIB, max_message_bytes=2 * MIB)
MAGIC_POSITION = 16
WRAPPER_ATTRIBUTES = int(Codec.GZIP)


@pytest.fixture
def large_log(make_log: MakeLog) -> ScenarioLog:
    """Return a log of one closed segment with values of 1 MiB."""
    log = make_log(LARGE)
    while len(log.bases) < 2:
        log.append(record_of(text(log.log_end), bytes(MIB)))
    return log


def test_ct19_batches_larger_than_every_buffer(large_log: ScenarioLog) -> None:
    large_log.clean_with(ODD, sources=[0], workspace=small_workspace(1024))
    assert [0, 2] == [r.offset for r in large_log.records() if r.offset < large_log.active_base]


def test_ct20_batches_larger_than_a_lowered_limit(large_log: ScenarioLog) -> None:
    large_log.topic = replace(LARGE, max_message_bytes=MIB // 2)
    large_log.clean_with(ODD, sources=[0], workspace=small_workspace(1024))
    assert [0, 2] == [r.offset for r in large_log.records() if r.offset < large_log.active_base]


def test_ct21_a_damaged_magic_is_corrupt(large_log: ScenarioLog) -> None:
    path = large_log.path(0)
    with path.open("r+b") as file:
        file.seek(MAGIC_POSITION)
        file.write(b"\xff")
    with pytest.raises(CorruptError) as caught:
        large_log.clean(0)
    assert (str(path), 0) == (caught.value.path, caught.value.position)


def test_ct22_a_file_cut_inside_a_batch_is_corrupt(large_log: ScenarioLog) -> None:
    path = large_log.path(0)
    os.truncate(path, 1024)
    with pytest.raises(CorruptError) as caught:
        large_log.clean(0)
    assert (str(path), 0) == (caught.value.path, caught.value.position)


def damaged_wrapper(first_offset: int, keys: list[int]) -> bytes:
    """Return a wrapper of magic 1 whose inner messages say magic 0; values are the offsets.

    Brokers wrote such wrappers when they converted (KAFKA-4298): the inner offsets are relative,
    as the wrapper's magic wants it.
    """
    inner = b"".join(
        legacy_sets.encode_message(
            magic=0, offset=i, timestamp=-1, key=text(key), value=text(first_offset + i)
        )
        for i, key in enumerate(keys)
    )
    return legacy_sets.encode_message(
        magic=1,
        offset=first_offset + len(keys) - 1,
        timestamp=-1,
        key=None,
        value=compress(Codec.GZIP, inner, magic=1),
        attributes=WRAPPER_ATTRIBUTES,
    )


def test_ct44_wrappers_with_inner_messages_of_another_magic_are_mended(log: ScenarioLog) -> None:
    log.roll(25)
    log.add(damaged_wrapper(25, [0, 1, 0, 1]))
    log.add(damaged_wrapper(50, [3, 4]))
    log.roll_and_clean()
    assert [(0, 27), (1, 28), (3, 50), (4, 51)] == [
        (int(r.key or b""), r.offset) for r in log.records()
    ]
    assert all(r.value == text(r.offset) for r in log.records())
    # Kafka 4 writes what it rebuilds as magic 2 (F1), which has one magic for batch and records.
    assert [(2, 27, 28), (2, 50, 51)] == [
        (b.magic, b.base_offset, b.last_offset) for b in log.batches()
    ]


def test_ct45_a_reader_finds_the_offsets_of_such_a_wrapper() -> None:
    (batch,) = read_batches(damaged_wrapper(50, list(range(1, 10))))
    assert [(text(50 + i), 50 + i) for i in range(9)] == [
        (record.value, record.offset) for record in batch.records()
    ]
