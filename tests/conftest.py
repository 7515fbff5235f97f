"""What all tests share: where kernels are kept, which cases run today, and which worker runs them.

Of a test that is marked ``rotates(shares)`` runs the share of its cases whose turn it is, and one
that is marked ``repeats(test)`` does not run: it proves again, at a greater cost, what ``test``
proves. Without an argument other cases of the same test prove it. ``--all`` runs every case of
both; ``--long`` adds tests that are marked ``slow``, and draws as many examples as
a test's long form has. The same tree draws the same examples again; ``--long`` and
``--hypothesis-seed`` draw others. A test that is named with
``::`` on the command line runs in any case. With several workers, tests that share the Spark
session stay in one, and a file's tests stay together: what they set up is made once.
"""

from __future__ import annotations

import datetime
import gc
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import typer.main
import typer.testing
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.scheduler import LoadScopeScheduling

import keeplast.columns  # noqa: F401 - points the kernel compiler at the user's cache folder
from keeplast.cli.main import OBJECTS_PER_COLLECTION
from keeplast.errors import name_parameters
from tests.support.processor_time import BEGIN, OUTSIDE, FileCosts, read_weights, too_heavy
from tests.support.quick_databases import quick_databases
from tests.support.turns import EXAMPLES_SHARE, EXAMPLES_WHOLE, LONG_PROFILE, PROFILE, Turn

if TYPE_CHECKING:
    from keeplast.cluster.layouts.aiven_encryption import KeyRing
    from keeplast.pipeline.runner import SparkRunner
    from tests.support.replay import Cleaning
    from tests.support.shared_spark import SharedSpark

TURN = pytest.StashKey[Turn]()
UNPROVEN = pytest.StashKey[list[str]]()
"""Tests that are left out although nothing that runs proves what they prove."""
COSTS = pytest.StashKey[FileCosts]()
WEIGHTS = Path(__file__).with_name("weights.toml")
SPARK_ROOM = "tests/spark/"
CLUSTER_FILES = ("tests/spark/test_packed_environment.py", "tests/spark/test_standalone_cluster.py")
"""They start clusters of their own. They end the session, and go on with its JVM."""
SPARK_TEST = "test_spark_runner_"
"""How tests in other rooms begin that share the session."""
FOREIGN = re.compile(
    r"KEEPLAST_(?!CACHE_DIR$)\w+|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|PY_COLORS|GITHUB_ACTIONS"
    r"|GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|COMMON_DIR)|(all|https?)_proxy", re.IGNORECASE
)  # fmt: skip
"""Variables of a shell, a hook of git or a CI that change what is tested, or its looks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("keeplast")
    group.addoption("--all", action="store_true", help="run every case of every matrix")
    group.addoption("--long", action="store_true", help="run the long forms too")
    group.addoption("--weights", action="store_true", help="print, and judge, what each file took")
    group.addoption("--record-json", type=Path, metavar="DIR", help="keep what --json prints there")
    group.addoption("--turn", type=int, help="which share of large matrices runs (the day)")


def pytest_configure(config: pytest.Config) -> None:
    # Messages are held as they are worded; how a program is shown them is a test of its own.
    name_parameters(False)
    # What is collected stays to the end: that Python walks through it is a twentieth of a run.
    gc.disable()
    # A worker is also given the width of the terminal that it was started from.
    for name in filter(FOREIGN.fullmatch, list(os.environ)):
        del os.environ[name]
    if config.option.turn is None:
        # Kept as an option, so that workers that start before midnight and after it agree.
        config.option.turn = datetime.datetime.now(datetime.UTC).toordinal()
    config.stash[TURN] = Turn(None if config.option.all else config.option.turn)
    config.stash[COSTS], config.stash[UNPROVEN] = FileCosts(), []
    drawn = EXAMPLES_WHOLE if config.option.all else EXAMPLES_SHARE
    # Neither a deadline nor a check of how long drawing takes: both go by the clock, and a machine
    # may be busy with other things.
    profile = LONG_PROFILE if config.option.long else PROFILE
    draws_others = config.option.long or config.getoption("--hypothesis-seed") is not None
    if not draws_others:
        # It would draw numbers of the code too: of the modules that tests before have loaded.
        providers._get_local_constants = Constants
    hypothesis.settings.register_profile(
        profile, deadline=None, max_examples=drawn, derandomize=not draws_others,
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
    with pytest.MonkeyPatch.context() as patch, quick_databases():
        patch.setattr(os, "fsync", lambda descriptor: None)
        # A process has one command line, and here it has many calls.
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
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


@pytest.fixture(scope="session")
def local_cleaning() -> Iterator[Cleaning]:
    """Cleans in this process, with threads."""
    from keeplast.run.local_runner import LocalRunner
    from tests.support.cleanings import in_process

    with LocalRunner(cores=2) as runner:
        yield in_process(runner)


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Aiven's plugin wrote, a directory a case; tests must not write into it."""
    from tests.support.plugin_vectors import unpack_vectors

    directory = tmp_path_factory.mktemp("plugin")
    unpack_vectors(directory)
    return directory


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> KeyRing:
    """A key ring of Aiven's plugin; its key takes a while to make."""
    from Crypto.PublicKey import RSA

    from keeplast.cluster.layouts.aiven_encryption import KeyPair, KeyRing

    path = tmp_path_factory.mktemp("keys") / "key.pem"
    path.write_bytes(RSA.generate(2048).export_key("PEM", pkcs=8))
    return KeyRing((KeyPair("k", None, path),), "k")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    room = collection_path.name
    is_outside = collection_path.parent == Path(__file__).parent and room in OUTSIDE
    return True if is_outside and f"not {room}" in config.option.markexpr else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any("::" in argument for argument in config.args):
        return
    turn, seen = config.stash[TURN], Counter[tuple[object, str]]()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if _runs(item, turn, seen) else left).append(item)
    # Else who needs the session after them would begin another.
    items[:] = sorted(kept, key=lambda item: item.nodeid.partition("::")[0] in CLUSTER_FILES)
    config.stash[UNPROVEN] = list(unproven(left, kept))
    config.hook.pytest_deselected(items=left)


