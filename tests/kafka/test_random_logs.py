"""Random logs, cleaned by Kafka's own cleaner and by keeplast, compared in everything.

``SEEDS`` is how many logs (default 300), ``FIRST_SEED`` the first of them; a failure names its
seed. What keeplast wrote must also load in Kafka, after a clean and after an unclean shutdown.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.kafka.oracle.build_case import build_case
from tests.kafka.oracle.driver import Oracle
from tests.kafka.oracle.random_log import random_case
from tests.support.cases import Case, load_case
from tests.support.cleanings import by_command
from tests.support.replay import Cleaning, replay

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "300"))
COMMAND_SEEDS = 10
"""How many go through the command line too; each of its rounds starts an interpreter."""
LONG_LOG_APPENDS = 600

pytestmark = pytest.mark.kafka


def _assert_kafka_accepts(oracle: Oracle, case: Case, data_directory: Path) -> None:
    answer = oracle.demand(
        {
            "op": "accept",
            "dir": str(data_directory / str(case.partition)),
            "work": str(data_directory / "accept"),
            "config": case.params["config"],
            "log_start": case.params.get("log_start", 0),
            "now": case.params["rounds"][-1]["now"],
        }
    )
    assert answer["clean"]["problems"] == []
    assert answer["recovered"]["problems"] == []


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_random_log_is_left_as_kafka_leaves_it(
    seed: int, oracle: Oracle, local_cleaning: Cleaning, tmp_path: Path
) -> None:
    case = load_case(build_case(oracle, random_case(f"seed-{seed}", seed), tmp_path))
    data_directory = tmp_path / "data"
    assert replay(case, data_directory, local_cleaning) == []
    _assert_kafka_accepts(oracle, case, data_directory)
    # Long runs would fill the disk; what failed stays for a look.
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(1, SEEDS // 50)))
def test_long_random_log_is_left_as_kafka_leaves_it(
    seed: int, oracle: Oracle, local_cleaning: Cleaning, tmp_path: Path
) -> None:
    script = random_case(f"long-{seed}", seed, size=LONG_LOG_APPENDS)
    case = load_case(build_case(oracle, script, tmp_path))
    data_directory = tmp_path / "data"
    assert replay(case, data_directory, local_cleaning) == []
    _assert_kafka_accepts(oracle, case, data_directory)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + COMMAND_SEEDS))
def test_command_line_leaves_what_kafka_leaves(seed: int, oracle: Oracle, tmp_path: Path) -> None:
    case = load_case(build_case(oracle, random_case(f"seed-{seed}", seed), tmp_path))
    cleaning = by_command([sys.executable, "-m", "keeplast"], runner="local")
    assert replay(case, tmp_path / "data", cleaning) == []
