"""Bars undos of topics of which keys are to be gone: what a round has kept may have them.

Requests have keyed hashes alone, so that nobody here can tell which records are meant. Pure.
"""

from __future__ import annotations

from keeplast.errors import RefusedError
from keeplast.model.erasure_request import RequestBook


def erasure_refusal(book: RequestBook, topic: str) -> str | None:
    """Return why a round of ``topic`` cannot be undone, None where no request names the topic."""
    wanted = book.wants(topic)
    return None if wanted is None else f"keys of the topic are to be erased: request {wanted}"


def erasure_bar(book: RequestBook, topic: str, where: str) -> None:
    """Raise RefusedError where keys of ``topic`` are to be gone; ``where`` the requests count."""
    wanted = book.wants(topic)
    if wanted is not None:
        raise RefusedError(
            "keys of the topic are to be erased, and what the round replaced may have them; forget "
            "the request when it has its certificate (keeplast erase requests --forget), or leave "
            f"what is gone where it is. request={wanted} path={where}"
        )