def _runs(item: pytest.Item, turn: Turn, seen: Counter[tuple[object, str]]) -> bool:
    if item.get_closest_marker("slow") and not item.config.option.long:
        return False
    if item.get_closest_marker("repeats") and turn.number is not None:
        return False
    if (rotates := item.get_closest_marker("rotates")) is None:
        return True
    (shares,) = rotates.args
    test = _function_of(item)
    seen[test] += 1
    return turn.takes(seen[test] - 1, shares)


def _function_of(item: pytest.Item) -> tuple[object, str]:
    return item.parent, getattr(item, "originalname", item.name)


def unproven(left: Sequence[pytest.Item], kept: Sequence[pytest.Item]) -> Iterator[str]:
    """Yield what of ``left`` repeats a test of which no case is kept, as far as its file is there.

    A repetition may be of a test in a file that was not collected; that file must exist.
    """
    functions = {_function_of(item) for item in kept}
    names = {item.nodeid.partition("[")[0] for item in kept}
    files = {item.nodeid.partition("::")[0] for item in (*kept, *left)}
    for item in left:
        if (repeats := item.get_closest_marker("repeats")) is None:
            continue
        if not repeats.args:
            is_proven = _function_of(item) in functions
        else:
            (proof,) = repeats.args
            path = proof.partition("::")[0]
            is_proven = proof in names if path in files else (item.config.rootpath / path).is_file()
        if not is_proven:
            yield item.nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    costs = item.config.stash[COSTS]
    if not costs.seconds:
        gc.freeze()
        gc.set_threshold(OBJECTS_PER_COLLECTION)
        gc.enable()
        costs.count(BEGIN)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        item.config.stash[COSTS].count(item.nodeid.partition("::")[0])


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    seconds = config.stash[COSTS].seconds
    if hasattr(config, "workeroutput"):
        config.workeroutput["costs"] = dict(seconds)
    elif session.exitstatus == pytest.ExitCode.OK and _out_of_weight(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_testnodedown(node: Any) -> None:
    seconds = node.config.stash[COSTS].seconds
    for name, taken in getattr(node, "workeroutput", {}).get("costs", {}).items():
        seconds[name] += taken


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    seconds = config.stash[COSTS].seconds
    if config.option.weights:
        for name, taken in sorted(seconds.items(), key=lambda each: -each[1]):
            terminalreporter.write_line(f'"{name}" = {taken:.1f}')
    terminalreporter.write_line(f"processor time: {sum(seconds.values()):.0f} s")
    for name in _out_of_weight(config):
        terminalreporter.write_line(
            f"error: {name} took {seconds[name]:.0f} s of processor time, far more than its "
            f"weight: make it cheaper, mark what repeats, or raise its weight in {WEIGHTS.name}"
        )


def _out_of_weight(config: pytest.Config) -> list[str]:
    """Return the files of a whole short run that took far more than their weight, if asked.

    On a new machine kernels are compiled in the file that comes first, which is no fault of it.
    """
    is_whole = [Path(each).resolve() for each in config.args] == [Path(__file__).parent]
    if not (
        is_whole and config.option.weights
        and not (config.option.all or config.option.long or config.option.keyword)
    ):  # fmt: skip
        return []
    return too_heavy(config.stash[COSTS].seconds, read_weights(WEIGHTS.read_text("utf-8")))


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out files, and what shares the Spark session as one; in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        # By name: the marks that xdist has for this are lost on the way with pytest 9.2.
        path, _, name = nodeid.partition("::")
        is_on_spark = path.startswith(SPARK_ROOM) or name.startswith(SPARK_TEST)
        return SPARK_ROOM if is_on_spark else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    return FilesTogether(config, log)
