"""Tombstones and markers wait for groups of readers: never gone early, always gone in the end."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from keeplast.cli.main import app
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import UnavailableError
from keeplast.format.record import ControlType
from keeplast.inspect.explain import AskedKey, explain_key
from keeplast.inspect.fates import Outlook
from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.inspect.traces import find_last_trace, hold_words
from keeplast.log.files import LocalFiles
from keeplast.model.hold import Absence
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.coordinator import Coordinator
from keeplast.survey.group_offsets import FRESH_MS
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support import called
from tests.support.committed_offsets import commit_offsets, home_of
from tests.support.group_cluster import GroupCluster
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    batches_of,
    coordinator,
    data_batch,
    last_round,
    marker,
    one,
    write_partition,
)
from tests.support.replay import tree

WAIT_MS = 10 * DAY_MS
HORIZON_MS = NOW_MS + DAY_MS
"""The horizon that a round at NOW_MS stamps."""
OVER_MS = HORIZON_MS + WAIT_MS
WAITS = replace(SMALL_SEGMENTS, tombstones_wait_for_groups=("g",), tombstones_wait_max_ms=WAIT_MS)
TOMBSTONE, MARKER, END = 1, 3, 9
COMMITS = itertools.count(1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log that was cleaned twice: its tombstone at 1 and its marker at 3 have the same horizon.

    They are in two segments.
    """
    segments = {
        0: one(0, b"a") + one(1, b"a", None) + data_batch(2, 7, [b"b"]),
        3: marker(3, 7, ControlType.COMMIT) + one(4, b"b") + one(5, b"c") + one(6, b"c"),
        7: data_batch(7, 7, [b"d"], sequence=1) + marker(8, 7, ControlType.COMMIT),
    }
    directory = write_partition(tmp_path / "data", segments)
    # The first takes the data of the transaction, and the second finds its marker unneeded.
    for _ in range(2):
        clean(directory, NOW_MS, topic=SMALL_SEGMENTS, expired=False)
    assert [1, 3, 4, 6, 7, 8] == offsets(directory)
    return directory


def clean(
    directory: Path,
    now_ms: int,
    *,
    topic: TopicConfig = WAITS,
    expired: bool = True,
    cleaning: Coordinator | None = None,
    receipt: Path | None = None,
    shape: Shape | None = None,
) -> RoundReport:
    """Clean once by a clock that stands at ``now_ms``."""
    request = CleanRequest(
        (PartitionRequest(PARTITION, directory, topic),), now_ms=now_ms, is_unsafe=True,
        expired=expired, force=not expired, memory_bytes=MEMORY_BYTES_MIN, receipt=receipt,
        first_dirty_offset=None if expired else 0, shape=shape,
    )  # fmt: skip
    cleaning = coordinator(clock=ManualClock(now_ms)) if cleaning is None else cleaning
    report = last_round(cleaning.clean(request))
    assert report.failure is None
    return report


def offsets(directory: Path) -> list[int]:
    return [each.base_offset for each in batches_of(directory) if each.count]


def commit(directory: Path, offset: int | None, group: str = "g") -> None:
    shutil.rmtree(directory.parent / f"__consumer_offsets-{home_of(group)}", ignore_errors=True)
    made = commit_offsets(directory.parent, group, {PARTITION: offset})
    # As if it were appended to: a log of the same time and size counts as the same.
    at_ns = (NOW_MS + next(COMMITS)) * 10**6
    os.utime(made / f"{0:020d}.log", ns=(at_ns, at_ns))


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (None, [1, 3]),
        (0, [1, 3]),
        # At it, the tombstone is the next that the group reads.
        (TOMBSTONE, [1, 3]),
        (TOMBSTONE + 1, [3]),
        (MARKER, [3]),
        (MARKER + 1, []),
        (END, []),
        # Of another log, or of more than a backup has brought back.
        (END + 1, [1, 3]),
    ],
)
def test_tombstones_that_a_reader_has_not_read_stay(
    directory: Path, committed: int | None, expected: list[int], *, expired: bool
) -> None:
    """Whether a round is for what has expired, or any other: the rule is one."""
    commit(directory, committed)
    clean(directory, HORIZON_MS, expired=expired)
    assert [*expected, 4, 6, 7, 8] == offsets(directory)


