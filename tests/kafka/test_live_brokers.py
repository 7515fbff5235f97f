"""Real brokers take over what we cleaned, and we what they cleaned."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keeplast import open_log
from keeplast.cluster.client import ClusterClient
from keeplast.format import consumer_offsets, transaction_state
from keeplast.format.consumer_offsets import OffsetCommit
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.format.record import ControlType, decode_control_type
from keeplast.format.transaction_state import TransactionStateValue, TransactionStatus
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.group_offsets import GroupOffsets
from tests.kafka.broker import VERSIONS, Broker
from tests.kafka.live_topics import (
    COMPACTED,
    DELETED,
    LAG,
    TOPICS,
    LiveTopics,
    Read,
    final_state,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("version", VERSIONS)]

INTERNAL = (consumer_offsets.TOPIC, transaction_state.TOPIC)
PROPERTIES = {
    # The broker keeps its hands off internal topics; the others say so themselves.
    "log.cleaner.min.cleanable.ratio": "1.0",
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
SEND = 600
SEND_AFTER = 80
ABOUT_LOGS = re.compile(r"\((kafka\.log\.|org\.apache\.kafka\.storage\.)")
CLEANED_RANGE = re.compile(
    r"Building offset map for log (\S+) for \d+ segments? in offset range \[(\d+), (\d+)\)"
)


def run_clean(data: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Clean with the command line and return each partition's report."""
    command = [
        sys.executable,
        "-m",
        "keeplast",
        "clean",
        str(data),
        "--despite",
        "dirty-ratio",
        "--json",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    partitions = json.loads(done.stdout)["partitions"]
    return {f"{each['topic']}-{each['partition']}": each for each in partitions}


def check_shrunk(report: dict[str, dict[str, Any]], topic: str) -> None:
    """A round of cleaning dropped something."""
    stats = report[f"{topic}-0"]["stats"]
    assert stats is not None, report[f"{topic}-0"]
    assert stats["messages_written"] < stats["messages_read"], topic


def complaints(broker: Broker) -> set[str]:
    """Return what a broker warned of about its logs since it started, numbers left out."""
    lines = broker.lines("WARN", "ERROR", "FATAL")
    return {
        re.sub(r"\d+", "#", line.replace(str(broker.root), ""))
        for line in lines
        if ABOUT_LOGS.search(line)
    }


def check_goes_on(broker: Broker, topics: LiveTopics, usual: set[str]) -> None:
    """Start the broker: it complains of nothing new, and clients go on where they were."""
    broker.start()
    assert complaints(broker) <= usual
    check_reads(topics, broker.data)
    assert topics.offsets == topics.committed_offsets()
    topics.commit_open()
    topics.send(SEND_AFTER)
    assert [] == topics.failures
    check_reads(topics, broker.data)


def complaints_of_untouched_copy(broker: Broker, root: Path) -> set[str]:
    """Start a broker on a copy of the stopped ``broker``'s data and return what it warned of."""
    root.mkdir()
    shutil.copytree(broker.data, root / "data")
    with Broker(broker.version, root, PROPERTIES) as copy:
        found = complaints(copy)
    shutil.rmtree(root)
    return found


def kept_uncommitted(data: Path, topic: str) -> list[Read]:
    """Return the records that keeplast says are there."""
    records = open_log(data / f"{topic}-0").records()
    return [(record.offset, record.key, record.value) for record in records]


def kept_committed(data: Path, topic: str) -> list[Read]:
    """Return the records of transactions that keeplast says were committed, and all others.

    Nothing at or above the first offset of an open transaction counts.
    """
    found: list[Read] = []
    pending: dict[int, list[Read]] = {}
    for batch in open_log(data / f"{topic}-0").batches():
        records = list(batch.records())
        if batch.is_control:
            ended = pending.pop(batch.producer_id, [])
            if records and decode_control_type(records[0].key) is ControlType.COMMIT:
                found += ended
            continue
        reads = [(record.offset, record.key, record.value) for record in records]
        if batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(reads)
        else:
            found += reads
    stable = min((reads[0][0] for reads in pending.values() if reads), default=1 << 62)
    return sorted(read for read in found if read[0] < stable)


def check_reads(topics: LiveTopics, data: Path) -> None:
    """Consumers read exactly what keeplast says, and end up with what was sent."""
    for topic in TOPICS:
        committed = topics.read(topic, "read_committed")
        assert kept_uncommitted(data, topic) == topics.read(topic, "read_uncommitted"), topic
        assert kept_committed(data, topic) == committed, topic
        assert topics.latest[topic] == final_state(committed), topic


def kept_offsets(data: Path) -> dict[str, int]:
    """Return what each group has committed, as the decoded records of the offsets topic say."""
    offsets: dict[str, int] = {}
    for _, key, value in kept_committed(data, consumer_offsets.TOPIC):
        about = consumer_offsets.decode_key(key)
        said = consumer_offsets.decode_value(about, value)
        if isinstance(said, OffsetCommit):
            assert about.group is not None
            offsets[about.group] = said.offset
    return offsets


def waited_offsets(data: Path, groups: Collection[str]) -> dict[str, int | None]:
    """Return what each group has committed, as tombstones that wait for it would go by."""
    watermarks = load_checkpoints(LocalFiles(), data).high_watermark
    found = GroupOffsets(LocalFiles()).of(data, groups, watermarks, 0)
    assert {0} == {found.home_of(group) for group in groups}
    return {group: commit.offset for (group, _), commit in found.commits.items()}


def read_committed(address: str, groups: Collection[str]) -> dict[str, int]:
    """Return what the brokers say that each group has committed, which tombstones may go by too."""
    client = ClusterClient(address)
    answers = (client.read_group_offsets(group) for group in groups)
    return {
        group: each for group, found in zip(groups, answers, strict=True) for each in found.values()
    }


def kept_transactions(data: Path) -> dict[str, TransactionStatus]:
    """Return where each transactional id stands, as the decoded records say."""
    found: dict[str, TransactionStatus] = {}
    for _, key, value in kept_committed(data, transaction_state.TOPIC):
        transactional_id = transaction_state.decode_key(key)
        state = transaction_state.decode_value(value)
        assert transactional_id is not None
        assert isinstance(state, TransactionStateValue)
        found[transactional_id] = state.status
    return found


def checkpoint(data: Path) -> dict[str, int]:
    """Return the cleaner checkpoint by partition name."""
    offsets = read_checkpoint(LocalFiles(), data, CLEANER_CHECKPOINT)
    return {str(partition): offset for partition, offset in offsets.items()}


def wait_for_high_watermarks(data: Path) -> None:
    """Return when the broker has checkpointed what it has by now; one may be under way."""
    path = data / "replication-offset-checkpoint"

    def moment() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    def has_changed(since: int) -> bool:
        return moment() not in (0, since)

    for _ in range(2):
        wait_until(partial(has_changed, moment()), words=lambda: f"{path} stays as it is")


def cleaned_ranges(broker: Broker) -> dict[str, tuple[int, int]]:
    """Return where the broker's own cleaner first began on each log, and how far it went."""
    found: dict[str, tuple[int, int]] = {}
    for line in broker.lines("INFO"):
        match = CLEANED_RANGE.search(line)
        if match is not None:
            found.setdefault(match[1], (int(match[2]), int(match[3])))
    return found


def test_broker_and_keeplast_take_turns_on_the_same_logs(version: str, tmp_path: Path) -> None:
    with (
        Broker(version, tmp_path / "live", PROPERTIES) as broker,
        LiveTopics(broker.address, version) as topics,
    ):
        topics.create()
        topics.send(SEND)
        topics.commit_groups()
        topics.commit_in_transactions()
        topics.join_group("classic")
        if version.startswith("4"):
            topics.join_group("consumer")
        # The markers of the last transaction may be on their way.
        wait_until(lambda: topics.offsets == read_committed(broker.address, topics.offsets))
        broker.stop()

        usual = complaints_of_untouched_copy(broker, tmp_path / "untouched")
        untouched = {name: kept_uncommitted(broker.data, name) for name in (LAG, DELETED)}
        assert topics.offsets == waited_offsets(broker.data, topics.offsets)
        ours = run_clean(broker.data, "--runner", "local")
        internal = run_clean(
                broker.data, "--runner", "local", "--roll-active",
                *(word for topic in INTERNAL for word in ("--topic", topic)),
            )  # fmt: skip
        for topic in COMPACTED:
            check_shrunk(ours, topic)
        for topic in INTERNAL:
            check_shrunk(internal, topic)
        for name, records in untouched.items():
            assert ours[f"{name}-0"]["skipped"]
            assert records == kept_uncommitted(broker.data, name)
        assert topics.offsets == kept_offsets(broker.data)
        assert topics.offsets == waited_offsets(broker.data, topics.offsets)
        assert TransactionStatus.ONGOING == kept_transactions(broker.data)["open-writer"]

        broker.start()
        assert complaints(broker) <= usual
        check_reads(topics, broker.data)
        assert topics.offsets == topics.committed_offsets()

        checkpointed = checkpoint(broker.data)
        topics.commit_open()
        topics.send(SEND)
        topics.commit_groups()
        topics.commit_in_transactions()
        topics.let_broker_clean()
        logs = {f"{topic}-0" for topic in COMPACTED}
        wait_until(lambda: logs <= cleaned_ranges(broker).keys())
        starts = {log: cleaned_ranges(broker)[log][0] for log in logs}
        assert {log: checkpointed[log] for log in logs} == starts
        wait_until(
            lambda: all(
                checkpoint(broker.data)[log] >= end
                for log, (_, end) in cleaned_ranges(broker).items()
            )
        )
        broker.stop()

        topics_left = checkpoint(broker.data)
        runner = "spark" if version.startswith("4") else "local"
        again = run_clean(broker.data, "--runner", runner, "--roll-active")
        for log in logs:
            assert topics_left[log] == again[log]["first_dirty"], log
        check_goes_on(broker, topics, usual)


def test_a_broker_recovers_what_we_cleaned_after_a_crash(version: str, tmp_path: Path) -> None:
    with (
        Broker(version, tmp_path / "live", PROPERTIES) as broker,
        LiveTopics(broker.address, version) as topics,
    ):
        topics.create()
        topics.send(SEND)
        topics.commit_groups()
        topics.commit_in_transactions()
        wait_for_high_watermarks(broker.data)
        broker.kill()

        usual = complaints_of_untouched_copy(broker, tmp_path / "untouched")
        ours = run_clean(broker.data, "--runner", "local")
        for topic in COMPACTED:
            check_shrunk(ours, topic)

        check_goes_on(broker, topics, usual)


def test_the_brokers_complaints_are_heard(version: str, tmp_path: Path) -> None:
    """Else the comparisons above would say nothing."""
    with (
        Broker(version, tmp_path / "live", PROPERTIES) as broker,
        LiveTopics(broker.address, version) as topics,
    ):
        topics.create()
        topics.send(SEND_AFTER)
        broker.stop()
        (broker.data / "none-0" / f"{0:020d}.index").unlink()
        broker.start()
        assert complaints(broker)
