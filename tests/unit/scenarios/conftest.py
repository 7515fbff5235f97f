"""Logs for scenarios: made on demand, released at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keeplast.model.topic_config import TopicConfig
from tests.support.scenario_log import SMALL, ScenarioLog

MakeLog = Callable[..., ScenarioLog]


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[MakeLog]:
    """Make logs with given topic settings, each in a data directory of its own."""
    made: list[ScenarioLog] = []

    def make(topic: TopicConfig = SMALL) -> ScenarioLog:
        made.append(ScenarioLog(tmp_path / f"data-{len(made)}", topic))
        return made[-1]

    yield make
    for log in made:
        log.close()


@pytest.fixture
def log(make_log: MakeLog) -> ScenarioLog:
    """Return a log with segments of 1 KiB."""
    return make_log()
