"""What a command says of Spark: that it starts, that it is not there, that it is broken."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import keeplast as package
from keeplast.cli.frame.wiring import RunnerName, open_runner
from keeplast.cli.show.rounds import LARGE_BYTES
from keeplast.errors import InvalidError
from keeplast.pipeline.submission import GATEWAY_PORT
from keeplast.survey.report import RoundReport
from tests.unit.cli.conftest import FakeCoordinator, Run

POLICY = ("--config", "cleanup.policy=compact")


@pytest.mark.parametrize(
    ("arguments", "is_submitted", "expected"),
    [
        ((), False, "local"),
        ((), True, "spark"),
        (("--master", "local[2]"), False, "spark"),
        (("--runner", "spark"), False, "spark"),
        (("--runner", "local"), True, "local"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "clean"])
def test_spark_does_the_work_on_request(
    keeplast: Callable[..., Run], coordinator: FakeCoordinator, data_dir: Path,
    monkeypatch: pytest.MonkeyPatch, command: str, arguments: tuple[str, ...], is_submitted: bool,
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.delenv(GATEWAY_PORT, raising=False)
    if is_submitted:
        monkeypatch.setenv(GATEWAY_PORT, "1")
    said = keeplast(command, data_dir, *POLICY, *arguments).err
    assert [expected] == [each["runner"] for each in coordinator.opened]
    assert (expected == "spark") is ("starting Spark…" in said)


@pytest.mark.parametrize(
    ("master", "is_one"),
    [
        ("local", True), ("local[*]", True), ("local[2]", True), ("local[2, 3]", True),
        ("local-cluster[2,1,1024]", True), ("spark://a:7077,b:7077", True), ("yarn", True),
        ("k8s://https://host:443", True),
        ("local[2", False), ("local[x]", False), ("host:7077", False), ("", False),
        ("http://host", False), ("spark://", False),
    ],
)  # fmt: skip
def test_a_master_that_spark_does_not_know_is_refused_before_it_starts(
    keeplast: Callable[..., Run], coordinator: FakeCoordinator, data_dir: Path, master: str,
    is_one: bool,
) -> None:  # fmt: skip
    run = keeplast("plan", data_dir, *POLICY, "--master", master)
    assert (0 if is_one else 2) == run.code
    assert is_one is ("starting Spark…" in run.err)
    assert is_one is bool(coordinator.opened)


@pytest.mark.parametrize(
    ("size", "arguments", "is_said"),
    [
        (LARGE_BYTES, (), True),
        (LARGE_BYTES - 1, (), False),
        (LARGE_BYTES, ("--runner", "local"), False),
        (LARGE_BYTES, ("--runner", "spark"), False),
    ],
)
def test_a_large_log_has_a_cluster_named(
    keeplast: Callable[..., Run], coordinator: FakeCoordinator, data_dir: Path,
    size: int, arguments: tuple[str, ...], is_said: bool,
) -> None:  # fmt: skip
    coordinator.answer = lambda: RoundReport(clean_bytes=1, cleanable_bytes=size - 1)
    said = keeplast("plan", data_dir, *POLICY, *arguments).err
    assert is_said is ("64.0 GiB for the threads of one process; --with master=URL" in said)


def test_a_broken_pyspark_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeplast: Callable[..., Run], data_dir: Path
) -> None:
    (tmp_path / "broken" / "pyspark").mkdir(parents=True)
    (tmp_path / "broken" / "pyspark" / "__init__.py").write_text("raise ImportError('half of it')")
    forget_spark(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path / "broken")
    run = keeplast("clean", data_dir, *POLICY, "--runner", "spark", code=2)
    assert "Traceback" not in run.err
    last = run.err.splitlines()[-1]
    assert last.startswith("error: pyspark is there and cannot be imported; run pip install")
    assert last.endswith("--runner=spark error=ImportError: half of it [K511]")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark"),
            r"^keeplast\.register needs .* its extra 'spark'\. miss",
        ),
        (
            ImportError("cannot import name 'x'", name="keeplast.config.log_source"),
            r"^cannot import name",
        ),
    ],
)
def test_a_missing_package_names_its_extra_and_a_fault_of_our_own_does_not(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, said: str
) -> None:
    monkeypatch.delitem(vars(package), "register", raising=False)
    monkeypatch.setattr("keeplast.importlib.import_module", Mock(side_effect=error))
    with pytest.raises(ImportError, match=said):
        _ = package.register


def test_a_runner_that_cannot_be_imported_is_a_mistake_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget_spark(monkeypatch)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(InvalidError, match="cannot be imported"):
        open_runner(RunnerName.SPARK, master=None, cores=None)


def forget_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pyspark, and what of ours imports it, imported again; put back afterwards."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "pyspark" or name.startswith("keeplast.pipeline"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("keeplast.pipeline", raising=False)
    importlib.invalidate_caches()
