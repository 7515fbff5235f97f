"""Where erasure requests of a store, or of attached topics, are kept: in its metadata."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.model.text import shown_url
from keeplast.service.erasure.erasure_book import FileShelf, MetadataShelf, RequestShelf
from keeplast.tier.metadata.database import is_missing, open_database
from keeplast.tier.metadata.facts import ERASURES, KeptText


@contextlib.contextmanager
def store_shelf(url: str, given: Path | None) -> Iterator[RequestShelf]:
    """Open where requests of a store or of attached topics are kept: the metadata, or ``given``.

    InvalidError when there is no such store.
    """
    if given is not None:
        yield FileShelf(LocalFiles(), given.absolute())
        return
    if is_missing(url):
        raise InvalidError(
            f"there is no such store; correct the URL. url={shown_url(url)}", code="K320"
        )
    with contextlib.closing(KeptText(open_database(url), SystemClock(), ERASURES)) as text:
        yield MetadataShelf(shown_url(url), text)
