"""``keeplast erase``: what there is of keys that must go, whether they do, and by when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasure_options import KEYS, HashKey, Keys, Requests
from keeplast.cli.frame.options import SettingOptions
from keeplast.cli.frame.parameters import FACTS, ROUND, SCOPE, Cores, DataDir, Json, NowMs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keeplast.config.selection import Selection
    from keeplast.log.files import FileSystem
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.survey.report import CleanReport

ROUNDS_OF_NOW = 2
"""The first takes what is overwritten and dates tombstones, the second those whose date is past."""

Topics = Annotated[
    tuple[str, ...],
    typer.Option("--topic", metavar="T", help="The topic; repeatable.", rich_help_panel=SCOPE),
]
AllTopics = Annotated[
    bool,
    typer.Option(
        "--all-topics", help="Every compacted topic of the directory.", rich_help_panel=SCOPE
    ),
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
Reapply = Annotated[
    bool,
    typer.Option(
        "--reapply",
        help="Look for the keys of earlier requests instead: for what came back with a backup. The "
        "hash key is enough.",
        rich_help_panel=KEYS,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Look, and keep no request.", rich_help_panel=KEYS)
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
class KeyOptions:
    """Which keys are to be gone, from which topics if not from named ones, where that is kept."""

    keys: Keys = None
    hash_key: HashKey
    all_topics: AllTopics = False
    reapply: Reapply = False
    dry_run: DryRun = False
    requests: Requests = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOptions:
    """What ``erase`` takes."""

    data_dir: DataDir
    about: KeyOptions
    topics: Topics = ()
    now: Now = False
    settings: SettingOptions
    now_ms: NowMs = None
    receipt: Receipts = None
    cores: Cores = None


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
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.erase import render_answer
    from keeplast.cli.show.output import print_result

    files, selection, keys, requests = _begin(options)
    answer = _find(options, selection, files, keys)
    request = requests[0] if len(requests) == 1 else None
    if not options.about.dry_run and not options.about.reapply:
        request = _keep(options, selection, files, keys, answer)
    report, stopped = None, DONE
    if options.now and answer.there:
        report, stopped = _clean(options, selection, files, answer)
        answer = _find(options, selection, files, keys)
    code = say_answer(answer, options.topics)
    if report is not None:
        from keeplast.cli.frame.verdict import report_errors, report_exit_code
        from keeplast.cli.show.output import say

        for message in report_errors(report):
            say(message, kind="error")
        code = max(code, report_exit_code(report), stopped)
    if not as_json:
        name = [] if request is None else [f"request {request.request_id}"]
        print_result(*name, *render_answer(answer))
    return code, {
        "path": selection.directory.root,
        "request": None if request is None else request.request_id,
        "requests": [each.request_id for each in requests],
        **answer.document(),
        "rounds": None if report is None else report.partitions,
    }


def say_answer(answer: ErasureAnswer, topics: Sequence[str]) -> int:
    """Say what needs somebody; returns the exit code. ``topics`` are those that were named."""
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE, REFUSED, error_exit_code
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import say

    for warning in answer.warnings:
        say(warning, kind="warning")
    code = CHECK_FAILED if answer.undecided else DONE
    for each in answer.undecided:
        places = ", ".join(str(e.partition) for e in each.places if not e.is_decided)
        say(f"{each.name}: its delete is not decided in {places}", kind="error")
    if answer.problems or (answer.left_out and topics) or not answer.searches:
        code = max(code, REFUSED)
    for partition, error in answer.faults:
        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error))
    return code


def asked_keys(
    options: KeyOptions, topics: tuple[str, ...], requests: Path | None
) -> tuple[ErasureKeys, tuple[str, ...], tuple[ErasureRequest, ...]]:
    """Return the keys of a call, their topics (none for all), and the requests that are reapplied.

    ``topics`` are those that were named, ``requests`` is where requests are kept. InvalidError for
    what contradicts itself.
    """
    from keeplast.cli.frame.key_files import read_hasher, read_keys
    from keeplast.errors import InvalidError
    from keeplast.log.erasure_requests import read_requests
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure_book import choose_requests, keys_of_file, keys_of_requests

    hasher = read_hasher(options.hash_key)
    plain = None if options.keys is None else read_keys(options.keys)
    if not options.reapply:
        if plain is None:
            raise InvalidError("give the keys with --keys FILE, or --reapply. --keys=None")
        if bool(topics) == options.all_topics:
            raise InvalidError(
                "give --topic, or --all-topics for every compacted topic. "
                f"--topic={' '.join(topics)}"
            )
        return keys_of_file(plain, hasher, topics), topics, ()
    if topics or options.all_topics:
        raise InvalidError(
            "--reapply takes the topics of the requests; leave --topic and --all-topics out. "
            f"--topic={' '.join(topics)}"
        )
    if requests is None:
        raise InvalidError("say where the requests are kept. --requests=None")
    found = choose_requests(read_requests(LocalFiles(), requests), None, requests)
    found = tuple(each for each in found if each.hash_check == hasher.check)
    if not found:
        raise InvalidError(
            "no request was made with this hash key; give theirs. "
            f"hash_key={hasher.check} path={requests}"
        )
    return keys_of_requests(found, hasher, plain), topics_of(found), found


def _begin(
    options: EraseOptions,
) -> tuple[FileSystem, Selection, ErasureKeys, tuple[ErasureRequest, ...]]:
    """Return what the call is about; InvalidError for what contradicts itself."""
    from keeplast.cli.show.output import say
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles

    if options.now and options.about.dry_run:
        raise InvalidError("--now changes logs and --dry-run nothing; leave one out. --now=True")
    files = LocalFiles()
    path = requests_path(options.data_dir, options.about.requests)
    keys, topics, found = asked_keys(options.about, options.topics, path)
    selection = select_topics(
        options.data_dir, files, topics, options.settings, leaves_missing=bool(found)
    )
    for warning in selection.warnings:
        say(warning, kind="warning")
    return files, selection, keys, found


def requests_path(data_dir: Path, given: Path | None) -> Path:
    """Return where the requests of a data directory are kept."""
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.erasure_requests import REQUESTS_NAME
    from keeplast.log.files import LocalFiles

    check_on_disk(data_dir)
    root = open_data_directory(data_dir, LocalFiles()).root
    path = root / REQUESTS_NAME if given is None else given.absolute()
    if path != root / REQUESTS_NAME:
        require_outside(root, path, "--requests")
    return path


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


def topics_of(requests: Sequence[ErasureRequest]) -> tuple[str, ...]:
    """Return the topics of requests, none for all."""
    if any(not each.topics for each in requests):
        return ()
    return tuple(sorted({topic for each in requests for topic in each.topics}))


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


def _now_ms(options: EraseOptions) -> int:
    from keeplast.clock import SystemClock

    return SystemClock().now_ms() if options.now_ms is None else options.now_ms


def _find(
    options: EraseOptions, selection: Selection, files: FileSystem, keys: ErasureKeys
) -> ErasureAnswer:
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.service.erasing import find_traces

    with ProgressEvents("searching") as events:
        return find_traces(
            selection, files, _now_ms(options), keys,
            planned=events.planned, progressed=events.progressed,
        )  # fmt: skip


def _keep(
    options: EraseOptions,
    selection: Selection,
    files: FileSystem,
    keys: ErasureKeys,
    answer: ErasureAnswer,
) -> ErasureRequest:
    from keeplast.service.erasure_book import add_request

    path = requests_path(selection.directory.root, options.about.requests)
    return add_request(files, path, keys, options.topics, answer, answer.now_ms)


def _clean(
    options: EraseOptions, selection: Selection, files: FileSystem, answer: ErasureAnswer
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
                wiring.RunnerName.LOCAL, master=None, cores=options.cores, events=events
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
