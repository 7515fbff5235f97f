"""A tiered store as its user sees it, on the sample that a broker wrote."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import keeplast as package
from keeplast.config.mapping import topic_config
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.store.tiered_store import TieredStore
from tests.support import called
from tests.support.flipped import flip
from tests.support.heard_calls import hear
from tests.support.reader import read_partition
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command

ORDERS = package.TopicPartition("orders", 0)
SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


@pytest.fixture
def store(tmp_path: Path, keeplast: Command) -> str:
    """A store whose objects are files, with the topic ``orders`` in it."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    objects = f"file://{tmp_path / 'objects'}"
    shutil.copytree(SAMPLE, tmp_path / "data")
    run = keeplast(
        "copy", tmp_path / "data", url, "--new", "--objects", objects, "--topic", "orders"
    )
    assert (0, "orders-0: 4 segments copied, 4 in the store") == (run.code, run.out[:43])
    return url


def test_a_brokers_log_goes_in_is_cleaned_and_comes_out_whole(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    expected = read_partition(SAMPLE / "orders-0").final_values()
    run = keeplast("clean", store, "--despite", "dirty-ratio", "--grace-ms", 0, "--json")
    (found,) = run.document["partitions"]
    assert (339, False) == (found["end_offset"], found["skipped"])
    assert "orders-0: holds" in keeplast("verify", store).out
    keeplast("export", store, "--as", "log", "--to", tmp_path / "out")
    exported = tmp_path / "out" / "orders-0"
    assert expected == read_partition(exported).final_values()
    assert len(read_partition(exported).records()) < len(
        read_partition(SAMPLE / "orders-0").records()
    )
    again = keeplast("export", store, "--as", "log", "--to", tmp_path / "out", code=4)
    assert "the target exists" in again.err


def test_a_clean_by_hand_leaves_a_receipt_and_takes_what_has_expired(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    receipt = tmp_path / "receipt"
    clean = ("clean", store, "--grace-ms", 0, "--receipt", receipt)
    first = keeplast(*clean, "--despite", "dirty-ratio", "--json").document["partitions"][0]
    # The chunks of the first call leave one marker whose time has passed.
    expired, again = (
        keeplast(*clean, "--expired", "--json").document["partitions"][0] for _ in range(2)
    )
    assert "a round for what has expired: 1 marker batch" in expired["notes"]
    assert "nothing to clean" in again["reason"]
    assert [False, False, True] == [each["skipped"] for each in (first, expired, again)]
    shown = keeplast("inspect", receipt, "--json").document["receipts"]
    assert {"orders"} == {each["topic"] for each in shown}
    assert 339 == shown[-1]["round"]["end_offset"]
    assert len(shown) == first["chunks"] + 1


IO_LIMIT = "log.cleaner.io.max.bytes.per.second"


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("environment",), 30_000), (("file",), 20_000), (("broker",), 10_000),
        (("broker", "environment"), 30_000), (("broker", "file", "environment"), 20_000),
        (("broker", "file", "environment", "flag"), 40_000),
    ],
)  # fmt: skip
def test_rounds_by_hand_go_by_every_source_of_settings(
    tmp_path: Path, keeplast: Command, store: str, monkeypatch: pytest.MonkeyPatch,
    said: tuple[str, ...], expected: int,
) -> None:  # fmt: skip
    (tmp_path / "server.properties").write_text(f"{IO_LIMIT}=10000\n")
    (tmp_path / "settings.toml").write_text(f'[cluster]\n"{IO_LIMIT}" = 20000\n')
    options: list[object] = []
    if "environment" in said:
        monkeypatch.setenv("KEEPLAST_LOG_CLEANER_IO_MAX_BYTES_PER_SECOND", "30000")
    if "broker" in said:
        options += ["--broker-config", tmp_path / "server.properties"]
    if "file" in said:
        options += ["--config-file", tmp_path / "settings.toml"]
    if "flag" in said:
        options += ["--config", f"{IO_LIMIT}=40000"]
    limits: list[float | None] = []
    hear(
        monkeypatch,
        TieredStore,
        "clean",
        lambda *_, **named: limits.append(named["cleaner"].io_limit),
    )
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio", *options).code
    assert [expected] == limits


