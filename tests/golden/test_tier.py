"""The logs that Kafka's cleaner has judged, taken into object storage and cleaned there.

Everything is eligible, in both; what remains is what the local cleaner leaves.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.batch import RecordBatch
from keeplast.model.topic_config import TopicConfig
from tests.support.archive import names
from tests.support.cases import load_case
from tests.support.partition_maker import clean, clean_request
from tests.support.reader import read_partition
from tests.support.tiered_log import Tiered, records

HERE = Path(__file__).parent
NAMES = names(HERE / "fixtures.tar.xz")
NOW_MS = 1_800_000_000_000
TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=4096, tier_chunk_bytes=1 << 40
)


@pytest.mark.rotates(9)
@pytest.mark.parametrize("name", NAMES)
def test_import_and_clean_leave_what_the_local_cleaner_leaves(
    name: str, fixtures: Path, tmp_path: Path
) -> None:
    before = load_case(fixtures / name).before
    directory = tmp_path / "data" / before.name
    shutil.copytree(before, directory)
    request = clean_request(directory, topic=TOPIC)
    try:
        report = clean(replace(request, now_ms=NOW_MS, first_dirty_offset=0, roll_active=True))
    except CorruptError:
        # What the local cleaner stops at does not become part of the remote log either.
        with pytest.raises((CorruptError, RefusedError)):
            Tiered(tmp_path, before, now_ms=NOW_MS).clean(TOPIC)
        return
    tiered = Tiered(tmp_path, before, now_ms=NOW_MS)
    tiered.clean(TOPIC)
    after = tiered.export(tmp_path / "after" / directory.name)
    assert (report.end_offset or 0) == tiered.state.first_dirty()
    assert read_partition(directory).final_values() == read_partition(after).final_values()
    batches = read_partition(before).batches
    if all(isinstance(batch, RecordBatch) for batch in batches):
        assert records(directory) == records(after)
