"""``keeplast erase``: what there is of keys that must go, whether they do, and by when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import (
    ROUNDS_OF_NOW,
    Acted,
    AskedErasure,
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
    from collections.abc import Sequence

    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.config.selection import Selection
    from keeplast.log.files import FileSystem
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.erasure_book import RequestShelf
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
    about = options.about
    check_call(about, now=options.now)
    brokers = options.readers.brokers()
    shelf, own = shelves_of(options.data_dir, about.requests)
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
        from keeplast.service.erasing import find_traces

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

    files = LocalFiles()
    selection = select_topics(
        options.data_dir, files, asked.topics, options.settings,
        leaves_missing=bool(asked.reapplied),
    )  # fmt: skip
    for warning in selection.warnings:
        say(warning, kind="warning")
    return files, selection


def _name_in(own: RequestShelf, shelf: RequestShelf, requests: Sequence[ErasureRequest]) -> None:
    """Name requests of another list in the directory's own one: undo heeds no other."""
    from keeplast.cli.show.output import say
    from keeplast.service.erasure_book import name_elsewhere

    if shelf == own:
        return
    try:
        name_elsewhere(own, requests)
    except OSError as error:
        say(
            "the request is kept, and keeplast undo will not heed it: its name could not be "
            f"written into the data directory. path={own.name} error={error.strerror}",
            kind="warning",
        )


def shelves_of(data_dir: Path, given: Path | None) -> tuple[RequestShelf, RequestShelf]:
    """Return where the requests of a data directory are kept, and its own list."""
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.erasure_requests import REQUESTS_NAME
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure_book import FileShelf

    check_on_disk(data_dir)
    files = LocalFiles()
    root = open_data_directory(data_dir, files).root
    own = FileShelf(files, root / REQUESTS_NAME)
    path = own.path if given is None else given.absolute()
    if path != own.path:
        require_outside(root, path, "--requests")
    return FileShelf(files, path), own


def require_outside(root: Path, path: Path, option: str) -> None:
    """Raise InvalidError for a file in a data directory, where it could be taken for another."""
    from keeplast.errors import InvalidError

    if root.resolve() in path.resolve().parents:
        raise InvalidError(
            f"name a file outside of the data directory, which brokers read. {option}={path}"
        )


def check_on_disk(data_dir: Path) -> None:
    """Raise RefusedError for an object store: nothing there is cleaned in place."""
    from keeplast.errors import RefusedError
    from keeplast.log.object_paths import is_object_path

    if is_object_path(data_dir):
        raise RefusedError(
            "erasure is for data directories on disks; keeplast tier erase says what a store "
            f"has of keys. path={data_dir}"
        )


def select_topics(
    data_dir: Path,
    files: FileSystem,
    topics: Sequence[str],
    settings: SettingOptions,
    *,
    leaves_missing: bool = False,
) -> Selection:
    """Return the partitions of ``topics``, of all without any; InvalidError for one that is not
    there, unless ``leaves_missing`` and another one is."""
    from keeplast.config.choice import PartitionChoice
    from keeplast.config.selection import select_partitions
    from keeplast.errors import InvalidError
    from keeplast.log.data_directory import open_data_directory

    check_on_disk(data_dir)
    chosen = tuple(topics)
    if leaves_missing and chosen:
        there = {
            each.partition.topic
            for each in open_data_directory(data_dir, files).partitions
            if each.mark is None
        }
        chosen = tuple(each for each in chosen if each in there) or chosen
    selection = select_partitions(data_dir, files, PartitionChoice(topics=chosen), settings)
    if selection.directory.is_single:
        raise InvalidError(
            "give the data directory, not one partition in it: what a broker disposes of lies "
            f"beside them. path={data_dir}"
        )
    return selection


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
    from keeplast.service.receipt_names import FILE_NAME
    from keeplast.survey.request import CleanRequest

    workers = options.workers
    holding = frozenset(answer.partitions_with_traces())
    root = selection.directory.root
    request = CleanRequest(
        tuple(
            # Nothing is kept for undo: neither what these rounds replace nor what others have.
            replace(each, topic=replace(each.topic, undo_retention_ms=0))
            for each in selection.partitions
            if each.partition in holding
        ),
        rounds=None, roll_active=True, rolls_idle=True, retention=True, force=True, expired=True,
        receipt=root / FILE_NAME if options.receipt is None else options.receipt,
    )  # fmt: skip
    reports: list[CleanReport] = []
    while len(reports) < ROUNDS_OF_NOW:
        # Each by itself: one remembers what it has examined, and dates of that moment with it.
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
            if not reports:
                # First: a round may join a segment that is to go to one that stays, and what lies
                # below the log start would stay with it.
                coordinator.expire(request)
            reports.append(coordinator.clean(replace(request, roll_active=not reports)))
        if signals.exit_code is not None:
            return reports[-1], signals.exit_code
    return max(reports, key=report_exit_code), 0
