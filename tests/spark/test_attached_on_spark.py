"""``kafka-log`` of a live cluster's remote tier on Spark: tasks read the objects themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import find_shown_topics
from keeplast.config.log_source import KafkaLogSource
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import FoundLogs
from keeplast.pipeline.source_options import SourceOptions
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from tests.support.attached_world import PARTITION
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, write_history

pytestmark = pytest.mark.spark

CLUSTER = {"bootstrapServers": "127.0.0.1:1", "storage": "local:/x", "state": "latest"}


def source_of(recipe: LogDirectoryRecipe) -> type[KafkaLogSource]:
    """Return a source that has looked at a cluster; of a function, so that Spark sends it along."""

    class LookedAt(KafkaLogSource):
        @classmethod
        def name(cls) -> str:
            return "kafka-log-looked-at"

        def find(self, options: SourceOptions) -> FoundLogs:
            return FoundLogs(options.of(recipe), lambda _: lambda topic: TopicConfig())

    return LookedAt


def test_the_state_of_an_attached_topic_is_read_by_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = VerifiedWorld(tmp_path, write_history(tmp_path / "logs", count=60), LINEAGE)
    try:
        world.clean(MERGING, margin=4000)
        facts = world.cluster.read_facts()
        decisions = world.world.log()
        recipe = find_shown_topics(
            world.cluster, facts, decisions, world.tier.layout, lambda each: True, "a cluster"
        )
        end = world.tier.served()[-1].end_offset + 1
    finally:
        world.close()
    spark.dataSource.register(source_of(recipe))
    logs = spark.read.format("kafka-log-looked-at").options(**CLUSTER)
    found = {
        bytes(row.key): bytes(row.value) for row in logs.load().select("key", "value").collect()
    }
    expected = OpenLog(world.directory).state(MERGING, end_offset=end)
    assert {key: each.value for key, each in expected.items()} == found
    assert found
    partition = TopicPartition(PARTITION.topic, PARTITION.partition)
    refused = logs.option("endingOffsets", f'{{"{partition.topic}":{{"0":5}}}}').load()
    with pytest.raises(AnalysisException, match="cleaned_to="):
        refused.collect()
