"""``keeplast attach`` without a cluster: what is said before one answers, and how answers look."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.cli.show.attach import cluster_parts
from keeplast.cli.show.verify import check_parts
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.live_cluster import BrokerFacts, ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import RemotePartitionStatus, SegmentSum
from keeplast.errors import InvalidError, UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.service.attached_check import topic_verdicts
from keeplast.service.attached_outlook import PartitionOutlook
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.place_check import CheckState, PartCheck
from keeplast.service.status import PartitionStatus, State
from tests.support import called
from tests.support.ports import free_port

NONE = SegmentSum(0, 0)
FACTS = ClusterFacts(
    "abc",
    (BrokerFacts(1, {}),),
    (TopicFacts("orders", bytes(16), 2, 1, {}), TopicFacts("payments", bytes(16), 1, 1, {})),
    None,
)


def shown(parts: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    for part in parts:  # type: ignore[attr-defined]
        console.print(part, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_finding_of_one_topic_leaves_the_others_be() -> None:
    found = [
        PartCheck("retention-ms", CheckState.PROBLEM, "keys would go", "payments", "type this"),
        PartCheck("local-retention", CheckState.WARNING, "nothing is saved", "orders"),
    ]
    (verdict,) = topic_verdicts(FACTS, found)
    assert ("orders", CheckState.OK) == (verdict.topic, verdict.state)
    text = shown(check_parts([verdict, *found]))
    assert "ok       orders: may be attached: 2 partitions" in text
    assert "retention-ms     problem  payments: keys would go" in text
    assert "retention-ms of payments:\n  type this\n" in text
    assert "local-retention  warning  orders: nothing is saved" in text
    assert text.endswith("1 in the way of a clean\n")


def test_a_finding_of_the_cluster_refuses_every_topic() -> None:
    found = [PartCheck("tier-off", CheckState.PROBLEM, "no tier")]
    assert [] == list(topic_verdicts(FACTS, found))


def test_a_hole_is_reported_below_the_table() -> None:
    remote = RemotePartitionStatus(
        topic="orders", topic_id="x", partition=0, log=OffsetRange(0, 200), remote_start=50,
        remote_end=149, served=SegmentSum(2, 2048), hidden=SegmentSum(1, 10), copying=NONE,
        deleting=NONE, holes=((0, 49),), compacted=NONE,
    )  # fmt: skip
    name = TopicPartition("orders", 0)
    found = PartitionStatus(
        name, State.HOLES, "", attached=AttachedStatus(name, remote, (), ()),
        outlook=PartitionOutlook(partition=name, log=remote.log),
    )  # fmt: skip
    text = shown(cluster_parts([found], 0, 120, has_details=True))
    assert "0..199" in text
    assert "50..149" in text
    assert "2, 2,048 B" in text
    assert "orders-0: nothing serves offsets 0 to 49" in text


def test_a_missing_client_is_reported_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidError, match=r"needs the package confluent-kafka; .*cluster"):
        ClusterClient("127.0.0.1:1")


def test_a_cluster_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keeplast.cluster.client.TIMEOUT_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    client = ClusterClient(address)
    with pytest.raises(UnavailableError, match="no broker answers; check the address") as caught:
        client.read_facts()
    assert address in str(caught.value)


def test_a_setting_that_the_client_cannot_use_is_not_repeated() -> None:
    with pytest.raises(InvalidError) as caught:
        ClusterClient("127.0.0.1:1", {"security.protocol": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [("status", "kafka://127.0.0.1:1"), ("place", "check", "kafka://127.0.0.1:1")],
)  # fmt: skip
def test_a_file_of_properties_that_is_not_there_is_a_mistake_of_the_call(
    call: tuple[str, ...], tmp_path: Path
) -> None:
    missing = tmp_path / "client.properties"
    result = called.run(*call, "--command-config", str(missing), code=2)
    assert f"command-config={missing}" in result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--interval", "999"),
        ("--bytes-per-second", "1000"),
        ("--bytes-per-second", "fast"),
        ("--back-off-ms", "0"),
        ("--back-off-ms", "61s"),
        ("--grace-ms", "1s"),
        ("--console-name", "somewhere"),
    ],
)
def test_a_limit_of_the_loop_that_makes_no_sense_is_a_mistake_of_the_call(
    option: str, value: str, tmp_path: Path
) -> None:
    store = tmp_path / "decisions.db"
    result = CliRunner().invoke(
        app,
        ["run", "kafka://127.0.0.1:1", "--decisions", f"sqlite:///{store}", "--storage",
         f"aiven:file://{tmp_path}", option, value],
    )  # fmt: skip
    assert (2, False) == (result.exit_code, store.exists())
    assert option.removeprefix("--") in result.output
