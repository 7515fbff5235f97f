"""Tombstones of a store wait for groups by what brokers say, and without any for the longest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keeplast import open_store, topic_config
from keeplast.api import stored_logs
from keeplast.cli.main import app
from keeplast.cluster.group_offsets import FRESH_MS, BrokerGroups
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import UnavailableError
from keeplast.format.partition_metadata import PartitionMetadata, encode
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.traces import hold_words
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.hold import Absence
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.local_runner import LocalRunner
from keeplast.service.erasure.erasure_book import keys_of_file
from keeplast.service.erasure.store_erasing import find_store_traces
from keeplast.service.store_answer import answer_from_store
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import RoundReport
from tests.support import called
from tests.support.existing import existing
from tests.support.group_cluster import GroupCluster
from tests.support.heard_calls import hear
from tests.support.key_pair import write_operator_files
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import DAY_MS, NOW_MS, PARTITION, one, write_partition

WAIT_MS = 10 * DAY_MS
HORIZON_MS = NOW_MS + DAY_MS
OVER_MS = HORIZON_MS + WAIT_MS
TOMBSTONE, END = 1, 9
BEHIND = 1_000
"""Where brokers say that the log ends, which goes on behind what was copied."""
ID = b"i" * 16
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "100",
    "delete.retention.ms": str(DAY_MS),
    "tombstones.wait.for.groups": "g",
    "tombstones.wait.max.ms": str(WAIT_MS),
}
SEGMENTS = {
    0: one(0, b"a") + one(1, b"a", None) + one(2, b"b"),
    3: one(3, b"c") + one(4, b"b"),
    5: one(5, b"e", None) + one(6, b"c"),
    7: one(7, b"d") + one(8, b"f"),
}


class Store:
    """A store with a partition that was cleaned once, and brokers that know its group."""

    def __init__(self, root: Path, *, asks: bool = True) -> None:
        directory = write_partition(root / "data", SEGMENTS)
        (directory / "partition.metadata").write_bytes(encode(PartitionMetadata(ID)))
        self.clock = ManualClock(NOW_MS)
        ends = TopicEnds(ID, {PARTITION.partition: BEHIND})
        self.cluster = GroupCluster({PARTITION.topic: ends})
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.opened: TieredStore = open_store(
            self.url, f"file://{root / 'objects'}", owner="me", topic_of=topic_config,
            clock=self.clock, brokers=BrokerGroups(self.cluster) if asks else None,
        )  # fmt: skip
        self.opened.import_directory(PARTITION, directory, SETTINGS)
        assert not self.clean().skipped

    def commit(self, offset: int) -> None:
        """Let the group commit, and the last answer grow old."""
        self.cluster.groups["g"] = {PARTITION: offset}
        self.clock.advance(FRESH_MS)

    def clean(self) -> RoundReport:
        """Do a round, also one for what has expired alone."""
        report = self.opened.clean(
            PARTITION, lambda files: LocalRunner(1, files=files, clock=self.clock), expired=True
        )
        assert report.failure is None
        return report

    def tombstones(self, root: Path) -> list[bytes]:
        """Return the keys whose tombstones are still live."""
        exported = root / f"out-{self.clock.now_ms()}" / str(PARTITION)
        exported.parent.mkdir()
        self.opened.export(PARTITION, exported)
        data = b"".join(path.read_bytes() for path in sorted(exported.glob("*.log")))
        return [key for key in (b"a", b"e") if b"\x02" + key + b"\x01" in data]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (TOMBSTONE, [b"a", b"e"]),
        (TOMBSTONE + 1, [b"e"]),
        (END, []),
        # Behind what was copied: it has read all of it.
        (BEHIND, []),
        # By the brokers' own word of another log.
        (BEHIND + 1, [b"a", b"e"]),
    ],
)
def test_tombstones_that_a_group_has_not_read_stay(
    store: Store, tmp_path: Path, committed: int, expected: list[bytes]
) -> None:
    store.clock.advance(DAY_MS)
    store.commit(committed)
    report = store.clean()
    assert expected == store.tombstones(tmp_path)
    assert report.skipped == (len(expected) == 2)
    assert any("tombstones and markers wait for readers" in each for each in report.notes)


@pytest.mark.parametrize("asks", [True, False])
def test_a_group_without_an_answer_is_waited_for_until_the_wait_is_over(
    tmp_path: Path, *, asks: bool
) -> None:
    """A cluster that does not answer, and no cluster to ask."""
    store = Store(tmp_path, asks=asks)
    store.cluster.topics[PARTITION.topic] = UnavailableError("no broker answers")
    store.clock.advance(DAY_MS + WAIT_MS - 1)
    report = store.clean()
    assert report.skipped
    said = "no broker answers" if asks else "no broker was asked; status, plan, clean"
    assert any(said in each for each in report.notes)
    assert [b"a", b"e"] == store.tombstones(tmp_path)
    store.clock.advance(1)
    assert not store.clean().skipped
    assert [] == store.tombstones(tmp_path)


def test_readers_that_read_on_are_a_reason_for_a_round_once(store: Store) -> None:
    store.clock.advance(DAY_MS)
    done = []
    for committed in range(END + 1):
        store.commit(committed)
        looked = store.opened.look(PARTITION, expired=True)
        assert looked.is_eligible == (not store.clean().skipped)
        done.append(looked.is_eligible)
    assert [TOMBSTONE + 1, 6] == [at for at, is_done in enumerate(done) if is_done]


def test_a_status_and_a_key_s_answer_name_the_awaited_groups(store: Store) -> None:
    store.commit(TOMBSTONE)
    readers = existing(store.opened.status(PARTITION).readers)
    assert TOMBSTONE == readers.passed_to
    answer = answer_from_store(
        store.opened, [PARTITION], CleanerConfig(), store.clock.now_ms(), AskedKey(b"a")
    )
    (record,) = answer.parts[0].found.records
    assert OVER_MS == record.fate.from_ms
    assert f"group g has read up to offset {TOMBSTONE}" in (hold_words(record.fate, DAY_MS) or "")


def test_the_command_names_the_awaited_groups_and_that_no_broker_was_asked(store: Store) -> None:
    result = called.run("status", store.url, code=0)
    assert "group g counts as not there yet: no broker was asked" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["status", store.url, "--json"])
    (partition,) = json.loads(result.stdout)["partitions"]
    (group,) = partition["readers"]["groups"]
    assert Absence.NOT_ASKED == group["absence"]


def test_a_file_for_an_unused_connection_is_refused(store: Store) -> None:
    given = ["status", store.url, "--command-config", "client.properties"]
    result = called.run(*given, code=2)
    assert "add --bootstrap-server" in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["clean", "status", "explain", "run", "erase"])
def test_every_command_of_a_store_asks_the_brokers_that_are_named(
    store: Store, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.opened.__exit__(None, None, None)
    monkeypatch.setattr("keeplast.cluster.client.ClusterClient", lambda *_: store.cluster)
    asked = ["--bootstrap-server", "host:9092", "--json"]
    given = {
        "erase": ["erase", "keys", store.url],
        "status": ["status", store.url],
        "run": ["run", store.url],
    }.get(command, [command, store.url])
    operator = write_operator_files(tmp_path / "apart", [b"a"])
    more = {"explain": ["a"], "run": ["--once", "--owner", "me"], "clean": ["--owner", "me"]}
    more["run"] += ["--config", "log.cleaner.expired.rounds=true"]
    erase = ["--keys", str(operator.keys), "--hash-key", str(operator.hash_key), "--owner", "me"]
    more |= {"erase": [*erase, "--topic", PARTITION.topic, "--now"]}
    called.run(*given, *asked, *more.get(command, []), code=0)
    assert [PARTITION.topic, "g"] == store.cluster.asked[:2]


def test_the_rounds_of_erase_ask_the_brokers_that_are_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.opened.__exit__(None, None, None)
    monkeypatch.setattr("keeplast.cluster.client.ClusterClient", lambda *_: store.cluster)
    passed = []

    hear(monkeypatch, stored_logs, "open_store", lambda *_, brokers, **__: passed.append(brokers))
    operator = write_operator_files(tmp_path / "apart", [b"a"])
    given = ["erase", "keys", store.url, "--keys", str(operator.keys), "--owner", "me"]
    given += ["--hash-key", str(operator.hash_key), "--topic", PARTITION.topic, "--now"]
    called.run(*given, "--bootstrap-server", "host:9092", code=0)
    # To search, for each of two rounds, to search again; all of them ask the same.
    assert (4, 1) == (len(passed), len({id(each) for each in passed}))
    assert None not in passed


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (True, "group g has read up to offset 1"),
        (
            False,
            "status, plan, clean, run, explain and erase ask brokers, with --bootstrap-server",
        ),
    ],
)
def test_erase_says_of_awaited_groups_what_brokers_say(
    tmp_path: Path, asks: bool, words: str
) -> None:
    store = Store(tmp_path, asks=asks)
    store.commit(TOMBSTONE)
    keys = keys_of_file({1: b"a"}, KeyHasher(b"x" * 32), (PARTITION.topic,))
    cleaner = CleanerConfig(has_expired_rounds=True)
    answer = find_store_traces(store.opened, [PARTITION], cleaner, store.clock.now_ms(), keys)
    ((place,),) = [each.places for each in answer.keys]
    assert words in place.why
    assert (place.by_ms or 0) > OVER_MS
