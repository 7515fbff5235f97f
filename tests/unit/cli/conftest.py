"""A coordinator that answers what a test says, in the place of the real one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from keeplast.cli.frame import wiring
from keeplast.clock import Clock
from keeplast.log.files import FileSystem
from keeplast.run.events import Events
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport
from keeplast.survey.request import CleanRequest
from tests.support import called
from tests.support.commanded_world import commanded_world
from tests.support.printed_documents import held_documents
from tests.support.small_log import write_log
from tests.support.verified_world import VerifiedWorld


@pytest.fixture(autouse=True)
def _documents_are_as_the_reference_says(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold every JSON document that a command prints here against its schema."""
    record = request.config.option.record_json
    with held_documents(record and request.config.invocation_params.dir / record):
        yield


@dataclass
class FakeCoordinator:
    """Remembers requests; answers with a round per partition that ``answer`` makes."""

    answer: Callable[[], RoundReport] = RoundReport
    requests: list[CleanRequest] = field(default_factory=list)
    opened: list[dict[str, object]] = field(default_factory=list)
    exact: bool | None = None
    events: Events | None = None

    def plan(self, request: CleanRequest, *, exact: bool = False) -> CleanReport:
        """Remember and answer."""
        self.exact = exact
        return self.clean(request)

    def clean(self, request: CleanRequest) -> CleanReport:
        """Remember and answer."""
        self.requests.append(request)
        reports = []
        for each in request.partitions:
            report = self.answer()
            assert self.events is not None
            self.events.planned(100)
            self.events.progressed(100)
            self.events.finished(each.partition, report)
            reports.append(
                PartitionReport(each.partition.topic, each.partition.partition, (report,))
            )
        return CleanReport(tuple(reports))

    def stop(self) -> None:
        """Have nothing to end."""


class Run(Struct, frozen=True):
    """What one call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


Command = Callable[..., Run]
"""A call of the command line in this process, with its words; ``code`` is what it must end with."""


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> FakeCoordinator:
    """The coordinator that commands get."""
    fake = FakeCoordinator()

    @contextlib.contextmanager
    def open_runner(
        runner: wiring.RunnerName, *, master: str | None, cores: int | None
    ) -> Iterator[None]:
        fake.opened.append({"runner": runner, "master": master, "cores": cores})
        yield None

    class Made(FakeCoordinator):
        """Its methods are looked up in the class, as those of the real one are."""

        def __new__(
            cls, runner: object, clock: Clock, files: FileSystem, events: Events, *_: object
        ) -> Any:
            fake.events = events
            return fake

    monkeypatch.setattr(wiring, "open_runner", open_runner)
    monkeypatch.setattr("keeplast.run.coordinator.Coordinator", Made)
    return fake


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with one topic of one partition: two closed segments and an active one."""
    write_log(
        tmp_path,
        "t-0",
        {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", b"3"), (b"b", None)], 4: [(b"c", b"4")]},
    )
    return tmp_path


@pytest.fixture
def keeplast() -> Callable[..., Run]:
    """The command line, in this process; ``code`` is what a call must end with."""

    def run(*arguments: object, code: int | None = None) -> Run:
        result = called.run(*arguments, code=code)
        return Run(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiedWorld]:
    """A partition of a live topic that was compacted once, which commands connect to."""
    with commanded_world(tmp_path, monkeypatch) as made:
        yield made


def stripped(line: bytes) -> bytes:
    """Return a line of receipts without its place in the chain."""
    document = json.loads(line)
    del document["chain"]
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


@pytest.fixture
def settled_dir(data_dir: Path) -> Path:
    """The data directory, with its settings in it."""
    (data_dir / "keeplast.toml").write_text('[topic."t"]\n"cleanup.policy" = "compact"\n')
    return data_dir
