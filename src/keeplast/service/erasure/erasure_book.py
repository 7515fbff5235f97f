"""Erasure requests, wherever they are kept: made, found again, forgotten.

A request names keys by their keyed hash. Who has the hash key can look for them in whatever comes
back later, without the keys themselves. Of a directory they lie in a file, of a store or of
attached topics in the database. No lock of a directory is needed, as for holds; writers of a list
wait for each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.log.lock import appended
from keeplast.log.root_files import decode_book, encode_book, read_book, write_book
from keeplast.model.erasure_request import (
    KEYS_MAX,
    ErasureRequest,
    KeptElsewhere,
    KeyHasher,
    RequestBook,
    SegmentDigest,
)
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys

if TYPE_CHECKING:
    from keeplast.tier.metadata.facts import KeptText


def keys_of_file(
    plain: Mapping[int, bytes], hasher: KeyHasher, topics: Sequence[str]
) -> ErasureKeys:
    """Return the keys of an operator's file, by their line; InvalidError for none or too many.

    A key that stands there twice counts once, at its first line. No ``topics`` are all.
    """
    lines: dict[str, int] = {}
    hashes: dict[bytes, str] = {}
    for line, key in sorted(plain.items()):
        hashes[key] = hasher.hash_of(key)
        lines.setdefault(hashes[key], line)
    if not 0 < len(hashes) <= KEYS_MAX:
        raise InvalidError(
            f"give 1 to {KEYS_MAX} keys, one a line; make several requests of more. "
            f"keys={len(hashes)}",
            code="K612",
        )
    chosen = frozenset(topics) or None
    return ErasureKeys(hasher, dict.fromkeys(lines, chosen), hashes, lines)


def keys_of_requests(
    requests: Sequence[ErasureRequest],
    hasher: KeyHasher,
    plain: Mapping[int, bytes] | None = None,
) -> ErasureKeys:
    """Return the keys of requests, each with the topics of those that name it.

    ``plain`` are keys of a file, by line; one that is not among the requests is InvalidError. Where
    they are all keys of the requests they are searched for as they are. InvalidError for another
    hash key than theirs.
    """
    topics: dict[str, frozenset[str] | None] = {}
    for each in requests:
        each.require_check(hasher.check)
        for name in each.keys:
            known = topics.get(name, frozenset())
            of_all = known is None or not each.topics
            topics[name] = None if of_all else (known or frozenset()).union(each.topics)
    if plain is None:
        return ErasureKeys(hasher, topics)
    given = keys_of_file(plain, hasher, ())
    strange = sorted(line for name, line in given.lines.items() if name not in topics)
    if strange:
        raise InvalidError(
            "a key is in no request that was asked about; make one with keeplast erase keys, or "
            f"take it out of the file. line={strange[0]} lines={len(strange)}",
            code="K612",
        )
    is_whole = len(given.lines) == len(topics)
    return ErasureKeys(hasher, topics, given.plain if is_whole else None, given.lines)


def held_segments(answer: ErasureAnswer) -> tuple[SegmentDigest, ...]:
    """Return the segments in which a key was found, with their checksums."""
    holding = {
        (place.partition, segment)
        for each in answer.keys
        for place in each.places
        for segment, _ in place.offsets
    }
    return tuple(
        held
        for search in answer.searches
        for segment, held in zip(search.listing.segments, search.sums, strict=True)
        if (search.partition, segment.base_offset) in holding
    )


class RequestShelf(Protocol):
    """Where requests are kept; ``name`` is how it is called in errors."""

    @property
    def name(self) -> str:
        """Return where it is, without a secret."""

    def read(self) -> RequestBook:
        """Return what is kept, an empty list for nothing; CorruptError for what is damaged."""

    def change(self, change: Callable[[RequestBook], RequestBook]) -> None:
        """Replace the list by what ``change`` makes of it; others who do so wait."""


class FileShelf(Struct, frozen=True):
    """Requests in a plain file."""

    files: FileSystem
    path: Path

    @property
    def name(self) -> str:
        """Return the file's path."""
        return str(self.path)

    def read(self) -> RequestBook:
        """Return what the file has."""
        return read_book(self.files, self.path)

    def change(self, change: Callable[[RequestBook], RequestBook]) -> None:
        """Replace the file."""
        with appended(self.path):
            write_book(self.files, self.path, change(self.read()))


