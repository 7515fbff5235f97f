"""What surveys of large logs hold and read grows with the number of segments, and no faster."""

from __future__ import annotations

import pickle

import pytest

from benchmarks.contestants import MIB
from benchmarks.large_survey import ROOT, MadeUpFiles, Shape, survey_all
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.log import readers
from keeplast.log.partition_log import list_partition
from keeplast.log.readers import LoadedIndexes
from keeplast.log.windows import WindowBuffers

SEGMENT_BYTES = 4 * MIB
ENTRIES = SEGMENT_BYTES // 4096 - 1
INDEXES_BYTES = ENTRIES * 2 * 2 * 8


def test_what_a_survey_keeps_grows_with_its_segments_and_not_with_their_indexes() -> None:
    kept = {}
    for segments in (8, 16, 32):
        shape = Shape(1, segments, SEGMENT_BYTES)
        (survey,) = survey_all(shape, MadeUpFiles(shape))
        assert survey.plan is not None
        assert segments == len(survey.plan.dirty_segments())
        kept[segments] = len(pickle.dumps(survey.segments)) + len(pickle.dumps(survey.plan))
    assert kept[32] - kept[16] <= 2.1 * (kept[16] - kept[8])
    assert kept[32] / 32 < INDEXES_BYTES / 10


def test_a_survey_opens_each_file_of_a_segment_a_few_times_however_many_there_are() -> None:
    for segments in (8, 64):
        shape = Shape(1, segments, SEGMENT_BYTES)
        files = MadeUpFiles(shape)
        survey_all(shape, files)
        for kind in (INDEX, TIME_INDEX, LOG):
            assert files.opened[kind] <= 3 * segments + 3


def test_indexes_that_were_asked_for_longest_ago_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LOADED_BYTES_MAX", 3 * INDEXES_BYTES)
    shape = Shape(1, 8, SEGMENT_BYTES)
    files = MadeUpFiles(shape)
    listing = list_partition(ROOT / "big-0", files)
    indexes = LoadedIndexes(listing, files, 4096, WindowBuffers(MIB))
    for base in indexes:
        assert ENTRIES == len(indexes[base].offsets)
        assert indexes.loaded_bytes <= 3 * INDEXES_BYTES
    assert 8 == files.opened[INDEX]
    last = [*indexes][-1]
    assert ENTRIES == len(indexes[last].times)
    assert 8 == files.opened[INDEX]
    assert ENTRIES == len(indexes[0].times)
    assert 9 == files.opened[INDEX]
