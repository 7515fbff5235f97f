"""The cleaning law, on logs of every kind that hypothesis can think of.

For a fresh read-committed reader that starts at any offset, the final value of every key is the
same before and after cleaning (deleted and absent count as equal); what survives keeps its offset
and its content. And the engine leaves, byte for byte, what the per-record reference leaves. Where
versions rank (KIP-280) the law is about a reader from the log start that applies the same rank.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.api.open_log import open_log
from keeplast.format.record import Record
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.run.local_runner import LocalRunner
from tests.support.cases import RoundSettings, topic_config
from tests.support.cleanings import in_process
from tests.support.committed_offsets import commit_offsets
from tests.support.log_script import START_MS, STEP_MS, Operation, scripts, write_script
from tests.support.reader import Readable, read_partition
from tests.support.reference_cleaning import reference_cleaning
from tests.support.replay import Cleaning
from tests.support.turns import examples

PARTITION = TopicPartition("law", 0)
MAP_ENTRY_BYTES = 24
DAY_MS = 86_400_000
STRATEGIES: list[dict[str, str]] = [
    {},
    {"compaction.strategy": "timestamp"},
    {"compaction.strategy": "header", "compaction.strategy.header": "ver"},
    {
        "compaction.strategy": "header",
        "compaction.strategy.header": "ver",
        "keep.versioned.tombstones": "true",
    },
]
COMPARED = (
    "log_end",
    "last_stable",
    "first_dirty",
    "uncleanable",
    "bound",
    "clean_bytes",
    "cleanable_bytes",
    "ratio",
    "compaction_delay_ms",
    "end_offset",
    "skipped",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Cleaning]:
    """Cleans in this process."""
    with LocalRunner(cores=1) as runner:
        yield in_process(runner)


def configs() -> st.SearchStrategy[dict[str, str]]:
    """Draw topic settings that cleaning reads."""
    return st.fixed_dictionaries(
        {
            "cleanup.policy": st.just("compact"),
            "segment.bytes": st.sampled_from(["2000", "8000", "1048576"]),
            "index.interval.bytes": st.sampled_from(["0", "300", "4096"]),
            "delete.retention.ms": st.sampled_from(["0", "1000", str(DAY_MS), str(INT64_MAX)]),
            "min.compaction.lag.ms": st.sampled_from(["0", "0", "0", str(5 * STEP_MS)]),
        }
    )


@st.composite
def round_settings(draw: st.DrawFn) -> list[RoundSettings]:
    """Draw up to four rounds, later ones later, all with the same topic settings."""
    config = draw(configs())
    now_ms = START_MS + 30 * STEP_MS
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        now_ms += draw(st.sampled_from([0, 1000, DAY_MS + 1]))
        slots = draw(st.sampled_from([1000, 1000, 2, 3, 8]))
        rounds.append(
            RoundSettings(
                now_ms=now_ms,
                config=config,
                key_map_bytes=MAP_ENTRY_BYTES * slots,
                load_factor=0.9,
                producer_id_expiration_ms=DAY_MS,
                first_dirty=draw(st.sampled_from([None, None, 0])),
                uncleanable=None,
                high_watermark=None,
                force=True,
            )
        )
    return rounds


def with_strategy(round_: RoundSettings, strategy: dict[str, str]) -> RoundSettings:
    """Return the settings of a round for a strategy, with as many slots."""
    config = {**round_.config, **strategy}
    slots = round_.key_map_bytes // MAP_ENTRY_BYTES
    slot_bytes = topic_config(config).strategy.slot_bytes
    return replace(round_, config=config, key_map_bytes=slots * slot_bytes)


def _files(partition: Path) -> dict[str, bytes]:
    """Return the content of every file that is not empty; an empty index is as good as none."""
    contents = {path.name: path.read_bytes() for path in partition.iterdir() if path.is_file()}
    return {name: content for name, content in contents.items() if content or name.endswith(".log")}


def _log_times(partition: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns // 10**6 for path in partition.glob("*.log")}


def _by_offset(readable: Readable) -> dict[int, Record]:
    return {record.offset: record for batch in readable.batches for record in batch.records()}


def _assert_law_holds(before: Readable, after: Readable) -> None:
    for start in range(before.end_offset + 1):
        assert before.final_values(start) == after.final_values(start), start
    _assert_only_records_of(before, after)


def _assert_only_records_of(before: Readable, after: Readable) -> None:
    survivors, originals = _by_offset(after), _by_offset(before)
    assert survivors.items() <= originals.items()
    assert list(survivors) == sorted(survivors)


@given(
    script=scripts(),
    rounds=round_settings(),
    strategy=st.sampled_from(STRATEGIES),
    waits=st.one_of(st.none(), st.tuples(st.integers(-1, 60), st.sampled_from([0, 1, DAY_MS]))),
)
@settings(max_examples=examples(300))
def test_cleaning_keeps_the_law_and_equals_the_reference(
    engine: Cleaning,
    script: tuple[Operation, ...],
    rounds: list[RoundSettings],
    strategy: dict[str, str],
    waits: tuple[int, int] | None,
) -> None:
    """``waits``: what a group has committed, -1 for nothing, and how long it is waited for."""
    rounds = [with_strategy(each, strategy) for each in rounds]
    if waits is not None:
        named = {"tombstones.wait.for.groups": "g", "tombstones.wait.max.ms": str(waits[1])}
        rounds = [replace(each, config={**each.config, **named}) for each in rounds]
    topic = topic_config(rounds[0].config)
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = Path(scratch) / "ours", Path(scratch) / "theirs"
        partition = ours / str(PARTITION)
        write_script(script, partition, topic_config(rounds[0].config))
        shutil.copytree(ours, theirs)
        original = read_partition(partition)
        state = open_log(partition).state(topic)
        passed_to = None
        if waits is not None:
            # An offset beyond the log end is another log's.
            passed_to = waits[0] if 0 <= waits[0] <= original.end_offset else 0
            commit_offsets(ours, "g", {PARTITION: waits[0]})
        for settings_of_round in rounds:
            expected = reference_cleaning(theirs, PARTITION, settings_of_round, passed_to)
            actual = engine(ours, PARTITION, settings_of_round)
            assert actual["error"] is None
            assert {k: expected[k] for k in COMPARED} == {k: actual[k] for k in COMPARED}
            if expected["stats"] is not None:
                counted = {key: actual["stats"][key] for key in expected["stats"]}
                assert expected["stats"] == counted
            assert _files(theirs / str(PARTITION)) == _files(partition)
            assert _log_times(theirs / str(PARTITION)) == _log_times(partition)
            after = read_partition(partition)
            if topic.strategy is Strategy.OFFSET:
                _assert_law_holds(original, after)
                continue
            _assert_only_records_of(original, after)
            # Only what a round may not touch yet can be later than its tombstone's removal.
            found = open_log(partition).state(topic)
            late = {key for key, record in found.items() if record.offset >= actual["bound"]}
            assert state == {k: found[k] for k in found if k in state or k not in late}
