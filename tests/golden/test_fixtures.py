"""Every case that Kafka's cleaner has judged, cleaned by both runners; on Spark they take turns.

Compared is everything that is kept of a case; ``tests/support/replay.py`` says what. Where keeplast
differs on purpose, ``ours/<case>.json`` holds what is expected instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.archive import names
from tests.support.cases import load_case
from tests.support.cleanings import in_process
from tests.support.expected import expected_of_ours
from tests.support.replay import Cleaning, replay, tree

if TYPE_CHECKING:
    from keeplast.pipeline.runner import SparkRunner

HERE = Path(__file__).parent
NAMES = names(HERE / "fixtures.tar.xz")


@pytest.mark.parametrize("name", NAMES)
def test_local_runner_leaves_what_kafka_leaves(
    name: str, fixtures: Path, local_cleaning: Cleaning, tmp_path: Path
) -> None:
    case = load_case(fixtures / name)
    differences = replay(case, tmp_path, local_cleaning, expected=expected_of_ours(name))
    assert differences == []


@pytest.mark.spark
@pytest.mark.rotates(24)
@pytest.mark.parametrize("name", NAMES)
def test_spark_runner_leaves_what_kafka_and_local_runner_leave(
    name: str,
    fixtures: Path,
    local_cleaning: Cleaning,
    spark_runner: SparkRunner,
    tmp_path: Path,
) -> None:
    case = load_case(fixtures / name)
    expected = expected_of_ours(name)
    by_spark = replay(case, tmp_path / "spark", in_process(spark_runner), expected=expected)
    assert by_spark == []
    replay(case, tmp_path / "local", local_cleaning, expected=expected)
    partition = str(case.partition)
    assert tree(tmp_path / "local" / partition) == tree(tmp_path / "spark" / partition)