def test_an_expiry_by_hand_is_a_table_and_leaves_a_receipt(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    receipt = tmp_path / "receipt"
    expire = ("clean", store, "--only-expire", "--receipt", receipt)
    unlimited = keeplast(*expire)
    assert (
        "orders-0: nothing expires: no limit of its policy applies, and nothing lies below the "
        "log start 0\n\n1 had nothing to expire\n"
    ) == unlimited.out.lstrip("\n")
    assert not receipt.exists()
    # The records of the sample grow older than Kafka's default of a week.
    wanted = ("cleanup.policy=compact,delete", "retention.bytes=5000", "retention.ms=9000000000000")
    assert 0 == keeplast("configure", store, *wanted).code
    before = keeplast("status", store, "--json").document["partitions"][0]
    heading, row, *_, last = keeplast(*expire).out.lstrip("\n").splitlines()
    assert ["partition", "expired", "segments", "bytes"] == heading.split()[:4]
    after = keeplast("status", store, "--json").document["partitions"][0]
    gone = len(before["segments"]) - len(after["segments"])
    assert gone > 0
    assert row.startswith("orders-0   by retention.bytes ")
    assert f"{gone}  " in row
    assert last.startswith(f"1 expired ({gone} segment")
    (shown,) = keeplast("inspect", receipt, "--json").document["receipts"]
    assert ("orders", after["log_start"]) == (shown["topic"], shown["expiry"]["log_start"])
    assert gone == len(shown["expiry"]["segments"])
    again = keeplast(*expire)
    assert re.search(r"^orders-0 +nothing ", again.out, re.MULTILINE)
    assert 1 == len(keeplast("inspect", receipt, "--json").document["receipts"])


def test_what_was_collected_is_a_line_and_what_was_exported_a_table(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    keeplast("clean", store, "--despite", "dirty-ratio", "--grace-ms", 100_000)
    lines = keeplast("collect", store).out.splitlines()
    assert ["orders-0: 8 waiting for the grace", "1 had nothing to collect"] == lines
    out = tmp_path / "out"
    shown = keeplast("export", store, "--as", "log", "--to", out).out.splitlines()
    heading, *rows, _, last = shown
    assert (True, True) == (
        last.startswith("1 exported (2 segments, "),
        last.endswith(f") to {out}"),
    )
    assert ["partition", "segments", "bytes", "log", "written", "to"] == heading.split()
    assert ["orders-0", "0..339"] == [rows[0].split()[0], rows[0].split()[4]]
    assert str(out / "orders-0") in "".join("".join(rows).split())


def test_status_shows_regions_before_and_after(keeplast: Command, store: str) -> None:
    (before,) = keeplast("status", store, "--json").document["partitions"]
    assert [("dirty", 0, 339)] == [
        (r["name"], r["base_offset"], r["end_offset"]) for r in before["regions"]
    ]
    keeplast("clean", store, "--despite", "dirty-ratio", "--grace-ms", 0)
    (after,) = keeplast("status", store, "--json").document["partitions"]
    assert [("clean", 0, 339)] == [
        (r["name"], r["base_offset"], r["end_offset"]) for r in after["regions"]
    ]
    assert (339, False) == (after["first_dirty"], after["is_drifted"])
    assert after["orphans"] > 0
    shown = keeplast("status", store).out
    assert "^ first dirty offset 339" in shown
    (done,) = keeplast("collect", store, "--json").document["partitions"]
    assert after["orphans"] == done["collected_segments"]
    (left,) = keeplast("status", store, "--json").document["partitions"]
    assert left["orphans"] == 0


def test_no_owner_is_fenced_without_the_option(keeplast: Command, store: str) -> None:
    run = keeplast("clean", store, "--despite", "dirty-ratio", "--owner", "another", code=4)
    assert "another host owns the partition" in run.err
    run = keeplast(
        "clean", store, "--despite", "dirty-ratio", "--owner", "another", "--take-over", code=0
    )
    assert 4 == keeplast("clean", store, "--only-expire").code


def test_a_second_import_brings_nothing_twice(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    run = keeplast("copy", tmp_path / "data", store, "--new", "--topic", "orders")
    assert "orders-0: 0 segments copied, 4 in the store" in run.out


def test_an_import_takes_what_a_broker_would_and_nothing_of_what_is_no_log(
    tmp_path: Path, keeplast: Command
) -> None:
    """Other files are ignored as brokers ignore them; what is refused leaves no empty partition."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "orders-0" / "notes.log").write_text("not a segment")
    for log in (data / "__transaction_state-0").glob("*.log"):
        log.unlink()
    run = keeplast("copy", data, url, "--new", "--objects", tmp_path / "other")
    assert (4, True) == (run.code, "orders-0: 4 segments copied" in run.out)
    assert "no segment in the partition directory" in run.err
    found = keeplast("status", url, "--json").document["partitions"]
    assert [("orders", 0, 339)] == [(p["topic"], p["log_start"], p["log_end"]) for p in found]


def test_a_lost_object_is_found(tmp_path: Path, keeplast: Command, store: str) -> None:
    lost = next((tmp_path / "objects").rglob("*.log"))
    lost.unlink()
    run = keeplast("verify", store, code=1)
    assert "orders-0: broken" in run.out
    assert f"I-14: offset {int(lost.stem)}: the object is gone" in run.out


def test_an_export_that_fails_is_no_log_and_begins_again(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    lost = max((tmp_path / "objects").rglob("*.log"))
    kept = lost.read_bytes()
    lost.unlink()
    run = keeplast("export", store, "--as", "log", "--to", tmp_path / "out", code=3)
    assert "an object of a live segment is gone" in run.err
    assert 4 == keeplast("clean", tmp_path / "out", "--runner", "local").code
    lost.write_bytes(kept)
    assert 0 == keeplast("export", store, "--as", "log", "--to", tmp_path / "out").code
    whole = read_partition(tmp_path / "data" / "orders-0").records()
    assert whole == read_partition(tmp_path / "out" / "orders-0").records()


def test_a_changed_object_is_found(tmp_path: Path, keeplast: Command, store: str) -> None:
    changed = next((tmp_path / "objects").rglob("*.log"))
    flip(changed)
    run = keeplast("verify", store, code=1)
    assert "orders-0: broken" in run.out
    assert f"I-9: offset {int(changed.stem)}: the object is not what was written" in run.out
    document = keeplast("verify", store, "--json").document
    (check,) = [e for e in document["partitions"][0]["checks"] if e["name"] == "I-9"]
    (found,) = check["findings"]
    assert str(changed).endswith(found["where"]["object"])
    assert int(changed.stem) == found["offset"]
    assert {"segment", "object"} == found["where"].keys()


def test_damage_is_said_to_be_in_the_object(tmp_path: Path, keeplast: Command, store: str) -> None:
    changed = next((tmp_path / "objects").rglob("*60.log"))
    flip(changed, 200)
    run = keeplast("clean", store, "--despite", "dirty-ratio", "--json", code=3)
    (partition,) = run.document["partitions"]
    error = partition["rounds"][-1]["error"]
    assert str(changed.relative_to(tmp_path / "objects")) == error["path"]


def test_a_new_store_wants_to_know_where_its_objects_are(tmp_path: Path, keeplast: Command) -> None:
    run = keeplast("status", f"sqlite:///{tmp_path / 'other.db'}", code=2)
    assert "make it: keeplast copy DATA_DIR STORE --new --objects URL. store=" in run.err
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("new", [("--new",), ("--objects", "file:///x"), ()])
def test_a_store_is_made_only_with_new_and_objects(
    tmp_path: Path, keeplast: Command, new: tuple[str, ...]
) -> None:
    run = keeplast("copy", SAMPLE, f"sqlite:///{tmp_path / 'other.db'}", *new, "--topic", "orders")
    assert (2, True) == (run.code, "keeplast copy DATA_DIR STORE --new --objects URL" in run.err)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("objects", ["memory://here", "file://srv/objects", "", "ftp://x/y"])
def test_a_place_that_keeps_no_objects_is_refused_and_not_remembered(
    tmp_path: Path, keeplast: Command, objects: str
) -> None:
    url = f"sqlite:///{tmp_path / 'typed-wrong.db'}"
    take_in = ("copy", SAMPLE, url, "--new", "--topic", "orders", "--objects")
    assert 2 == keeplast(*take_in, objects).code
    assert 0 == keeplast(*take_in, f"file://{tmp_path / 'right'}").code


def test_a_relative_place_is_the_same_from_everywhere(
    tmp_path: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'relative.db'}"
    (tmp_path / "elsewhere").mkdir()
    take_in = ("copy", SAMPLE, url, "--new", "--topic", "orders", "--objects", "kept")
    monkeypatch.chdir(tmp_path)
    assert 0 == keeplast(*take_in).code
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert 0 == keeplast("status", url).code
    assert [] == list((tmp_path / "elsewhere").iterdir())
    run = keeplast(*take_in, code=2)
    assert f"found=file://{tmp_path}/kept" in run.err


def test_a_mistake_of_the_call_is_named_once(keeplast: Command, store: str, tmp_path: Path) -> None:
    keeplast("copy", tmp_path / "data", store, "--new")
    run = keeplast("configure", store)
    said = "error: say what to change: KEY=VALUE, or --unset KEY [K102]\n"
    assert (2, said) == (run.code, run.err)


def test_a_setting_that_is_not_kept_cannot_be_taken_out(keeplast: Command, store: str) -> None:
    run = keeplast("configure", store, "--unset", "cleanup.polciy", code=2)
    assert "key=cleanup.polciy kept=cleanup.policy, " in run.err


def test_the_value_of_an_object_option_is_in_no_error(keeplast: Command, store: str) -> None:
    run = keeplast("status", store, "--object-option", "=hidden", code=2)
    assert "hidden" not in run.err


def test_status_with_a_missing_host_directory_is_a_mistake(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    run = keeplast("status", store, "--data-dir", tmp_path / "nowhere", code=2)
    assert "directory; give a Kafka log.dirs directory" in run.err


def test_status_with_a_host_without_the_partition_shows_the_tier(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    (tmp_path / "host").mkdir()
    run = keeplast("status", store, "--data-dir", tmp_path / "host", "--json")
    (partition,) = run.document["partitions"]
    assert (0, None) == (run.code, partition["local_bytes"])


def test_a_volume_that_is_not_mounted_is_not_an_empty_one(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    (tmp_path / "objects").rename(tmp_path / "away")
    run = keeplast("verify", store, code=5)
    assert "is its volume mounted?" in run.err
    assert not (tmp_path / "objects").exists()


def test_objects_of_a_topic_that_is_not_compacted_are_never_rewritten(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    shutil.copytree(SAMPLE / "orders-0", tmp_path / "more" / "plain-0")
    keeplast(
        "copy", tmp_path / "more", store, "--new",
        "--topic", "plain", "--config", "cleanup.policy=delete", code=0,
    )  # fmt: skip
    before = sorted((tmp_path / "objects").rglob("*"))
    run = keeplast("clean", store, "--topic", "plain", "--despite", "dirty-ratio", code=4)
    assert "the topic is not compacted" in run.err
    assert before == sorted((tmp_path / "objects").rglob("*"))


def test_settings_are_changed_and_records_without_a_key_are_counted_first(
    tmp_path: Path, keeplast: Command
) -> None:
    data = tmp_path / "data"
    topic = topic_config({"cleanup.policy": "delete", "retention.ms": -1})
    with LogAppender(data / "events-0", LocalFiles(), topic=topic) as log:
        for i in range(10):
            log.append([NewRecord(None if i % 2 else b"k", b"v%d" % i, 1_700_000_000_000)])
    store = called.copied(
        data, tmp_path, "--topic", "events", "--config", "cleanup.policy=delete", "--config",
        "retention.ms=-1",
    )  # fmt: skip
    change = ("configure", store, "cleanup.policy=compact")
    refused = keeplast(*change, code=4)
    assert "to go past this: --despite keyless-records. keyless_records=5" in " ".join(
        refused.err.split()
    )
    assert (
        "events-0: becomes compacted: of 10 records 5 without a key would go"
        in keeplast(*change, "--plan").out
    )
    (planned,) = keeplast(*change, "--plan", "--json").document["partitions"]
    assert (planned["changed"], planned["records"], planned["keyless_records"]) == (False, 10, 5)
    (done,) = keeplast(*change, "--despite", "keyless-records", "--json").document["partitions"]
    assert done["settings"]["cleanup.policy"] == "compact"
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    assert 2 == keeplast("configure", store).code
    assert 2 == keeplast("configure", store, "--unset", "cleanup.policy").code
    back = keeplast("configure", store, "--unset", "retention.ms")
    assert (0, "events-0: the settings are now cleanup.policy=compact\n") == (back.code, back.out)


def test_hazards_of_a_strategy_are_said_by_every_command_of_the_tier(
    keeplast: Command, store: str
) -> None:
    at = ("--store", store)
    words = "bring a deleted key back"
    run = keeplast("configure", at[1], "compaction.strategy=timestamp", "--json")
    (found,) = run.document["partitions"]
    assert (1, True) == (run.err.count(words), words in found["warnings"][0])
    clean = keeplast("clean", at[1], "--despite", "dirty-ratio", "--json")
    assert found["warnings"] == clean.document["warnings"]
    assert 1 == clean.err.count(words)
    assert 1 == keeplast("run", at[1], "--once").err.count(words)


def test_a_brokers_file_is_kept_at_import_and_counts_where_nothing_is_kept(
    tmp_path: Path, keeplast: Command
) -> None:
    at = ("--store", f"sqlite:///{tmp_path / 'meta.db'}")
    for name in ("a-0", "b-0"):
        write_log(tmp_path / "data", name, {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: []})
    broker = tmp_path / "server.properties"
    broker.write_text("log.cleaner.delete.retention.ms=5\nlog.cleaner.min.cleanable.ratio=1\n")
    compact = ("--config", "cleanup.policy=compact")
    new = ("--new", "--objects", f"file://{tmp_path / 'objects'}", *compact)
    for topic, more in (("a", ("--broker-config", broker)), ("b", ())):
        run = keeplast("copy", tmp_path / "data", at[1], *new, "--topic", topic, *more, code=0)
    kept = keeplast("configure", at[1], "--plan", "retention.ms=1", "--json")
    a, b = (each["settings"] for each in kept.document["partitions"])
    assert ("5", None) == (a["delete.retention.ms"], b.get("delete.retention.ms"))
    run = keeplast("clean", at[1], "--topic", "b", "--json", "--broker-config", broker)
    assert "min.cleanable.dirty.ratio" in run.document["partitions"][0]["reason"]
    assert ({}, 0) == (run.document["assumed"], run.err.count("assumed"))
    run = keeplast("clean", at[1], "--topic", "b", "--json")
    assert "86400000" == run.document["assumed"]["delete.retention.ms"]
    assert 1 == run.err.count("note: Kafka's defaults are assumed")
    run = keeplast("run", at[1], "--once", "--json")
    assert "86400000" == run.document["assumed"]["delete.retention.ms"]
    assert 1 == run.err.count("note: Kafka's defaults are assumed")
    run = keeplast("run", at[1], "--once", "--json", "--broker-config", broker)
    assert {} == run.document["assumed"]


def test_a_brokers_own_topic_cannot_be_given_a_strategy(tmp_path: Path, keeplast: Command) -> None:
    at = ("--store", f"sqlite:///{tmp_path / 'meta.db'}")
    write_log(tmp_path / "data", "__consumer_offsets-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")]})
    strategy = ("--config", "log.cleaner.compaction.strategy=timestamp")
    new = ("--new", "--objects", f"file://{tmp_path / 'objects'}")
    run = keeplast("copy", tmp_path / "data", at[1], *new, *strategy)
    assert (0, 1) == (run.code, run.err.count("does not count for it")), run.err
    run = keeplast("configure", at[1], "compaction.strategy=timestamp", code=4)
    assert "brokers read this topic by offset" in run.err


def test_what_an_older_version_kept_with_a_brokers_own_topic_does_not_count(
    tmp_path: Path,
) -> None:
    partition = package.TopicPartition("__consumer_offsets", 0)
    kept = {"cleanup.policy": "compact", "compaction.strategy": "timestamp"}
    with package.open_store(
        f"sqlite:///{tmp_path / 'meta.db'}",
        f"file://{tmp_path / 'objects'}",
        owner="a",
        topic_of=package.topic_config,
    ) as store:
        store._store.create(partition, "0" * 32, log_start=0, settings=kept)
        assert package.topic_config({"cleanup.policy": "compact"}) == store.look(partition).topic


def test_status_shows_the_local_log_next_to_object_storage(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    shown = keeplast("status", store, "--data-dir", tmp_path / "data", code=0)
    assert "remote only" in shown.out
    assert "local only" in shown.out
    run = keeplast("status", store, "--data-dir", tmp_path / "data", "--json")
    (found,) = run.document["partitions"]
    assert {"both"} == {s["place"] for s in found["segments"] if s["kind"] == "raw"}
    assert found["kip_ratio"] < found["ratio"]


def test_status_says_by_when_old_values_are_gone_from_the_objects(
    keeplast: Command, store: str
) -> None:
    """What is dirty has no bound without a greatest lag; what is clean waits for the collection."""

    def bound() -> dict[str, Any]:
        run = keeplast("status", store, "--erased-by", "--json")
        (found,) = run.document["partitions"]
        erased: dict[str, Any] = found["erased_by"]
        return erased

    dirty = bound()
    assert dirty["by_ms"] is None
    assert "max.compaction.lag.ms" in dirty["why"]
    keeplast("clean", store, "--despite", "dirty-ratio")
    clean = bound()
    day_ms = 24 * 60 * 60 * 1000
    assert day_ms < clean["by_ms"] - clean["eligible_by_ms"] < day_ms + 120_000
    shown = keeplast("status", store, "--erased-by").out
    assert "  erased by: " in shown
    assert "while keeplast run goes" in " ".join(shown.split())


def test_nothing_is_promised_of_what_is_set_aside(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    with package.open_store(store, owner="a", topic_of=package.topic_config) as opened:
        opened.own(ORDERS, takes_over=True)
        opened.set_aside(ORDERS, "CorruptError: bad")
    run = keeplast("status", store, "--erased-by", "--json")
    (found,) = run.document["partitions"]
    assert (None, "no date while it is skipped") == (
        found["erased_by"]["by_ms"],
        found["erased_by"]["why"],
    )


def test_the_password_of_what_is_no_url_is_not_shown(keeplast: Command) -> None:
    run = keeplast("status", "postgresql//me:hidden@host/db", code=2)
    assert "url=***@host/db" in run.err
    assert "hidden" not in run.err


def test_directories_that_are_not_there_are_named_with_the_remedy(
    tmp_path: Path, keeplast: Command
) -> None:
    lacking = tmp_path / "no such" / "place"
    url = f"sqlite:///{lacking / 'meta.db'}"
    run = keeplast("copy", SAMPLE, url, "--new", "--objects", "x", "--topic", "orders")
    assert (2, True) == (run.code, f"make it (mkdir -p '{lacking}')" in run.err), run.err
    data = shutil.copytree(SAMPLE, tmp_path / "other")
    run = keeplast("clean", data, "--runner", "local", "--receipt", lacking / "receipt")
    assert (4, True) == (run.code, f"make it (mkdir -p '{lacking}')" in run.err), run.err
    assert not lacking.parent.exists()


def test_a_receipts_lines_are_held_against_the_head_that_a_commit_has_kept(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    receipt = tmp_path / "receipts.jsonl"
    clean = ("clean", store, "--despite", "dirty-ratio", "--receipt", receipt)
    assert 0 == keeplast(*clean).code
    verify = ("verify", store, "--receipt", receipt)
    whole = keeplast(*verify)
    assert (0, True) == (whole.code, "proven up to the head that was kept" in whole.out), whole.out
    lines = receipt.read_bytes().splitlines(keepends=True)
    receipt.write_bytes(
        b"".join(lines[:-1]) + lines[-1].replace(b'"unsafe":false', b'"unsafe":true')
    )
    changed = keeplast(*verify)
    assert (1, True) == (changed.code, "not the one that was kept as head" in changed.out)


def test_what_counts_in_a_store_and_where_it_comes_from(
    tmp_path: Path, keeplast: Command, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = tmp_path / "server.properties"
    broker.write_text("log.cleanup.policy=delete\nlog.cleaner.threads=3\nlog.retention.ms=5\n")
    monkeypatch.setenv("KEEPLAST_LOG_CLEANER_IO_MAX_BYTES_PER_SECOND", "30000")
    monkeypatch.setenv("KEEPLAST_LOG_ROLL_MS", "9")
    given = (store, "--broker-config", broker, "--effective", "--json")
    run = keeplast("config", *given, "--topic", "orders")
    assert (0, "store") == (run.code, run.document["kind"])
    rows = {each["key"]: each for each in run.document["settings"]}
    found = {key: (rows[key]["value"], rows[key]["source"]) for key in rows}
    assert ("compact", "kept with the partition") == found["cleanup.policy"]
    assert ("5", str(broker)) == found["retention.ms"]
    assert ("3", str(broker)) == found["log.cleaner.threads"]
    assert ("30000.0", "environment") == found["log.cleaner.io.max.bytes.per.second"]
    # The environment's default of a topic does not count where topics' settings are kept.
    assert "environment" != found["segment.ms"][1]
    with package.open_store(store, owner="a", topic_of=package.topic_config) as opened:
        kept = opened.topic_for(opened.state(package.TopicPartition("orders", 0)))
    assert str(kept.segment_ms) == found["segment.ms"][0]
    assert 2 == keeplast("config", store, "--topic", "nowhere").code


def test_partitions_that_keep_other_settings_are_named(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    shutil.copytree(SAMPLE / "orders-0", tmp_path / "more" / "orders-1")
    keeplast(
        "copy",
        tmp_path / "more",
        store,
        "--new",
        "--config",
        "cleanup.policy=compact",
        code=0,
    )
    run = keeplast("config", store, "--topic", "orders", "--json")
    assert "shown=orders-0 different=orders-1" in run.document["warnings"][0]
    rows = keeplast("config", store, "--topic", "orders", "--json").document["settings"]
    equal = [f"{each['key']}={each['value']}" for each in rows]
    assert 0 == keeplast("configure", store, *equal, "--topic", "orders").code
    run = keeplast("config", store, "--topic", "orders", "--json")
    assert ([], rows) == (run.document["warnings"], run.document["settings"])


@pytest.mark.parametrize(("verb", "once"), [("plan", ()), ("clean", ()), ("run", ("--once",))])
def test_a_setting_of_a_topic_that_a_store_does_not_heed_is_named(
    keeplast: Command, store: str, verb: str, once: tuple[str, ...]
) -> None:
    run = keeplast(verb, store, *once, "--config", "min.cleanable.dirty.ratio=0.1", code=0)
    assert "this one has no effect; change it with keeplast configure" in " ".join(run.err.split())
    assert "no effect" not in keeplast(verb, store, *once, code=0).err
