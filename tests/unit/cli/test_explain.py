"""``keeplast explain``: what it says of one key in a directory and in a store."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import keeplast as package
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.format import checkpoint
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.inspect.key_search import SAMPLE_KEYS, KeySample
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from tests.support import called
from tests.support.durations import DAY_MS
from tests.support.flipped import flip
from tests.support.group_cluster import GroupCluster
from tests.support.log_builder import START_MS, LogBuilder, text
from tests.support.small_log import batch, write_log
from tests.support.travelling import Travelling
from tests.unit.cli.conftest import Command, Run

SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two partitions of ``t``: key 1 is overwritten in both, and deleted in the second one."""
    topic = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20)
    for number, last in ((0, 12), (1, None)):
        log = LogBuilder(tmp_path / "data" / f"t-{number}", topic)
        log.record(1, 10)
        log.record(2, 20)
        log.record(1, last)
        log.roll()
        log.record(2, 22)
        log.close()
    return tmp_path / "data"


def explained(keeplast: Command, data_dir: Path, *more: object, code: int = 0) -> dict[str, Any]:
    run = keeplast(
        "explain", data_dir, *more, "--config", "cleanup.policy=compact", "--topic", "t", "--json",
        "--now-ms", START_MS, code=code,
    )  # fmt: skip
    return dict(run.document)


def fates(document: dict[str, Any]) -> dict[str, list[tuple[int, str, int | None]]]:
    return {
        f"{part['topic']}-{part['partition']}": [
            (each["offset"], each["fate"], each["superseded_by"]) for each in part["records"]
        ]
        for part in document["partitions"]
    }


def test_every_partition_is_searched_and_each_record_has_its_fate(
    keeplast: Command, data_dir: Path
) -> None:
    document = explained(keeplast, data_dir, "1")
    expected = {
        "t-0": [(0, "goes_next", 2), (2, "wins", None)],
        "t-1": [(0, "goes_next", 2), (2, "goes_later", None)],
    }
    assert expected == fates(document)
    later = document["partitions"][1]["records"][1]
    assert START_MS + DAY_MS == later["goes_from_ms"]
    assert "delete horizon" in later["timeline"][0]["why"]


def test_partitions_that_lie_elsewhere_are_named(keeplast: Command, tmp_path: Path) -> None:
    """The sample's metadata log knows orders-0, which is not here; who names a number knows."""
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "orders-0").rename(data / "orders-1")
    asked = ("explain", data, "k", "--topic", "orders", "--json")
    missing = {"topic": "orders", "partition": 0}
    assert missing.items() <= keeplast(*asked).document["left_out"][0].items()
    assert [] == keeplast(*asked, "--partition", 1).document["left_out"]


def test_a_record_of_the_active_segment_supersedes_once_that_is_left(
    keeplast: Command, data_dir: Path
) -> None:
    document = explained(keeplast, data_dir, "2", "--partition", 0)
    assert {"t-0": [(1, "goes_later", 3), (3, "wins", None)]} == fates(document)
    (stays, goes) = document["partitions"][0]["records"][0]["timeline"]
    assert "the active segment starts at 3" == stays["why"]
    assert "superseded by offset 3" == goes["why"]


@pytest.mark.parametrize("key", ["1", "text:1", "hex:31", "base64:MQ=="])
def test_a_key_is_written_in_several_ways(keeplast: Command, data_dir: Path, key: str) -> None:
    document = explained(keeplast, data_dir, key)
    assert {"text": "1", "size_bytes": 1} == document["key"]
    assert [2, 2] == [len(each["records"]) for each in document["partitions"]]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b""])
def test_a_key_can_come_from_a_file(
    keeplast: Command, data_dir: Path, tmp_path: Path, newline: bytes
) -> None:
    (tmp_path / "key").write_bytes(b"1" + newline)
    document = explained(keeplast, data_dir, f"@{tmp_path / 'key'}")
    assert {"text": "1", "size_bytes": 1} == document["key"]