@pytest.mark.parametrize("shape", Shape)
def test_every_shape_waits_alike(directory: Path, shape: Shape) -> None:
    commit(directory, TOMBSTONE + 1)
    clean(directory, HORIZON_MS, expired=False, shape=shape)
    assert [3, 4, 6, 7, 8] == offsets(directory)


def test_nothing_goes_before_its_horizon_however_far_readers_are(directory: Path) -> None:
    commit(directory, END)
    before = tree(directory)
    assert clean(directory, HORIZON_MS - 1).skipped
    assert before == tree(directory)


def test_a_reader_is_waited_for_no_longer_than_was_said(directory: Path) -> None:
    commit(directory, 0)
    assert clean(directory, OVER_MS - 1).skipped
    clean(directory, OVER_MS - 1, expired=False)
    assert [1, 3, 4, 6, 7, 8] == offsets(directory)
    report = clean(directory, OVER_MS)
    assert report.is_expired_round
    assert [4, 6, 7, 8] == offsets(directory)


def test_all_groups_must_have_read_it(directory: Path) -> None:
    topic = replace(WAITS, tombstones_wait_for_groups=("g", "h"))
    commit(directory, END)
    report = clean(directory, HORIZON_MS, topic=topic)
    assert report.skipped
    (words,) = [each for each in report.notes if "wait for readers" in each]
    assert f"at most 10 d after their delete horizon: group g has read up to offset {END}" in words
    home = f"__consumer_offsets-{home_of('h')}"
    assert f"group h counts as not there yet: {home}, where its offsets would be, is not" in words
    commit(directory, END, "h")
    assert not clean(directory, HORIZON_MS, topic=topic).skipped


def test_without_groups_there_is_no_look_for_any(directory: Path) -> None:
    commit(directory, 0)
    named_none = replace(SMALL_SEGMENTS, tombstones_wait_max_ms=WAIT_MS)
    report = clean(directory, HORIZON_MS, topic=named_none)
    assert [4, 6, 7, 8] == offsets(directory)
    assert not any("readers" in each for each in report.notes)


def test_brokers_own_topics_wait_for_no_group(tmp_path: Path) -> None:
    own = TopicPartition("__consumer_offsets", 3)
    made = write_partition(tmp_path, {0: one(0, b"a", None), 1: one(1, b"b"), 2: one(2, b"c")})
    directory = made.rename(tmp_path / str(own))
    partition = PartitionRequest(own, directory, WAITS)
    for now_ms in (NOW_MS, HORIZON_MS):
        request = CleanRequest(
            (partition,), now_ms=now_ms, is_unsafe=True, force=True, first_dirty_offset=0
        )
        report = last_round(coordinator(clock=ManualClock(now_ms)).clean(request))
        assert not any("readers" in each for each in report.notes)
    assert [1, 2] == offsets(directory)


def test_readers_that_read_on_are_no_reason_for_a_round_each_time(directory: Path) -> None:
    """A segment's tombstones of one horizon are a reason for a round once, when all are read."""
    clock = ManualClock(HORIZON_MS)
    cleaning = coordinator(clock=clock)
    done = []
    for committed in range(END + 1):
        commit(directory, committed)
        done.append(not clean(directory, HORIZON_MS, cleaning=cleaning).skipped)
        # What groups have committed is looked at again after a while.
        clock.advance(FRESH_MS)
    assert [TOMBSTONE + 1, MARKER + 1] == [at for at, is_done in enumerate(done) if is_done]
    assert [4, 6, 7, 8] == offsets(directory)
    assert clean(directory, OVER_MS, cleaning=cleaning).skipped


def test_a_plan_counts_what_a_round_does(directory: Path) -> None:
    commit(directory, TOMBSTONE + 1)
    request = CleanRequest(
        (PartitionRequest(PARTITION, directory, WAITS),), now_ms=HORIZON_MS, is_unsafe=True,
        force=True, first_dirty_offset=0,
    )  # fmt: skip
    planned = last_round(coordinator().plan(request, exact=True))
    done = last_round(coordinator().clean(request))
    assert planned.reasons == done.reasons
    assert done.reasons is not None
    assert (1, 0) == (done.reasons.tombstone_records, done.reasons.marker_records)


