"""What all tests share: where kernels are kept, which cases run today, and which worker runs them.

Of a test that is marked ``rotates(shares)`` runs the share of its cases whose turn it is, with
``--all`` every case; ``--long`` adds tests that are marked ``slow``, and draws as many examples as
a test's long form has. A test that is named with
``::`` on the command line runs in any case. With several workers, tests that share the Spark
session stay in one, and a file's tests stay together: what they set up is made once.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

import keeplast.columns  # noqa: F401 - points the kernel compiler at the user's cache folder
from tests.support.turns import EXAMPLES_SHARE, EXAMPLES_WHOLE, LONG_PROFILE, PROFILE, Turn

if TYPE_CHECKING:
    from keeplast.pipeline.runner import SparkRunner
    from tests.support.shared_spark import SharedSpark

TURN = pytest.StashKey[Turn]()
SPARK_ROOM = "tests/spark/"
CLUSTER_FILES = ("tests/spark/test_packed_environment.py", "tests/spark/test_standalone_cluster.py")
"""They start clusters of their own, and no session beside those."""
SPARK_TEST = "test_spark_runner_"
"""How tests in other rooms begin that share the session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("keeplast")
    group.addoption("--all", action="store_true", help="run every case of every matrix")
    group.addoption("--long", action="store_true", help="run the long forms too")
    group.addoption("--turn", type=int, help="which share of large matrices runs (the day)")


def pytest_configure(config: pytest.Config) -> None:
    # A worker is given the width of the terminal that it was started from, which tables would fill.
    os.environ.pop("COLUMNS", None)
    if config.option.turn is None:
        # Kept as an option, so that workers that start before midnight and after it agree.
        config.option.turn = datetime.datetime.now(datetime.UTC).toordinal()
    config.stash[TURN] = Turn(None if config.option.all else config.option.turn)
    drawn = EXAMPLES_WHOLE if config.option.all else EXAMPLES_SHARE
    # Neither a deadline nor a check of how long drawing takes: both go by the clock, and a machine
    # may be busy with other things.
    profile = LONG_PROFILE if config.option.long else PROFILE
    hypothesis.settings.register_profile(
        profile, deadline=None, max_examples=drawn,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )  # fmt: skip
    hypothesis.settings.load_profile(profile)


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.all:
        return "every case of every matrix"
    turn = config.option.turn
    return f"of large matrices a share: --turn {turn} takes the same again, --all takes all"


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What a test looks at is in the page cache; what a disk may lose, a model of one says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def turn(pytestconfig: pytest.Config) -> Turn:
    """Which share of its cases a test takes that loops over many."""
    return pytestconfig.stash[TURN]


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    """The Spark session of this process; who asks for it runs in the worker that has it."""
    # Imported here, so that tests without Spark run without it and Java.
    from tests.support.shared_spark import SharedSpark

    shared = SharedSpark()
    yield shared
    shared.end()


@pytest.fixture
def spark_runner(shared_spark: SharedSpark) -> Iterator[SparkRunner]:
    """A runner of the shared session."""
    with shared_spark.runner() as runner:
        yield runner


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any("::" in argument for argument in config.args):
        return
    turn, seen = config.stash[TURN], Counter[tuple[object, str]]()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if _runs(item, turn, seen) else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _runs(item: pytest.Item, turn: Turn, seen: Counter[tuple[object, str]]) -> bool:
    if item.get_closest_marker("slow") and not item.config.option.long:
        return False
    if (rotates := item.get_closest_marker("rotates")) is None:
        return True
    (shares,) = rotates.args
    test = (item.parent, getattr(item, "originalname", item.name))
    seen[test] += 1
    return turn.takes(seen[test] - 1, shares)


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out files, and what shares the Spark session as one; in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        # By name: the marks that xdist has for this are lost on the way with pytest 9.2.
        path, _, name = nodeid.partition("::")
        if path.startswith(SPARK_ROOM) and path not in CLUSTER_FILES:
            return SPARK_ROOM
        return SPARK_ROOM if name.startswith(SPARK_TEST) else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    return FilesTogether(config, log)
