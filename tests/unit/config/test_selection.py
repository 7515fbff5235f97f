"""Which partitions a call is about, and why the others are not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.selection import Selection, select_directory, select_partitions
from keeplast.errors import InvalidError, RefusedError
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Strategy
from tests.support.existing import existing
from tests.support.small_log import write_log

GOLDEN = Path(__file__).parents[2] / "golden" / "cluster_metadata"
COMPACT = ["cleanup.policy=compact"]


def make(root: Path, *names: str) -> Path:
    for name in names:
        write_log(root, name, {0: [(b"k", b"v")], 1: []})
    return root


def select(
    path: Path,
    flags: Sequence[str] = (),
    *,
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    config_file: Path | None = None,
) -> Selection:
    return select_partitions(
        path,
        LocalFiles(),
        PartitionChoice(topics=tuple(topics), partitions=tuple(partitions)),
        SettingSources(flags=tuple(flags), config_file=config_file, environment={}),
    )


def chosen(selection: Selection) -> list[str]:
    return [str(request.partition) for request in selection.partitions]


def refused(selection: Selection) -> list[str]:
    return [f"{r.topic}-{r.partition}" for r in selection.decided if r.rounds[-1].failure]


def skipped(selection: Selection) -> list[str]:
    return [f"{r.topic}-{r.partition}" for r in selection.decided if r.rounds[-1].skipped]


def test_one_topic_may_be_given_its_policy_without_naming_it(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "a-1")
    assert ["a-0", "a-1"] == chosen(select(tmp_path, COMPACT))


def test_of_several_topics_the_policy_needs_names(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "b-0")
    with pytest.raises(InvalidError):
        select(tmp_path, COMPACT)
    assert ["b-0"] == chosen(select(tmp_path, COMPACT, topics=["b"]))
    assert ["a-0", "b-0"] == chosen(select(tmp_path, COMPACT, topics=["b", "a"]))


def test_an_unknown_policy_is_refused_with_the_remedy_and_the_others_go_on(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "b-0")
    (tmp_path / "keeplast.toml").write_text('[topic."a"]\ncleanup.policy = "compact"\n')
    selection = select(tmp_path)
    assert ["a-0"] == chosen(selection)
    assert ["b-0"] == refused(selection)
    error = existing(selection.decided[0].rounds[-1].error)
    assert "RefusedError" == error.error_class
    assert "--topic b --config cleanup.policy=compact" in error.message


def test_a_policy_without_compact_is_skipped_in_words(tmp_path: Path) -> None:
    make(tmp_path, "a-0")
    selection = select(tmp_path, ["cleanup.policy=delete"])
    assert ["a-0"] == skipped(selection)
    assert "cleanup.policy is delete" in str(selection.decided[0].rounds[-1].reason)


def test_the_clusters_policy_decides_about_named_topics_only(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "b-0")
    flags = ["log.cleanup.policy=compact"]
    assert ["a-0", "b-0"] == refused(select(tmp_path, flags))
    assert ["a-0"] == chosen(select(tmp_path, flags, topics=["a"]))


def test_policies_come_from_the_brokers_own_metadata(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    make(tmp_path, "compacted-0", "both-0", "plain-0", "recreated-0", "elsewhere-0")
    selection = select(tmp_path)
    assert ["both-0", "compacted-0"] == chosen(selection)
    assert ["plain-0", "recreated-0"] == skipped(selection)
    assert ["elsewhere-0"] == refused(selection)
    by_name = {str(request.partition): request.topic for request in selection.partitions}
    assert 1000 == by_name["compacted-0"].delete_retention_ms
    assert 7000 == by_name["both-0"].delete_retention_ms
    assert 0.25 == by_name["both-0"].min_cleanable_dirty_ratio


def test_a_single_partition_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "b-0")
    selection = select(tmp_path / "b-0", COMPACT)
    assert ["b-0"] == chosen(selection)
    assert tmp_path == selection.directory.root


def test_partitions_are_chosen_by_number(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "a-1", "a-2")
    assert ["a-1"] == chosen(select(tmp_path, COMPACT, partitions=[1]))
    with pytest.raises(InvalidError):
        select(tmp_path, COMPACT, partitions=[7])


def test_a_topic_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    make(tmp_path, "prices-0")
    with pytest.raises(InvalidError, match="did you mean prices"):
        select(tmp_path, COMPACT, topics=["pricse"])


def test_stray_and_deleted_directories_and_the_metadata_log_are_no_choice(tmp_path: Path) -> None:
    mark = "0123456789abcdef0123456789abcdef"
    make(tmp_path, "a-0", f"b-0.{mark}-delete", f"c-0.{mark}-stray", f"d-0.{mark}-future")
    write_log(tmp_path, "__cluster_metadata-0", {0: []})
    assert ["a-0"] == chosen(select(tmp_path, COMPACT))
    for topic in ("b", "c", "d", "__cluster_metadata"):
        with pytest.raises(RefusedError):
            select(tmp_path, COMPACT, topics=[topic])
    for name in (f"b-0.{mark}-delete", "__cluster_metadata-0"):
        with pytest.raises(RefusedError):
            select(tmp_path / name, COMPACT)


def test_a_load_factor_out_of_range_is_the_partitions_error(tmp_path: Path) -> None:
    make(tmp_path, "a-0")
    selection = select(tmp_path, [*COMPACT, "log.cleaner.io.buffer.load.factor=2"])
    assert ["a-0"] == refused(selection)


def test_a_directory_without_partitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError):
        select(tmp_path, COMPACT)
    with pytest.raises(InvalidError):
        select(tmp_path / "nowhere", COMPACT)


def test_a_file_that_is_named_takes_the_place_of_the_directorys(tmp_path: Path) -> None:
    make(tmp_path, "a-0")
    (tmp_path / "keeplast.toml").write_text('[topic.a]\ncleanup.policy = "delete"\n')
    real = tmp_path / "real.toml"
    real.write_text('[topic.a]\ncleanup.policy = "compact"\n[topic.b]\nsegment.bytes = 100\n')
    link = tmp_path / "link.toml"
    link.symlink_to(real)
    selection = select(tmp_path, config_file=link)
    assert ["a-0"] == chosen(selection)
    assert any("topic=b" in warning for warning in selection.warnings)


def test_a_link_in_the_place_of_the_directorys_file_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a-0")
    (tmp_path / "keeplast.toml").symlink_to("/dev/null")
    with pytest.raises(RefusedError):
        select(tmp_path, COMPACT)


def test_the_brokers_own_topics_are_compacted_without_a_setting(tmp_path: Path) -> None:
    make(tmp_path, "__consumer_offsets-3", "__transaction_state-0", "__remote_log_metadata-0")
    selection = select(tmp_path)
    assert ["__consumer_offsets-3", "__transaction_state-0"] == chosen(selection)
    assert ["__remote_log_metadata-0"] == refused(selection)
    assert {104_857_600} == {request.topic.segment_bytes for request in selection.partitions}


def test_what_the_user_says_about_a_brokers_own_topic_counts(tmp_path: Path) -> None:
    make(tmp_path, "__consumer_offsets-0")
    (tmp_path / "keeplast.toml").write_text(
        '[topic."__consumer_offsets"]\ncleanup.policy = "delete"\n'
    )
    assert ["__consumer_offsets-0"] == skipped(select(tmp_path))


def test_a_clusters_policy_does_not_reach_the_brokers_own_topics(tmp_path: Path) -> None:
    make(tmp_path, "__transaction_state-0")
    assert ["__transaction_state-0"] == chosen(select(tmp_path, ["log.cleanup.policy=delete"]))


@pytest.mark.parametrize(
    ("flags", "file", "variables"),
    [
        (["log.cleaner.compaction.strategy=timestamp"], "", {}),
        (["compaction.strategy=timestamp"], "", {}),
        ([], "[cluster]\n'log.cleaner.compaction.strategy' = 'timestamp'\n", {}),
        ([], "[topic.__consumer_offsets]\n'compaction.strategy' = 'timestamp'\n", {}),
        ([], "", {"KEEPLAST_LOG_CLEANER_COMPACTION_STRATEGY": "timestamp"}),
    ],
)
def test_no_setting_changes_how_the_brokers_own_topics_rank(
    tmp_path: Path, flags: list[str], file: str, variables: dict[str, str]
) -> None:
    make(tmp_path, "__consumer_offsets-0", "orders-0")
    (tmp_path / "keeplast.toml").write_text(f"{file}[topic.orders]\ncleanup.policy='compact'\n")
    sources = SettingSources(flags=tuple(flags), environment=variables)
    selection = select_partitions(tmp_path, LocalFiles(), sources=sources)
    strategies = {str(each.partition): each.topic.strategy for each in selection.partitions}
    assert Strategy.OFFSET == strategies["__consumer_offsets-0"]
    assert ("topic.__consumer" in file) == (Strategy.OFFSET == strategies["orders-0"])
    (said,) = [each for each in selection.warnings if "does not count" in each]
    assert "compaction.strategy=timestamp does not count for it" in said
    assert "topic=__consumer_offsets" in said


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_clusters_policy_is_not_kept_as_that_of_unnamed_topics(
    tmp_path: Path, policy: str
) -> None:
    make(tmp_path, "a-0", "b-0")
    sources = SettingSources(flags=(f"log.cleanup.policy={policy}",), environment={})
    refused, _ = select_directory(tmp_path, LocalFiles(), sources=sources)
    assert all("may have its own" in str(each) for _, each in refused)
    assert [RefusedError, RefusedError] == [type(each) for _, each in refused]
    found, _ = select_directory(tmp_path, LocalFiles(), PartitionChoice(topics=("a",)), sources)
    ((_, settings),) = found
    assert not isinstance(settings, RefusedError)
    assert policy == settings["cleanup.policy"]


def test_topics_that_brokers_trim_are_refused_though_a_policy_says_compact(tmp_path: Path) -> None:
    make(tmp_path, "__share_group_state-0", "__remote_log_metadata-0", "orders-0")
    topics = ("__share_group_state", "__remote_log_metadata", "orders")
    selection = select(tmp_path, COMPACT, topics=topics)
    assert ["orders-0"] == chosen(selection)
    assert ["__remote_log_metadata-0", "__share_group_state-0"] == sorted(refused(selection))
    assert "never compact" in str(selection.decided[0].rounds[-1].failure)


def test_the_hazards_of_a_strategy_are_said_once_a_topic(tmp_path: Path) -> None:
    make(tmp_path, "a-0", "a-1", "b-0")
    flags = ["log.cleaner.compaction.strategy=timestamp", "segment.ms=1000"]
    selection = select(tmp_path, [*COMPACT, *flags], topics=("a", "b"))
    said = [each for each in selection.warnings if "bring a deleted key back" in each]
    assert ["topic=a", "topic=b"] == [each.split()[-1] for each in said]


def test_a_link_with_a_partitions_name_is_left_alone_and_said_to_be(tmp_path: Path) -> None:
    make(tmp_path / "data", "a-0")
    (tmp_path / "data" / "a-1").symlink_to(tmp_path / "data" / "a-0")
    (tmp_path / "data" / "lost+found").mkdir()
    found = select(tmp_path / "data", COMPACT)
    assert ["a-0"] == chosen(found)
    (warning,) = found.warnings
    assert warning.endswith(f"names=a-1 path={tmp_path / 'data'}")


@pytest.mark.parametrize("said_by", ["flag", "environment", "file", "broker"])
@pytest.mark.parametrize("path", [".", "events-0"], ids=["directory", "partition"])
def test_a_default_decides_about_no_topic_that_is_not_named_and_be_there_one_topic(
    tmp_path: Path, said_by: str, path: str
) -> None:
    data = make(tmp_path / "data", "events-0")
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=compact\n")
    if said_by == "file":
        (data / "keeplast.toml").write_text("[cluster]\n'log.cleanup.policy' = 'compact'\n")
    sources = SettingSources(
        flags=("log.cleanup.policy=compact",) if said_by == "flag" else (),
        environment={"KEEPLAST_LOG_CLEANUP_POLICY": "compact"} if said_by == "environment" else {},
        broker_config=properties if said_by == "broker" else None,
    )
    selection = select_partitions(data / path, LocalFiles(), sources=sources)
    assert ([], ["events-0"]) == (chosen(selection), refused(selection))
    assert "may have its own" in str(selection.decided[0].rounds[-1].failure)
    ((_, refusal),), _ = select_directory(data / path, LocalFiles(), sources=sources)
    assert isinstance(refusal, RefusedError)
    assert "may have its own" in str(refusal)
    named = PartitionChoice(topics=("events",))
    assert ["events-0"] == chosen(select_partitions(data, LocalFiles(), named, sources))


def test_a_default_decides_about_a_topic_that_the_metadata_describe(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    make(tmp_path, "recreated-0")
    (tmp_path / "keeplast.toml").write_text("[cluster]\n'log.cleanup.policy' = 'compact'\n")
    assert ["recreated-0"] == chosen(select(tmp_path))


def test_other_defaults_of_a_brokers_file_are_said_of_topics_of_unknown_settings(
    tmp_path: Path,
) -> None:
    data = make(tmp_path / "data", "a-0", "b-0")
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.ms=1\nlog.cleaner.compaction.strategy=timestamp\n")
    (data / "keeplast.toml").write_text(
        "[topic.a]\n'cleanup.policy' = 'compact,delete'\n'retention.bytes' = 5\n"
        "[topic.b]\n'cleanup.policy' = 'compact'\n'compaction.strategy' = 'offset'\n"
    )
    sources = SettingSources(environment={}, broker_config=properties)
    said = [
        each
        for each in select_partitions(data, LocalFiles(), sources=sources).warnings
        if "the broker's defaults count" in each
    ]
    assert ["topics=a", "topics=b"] == [each.split()[-1] for each in said]
    assert not [each for each in said if "retention.bytes" in each]
    assert "compaction.strategy=timestamp, delete.retention.ms=86400000" in said[0]
    assert "retention.ms=1;" in said[0]
    assert "compaction.strategy" not in said[1]
    shutil.copytree(GOLDEN, data, dirs_exist_ok=True)
    make(data, "both-0")
    known = PartitionChoice(topics=("both",))
    warnings = select_partitions(data, LocalFiles(), known, sources).warnings
    assert not [each for each in warnings if "the broker's defaults count" in each]
