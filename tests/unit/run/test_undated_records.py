"""With the strategy ``timestamp`` a record without one loses to any date, before 1970 too."""

from __future__ import annotations

from pathlib import Path

import pytest

import keeplast
from keeplast.log.append import NewRecord
from keeplast.model.partition import NO_TIMESTAMP
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS
from tests.support.source_reading import read_log_state

BY_TIMESTAMP = keeplast.topic_config(
    {"cleanup.policy": "compact", "compaction.strategy": "timestamp"}
)


@pytest.mark.parametrize(
    ("stamps", "winner"),
    [
        ((-5, NO_TIMESTAMP), 0),
        ((NO_TIMESTAMP, -5), 1),
        ((NO_TIMESTAMP, NO_TIMESTAMP), 1),
        ((-5, -6, -7), 0),
        ((0, -5, NO_TIMESTAMP), 0),
        ((-(1 << 63), NO_TIMESTAMP), 0),
    ],
)
def test_the_state_and_a_round_keep_what_is_dated(
    tmp_path: Path, stamps: tuple[int, ...], winner: int
) -> None:
    log = LogBuilder(tmp_path / "t-0", BY_TIMESTAMP)
    for stamp in stamps:
        log.append(NewRecord(b"k", b"v", stamp))
    log.finish()
    opened = keeplast.open_log(log.directory)
    assert [winner] == [record.offset for record in opened.state(BY_TIMESTAMP).values()]
    assert [winner] == [row.offset for row in read_log_state(log.directory, topic=BY_TIMESTAMP)]
    opened.clean(BY_TIMESTAMP, force=True, now_ms=NOW_MS)
    assert [winner] == [record.offset for record in opened.records()]
