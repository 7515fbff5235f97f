"""``keeplast.erase`` and ``reapply_erasure``: what there is of keys that must go, until when.

What a reader must not break: no key is in a value that is returned, in a request that is kept, or
in an error. Their keyed hashes stand there. No tombstone is written: that is a producer's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, SearchTerms, named
from keeplast.api.round_terms import AskedRounds, WorkTerms
from keeplast.errors import InvalidError
from keeplast.model.erasure_request import ErasureRequest, KeyHasher
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.service.erasure.directory_erasing import (
    AskedErasure,
    ask_again,
    ask_for_keys,
    carry_out,
)
from keeplast.service.erasure.erasure_answer import ErasureAnswer
from keeplast.service.erasure.erasure_book import RequestShelf, forget_request, name_in_own
from keeplast.service.search_tasks import SearchRunner
from keeplast.survey.report import CleanReport, failures


class Erasure(Struct, frozen=True):
    """What there is of the keys: ``answer``, the ``requests`` for them, and what of a round failed.

    A key's ``line`` in the answer is its place among the keys that were given, from 1 on.
    ``warnings`` are sentences about settings, and about a request that undo will not heed.
    """

    answer: ErasureAnswer
    requests: tuple[ErasureRequest, ...]
    failed: tuple[tuple[TopicPartition, Exception], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Say whether all was searched and no trace of a key was found."""
        answer = self.answer
        barred = answer.problems or answer.faults or answer.in_the_way
        is_whole = bool(answer.searches) and not barred
        return is_whole and not answer.there


def erase(
    place: AskedPlace | str | Path,
    keys: Collection[bytes],
    hash_key: bytes,
    *,
    topics: Collection[str] = (),
    all_topics: bool = False,
    now: bool = False,
    keeps: bool = True,
    requests: Path | None = None,
    receipt: Path | None = None,
    brokers: GroupReader | None = None,
    runner: SearchRunner | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> Erasure:
    """Return for each key whether its delete is decided, where a trace is, and by when it is gone.

    ``hash_key``, 32 bytes or more, is what keys are hashed with wherever they are named: of a file
    for ``--hash-key`` all but the newline at its end. Either
    ``topics`` are given, or ``all_topics`` for every compacted one. The request is kept in the
    place, or in the file ``requests``, unless ``keeps`` is false. ``now`` does what rounds may do:
    what has to wait has its date. ``receipt`` takes a line of
    each round. ``brokers``, ``runner``, ``planned`` and ``progressed`` are as for
    :func:`explain_place`.

    A partition that cannot be searched is among the answer's ``faults``. InvalidError for keys that
    are not bytes and for what contradicts itself, RefusedError with ``now`` while a broker has the
    directory.
    """
    if now and not keeps:
        raise InvalidError(
            "a request whose rounds are done is kept. now=True keeps=False", code="K101"
        )
    plain, hasher = key_lines(keys), key_hasher(hash_key)
    asked = ask_for_keys(plain, hasher, named(topics), all_topics=all_topics)
    terms = SearchTerms(
        runner=runner, receipt=receipt, brokers=brokers, planned=planned, progressed=progressed
    )
    return _carried(place, requests, lambda _: asked, terms, now=now, keeps=keeps)


def reapply_erasure(
    place: AskedPlace | str | Path,
    hash_key: bytes,
    *,
    keys: Collection[bytes] | None = None,
    now: bool = False,
    requests: Path | None = None,
    receipt: Path | None = None,
    brokers: GroupReader | None = None,
    runner: SearchRunner | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> Erasure:
    """Look for the keys of earlier requests again: for what came back with a backup.

    Those that were made with ``hash_key`` count, which is enough; with ``keys`` the search is
    faster. The rest is as for :func:`erase`. InvalidError when there is no such request.
    """
    hasher = key_hasher(hash_key)
    plain = None if keys is None else key_lines(keys)
    terms = SearchTerms(
        runner=runner, receipt=receipt, brokers=brokers, planned=planned, progressed=progressed
    )
    return _carried(
        place, requests, lambda shelf: ask_again(shelf, hasher, plain), terms, now=now, keeps=True
    )


def erasure_requests(
    place: AskedPlace | str | Path, *, requests: Path | None = None
) -> tuple[ErasureRequest, ...]:
    """Return the requests that are kept in a place, or in the file ``requests``, oldest first."""
    with placed(place).shelves(requests) as shelves:
        return shelves.shelf.read().requests


def forget_erasure(
    place: AskedPlace | str | Path, request_id: str, *, requests: Path | None = None
) -> None:
    """Remove a request: its keys are not looked for again. InvalidError when there is none."""
    with placed(place).shelves(requests) as shelves:
        own = None if shelves.own == shelves.shelf else shelves.own
        forget_request(shelves.shelf, request_id, own)


def _carried(
    place: AskedPlace | str | Path,
    requests: Path | None,
    ask: Callable[[RequestShelf], AskedErasure],
    terms: SearchTerms,
    *,
    now: bool,
    keeps: bool,
) -> Erasure:
    where = placed(place)
    where.require_whole()
    unheeded: list[str] = []
    with where.shelves(requests) as shelves:
        asked = ask(shelves.shelf)

        def kept(named: Sequence[ErasureRequest]) -> None:
            problem = name_in_own(shelves.own, shelves.shelf, named)
            unheeded.extend([] if problem is None else [problem])

        def act(answer: ErasureAnswer) -> CleanReport:
            work = WorkTerms(receipt=terms.receipt, brokers=terms.brokers)
            return where.clean_traces(asked, answer, AskedRounds(), work)

        found = carry_out(
            asked, shelves.shelf, partial(where.find_traces, asked, terms),
            act=act if now else None, keeps=keeps, kept=kept,
        )  # fmt: skip
    warnings = (*found.answer.warnings, *unheeded)
    failed = () if found.done is None else tuple(failures(found.done))
    return Erasure(found.answer, found.requests, failed, warnings)


def key_lines(keys: Collection[bytes]) -> Mapping[int, bytes]:
    """Return keys by their place; InvalidError, without the key, for what no key can be."""
    if isinstance(keys, (str, bytes)):
        raise InvalidError(
            f"give keys as a collection of bytes. given={type(keys).__name__}", code="K109"
        )
    found = dict(enumerate(keys, start=1))
    strange = [type(each).__name__ for each in found.values() if not isinstance(each, bytes)]
    if strange:
        raise InvalidError(
            f'the keys of records are bytes; give b"...". given={strange[0]}', code="K109"
        )
    return found


def key_hasher(hash_key: bytes) -> KeyHasher:
    """Return what hashes keys; InvalidError for what is no hash key."""
    if not isinstance(hash_key, bytes):
        raise InvalidError(f"a hash key is bytes. given={type(hash_key).__name__}", code="K109")
    return KeyHasher(hash_key)