def test_an_offset_names_the_key_of_its_record(keeplast: Command, data_dir: Path) -> None:
    document = explained(keeplast, data_dir, "--offset", 1, "--partition", 1)
    assert {"text": "2", "size_bytes": 1} == document["key"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a key or the offset of a record"),
        (("1", "--offset", 1), "give a key or the offset of a record"),
        (("--offset", 1), "an offset is one partition's"),
        (("--offset", 77, "--partition", 0), "there is no record at this offset"),
        (("hex:3",), "pairs of hexadecimal digits"),
        (("base64:3",), "cannot be read"),
        (("@nowhere",), "the file of a key cannot be read"),
    ],
)
def test_a_key_argument_that_names_no_key_is_refused(
    keeplast: Command, data_dir: Path, arguments: tuple[object, ...], said: str
) -> None:
    run = keeplast(
        "explain",
        data_dir,
        *arguments,
        "--config",
        "cleanup.policy=compact",
        "--topic",
        "t",
        code=2,
    )
    assert said in run.err


def test_a_record_without_a_key_is_refused(keeplast: Command, tmp_path: Path) -> None:
    write_log(tmp_path, "k-0", {0: [(None, b"v")], 1: []})
    run = keeplast(
        "explain", tmp_path, "--offset", 0, "--config", "cleanup.policy=compact", "--topic", "k"
    )
    assert (2, True) == (run.code, "the record has no key" in run.err)


def test_values_are_shown_when_asked_for_only(keeplast: Command, data_dir: Path) -> None:
    first = explained(keeplast, data_dir, "1")["partitions"][0]["records"][0]
    assert "value" not in first
    first = explained(keeplast, data_dir, "1", "--values")["partitions"][0]["records"][0]
    assert {"text": "10", "size_bytes": 2} == first["value"]
    run = keeplast("explain", data_dir, "1", "--config", "cleanup.policy=compact", "--topic", "t")
    assert "goes with the next round: superseded by offset 2" in " ".join(run.out.split())
    assert '"10"' not in run.out


def test_the_last_trace_of_a_deleted_key_has_a_date_where_rounds_are_done_for_it(
    keeplast: Command, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path / "t-0", TopicConfig(segment_bytes=1 << 20))
    for key, value in ((b"1", b"a"), (b"2", b"b"), (b"1", None)):
        log.append(NewRecord(key, value, timestamp_ms=START_MS))
    log.close()
    lag = ("--config", f"max.compaction.lag.ms={DAY_MS}")
    rounds = ("--config", "log.cleaner.expired.rounds=true")

    def trace(key: str, *more: str) -> dict[str, Any]:
        (part,) = explained(keeplast, tmp_path, key, *more)["partitions"]
        return dict(part["last_trace"])

    assert ("value_wins", None) == (trace("2", *lag)["kind"], trace("2", *lag)["by_ms"])
    assert ("no_bound", None) == (trace("1")["kind"], trace("1")["by_ms"])
    assert ("needs_new_data", None) == (trace("1", *lag)["kind"], trace("1", *lag)["by_ms"])
    bounded = trace("1", *lag, *rounds)
    assert "bounded" == bounded["kind"]
    assert START_MS + DAY_MS < bounded["values_by_ms"] < bounded["by_ms"] - DAY_MS
    assert "nothing_there" == trace("3", *lag)["kind"]


def test_a_log_that_cannot_be_read_does_not_hide_the_others(
    keeplast: Command, data_dir: Path
) -> None:
    path = data_dir / "t-0" / f"{0:020d}.log"
    flip(path, 70)
    document = explained(keeplast, data_dir, "1", code=3)
    assert ["t-1"] == [f"t-{each['partition']}" for each in document["partitions"]]
    assert [0] == [each["partition"] for each in document["errors"]]


def test_a_cleaned_record_that_lost_by_another_strategy_stays_until_its_key_comes_again(
    keeplast: Command, tmp_path: Path
) -> None:
    write_log(
        tmp_path, "t-0", {0: [(b"1", b"a"), (b"1", b"b")], 2: [(b"2", b"x")], 3: [(b"3", b"y")]}
    )
    clean = {TopicPartition("t", 0): 3}
    (tmp_path / "cleaner-offset-checkpoint").write_bytes(checkpoint.encode_offsets(clean))
    document = explained(keeplast, tmp_path, "1")
    assert {"t-0": [(0, "stays", 1), (1, "wins", None)]} == fates(document)
    assert "no dirty record has its key" in document["partitions"][0]["records"][0]["why"]


