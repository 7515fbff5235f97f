"""What a command says of Spark: that it starts, that it is not there, that it is broken."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast as package
from keeplast.cli.frame.wiring import SMALL_BYTES, RunnerName, open_runner, say_start
from keeplast.errors import InvalidError
from tests.unit.cli.conftest import FakeCoordinator, Run

POLICY = ("--config", "cleanup.policy=compact")


def test_a_start_of_spark_is_announced_with_what_is_quicker(
    keeplast: Callable[..., Run], coordinator: FakeCoordinator, data_dir: Path
) -> None:
    size = sum(path.stat().st_size for path in (data_dir / "t-0").glob("*.log"))
    said = keeplast("clean", data_dir, *POLICY).err
    assert f"starting Spark…; --runner local needs no Spark and is quicker for {size} B" in said
    assert "starting Spark" not in keeplast("clean", data_dir, *POLICY, "--runner", "local").err


def test_no_advice_for_much_data(capsys: pytest.CaptureFixture[str]) -> None:
    for size in (SMALL_BYTES + 1, None):
        say_start(RunnerName.SPARK, size)
    assert "starting Spark…\nstarting Spark…\n" == capsys.readouterr().err


def test_a_broken_pyspark_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeplast: Callable[..., Run], data_dir: Path
) -> None:
    (tmp_path / "broken" / "pyspark").mkdir(parents=True)
    (tmp_path / "broken" / "pyspark" / "__init__.py").write_text("raise ImportError('half of it')")
    forget_spark(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path / "broken")
    run = keeplast("clean", data_dir, *POLICY)
    assert 2 == run.code
    assert "Traceback" not in run.err
    last = run.err.splitlines()[-1]
    assert last.startswith("error: pyspark is there and cannot be imported; install keeplast")
    assert last.endswith("--runner=spark error=ImportError: half of it")


def test_a_python_program_is_told_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.delitem(vars(package), "register", raising=False)
    monkeypatch.setattr("keeplast.importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"^keeplast\.register needs .* its extra 'spark'\. miss"):
        _ = package.register


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> object:
        raise ImportError("cannot import name 'x'", name="keeplast.config.log_source")

    monkeypatch.delitem(vars(package), "register", raising=False)
    monkeypatch.setattr("keeplast.importlib.import_module", broken)
    with pytest.raises(ImportError, match=r"^cannot import name"):
        _ = package.register


def test_a_runner_that_cannot_be_imported_is_a_mistake_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget_spark(monkeypatch)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(InvalidError, match="cannot be imported"):
        open_runner(RunnerName.SPARK, master=None, cores=None)


def forget_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pyspark, and what of ours imports it, imported anew; put back afterwards."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "pyspark" or name.startswith("keeplast.pipeline"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("keeplast.pipeline", raising=False)
    importlib.invalidate_caches()
