"""``keeplast config`` and ``configure``: what there is, what counts, and changing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.config.definitions import DEFINITIONS
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command


def test_list_names_every_setting(keeplast: Command) -> None:
    run = keeplast("config", code=0)
    for each in DEFINITIONS:
        assert each.key in run.out
    document = keeplast("config", "--json").document
    assert [each.key for each in DEFINITIONS] == [row["key"] for row in document["settings"]]


def test_describe_says_what_the_reference_says(keeplast: Command) -> None:
    run = keeplast("config", "--key", "min.compaction.lag.ms", code=0)
    for words in (
        "log.cleaner.min.compaction.lag.ms",
        "KEEPLAST_LOG_CLEANER_MIN_COMPACTION_LAG_MS",
        "at least 0",
        "so that readers can see every update",
    ):
        assert words in run.out
    by_broker = keeplast("config", "--key", "log.roll.hours", "--json").document
    assert ("segment.ms", "604800000") == (by_broker["key"], by_broker["default"])


def test_describe_says_why_a_setting_changes_nothing(keeplast: Command) -> None:
    assert "no: use --memory" in keeplast("config", "--key", "log.cleaner.io.buffer.size").out


def test_an_unknown_setting_is_a_usage_error_with_the_nearest_name(keeplast: Command) -> None:
    run = keeplast("config", "--key", "min.compacton.lag", code=2)
    assert "min.compaction.lag.ms" in run.err


def test_set_get_list_and_unset_work_on_the_file_of_the_directory(
    keeplast: Command, data_dir: Path
) -> None:
    run = keeplast("configure", data_dir, "segment.ms=7200000", "--topic", "t", code=0)
    assert "segment.ms = 7200000 (2 h), from keeplast.toml, topic; was 604800000 (7 d)" in run.out
    assert '[topic.t]\n"segment.ms" = 7200000\n' == (data_dir / "keeplast.toml").read_text()
    got = keeplast("config", data_dir, "--key", "segment.ms", "--topic", "t")
    assert ("7200000\n", "segment.ms: keeplast.toml, topic\n") == (got.out, got.err)
    assert "604800000\n" == keeplast("config", data_dir, "--key", "segment.ms").out
    listed = keeplast("config", data_dir, "--topic", "t", "--json").document
    assert [("segment.ms", "7200000", "2 h", "topic")] == [
        (row["key"], row["value"], row["meaning"], row["source_scope"])
        for row in listed["settings"]
    ]
    assert 0 == keeplast("configure", data_dir, "--unset", "segment.ms", "--topic", "t").code
    assert "604800000\n" == keeplast("config", data_dir, "--key", "segment.ms", "--topic", "t").out


def test_list_effective_says_where_each_value_comes_from(
    keeplast: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPLAST_LOG_ROLL_HOURS", "2")
    (data_dir / "keeplast.toml").write_text('[topic.t]\n"cleanup.policy" = "compact"\n')
    run = keeplast(
        "config", data_dir, "--effective", "--topic", "t", "--config", "segment.bytes=99"
    )
    settings, _, _ = run.out.partition("\n\n")
    rows = {line.split()[0]: line.split(None, 1)[1] for line in settings.splitlines()[1:]}
    for key, value, source in (
        ("cleanup.policy", "compact", "keeplast.toml, topic"),
        ("segment.ms", "7200000 (2 h)", "environment, cluster (log.roll.hours)"),
        ("segment.bytes", "99", "--config, topic"),
        ("max.compaction.lag.ms", "no limit", "default"),
    ):
        assert rows[key].startswith(value)
        assert rows[key].rstrip().endswith(source)


def test_two_settings_that_only_go_together_are_set_together(
    keeplast: Command, data_dir: Path
) -> None:
    keeplast("configure", data_dir, "compaction.strategy=header", "--topic", "t", code=2)
    assert not (data_dir / "keeplast.toml").exists()
    run = keeplast(
        "configure", data_dir, "compaction.strategy=header", "compaction.strategy.header=ver",
        "--topic", "t", "--json", code=0,
    )  # fmt: skip
    assert ["header", "ver"] == [each["after"]["value"] for each in run.document["changes"]]
    assert "below delete.retention.ms" in run.err


def test_a_topic_that_is_not_here_is_said(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("configure", data_dir, "segment.ms=5", "--topic", "tt", code=0)
    assert "no such topic" in run.err


def test_check_reports_every_mistake_at_once(keeplast: Command, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        "[cluster]\nlog.segment.bites = 5\n[topic.t]\nmax.compaction.lag.ms = 0\n"
        "log.roll.hours = 3\n[other]\nx = 1\n"
    )
    run = keeplast("config", "--check", path, code=1)
    for words in (
        "did you mean log.segment.bytes",
        "at least 1. key=max.compaction.lag.ms",
        "a topic calls it segment.ms",
        "table='other'",
    ):
        assert words in run.out
    assert 4 == len(keeplast("config", "--check", path, "--json").document["problems"])


def test_check_judges_values_together_and_warns(keeplast: Command, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        '[cluster]\nlog.cleaner.max.compaction.lag.ms = 10\n"log.preallocate" = true\n'
        "[topic.t]\nmin.compaction.lag.ms = 20\n[topic.u]\n\"compaction.strategy\" = 'timestamp'\n"
    )
    document = keeplast("config", "--check", path, "--json").document
    (problem,) = document["problems"]
    assert "topic=t" in problem
    idle, hazard = document["warnings"]
    assert "key=log.preallocate" in idle
    assert "segment.ms" in hazard
    path.write_text("[cluster]\nlog.segment.bytes = 500\n")
    run = keeplast("config", "--check", path)
    assert (0, True) == (run.code, "no mistake: 1 setting, 0 topics" in run.out)


def test_a_file_that_is_not_there_is_a_usage_error(keeplast: Command, tmp_path: Path) -> None:
    assert 2 == keeplast("config", "--check", tmp_path / "nowhere.toml").code


def test_a_directory_means_its_settings_file(keeplast: Command, tmp_path: Path) -> None:
    assert 2 == keeplast("config", "--check", tmp_path).code
    (tmp_path / "keeplast.toml").write_text("[cluster]\nlog.segment.bytes = 500\n")
    assert "no mistake: 1 setting" in keeplast("config", "--check", tmp_path).out


def test_a_place_after_the_settings_is_refused_with_where_it_stands(
    keeplast: Command, data_dir: Path
) -> None:
    run = keeplast("configure", "segment.ms=1", data_dir)
    assert (2, True) == (run.code, "PLACE stands first" in run.err)


def test_effective_values_need_a_place(keeplast: Command) -> None:
    assert 2 == keeplast("config", "--effective").code


BROKER_FILE = "node.id=1\nssl.key.password=hunter2\nlog.roll.hours=2\nlog.retention.hours=1\n"


def test_a_brokers_file_is_a_source_with_its_name(keeplast: Command, tmp_path: Path) -> None:
    write_log(tmp_path / "data", "t-0", {0: []})
    file = tmp_path / "server.properties"
    file.write_text(BROKER_FILE)
    broker = ("--broker-config", file)
    run = keeplast("config", tmp_path / "data", "--topic", "t", *broker, "--json")
    rows = {each["key"]: each for each in run.document["settings"]}
    assert {"segment.ms", "retention.ms"} == set(rows)
    assert ("7200000", str(file), "cluster", "log.roll.hours") == tuple(
        rows["segment.ms"][key] for key in ("value", "source", "source_scope", "source_key")
    )
    shown = keeplast("config", tmp_path / "data", *broker).out
    # A long path is broken over lines, wherever the table's column ends.
    assert "server.properties,cluster(log.roll.hours)" in "".join(shown.split())
    got = keeplast("config", tmp_path / "data", "--key", "segment.ms", *broker)
    assert ("7200000\n", True) == (got.out, "server.properties" in got.err)
    printed = keeplast("config", "--key", "segment.ms", *broker)
    assert "line 3: log.roll.hours, which is 7200000 (2 h)" in printed.out
    row = keeplast("config", "--key", "segment.bytes", *broker, "--json").document
    assert (None, True) == (row["in_broker_config"]["line"], row["in_broker_config"]["is_default"])


def test_a_brokers_file_is_checked(keeplast: Command, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(BROKER_FILE)
    run = keeplast("config", "--check", file)
    assert (0, True) == (run.code, "no mistake: 2 settings that keeplast knows" in run.out)
    file.write_text(f"{BROKER_FILE}log.roll.ms=x\nlog.segment.bytes=y\nlog.cleaner.thread=1\n")
    run = keeplast("config", "--check", file, "--json", code=1)
    assert ["line=5", "line=6"] == [each.split()[-1] for each in run.document["problems"]]
    assert "hunter2" not in run.out + run.err


def test_a_setting_is_judged_with_the_brokers_file(keeplast: Command, tmp_path: Path) -> None:
    write_log(tmp_path / "data", "t-0", {0: []})
    file = tmp_path / "server.properties"
    file.write_text("log.cleaner.max.compaction.lag.ms=10\n")
    change = ("configure", tmp_path / "data", "min.compaction.lag.ms=20")
    assert 2 == keeplast(*change, "--broker-config", file).code
    assert 0 == keeplast(*change).code


def test_a_value_without_a_place_says_what_counts_without_one(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = keeplast("config", "--key", "retention.ms", "--effective")
    assert (0, "604800000") == (run.code, run.out.strip())
    assert "retention.ms: default; of no place: give PLACE for one" in run.err
    monkeypatch.setenv("KEEPLAST_LOG_RETENTION_MS", "7")
    assert "7" == keeplast("config", "--key", "retention.ms", "--effective").out.strip()
    spoken = ("--topic", "t", "--config", "retention.ms=2h")
    given = keeplast("config", "--key", "retention.ms", *spoken)
    assert "7200000" == given.out.strip()


def test_a_plan_of_a_change_writes_nothing(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("configure", data_dir, "segment.ms=5", "--topic", "t", "--plan", "--json")
    assert (0, True) == (run.code, run.document["is_plan"])
    assert ["5"] == [each["after"]["value"] for each in run.document["changes"]]
    assert not (data_dir / "keeplast.toml").exists()


@pytest.mark.parametrize(
    "more",
    [("--topic", "u"), ("--partition", "0"), ("--despite", "keyless-records"), ("--take-over",)],
)
def test_an_option_for_stores_alone_is_a_mistake_of_the_call(
    keeplast: Command, data_dir: Path, more: tuple[str, ...]
) -> None:
    assert 2 == keeplast("configure", data_dir, "segment.ms=5", "--topic", "t", *more).code
    assert not (data_dir / "keeplast.toml").exists()


def test_a_setting_is_not_set_and_taken_out_at_once(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("configure", data_dir, "segment.ms=5", "--unset", "segment.ms")
    assert (2, True) == (run.code, "keep one. key=segment.ms" in run.err)
    assert 2 == keeplast("configure", data_dir).code
    assert 2 == keeplast("configure", data_dir, "segment.ms").code


def test_a_live_cluster_is_configured_in_the_places_table(keeplast: Command) -> None:
    run = keeplast("configure", "kafka://127.0.0.1:1", "segment.ms=5")
    assert (4, True) == (run.code, '[place.NAME.topic."T"], into keeplast.toml' in run.err)


def test_the_properties_of_a_named_place_have_their_sources_and_no_secret(
    keeplast: Command, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    file = tmp_path / "places" / "keeplast.toml"
    file.parent.mkdir()
    file.write_text(
        f'[place.prod]\nat = "{data_dir}"\nmemory = "1g"\n'
        f'object-option = {{region = "r", token = "@{tmp_path / "token"}"}}\n'
        '[place.prod.topic.t]\n"cleanup.policy" = "compact"\n'
    )
    monkeypatch.setenv("KEEPLAST_CONFIG", str(file))
    given = ("--memory", "2g", "--object-option", "secret_access_key=hunter3")
    run = keeplast("config", "prod", "--topic", "t", *given, "--json")
    assert ("directory", str(data_dir)) == (run.document["kind"], run.document["place"])
    rows = run.document["properties"]
    found = {each["property"]: (each["value"], each["source"]) for each in rows}
    assert {
        "memory": ("2g", "--with"),
        "object-option.region": ("r", str(file)),
        "object-option.token": (f"@{tmp_path / 'token'}", str(file)),
        "object-option.secret_access_key": ("***", "--with"),
    } == found
    (policy,) = run.document["settings"]
    assert ("cleanup.policy", str(file)) == (policy["key"], policy["source"])
    whole = keeplast("config", "prod", "--effective", *given, "--json")
    sources = {each["property"]: each["source"] for each in whole.document["properties"]}
    assert (None, False) == (sources["receipt"], "decisions" in sources)
    text = keeplast("config", "prod", *given)
    assert "hunter" not in run.out + run.err + text.out + text.err


def test_a_property_without_a_place_is_a_mistake_of_the_call(keeplast: Command) -> None:
    run = keeplast("config", "--key", "segment.ms", "--memory", "1g")
    assert (2, True) == (run.code, "give PLACE" in run.err)


def test_a_file_is_checked_by_itself(keeplast: Command, data_dir: Path) -> None:
    assert 2 == keeplast("config", data_dir, "--check", data_dir).code