def test_the_library_gives_the_same_answer(data_dir: Path) -> None:
    log = package.open_log(data_dir / "t-1")
    topic = package.topic_config({"cleanup.policy": "compact"})
    found = package.explain(log, topic, key=text(1), now_ms=START_MS)
    assert ["goes_next", "goes_later"] == [str(each.fate.outlook) for each in found.records]
    assert [2, 2] == list(found.winners.values())
    again = package.explain(log, topic, offset=0, now_ms=START_MS)
    assert found.key == again.key


def test_inspect_shows_the_records_of_a_key(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("inspect", data_dir / "t-0", "--key", "1", "--json")
    assert [0, 2] == [each["offset"] for each in run.document["records"]]
    nothing = "no record with this key from offset 0 on"
    assert nothing not in keeplast("inspect", data_dir / "t-0", "--key", "1").out
    assert nothing in keeplast("inspect", data_dir / "t-0", "--key", "none-such").out
    refused = keeplast("inspect", data_dir / "t-0" / f"{0:020d}.index", "--key", "1")
    assert (2, True) == (refused.code, "--key is about records" in refused.err)


def test_a_round_is_foreseen_only_where_it_has_something_to_clean(
    keeplast: Command, data_dir: Path
) -> None:
    compact = ("--config", "cleanup.policy=compact", "--topic", "t", "--partition", 0)
    before = keeplast("explain", data_dir, "hex:31", *compact, "--now-ms", START_MS)
    assert "the next round cleans [0, 3); now: " in before.out
    assert (
        0
        == keeplast(
            "clean", data_dir, *compact, "--now-ms", START_MS, "--despite", "dirty-ratio"
        ).code
    )
    after = keeplast("explain", data_dir, "hex:31", *compact, "--now-ms", START_MS)
    assert "t-0: nothing to clean: " in after.out
    assert "the next round cleans" not in after.out


def test_retention_is_named_with_the_date_from_which_on_it_takes_a_segment(
    keeplast: Command, tmp_path: Path
) -> None:
    topic = TopicConfig(cleanup_policy=frozenset({"compact", "delete"}), segment_bytes=1 << 20)
    log = LogBuilder(tmp_path / "t-0", topic)
    for number in range(3):
        log.now_ms += 60_000
        log.append(NewRecord(b"k%d" % number, b"v", log.now_ms))
        log.roll()
    log.close()

    def asked(key: str, *more: object) -> Run:
        return keeplast(
            "explain", tmp_path, key, "--topic", "t", "--config", "cleanup.policy=compact,delete",
            "--config", "retention.ms=3600000", *more,
        )  # fmt: skip

    document = asked("k1", "--now-ms", log.now_ms, "--json").document
    (part,) = document["partitions"]
    (record,) = part["records"]
    from_ms = START_MS + 120_000 + 3_600_000 + 1
    assert ("wins", {"rule": "time", "from_ms": from_ms}) == (record["fate"], record["retention"])
    words = "retention.ms lets its segment go from 2023-11-14 23:15:20.001 on"
    assert words in part["last_trace"]["why"]
    shown = " ".join(asked("k1", "--now-ms", log.now_ms).out.split())
    assert "never while its value wins" in shown
    assert f"; but {words}, if no round changes it before" in shown
    late = " ".join(asked("k1", "--now-ms", from_ms).out.split())
    assert "retention.ms lets its segment go with the next look for what has expired" in late
    size = ("--config", "retention.ms=-1", "--config", "retention.bytes=0")
    document = asked("k0", "--now-ms", log.now_ms, *size, "--json").document
    expiry = {"rule": "size", "from_ms": log.now_ms}
    assert expiry == document["partitions"][0]["records"][0]["retention"]
    none = asked("k0", "--now-ms", log.now_ms, "--config", "retention.ms=-1", "--json").document
    assert None is none["partitions"][0]["records"][0]["retention"]


def test_receipts_name_the_round_that_took_the_rest_of_a_key(
    keeplast: Command, data_dir: Path
) -> None:
    compact = ("--config", "cleanup.policy=compact", "--topic", "t", "--partition", 0)
    receipt = data_dir.parent / "receipts"

    def cleaned(at_ms: int) -> None:
        keeplast(
            "clean",
            data_dir,
            *compact,
            "--now-ms",
            at_ms,
            "--despite",
            "dirty-ratio",
            "--receipt",
            receipt,
            code=0,
        )

    def asked(key: str, *more: str) -> Run:
        return keeplast(
            "explain", data_dir, key, *compact, "--now-ms", START_MS + 9,
            "--with", f"receipt={receipt}",
            *more,
        )  # fmt: skip

    cleaned(START_MS)
    found = asked("1", "--json").document["partitions"][0]
    assert [1] == [each["records_taken"] for each in found["rounds"]]
    taken = found["taken_by"]
    assert (3, 2, 0) == (taken["below"], taken["kept_offset"], taken["rounds_before"])
    words = (
        "t-0: what rounds took of the key below offset 3 went with that of 2023-11-14 22:13:20.000 "
        "(offsets 0 to 2, by offset), which left the record at 2 there"
    )
    assert words in " ".join(asked("1").out.split())
    # Nothing of the key is there: no receipt names it.
    nowhere = " ".join(asked("9").out.split())
    assert "earlier records below the ends of these rounds went in one of them" in nowhere
    assert None is asked("9", "--json").document["partitions"][0]["taken_by"]


def test_a_store_has_live_records_and_those_of_replaced_segments(
    keeplast: Command, tmp_path: Path
) -> None:
    url = called.copied(SAMPLE, tmp_path, "--topic", "orders")
    before = keeplast("explain", url, "order-041", "--json", code=0)
    (part,) = before.document["partitions"]
    fates = {each["offset"]: each["fate"] for each in part["records"]}
    assert "wins" == fates.pop(324)
    assert {"goes_next"} == set(fates.values())
    assert 0 == keeplast("clean", url, "--despite", "dirty-ratio").code
    after = keeplast("explain", url, "order-041", "--json")
    (part,) = after.document["partitions"]
    assert [(324, "wins")] == [(each["offset"], each["fate"]) for each in part["records"]]
    assert {*fates, 324} == {each["offset"] for each in part["replaced_copies"]}
    assert "replaced segment" in keeplast("explain", url, "order-041").out


BASE = f"{0:020d}"


def copies(document: dict[str, Any], number: int = 0) -> list[tuple[str, int]]:
    return [
        (each["file"], each["offset"]) for each in document["partitions"][number]["replaced_copies"]
    ]


def test_a_topic_whose_policy_is_unknown_is_an_error_with_its_remedy(
    keeplast: Command, data_dir: Path
) -> None:
    run = keeplast("explain", data_dir, "1", code=4)
    assert "2 of 2 partitions could not be read" in run.out
    for number in (0, 1):
        assert f"error: t-{number}: cleanup.policy of the topic is unknown; say it with" in run.err
    assert keeplast("explain", data_dir, "1", "--json", code=4).document["left_out"] == []


def test_an_interrupted_swap_is_finished_before_fates_are_given(
    keeplast: Command, data_dir: Path
) -> None:
    (data_dir / "t-0" / f"{BASE}.log.swap").write_bytes(batch(0, b"gone", b"1"))
    document = explained(keeplast, data_dir, "gone", "--partition", 0, code=4)
    assert [] == document["partitions"]
    assert "a swap of segments was interrupted" in str(document["errors"])


@pytest.mark.parametrize(
    "name",
    [
        f"{BASE}.log.deleted",
        f"{BASE}.log.cleaned",
        f"{BASE}.log.abc.deleted",
        "keeplast-copy.log",
    ],
)
def test_what_is_replaced_and_not_gone_yet_is_searched(
    keeplast: Command, data_dir: Path, name: str
) -> None:
    """As ``erase`` searches it: who reads the disk can read it."""
    gone = batch(0, b"gone", b"1") + batch(1, b"other", b"2") + batch(2, b"gone", None)
    (data_dir / "t-0" / name).write_bytes(gone)
    document = explained(keeplast, data_dir, "gone", "--partition", 0, "--values")
    (part,) = document["partitions"]
    assert ([], []) == (part["records"], part["not_searched"])
    assert [(name, 0), (name, 2)] == copies(document)
    first, second = part["replaced_copies"]
    assert {"text": "1", "size_bytes": 1} == first["value"]
    assert (False, True) == (first["is_tombstone"], second["is_tombstone"])
    assert "committed" == first["outcome"]
    assert "beside_log" == part["last_trace"]["kind"]
    assert "in files next to the log" in part["last_trace"]["why"]
    run = keeplast("explain", data_dir, "gone", "--config", "cleanup.policy=compact", "--topic=t")
    assert "0 records in 1 of 2 partitions, 2 more in files next to the log" in run.out
    assert f"t-0: offsets 0, 2 also in {name}, which is no part of the log" in run.out


@pytest.mark.parametrize("mark", ["delete", "stray", "future"])
def test_what_a_broker_disposes_of_is_searched(
    keeplast: Command, data_dir: Path, mark: str
) -> None:
    marked = f"t-1.{'a' * 32}-{mark}"
    write_log(data_dir, marked, {5: [(b"1", b"x")]})
    document = explained(keeplast, data_dir, "1")
    assert [(f"{marked}/{5:020d}.log", 5)] == copies(document, 1)
    trace = document["partitions"][1]["last_trace"]
    assert "a directory out of service goes when a broker or an operator" in trace["why"]
    assert trace["by_ms"] is None


def test_what_is_left_of_a_partition_that_is_not_here_is_searched(
    keeplast: Command, data_dir: Path
) -> None:
    marked = f"t-7.{'a' * 32}-delete"
    write_log(data_dir, marked, {5: [(b"gone", b"x")]})
    (left,) = explained(keeplast, data_dir, "gone")["out_of_service"]
    assert ("t", 7, []) == (left["topic"], left["partition"], left["not_searched"])
    assert [f"{marked}/{5:020d}.log"] == [each["file"] for each in left["replaced_copies"]]
    assert [] == explained(keeplast, data_dir, "gone", "--partition", 0)["out_of_service"]
    assert [] == explained(keeplast, data_dir, "nowhere")["out_of_service"]
    run = keeplast("explain", data_dir, "gone", "--config", "cleanup.policy=compact", "--topic=t")
    assert "1 more in files next to the log" in run.out
    assert f"t-7: offset 5 also in {marked}/{5:020d}.log" in run.out


def test_a_bound_waits_for_files_next_to_the_log(keeplast: Command, tmp_path: Path) -> None:
    """A trace is there until its file is gone, whatever becomes of the log's records."""
    log = LogBuilder(tmp_path / "t-1", TopicConfig(segment_bytes=1 << 20))
    for value in (b"a", None):
        log.append(NewRecord(b"1", value, timestamp_ms=START_MS))
    log.close()
    lag = ("--config", f"max.compaction.lag.ms={DAY_MS}")
    rounds = ("--config", "log.cleaner.expired.rounds=true")

    def trace() -> dict[str, Any]:
        (part,) = explained(keeplast, tmp_path, "1", *lag, *rounds)["partitions"]
        return dict(part["last_trace"])

    before = trace()
    assert ("bounded", True) == (before["kind"], before["by_ms"] is not None)
    (tmp_path / "t-1" / f"{BASE}.log.deleted").write_bytes(batch(0, b"1", b"x"))
    with_staged = trace()
    assert ("bounded", before["by_ms"]) == (with_staged["kind"], with_staged["by_ms"])
    assert "also in files next to the log" in with_staged["why"]
    # It is unknown by when somebody removes what no broker gave its name.
    (tmp_path / "t-1" / "mine.log").write_bytes(batch(0, b"1", b"x"))
    assert ("beside_stays", None) == (trace()["kind"], trace()["by_ms"])
    assert "no date: " in trace()["why"]


def test_a_log_that_cannot_be_read_to_its_end_is_reported_with_earlier_findings(
    keeplast: Command, data_dir: Path
) -> None:
    name = f"{BASE}.log.abc.deleted"
    path = data_dir / "t-0" / name
    path.write_bytes(batch(0, b"gone", b"1") + batch(1, b"gone", b"2")[:-3])
    document = explained(keeplast, data_dir, "gone", "--partition", 0)
    assert [(name, 0)] == copies(document)
    (said,) = document["partitions"][0]["not_searched"]
    assert said.startswith(f"{name}: it cannot be read to its end")
    path.write_bytes(batch(0, b"gone", b"1")[:-1] + b"?")
    document = explained(keeplast, data_dir, "gone", "--partition", 0)
    assert [f"{name}: a batch has a wrong checksum"] == document["partitions"][0]["not_searched"]
    # It cannot be said that it is not there.
    assert "unseen" == document["partitions"][0]["last_trace"]["kind"]
    assert document["partitions"][0]["last_trace"]["by_ms"] is None


def test_a_copy_of_an_open_transaction_has_no_outcome(keeplast: Command, data_dir: Path) -> None:
    data = encode_batch(
        [Record(0, START_MS, b"gone", b"1")], producer_id=7, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    (data_dir / "t-0" / f"{BASE}.log.deleted").write_bytes(data)
    (copy,) = explained(keeplast, data_dir, "gone", "--partition", 0)["partitions"][0][
        "replaced_copies"
    ]
    assert copy["outcome"] is None


def test_a_partition_that_is_named_alone_does_not_hide_the_files_next_to_it(
    keeplast: Command, data_dir: Path
) -> None:
    run = keeplast("explain", data_dir / "t-0", "3", "--config", "cleanup.policy=compact", "--json")
    (part,) = run.document["partitions"]
    (said,) = part["not_searched"]
    assert "give the data directory" in said
    assert "unseen" == part["last_trace"]["kind"]


def test_what_a_task_finds_is_what_this_process_finds(
    keeplast: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what lies next to a log, of a log that cannot be read, and of values."""
    (data_dir / "t-1" / f"{BASE}.log.deleted").write_bytes(batch(0, b"1", b"x"))
    write_log(data_dir, f"t-7.{'a' * 32}-delete", {5: [(b"1", b"x")]})
    log = write_log(data_dir, "t-2", {0: [(b"1", b"x")], 1: [(b"1", b"y")]})
    (log / f"{BASE}.log").write_bytes(batch(0, b"1", b"x")[:-1] + b"?")
    here = explained(keeplast, data_dir, "1", "--values", code=3)
    assert [2] == [each["partition"] for each in here["errors"]]
    assert [(f"{BASE}.log.deleted", 0)] == copies(here, 1)
    travelling = Travelling()
    monkeypatch.setattr(
        "keeplast.cli.explain.search_runner", lambda workers: nullcontext(travelling)
    )
    assert here == explained(keeplast, data_dir, "1", "--values", code=3)
    assert 3 == travelling.items
    answer = explained(keeplast, data_dir, "--offset", 0, "--partition", 1)
    assert {"text": "1", "size_bytes": 1} == answer["key"]


def test_a_task_has_the_answers_of_brokers(
    keeplast: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = GroupCluster({"t": TopicEnds(b"i" * 16, {0: 9, 1: 9})}, {"g": {}})
    monkeypatch.setattr("keeplast.cluster.client.ClusterClient", lambda *_: cluster)
    waits = (
        "--config", "tombstones.wait.for.groups=g", "--with", "bootstrap-server=host:9092",
        "--partition", 1,
    )  # fmt: skip
    here = explained(keeplast, data_dir, "1", *waits)
    assert "g" in cluster.asked
    assert "group g" in here["partitions"][0]["records"][1]["timeline"][0]["why"]
    monkeypatch.setattr(
        "keeplast.cli.explain.search_runner", lambda workers: nullcontext(Travelling())
    )
    assert here == explained(keeplast, data_dir, "1", *waits)


def test_tasks_search_a_store_as_this_process_does(
    keeplast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = called.copied(SAMPLE, tmp_path, "--topic", "orders")
    assert 0 == keeplast("clean", url, "--despite", "dirty-ratio").code
    asked = ("explain", url, "order-041", "--now-ms", START_MS, "--json")

    def answer() -> dict[str, Any]:
        (part,) = keeplast(*asked).document["partitions"]
        # By the store's own clock.
        part["last_trace"].pop("values_by_ms")
        part.pop("erased_by")
        return dict(part)

    here, travelling = answer(), Travelling()
    assert here["replaced_copies"]
    monkeypatch.setattr(
        "keeplast.cli.explain.search_runner", lambda workers: nullcontext(travelling)
    )
    assert here == answer()
    assert 1 == travelling.items


@pytest.mark.parametrize("kind", ["directory", "store"])
def test_a_master_of_no_runner_is_a_usage_error(
    keeplast: Command, data_dir: Path, kind: str
) -> None:
    url = f"sqlite:///{data_dir.parent / 'meta.db'}"
    place = url if kind == "store" else data_dir
    run = keeplast("explain", place, "1", "--with", "runner=local", "--with", "master=local[2]")
    assert (2, True) == (run.code, "master" in run.err)


def test_one_partition_that_cannot_be_read_hides_no_other_of_a_store(
    keeplast: Command, tmp_path: Path
) -> None:
    url, objects = f"sqlite:///{tmp_path / 'meta.db'}", tmp_path / "objects"
    for number in range(2):
        write_log(tmp_path / "data", f"t-{number}", {0: [(b"1", b"x")], 1: [(b"2", b"y")]})
    policy = ("--config", "cleanup.policy=compact")
    run = keeplast(
        "copy",
        tmp_path / "data",
        url,
        "--new",
        "--objects",
        f"file://{objects}",
        "--topic",
        "t",
        *policy,
        code=0,
    )
    broken = next(each for each in sorted(objects.rglob("*.log")) if "t-0" in str(each))
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    run = keeplast("explain", url, "1", "--json", code=3)
    (error,), (part,) = run.document["errors"], run.document["partitions"]
    assert (0, 1) == (error["partition"], part["partition"])
    assert "t-0: " in run.err


def test_a_key_that_no_record_has_is_said_with_how_keys_are_given(
    keeplast: Command, tmp_path: Path
) -> None:
    write_log(tmp_path, "k-0", {0: [(b"a", b"1")], 1: []})
    options = ("--topic", "k", "--config", "cleanup.policy=compact")
    words = "no record has exactly this key; a key is given as text, hex:DIGITS, base64:DATA"
    missing = keeplast("explain", tmp_path, "aa", *options)
    assert (0, True) == (missing.code, words in " ".join(missing.out.split())), missing.err
    found = keeplast("explain", tmp_path, "a", *options)
    assert (0, False) == (found.code, "no record has exactly" in found.out)


def test_a_misspelt_key_is_shown_keys_like_it_and_how_many_were_looked_at(
    keeplast: Command, tmp_path: Path
) -> None:
    names = [b"customer-%02d" % number for number in range(10)]
    write_log(tmp_path, "k-0", {0: [(name, b"1") for name in names], 10: [(b"\x00\x07", b"1")]})
    options = ("--topic", "k", "--config", "cleanup.policy=compact")
    misspelt = " ".join(keeplast("explain", tmp_path, "custmer-07", *options).out.split())
    assert "11 records with other keys looked at; keys that are there: " in misspelt
    assert '"customer-07"' in misspelt
    assert 3 == misspelt.count('"customer-')
    alien = " ".join(keeplast("explain", tmp_path, "hex:ff", *options).out.split())
    assert "keys that are there: " in alien
    assert r"\x00\x07" in alien
    assert "keys that are there" not in keeplast("explain", tmp_path, names[0].decode()).out


def test_of_a_large_log_a_sample_of_the_keys_is_kept() -> None:
    sample = KeySample({b"%06d" % number for number in range(SAMPLE_KEYS)})
    assert (b"000017",) == sample.near(b"000017")[:1]
    assert 3 == len(sample.near(b"completely different"))
    assert () == KeySample().near(b"a")
