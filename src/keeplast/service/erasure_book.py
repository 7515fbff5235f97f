"""The erasure requests of a data directory: made, found again, forgotten.

A request names keys by their keyed hash. Who has the hash key can look for them in whatever comes
back later, without the keys themselves. No lock of the directory is needed, as for holds; writers
of the file wait for each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from keeplast.errors import InvalidError
from keeplast.log.erasure_requests import read_requests, write_requests
from keeplast.log.files import FileSystem
from keeplast.log.lock import appended
from keeplast.model.erasure_request import KEYS_MAX, ErasureRequest, SegmentDigest
from keeplast.model.keyed_hash import KeyHasher
from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys


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
            f"keys={len(hashes)}"
        )
    chosen = frozenset(topics) or None
    return ErasureKeys(hasher, dict.fromkeys(lines, chosen), hashes, lines)


def keys_of_requests(
    requests: Sequence[ErasureRequest],
    hasher: KeyHasher,
    plain: Mapping[int, bytes] | None = None,
) -> ErasureKeys:
    """Return the keys of requests, each with the topics of those that name it.

    ``plain`` are keys of a file, by line: what is not among the requests is InvalidError, and where
    all of the requests' keys are there they are searched for as they are. InvalidError for another
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
            "a key is in no request that was asked about; make one with keeplast erase, or take "
            f"it out of the file. line={strange[0]} lines={len(strange)}"
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


def add_request(
    files: FileSystem,
    path: Path,
    keys: ErasureKeys,
    topics: Sequence[str],
    answer: ErasureAnswer,
    now_ms: int,
) -> ErasureRequest:
    """Write a request down and return it; one for the same is there already, and stays as it is."""
    request = ErasureRequest(
        secrets.token_hex(8), now_ms, tuple(sorted(set(topics))), keys.hasher.check,
        tuple(sorted(keys.topics)), held_segments(answer),
    )  # fmt: skip
    with appended(path):
        known = read_requests(files, path)
        for each in known:
            if each.about == request.about:
                return each
        write_requests(files, path, [*known, request])
    return request


def choose_requests(
    requests: Sequence[ErasureRequest], request_id: str | None, path: Path
) -> tuple[ErasureRequest, ...]:
    """Return the request that is named, or all; InvalidError where that is none."""
    chosen = tuple(e for e in requests if request_id is None or e.request_id == request_id)
    if not chosen:
        ids = ", ".join(each.request_id for each in requests) or "none"
        raise InvalidError(
            f"there is no such erasure request; there are: {ids}. request={request_id} path={path}"
        )
    return chosen


def choose_one(
    requests: Sequence[ErasureRequest], request_id: str | None, path: Path
) -> ErasureRequest:
    """Return the request that is named, or the only one; InvalidError where there are several."""
    chosen = choose_requests(requests, request_id, path)
    if len(chosen) > 1:
        ids = ", ".join(each.request_id for each in chosen)
        raise InvalidError(f"there are several requests; name one with --request. requests={ids}")
    return chosen[0]


def forget_request(files: FileSystem, path: Path, request_id: str) -> ErasureRequest:
    """Remove a request from the file; InvalidError when there is none of this id."""
    with appended(path):
        known = read_requests(files, path)
        (found,) = choose_requests(known, request_id, path)
        write_requests(files, path, [each for each in known if each is not found])
    return found
