"""Keys that must go, of any place: ask, keep, act, ask again; and what a data directory does of it.

The rules that a reader must not break: a request is kept before anything is done, so that it
outlives an interrupted call. Nothing that a round may not do is done, however urgent a key is.
These rounds keep nothing for undo.

A place says how its logs are searched and what may be done there; what is asked and kept is the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from keeplast.config.layers import USUAL_SOURCES, PartitionChoice, SettingSources
from keeplast.config.selection import Selection, select_partitions
from keeplast.errors import InvalidError, RefusedError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.paths import is_object_path
from keeplast.log.root_files import RECEIPTS_NAME, REQUESTS_NAME
from keeplast.model.erasure_request import ErasureRequest, KeyHasher
from keeplast.run.coordinator import Coordinator
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    FileShelf,
    RequestShelf,
    add_request,
    choose_requests,
    keys_of_file,
    keys_of_requests,
)
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest

ROUNDS_OF_NOW = 2
"""The first takes what is overwritten and dates tombstones, the second those whose date is past."""

OpenCoordinator = Callable[[], AbstractContextManager[Coordinator]]
"""Opens a coordinator for a round; each by itself, as one remembers what it has examined."""


def directory_shelves(data_dir: Path, given: Path | None) -> tuple[FileShelf, FileShelf]:
    """Return where the requests of a data directory are kept, and its own list."""
    require_on_disk(data_dir)
    files = LocalFiles()
    root = open_data_directory(data_dir, files).root
    own = FileShelf(files, root / REQUESTS_NAME)
    path = own.path if given is None else given.absolute()
    if path != own.path:
        require_outside(root, path, "--requests")
    return FileShelf(files, path), own


def require_outside(root: Path, path: Path, option: str) -> None:
    """Raise InvalidError for a file in a data directory, where it could be taken for another."""
    if root.resolve() in path.resolve().parents:
        raise InvalidError(
            f"name a file outside of the data directory, which brokers read. {option}={path}",
            code="K164",
        )


def require_on_disk(data_dir: Path) -> None:
    """Raise RefusedError for an object store: nothing there is cleaned in place."""
    if is_object_path(data_dir):
        raise RefusedError(
            "erasure is for data directories on disks; name the store of a partition whose history "
            f"is in object storage. path={data_dir}",
            code="K614",
        )


def require_whole(data_dir: Path, files: FileSystem) -> None:
    """Raise InvalidError for one partition: what was of it before may lie next to it."""
    directory = open_data_directory(data_dir, files)
    if directory.is_single:
        raise InvalidError(
            "give the data directory, and the topic with --topic, not one partition in it: "
            f"replicas that a broker disposes of lie next to them. path={data_dir} "
            f"data_directory={directory.root}",
            code="K102",
        )


def select_topics(
    data_dir: Path,
    files: FileSystem,
    topics: Sequence[str],
    settings: SettingSources = USUAL_SOURCES,
    *,
    leaves_missing: bool = False,
) -> Selection:
    """Return the partitions of ``topics``, of all without any; InvalidError for one that is not
    there, unless ``leaves_missing`` and another one is."""
    require_on_disk(data_dir)
    require_whole(data_dir, files)
    chosen = tuple(topics)
    if leaves_missing and chosen:
        there = {
            each.partition.topic
            for each in open_data_directory(data_dir, files).partitions
            if each.mark is None
        }
        chosen = tuple(each for each in chosen if each in there) or chosen
    return select_partitions(data_dir, files, PartitionChoice(topics=chosen), settings)


def clean_traces(
    selection: Selection,
    answer: ErasureAnswer,
    opened: OpenCoordinator,
    *,
    receipt: Path | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[CleanReport, ...]:
    """Do rounds of the partitions in which a key is, and return what each of them did.

    ``receipt`` None is the file that a loop keeps in the directory. No round is begun
    after a stop was asked for.
    """
    holding = frozenset(answer.partitions_with_traces())
    request = CleanRequest(
        tuple(
            # Nothing is kept for undo: neither what these rounds replace nor what others have.
            replace(each, topic=replace(each.topic, undo_retention_ms=0))
            for each in selection.partitions
            if each.partition in holding
        ),
        rounds=None, roll_active=True, rolls_idle=True, retention=True, force=True, expired=True,
        receipt=selection.directory.root / RECEIPTS_NAME if receipt is None else receipt,
    )  # fmt: skip
    reports: list[CleanReport] = []
    while len(reports) < ROUNDS_OF_NOW:
        # Each by itself: one remembers what it has examined, and dates of that moment with it.
        with opened() as coordinator:
            if not reports:
                # First: a round may join a segment that is to go to one that stays, and what lies
                # below the log start would stay with it.
                coordinator.expire(request)
            reports.append(coordinator.clean(replace(request, roll_active=not reports)))
        if is_stopped():
            break
    return tuple(reports)


Done = TypeVar("Done")


class AskedErasure(Struct, frozen=True):
    """What a call asks: the keys, their topics (none for all), the requests it goes by again."""

    keys: ErasureKeys
    topics: tuple[str, ...]
    reapplied: tuple[ErasureRequest, ...] = ()


class CarriedOut(Struct, Generic[Done], frozen=True):
    """What there is of the keys in the end, the requests, and what was done, None for nothing.

    Of a call that keeps nothing there is no request.
    """

    answer: ErasureAnswer
    requests: tuple[ErasureRequest, ...]
    done: Done | None


def ask_for_keys(
    plain: Mapping[int, bytes], hasher: KeyHasher, topics: tuple[str, ...], *, all_topics: bool
) -> AskedErasure:
    """Return a question for keys, by their line; InvalidError unless topics or all are meant."""
    if bool(topics) == all_topics:
        both = f"; both were. --topic={' '.join(topics)}" if topics else ""
        raise InvalidError(
            f"give --topic, or --all-topics for every compacted topic{both}", code="K102"
        )
    return AskedErasure(keys_of_file(plain, hasher, topics), topics)


def ask_again(
    shelf: RequestShelf, hasher: KeyHasher, plain: Mapping[int, bytes] | None
) -> AskedErasure:
    """Return a question for the keys of the requests that were made with a hash key.

    ``plain`` are the keys themselves, where they are known. InvalidError when there is none.
    """
    found = choose_requests(shelf, None)
    found = tuple(each for each in found if each.hash_check == hasher.check)
    if not found:
        raise InvalidError(
            "no request was made with this hash key; give theirs. "
            f"hash_key={hasher.check} path={shelf.name}",
            code="K613",
        )
    return AskedErasure(keys_of_requests(found, hasher, plain), topics_of(found), found)


def topics_of(requests: Sequence[ErasureRequest]) -> tuple[str, ...]:
    """Return the topics of requests, none for all."""
    if any(not each.topics for each in requests):
        return ()
    return tuple(sorted({topic for each in requests for topic in each.topics}))


def carry_out(
    asked: AskedErasure,
    shelf: RequestShelf,
    find: Callable[[], ErasureAnswer],
    *,
    act: Callable[[ErasureAnswer], Done] | None = None,
    keeps: bool = True,
    kept: Callable[[Sequence[ErasureRequest]], None] = lambda requests: None,
) -> CarriedOut[Done]:
    """Search by ``find``, keep the request, and where a trace is ``act`` and search again.

    ``act`` None does nothing. ``kept`` hears of the requests that the call goes by, once they are
    kept; nothing is without ``keeps``.
    """
    answer = find()
    requests = asked.reapplied
    if keeps:
        if not requests:
            requests = (add_request(shelf, asked.keys, asked.topics, answer),)
        kept(requests)
    if act is None or not answer.there:
        return CarriedOut(answer, requests, None)
    done = act(answer)
    had = frozenset(each.key_hash for each in answer.there)
    return CarriedOut(replace(find(), had_traces=had), requests, done)
