"""``register()`` says what is wrong with Spark's workers before a query finds out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError

import keeplast
from keeplast.errors import RefusedError
from keeplast.pipeline.data_source import LogSource, register_source


@dataclass
class Context:
    """A Spark context whose workers answer ``answers``, one a job."""

    answers: list[Any]
    pythonExec: str = "/opt/other/bin/python3"
    master: str = "local[2]"
    asked: list[Any] = field(default_factory=list)

    def parallelize(self, items: list[int], slices: int) -> Context:
        assert (1, 1) == (len(items), slices)
        return self

    def map(self, work: Callable[[int], object]) -> Context:
        self.asked.append(work)
        return self

    def collect(self) -> list[Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer(self.asked[-1])]


def session(context: Context | None, version: str = "4.3.0") -> Any:
    registered: list[object] = []
    found = SimpleNamespace(
        version=version, dataSource=SimpleNamespace(register=registered.append),
        registered=registered,
    )  # fmt: skip
    if context is not None:
        found._sc = context
    return found


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(Context([lambda work: work(0)]), id="workers with the same keeplast"),
        pytest.param(None, id="Spark Connect, whose workers are not asked"),
    ],
)
def test_the_source_is_registered(context: Context | None) -> None:
    spark = session(context)
    register_source(spark, LogSource)
    assert [LogSource] == spark.registered


@pytest.mark.parametrize(
    ("answer", "worker"),
    [
        (lambda work: "none", "worker=none"),
        (lambda work: "0.0.1", "worker=0.0.1"),
        (Py4JError("An error occurred\nmore of it"), "worker=unknown error=An error occurred"),
    ],
)
def test_workers_without_it_are_refused_with_what_to_set(answer: object, worker: str) -> None:
    spark = session(Context([answer]))
    with pytest.raises(RefusedError, match="set PYSPARK_PYTHON to one that has it") as raised:
        register_source(spark, LogSource)
    assert str(raised.value).endswith(
        f"PYSPARK_PYTHON=/opt/other/bin/python3 driver={keeplast.__version__} {worker}"
    )
    assert not spark.registered


def test_a_worker_says_that_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    def asked(work: Callable[[int], object]) -> object:
        monkeypatch.setattr("keeplast.pipeline.data_source.importlib.import_module", missing)
        return work(0)

    with pytest.raises(RefusedError, match=r"(?m)worker=none$"):
        register_source(session(Context([asked])), LogSource)


def test_a_worker_of_this_host_and_python_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    register_source(session(Context([], pythonExec=sys.executable)), LogSource)
    elsewhere = Context([lambda work: "none"], pythonExec=sys.executable, master="spark://h:1")
    with pytest.raises(RefusedError):
        register_source(session(elsewhere), LogSource)


def test_a_link_to_our_python_in_another_folder_is_another_environment(tmp_path: Path) -> None:
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    with pytest.raises(RefusedError):
        register_source(session(Context([lambda work: "none"], pythonExec=str(link))), LogSource)


def test_a_spark_that_is_too_old_is_refused_first() -> None:
    with pytest.raises(RefusedError, match=r"Spark 4\.2 or newer"):
        register_source(session(Context([]), "4.1.4"), LogSource)


def test_a_pyspark_without_data_sources_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(keeplast), "register", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__="3.5.9"))
    monkeypatch.setattr(
        "keeplast.importlib.import_module",
        Mock(side_effect=ModuleNotFoundError("No module named it", name="pyspark.sql.datasource")),
    )
    with pytest.raises(ImportError, match=r"PySpark 4\.2 or newer; 3\.5\.9 is installed"):
        _ = keeplast.register