class MetadataShelf(Struct, frozen=True):
    """Requests in the metadata of a store, or next to the decisions about attached topics."""

    name: str
    text: KeptText

    def read(self) -> RequestBook:
        """Return what the row has."""
        return self._decoded(self.text.read())

    def change(self, change: Callable[[RequestBook], RequestBook]) -> None:
        """Replace the row."""
        self.text.change(
            lambda text: encode_book(change(self._decoded(text)), self.name).decode("ascii")
        )

    def _decoded(self, text: str | None) -> RequestBook:
        return RequestBook() if text is None else decode_book(text.encode(), self.name)


def add_request(
    shelf: RequestShelf,
    keys: ErasureKeys,
    topics: Sequence[str],
    answer: ErasureAnswer,
) -> ErasureRequest:
    """Write a request down and return it; one for the same is there already, and stays as it is."""
    request = ErasureRequest(
        secrets.token_hex(8), answer.now_ms, tuple(sorted(set(topics))), keys.hasher.check,
        tuple(sorted(keys.topics)), held_segments(answer),
    )  # fmt: skip
    kept = [request]

    def with_it(book: RequestBook) -> RequestBook:
        same = [each for each in book.requests if each.about == request.about]
        kept[:] = same[:1] or [request]
        return book if same else replace(book, requests=(*book.requests, request))

    shelf.change(with_it)
    return kept[0]


def name_elsewhere(shelf: RequestShelf, requests: Sequence[ErasureRequest]) -> None:
    """Name requests that another shelf keeps, so that undo heeds them; those known stay once."""
    new = tuple(KeptElsewhere(each.request_id, each.topics) for each in requests)
    if not set(new) <= set(shelf.read().elsewhere):
        shelf.change(
            lambda book: replace(
                book, elsewhere=tuple(dict.fromkeys((*book.elsewhere, *new)))
            )
        )  # fmt: skip


def name_in_own(
    own: RequestShelf, shelf: RequestShelf, requests: Sequence[ErasureRequest]
) -> str | None:
    """Name requests of ``shelf`` in a place's ``own`` list, the only one that undo heeds.

    Returns what is to be said where that could not be written: the requests are kept all the same.
    """
    if shelf == own:
        return None
    try:
        name_elsewhere(own, requests)
    except OSError as error:
        return (
            "the request is kept, and keeplast undo will not heed it: its name could not be "
            f"written into the place's own list. path={own.name} error={error.strerror}"
        )
    return None


def choose_requests(shelf: RequestShelf, request_id: str | None) -> tuple[ErasureRequest, ...]:
    """Return the request that is named, or all; InvalidError where that is none."""
    book = shelf.read()
    chosen = tuple(e for e in book.requests if request_id is None or e.request_id == request_id)
    if not chosen:
        ids = ", ".join(each.request_id for each in book.requests) or "none"
        other = ", ".join(each.request_id for each in book.elsewhere)
        more = f", and kept elsewhere (name the file with --requests): {other}" if other else ""
        if request_id is None:
            raise InvalidError(
                "there is no erasure request to go by; make one with erase, or name the file that "
                f"has it with --requests{more}. path={shelf.name}",
                code="K612",
            )
        raise InvalidError(
            f"there is no such erasure request; there are: {ids}{more}. request={request_id} "
            f"path={shelf.name}",
            code="K612",
        )
    return chosen


def choose_one(shelf: RequestShelf, request_id: str | None) -> ErasureRequest:
    """Return the request that is named, or the only one; InvalidError where there are several."""
    chosen = choose_requests(shelf, request_id)
    if len(chosen) > 1:
        ids = ", ".join(each.request_id for each in chosen)
        raise InvalidError(
            f"there are several requests; name one with --request. requests={ids}", code="K612"
        )
    return chosen[0]


def forget_request(
    shelf: RequestShelf, request_id: str, named_in: RequestShelf | None = None
) -> int | None:
    """Remove a request; returns how many keys it had, None where it was kept elsewhere.

    ``named_in`` is the list of the directory or store where a request of ``shelf`` may be named.
    InvalidError when there is none of this id.
    """
    if request_id in {each.request_id for each in shelf.read().elsewhere}:
        shelf.change(lambda book: _without(book, request_id))
        return None
    (found,) = choose_requests(shelf, request_id)
    shelf.change(lambda book: _without(book, request_id))
    if named_in is not None:
        named_in.change(lambda book: _without(book, request_id))
    return len(found.keys)


def _without(book: RequestBook, request_id: str) -> RequestBook:
    return RequestBook(
        tuple(each for each in book.requests if each.request_id != request_id),
        tuple(each for each in book.elsewhere if each.request_id != request_id),
    )
