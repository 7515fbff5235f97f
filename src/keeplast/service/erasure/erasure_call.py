"""What every call about keys that must go does, of any place: ask, keep, act, ask again.

A place says how its logs are searched and what may be done there; what is asked and kept is the
same. A request is kept before anything is done: whoever is interrupted has asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from keeplast.errors import InvalidError
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.keyed_hash import KeyHasher
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    RequestShelf,
    add_request,
    choose_requests,
    keys_of_file,
    keys_of_requests,
)

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class AskedErasure:
    """What a call asks: the keys, their topics (none for all), the requests it goes by again."""

    keys: ErasureKeys
    topics: tuple[str, ...]
    reapplied: tuple[ErasureRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class CarriedOut(Generic[Done]):
    """What there is of the keys in the end, by which requests, and what was done, None for nothing.

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
        raise InvalidError(f"give --topic, or --all-topics for every compacted topic{both}")
    return AskedErasure(keys_of_file(plain, hasher, topics), topics)


def ask_again(
    shelf: RequestShelf, hasher: KeyHasher, plain: Mapping[int, bytes] | None
) -> AskedErasure:
    """Return a question for the keys of the requests that were made with a hash key.

    ``plain`` are the keys themselves, where somebody has them. InvalidError when there is none.
    """
    found = choose_requests(shelf, None)
    found = tuple(each for each in found if each.hash_check == hasher.check)
    if not found:
        raise InvalidError(
            "no request was made with this hash key; give theirs. "
            f"hash_key={hasher.check} path={shelf.name}"
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
    return CarriedOut(find(), requests, done)