def test_a_receipt_names_the_awaited_groups_and_verify_holds(
    directory: Path, tmp_path: Path
) -> None:
    commit(directory, TOMBSTONE + 1)
    receipt, before = tmp_path / "receipt", tmp_path / "before" / directory.name
    shutil.copytree(directory, before)
    clean(directory, HORIZON_MS, receipt=receipt)
    line = json.loads(receipt.read_bytes())
    group = {
        "group": "g",
        "offset": TOMBSTONE + 1,
        "home": home_of("g"),
        "absence": None,
        "problem": "",
    }
    expected = {"groups": [group], "max_ms": WAIT_MS, "passed_to": TOMBSTONE + 1}
    assert expected == line["readers"]
    assert ["g"] == line["config"]["tombstones.wait.for.groups"]
    result = verify(before, directory, receipt)
    assert 0 == result.exit_code, result.output


def verify(before: Path, directory: Path, receipt: Path) -> Result:
    given = [str(before), str(directory), "--receipt", str(receipt)]
    return CliRunner().invoke(app, ["verify", *given, "--config", "cleanup.policy=compact"])


def test_verify_finds_what_went_although_readers_were_waited_for(
    directory: Path, tmp_path: Path
) -> None:
    """The receipt says that no group had read it."""
    commit(directory, TOMBSTONE + 1)
    receipt, before = tmp_path / "receipt", tmp_path / "before" / directory.name
    shutil.copytree(directory, before)
    clean(directory, HORIZON_MS, receipt=receipt)
    line = json.loads(receipt.read_bytes())
    del line["chain"]
    line["readers"]["groups"][0]["offset"] = TOMBSTONE
    receipt.write_text(json.dumps(line) + "\n")
    result = verify(before, directory, receipt)
    assert 1 == result.exit_code
    assert "readers were waited for who had not read it" in " ".join(result.output.split())


def status(directory: Path, now_ms: int, reading: TombstoneReading) -> LogStatus:
    request = CleanRequest((PartitionRequest(PARTITION, directory, WAITS),))
    ((_, found),) = find_statuses(
        request, directory.parent, LocalFiles(), now_ms, tombstones=reading,
        timestamp_ahead_max_ms=lambda _: INT64_MAX, progressed=lambda _: None,
    )  # fmt: skip
    assert isinstance(found, LogStatus)
    return found


@pytest.mark.parametrize("reading", [TombstoneReading.HEADERS, TombstoneReading.RECORDS])
def test_a_status_names_the_awaited_groups_and_counts_them(
    directory: Path, reading: TombstoneReading
) -> None:
    commit(directory, TOMBSTONE + 1)
    found = status(directory, HORIZON_MS, reading)
    assert found.stages is not None
    assert found.readers is not None
    assert TOMBSTONE + 1 == found.readers.passed_to
    assert (0, 1) == (found.stages.tombstones.retained, found.stages.tombstones.removable)
    assert (1, 0) == (found.stages.markers.retained, found.stages.markers.removable)
    assert OVER_MS == found.stages.markers.first_ms
    commit(directory, None)
    found = status(directory, HORIZON_MS, reading)
    assert found.readers is not None
    assert Absence.NOT_COMMITTED is found.readers.groups[0].absence
    assert found.stages is not None
    assert (1, OVER_MS) == (found.stages.tombstones.retained, found.stages.tombstones.first_ms)


