"""``keeplast erase``: what there is of keys that must go, whether they do, and by when."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import (
    Acted,
    KeyOptions,
    asked_keys,
    check_call,
    erase_keys,
    search_runner,
)
from keeplast.cli.frame.options import RunnerOptions, SettingOptions
from keeplast.cli.frame.parameters import FACTS, ROUND, SCOPE, DataDir, Json, NowMs
from keeplast.cli.frame.readers import ReaderOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.config.selection import Selection
    from keeplast.log.files import FileSystem
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.run.coordinator import Coordinator
    from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.erasure.erasure_book import RequestShelf
    from keeplast.service.erasure.erasure_call import AskedErasure
    from keeplast.survey.report import CleanReport

Topics = Annotated[
    tuple[str, ...],
    typer.Option("--topic", metavar="T", help="The topic; repeatable.", rich_help_panel=SCOPE),
]
Now = Annotated[
    bool,
    typer.Option(
        "--now",
        help="Do what may be done now: close active segments, clean, drop what has expired. The "
        "broker must be stopped. What has to wait has its date.",
        rich_help_panel=ROUND,
    ),
]
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where the rounds of --now are written down. Default: keeplast-receipts in the data "
        "directory.",
        rich_help_panel=FACTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOptions:
    """What ``erase`` takes."""

    data_dir: DataDir
    about: KeyOptions
    topics: Topics = ()
    now: Now = False
    settings: SettingOptions
    readers: ReaderOptions
    now_ms: NowMs = None
    receipt: Receipts = None
    workers: RunnerOptions


@command(
    first=("keys", "hash_key", "topics"),
    example="keeplast erase DATA_DIR --keys leaving.txt --hash-key hash.key --topic customers",
)
def erase(options: EraseOptions, as_json: Json = False) -> Result:
    """Show for each key whether its delete is decided, where a trace is, and by when it is gone.

    Writes no tombstone: that is the producer's. A key whose value wins anywhere is named by its
    line and hash, and the exit code is 1. The request is kept, hashed; nothing else is written
    without --now. keeplast erasure certificate says it in writing when nothing is left.
    """
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure.directory_erasing import directory_shelves, require_whole

    about = options.about
    check_call(about, now=options.now, now_ms=options.now_ms)
    brokers = options.readers.brokers()
    shelf, own = directory_shelves(options.data_dir, about.requests)
    require_whole(options.data_dir, LocalFiles())
    asked = asked_keys(about, options.topics, shelf)
    files, selection = _select(options, asked)
    return erase_keys(
        about, asked, shelf, _DirectoryEraser(options, selection, files, asked.keys, brokers),
        now=options.now, as_json=as_json, kept=partial(_name_in, own, shelf),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DirectoryEraser:
    """The chosen logs of a data directory."""

    options: EraseOptions
    selection: Selection
    files: FileSystem
    keys: ErasureKeys
    brokers: BrokerGroups | None

    def find(self) -> ErasureAnswer:
        """Search logs, and what lies beside them; takes no lock."""
        from keeplast.cli.show.progress import ProgressEvents
        from keeplast.clock import SystemClock
        from keeplast.service.erasure.erasing import find_traces

        given = self.options.now_ms
        with (
            ProgressEvents("searching") as events,
            search_runner(self.options.workers) as runner,
        ):
            return find_traces(
                self.selection, self.files, SystemClock().now_ms() if given is None else given,
                self.keys, planned=events.planned, progressed=events.progressed, runner=runner,
                brokers=self.brokers,
            )  # fmt: skip

    def act(self, answer: ErasureAnswer) -> Acted:
        """Do rounds; nothing that a round may not do is done."""
        from keeplast.cli.frame.verdict import report_errors, report_exit_code

        report, stopped = _clean(self.options, self.selection, answer, self.brokers)
        code = max(report_exit_code(report), stopped)
        return Acted(code, tuple(report_errors(report)), {"rounds": report.partitions})

    def document(self) -> dict[str, Any]:
        """Return where it is; no rounds as yet."""
        return {"path": self.selection.directory.root, "rounds": None}


def _select(options: EraseOptions, asked: AskedErasure) -> tuple[FileSystem, Selection]:
    from keeplast.cli.show.output import say
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure.directory_erasing import select_topics

    files = LocalFiles()
    selection = select_topics(
        options.data_dir, files, asked.topics, options.settings,
        leaves_missing=bool(asked.reapplied),
    )  # fmt: skip
    for warning in selection.warnings:
        say(warning, kind="warning")
    return files, selection


def _name_in(own: RequestShelf, shelf: RequestShelf, requests: Sequence[ErasureRequest]) -> None:
    """Name requests of another list in the directory's own one."""
    from keeplast.cli.show.output import say
    from keeplast.service.erasure.erasure_book import name_in_own

    problem = name_in_own(own, shelf, requests)
    if problem is not None:
        say(problem, kind="warning")


def _clean(
    options: EraseOptions,
    selection: Selection,
    answer: ErasureAnswer,
    brokers: BrokerGroups | None,
) -> tuple[CleanReport, int]:
    """Do rounds of the partitions in which a key is; nothing that a round may not do is done.

    Returns the report, and the exit code of the signal that ended it, 0 without one.
    """
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.guard import StopSignals
    from keeplast.cli.frame.verdict import report_exit_code
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.service.erasure.directory_erasing import clean_traces

    workers, stopped = options.workers, 0

    @contextlib.contextmanager
    def opened() -> Iterator[Coordinator]:
        nonlocal stopped
        with (
            ProgressEvents("cleaning") as events,
            wiring.open_coordinator(
                workers.chosen_runner,
                master=workers.master,
                cores=workers.cores,
                events=events,
                brokers=brokers,
            ) as coordinator,
            StopSignals(coordinator.stop) as signals,
        ):
            yield coordinator
        stopped = signals.exit_code or 0

    reports = clean_traces(
        selection, answer, opened, receipt=options.receipt, is_stopped=lambda: bool(stopped)
    )
    return reports[-1] if stopped else max(reports, key=report_exit_code), stopped
