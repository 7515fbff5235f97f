"""Which value counts, and which values contradict each other."""

from __future__ import annotations

import pytest

import keeplast
from keeplast.config.layers import Layer, environment_layer, file_layer, flags_layer
from keeplast.config.precedence import PolicyOrigin, Settings
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.topic_config import Strategy


def settings(*flags: str, file: str = "", environment: dict[str, str] | None = None) -> Settings:
    return Settings(
        (
            flags_layer(flags),
            file_layer(file, "keeplast.toml"),
            environment_layer(environment or {}),
        )
    )


def test_without_sources_the_defaults_are_kafkas() -> None:
    config = settings().topic_config("t")
    assert frozenset({"delete"}) == config.cleanup_policy
    assert 86_400_000 == config.delete_retention_ms
    cleaner = settings().cleaner_config()
    assert None is cleaner.key_map_bytes
    assert 0.9 == cleaner.load_factor


def test_a_topics_value_in_the_file_beats_the_clusters_on_the_command_line() -> None:
    chosen = settings("log.segment.bytes=100", file='[topic."t"]\nsegment.bytes = 300')
    assert 300 == chosen.topic_config("t").segment_bytes
    assert 100 == chosen.topic_config("other").segment_bytes


def test_within_the_cluster_flags_beat_the_file_and_that_the_environment() -> None:
    file = "[cluster]\nlog.segment.bytes = 300"
    environment = {"KEEPLAST_LOG_SEGMENT_BYTES": "200"}
    assert 200 == settings(environment=environment).topic_config("t").segment_bytes
    assert 300 == settings(file=file, environment=environment).topic_config("t").segment_bytes
    everything = settings("log.segment.bytes=100", file=file, environment=environment)
    assert 100 == everything.topic_config("t").segment_bytes


def test_a_topics_flag_beats_its_table_in_the_file() -> None:
    chosen = settings("segment.bytes=100", file="[topic.t]\nsegment.bytes = 300")
    assert 100 == chosen.topic_config("t").segment_bytes


def test_presence_decides_and_not_truth() -> None:
    chosen = settings(
        "index.interval.bytes=0", "cleanup.policy=", file="[topic.t]\nindex.interval.bytes = 5"
    )
    assert 0 == chosen.topic_config("t").index_interval_bytes
    assert frozenset() == chosen.topic_config("t").cleanup_policy


def test_k01_without_a_strategy_or_with_an_empty_one_the_offset_decides() -> None:
    """A topic's empty value beats the cluster's; without one the cluster's counts."""
    assert Strategy.OFFSET is settings().topic_config("t").strategy
    cluster = "log.cleaner.compaction.strategy=timestamp"
    assert Strategy.TIMESTAMP is settings(cluster).topic_config("t").strategy
    assert Strategy.OFFSET is settings(cluster, "compaction.strategy=").topic_config("t").strategy


def test_strategy_and_header_come_from_topic_or_cluster() -> None:
    chosen = settings("compaction.strategy=header", "log.cleaner.compaction.strategy.header=ver")
    config = chosen.topic_config("t")
    assert (Strategy.HEADER, "ver") == (config.strategy, config.strategy_header)
    assert not config.keep_versioned_tombstones
    chosen = settings(
        "compaction.strategy=header", "compaction.strategy.header=Ver",
        "log.cleaner.compaction.strategy.header=ver", "keep.versioned.tombstones=true",
    )  # fmt: skip
    assert "Ver" == chosen.topic_config("t").strategy_header
    assert chosen.topic_config("t").keep_versioned_tombstones


@pytest.mark.parametrize("header", [(), ("compaction.strategy.header=",)])
def test_the_strategy_header_needs_the_name_of_a_header(header: tuple[str, ...]) -> None:
    with pytest.raises(InvalidError, match=r"compaction\.strategy\.header"):
        settings("compaction.strategy=header", *header).topic_config("t")


def test_units_of_broker_names_are_converted_and_the_finest_wins() -> None:
    assert 7_200_000 == settings("log.roll.hours=2").topic_config("t").segment_ms
    both = settings("log.roll.hours=2", "log.roll.ms=5")
    assert 5 == both.topic_config("t").segment_ms
    # A stronger source wins with a coarser name.
    strong = settings("log.roll.hours=2", file="[cluster]\nlog.roll.ms = 5")
    assert 7_200_000 == strong.topic_config("t").segment_ms


def test_the_internal_segment_size_of_kafka_4_wins_over_the_public_one() -> None:
    chosen = settings("segment.bytes=1048576", "internal.segment.bytes=1000")
    assert 1000 == chosen.topic_config("t").segment_bytes


def test_the_lags_are_compared_as_effective_values() -> None:
    assert 5 == settings(
        "min.compaction.lag.ms=5", "max.compaction.lag.ms=5"
    ).topic_config("t").min_compaction_lag_ms  # fmt: skip
    crossed = settings(
        "log.cleaner.max.compaction.lag.ms=10", file="[topic.t]\nmin.compaction.lag.ms = 20"
    )
    assert 10 == crossed.topic_config("other").max_compaction_lag_ms
    with pytest.raises(InvalidError):
        crossed.topic_config("t")