def test_explain_shows_the_wait_and_the_last_trace_counts_it(directory: Path) -> None:
    partition = PartitionRequest(PARTITION, directory, WAITS)
    for committed, from_ms in ((0, OVER_MS), (END, HORIZON_MS)):
        commit(directory, committed)
        found = explain_key(
            partition, CleanRequest((partition,)), LocalFiles(), NOW_MS, AskedKey(b"a"),
            Workspace(MEMORY_BYTES_MIN), lambda _: None,
        )  # fmt: skip
        (record,) = found.records
        assert (Outlook.GOES_LATER, from_ms) == (record.fate.outlook, record.fate.from_ms)
        waits = "group g has read up to offset 0" in (hold_words(record.fate, DAY_MS) or "")
        assert waits == (committed == 0)
        trace = find_last_trace(found, erased_by_ms=NOW_MS, turn_ms=5, has_expired_rounds=True)
        # A group may be sent back to where it was.
        assert OVER_MS + 5 == trace.by_ms


ENDS = TopicEnds(b"i" * 16, {PARTITION.partition: END})


def ask(offset: int, topic: TopicEnds | Exception = ENDS) -> BrokerGroups:
    """Return brokers by which the group has committed ``offset``."""
    return BrokerGroups(GroupCluster({PARTITION.topic: topic}, {"g": {PARTITION: offset}}))


@pytest.mark.parametrize(
    ("committed", "expected"),
    [(TOMBSTONE, [1, 3]), (TOMBSTONE + 1, [3]), (END, []), (END + 1, [1, 3])],
)
def test_brokers_that_are_asked_count_and_files_do_not(
    directory: Path, committed: int, expected: list[int]
) -> None:
    commit(directory, END)
    cleaning = coordinator(clock=ManualClock(HORIZON_MS), brokers=ask(committed))
    clean(directory, HORIZON_MS, expired=False, cleaning=cleaning)
    assert [*expected, 4, 6, 7, 8] == offsets(directory)


def test_brokers_that_do_not_answer_let_nothing_go_until_the_wait_is_over(directory: Path) -> None:
    silent = ask(END, UnavailableError("no broker answers; check the address"))
    cleaning = coordinator(clock=(clock := ManualClock(HORIZON_MS)), brokers=silent)
    report = clean(directory, HORIZON_MS, expired=False, cleaning=cleaning)
    assert [1, 3, 4, 6, 7, 8] == offsets(directory)
    assert any("group g counts as not there yet: no broker answers" in n for n in report.notes)
    clock.advance(WAIT_MS)
    clean(directory, OVER_MS, expired=False, cleaning=cleaning)
    assert [4, 6, 7, 8] == offsets(directory)


def test_a_receipt_of_a_round_that_asked_brokers_is_read_back(
    directory: Path, tmp_path: Path
) -> None:
    receipt, before = tmp_path / "receipt", tmp_path / "before" / directory.name
    shutil.copytree(directory, before)
    cleaning = coordinator(clock=ManualClock(HORIZON_MS), brokers=ask(TOMBSTONE + 1))
    clean(directory, HORIZON_MS, receipt=receipt, cleaning=cleaning)
    (group,) = json.loads(receipt.read_bytes())["readers"]["groups"]
    assert (TOMBSTONE + 1, None) == (group["offset"], group["home"])
    result = verify(before, directory, receipt)
    assert 0 == result.exit_code, result.output


@pytest.mark.parametrize("command", ["plan", "clean", "status", "explain", "run"])
def test_every_command_that_looks_at_a_log_asks_the_brokers_that_are_named(
    directory: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = GroupCluster({PARTITION.topic: ENDS}, {"g": {PARTITION: TOMBSTONE}})
    addresses = []

    def connect(address: str, settings: Mapping[str, str]) -> GroupCluster:
        addresses.append((address, settings))
        return cluster

    monkeypatch.setattr("keeplast.cluster.client.ClusterClient", connect)
    properties = directory.parent / "client.properties"
    properties.write_text("client.id=me\n")
    given = [command, str(directory.parent), "--bootstrap-server", "host:9092", "--json"]
    for setting in ("cleanup.policy=compact", "tombstones.wait.for.groups=g"):
        given += ["--config", setting]
    given += ["--command-config", str(properties)]
    more = {"explain": ["a"], "run": ["--once"]}
    called.run(*given, *more.get(command, []), code=0)
    assert [("host:9092", {"client.id": "me"})] == addresses
    assert [PARTITION.topic, "g"] == cluster.asked[:2]