def test_the_dedupe_buffer_bounds_the_key_map_only_when_it_is_set() -> None:
    assert None is settings().cleaner_config().key_map_bytes
    bounded = settings("log.cleaner.dedupe.buffer.size=2000000")
    assert 2_000_000 == bounded.cleaner_config().key_map_bytes
    beaten = Settings((flags_layer(["log.cleaner.dedupe.buffer.size=2000000"]),), key_map_bytes=48)
    assert 48 == beaten.cleaner_config().key_map_bytes


def test_a_dedupe_buffer_that_a_broker_refuses_is_refused() -> None:
    with pytest.raises(InvalidError):
        settings("log.cleaner.dedupe.buffer.size=1048576").cleaner_config()
    with pytest.raises(InvalidError):
        settings("log.cleaner.threads=200").cleaner_config()


@pytest.mark.parametrize("factor", ["0", "-0.5", "1.0000001", "7"])
def test_a_load_factor_outside_its_range_is_refused_not_invalid(factor: str) -> None:
    with pytest.raises(RefusedError):
        settings(f"log.cleaner.io.buffer.load.factor={factor}").cleaner_config()


@pytest.mark.parametrize(
    ("map_bytes", "factor", "is_usable"),
    [
        (24, "1", True),
        (23, "1", False),
        (24, "0.9", False),
        (47, "0.9", False),
        (48, "0.9", True),
        (0, "1", False),
        (1 << 40, "1e-300", False),
    ],
)
def test_a_key_map_needs_one_usable_slot(map_bytes: int, factor: str, is_usable: bool) -> None:
    layer = flags_layer([f"log.cleaner.io.buffer.load.factor={factor}"])
    chosen = Settings((layer,), key_map_bytes=map_bytes)
    if is_usable:
        assert map_bytes == chosen.cleaner_config().key_map_bytes
    else:
        with pytest.raises(RefusedError):
            chosen.cleaner_config()


def test_the_source_of_the_policy_is_known() -> None:
    metadata = Layer("metadata", topics={"known": {}, "own": {"cleanup.policy": "compact"}})
    chosen = Settings((flags_layer(["log.cleanup.policy=compact"]),), directory_layer=metadata)
    assert PolicyOrigin.TOPIC is chosen.policy_origin("own")
    assert PolicyOrigin.TOPIC is chosen.policy_origin("known")
    assert PolicyOrigin.CLUSTER is chosen.policy_origin("elsewhere")
    assert PolicyOrigin.UNKNOWN is Settings(()).policy_origin("elsewhere")
    assert chosen.topic_config("known").is_compacted


def test_what_the_directory_knows_is_weaker_than_any_user_source_of_the_same_scope() -> None:
    metadata = Layer(
        "metadata",
        {"log.segment.bytes": "900"},
        topics={"t": {"segment.bytes": "700", "some.future.key": "x"}},
    )
    file = file_layer("[topic.t]\nsegment.bytes = 300\n[cluster]\nlog.segment.bytes = 800", "f")
    assert 700 == Settings((), directory_layer=metadata).topic_config("t").segment_bytes
    assert 900 == Settings((), directory_layer=metadata).topic_config("u").segment_bytes
    chosen = Settings((file,), directory_layer=metadata)
    assert 300 == chosen.topic_config("t").segment_bytes
    assert 800 == chosen.topic_config("u").segment_bytes


def test_compact_and_remote_storage_go_together() -> None:
    chosen = settings("cleanup.policy=compact", "remote.storage.enable=true")
    assert chosen.topic_config("t").is_compacted


def test_a_limit_on_bytes_is_above_nothing() -> None:
    assert None is settings().cleaner_config().io_limit
    limited = settings("log.cleaner.io.max.bytes.per.second=1e6").cleaner_config()
    assert 1_000_000 == limited.io_limit
    for rate in ("0", "-5"):
        with pytest.raises(InvalidError):
            settings(f"log.cleaner.io.max.bytes.per.second={rate}").cleaner_config()


def test_the_settings_of_a_topic_name_the_source_of_its_strategy() -> None:
    said = Settings(
        (
            flags_layer(["log.cleaner.compaction.strategy=timestamp"]),
            Layer("keeplast.toml", topics={"own": {"compaction.strategy": "offset"}}),
        )
    )
    assert "offset, from keeplast.toml" == said.topic_config("own").ranking
    by_default = said.topic_config("other").ranking
    assert "timestamp, from --config, as the cluster's default" == by_default
    assert "offset, as brokers read this topic" == said.topic_config("__consumer_offsets").ranking
    unset = Settings(()).topic_config("t")
    assert "offset, Kafka's default: no source says another" == unset.ranking
    header = {"compaction.strategy": "header", "compaction.strategy.header": "v"}
    assert "header v, from the topic's settings" == keeplast.topic_config(header).ranking
    assert unset == Settings((flags_layer(["compaction.strategy=offset"]),)).topic_config("t")
