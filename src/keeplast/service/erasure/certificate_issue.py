"""Issues erasure certificates: choose the request, search the place, sign what was found.

The rule that a reader must not break: **what is signed is what one search found**, of a place that
was read before it was searched. Nothing is made while a trace may be left.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.config.selection import Selection
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.keyed_hash import KeyHasher
from keeplast.service.erasure.certificate import (
    CertifiedPlace,
    ReceiptStanding,
    directory_place,
    make_certificate,
    not_stated,
    read_identity,
    read_standing,
    receipt_paths,
)
from keeplast.service.erasure.erasing import find_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import RequestShelf, choose_one, keys_of_requests
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.status import read_round_receipts

if TYPE_CHECKING:
    from keeplast.signing import Signer


@dataclass(frozen=True, slots=True)
class SearchedPlace:
    """What a certificate rests on; ``place`` was read before it was searched."""

    answer: ErasureAnswer
    place: CertifiedPlace
    standing: ReceiptStanding


SearchPlace = Callable[[ErasureRequest, ErasureKeys], SearchedPlace]


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate that lies at ``path``, the request that it answers, and what it rests on.

    ``not_stated`` is what it says nothing of, beside what was not searched.
    """

    path: Path
    request: ErasureRequest
    answer: ErasureAnswer
    not_stated: tuple[str, ...]


def require_new(out: Path) -> None:
    """Raise InvalidError where no new file can be made: before a search of hours, and not after."""
    if os.path.lexists(out):
        what = "a directory; name a file in it" if out.is_dir() else "a file; name a new one"
        raise InvalidError(f"there is {what}. --out={out}")
    if not out.absolute().parent.is_dir():
        raise InvalidError(
            "there is no directory for the certificate; make it "
            f"(mkdir -p {out.parent}), or name another. --out={out}"
        )
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))


def issue_certificate(
    out: Path,
    files: FileSystem,
    shelf: RequestShelf,
    request_id: str | None,
    hasher: KeyHasher,
    plain: Callable[[], Mapping[int, bytes] | None],
    signer: Signer,
    search: SearchPlace,
) -> IssuedCertificate:
    """Search for the keys of the request that is named, or the only one, and sign what was found.

    ``plain`` gives the keys themselves, by line, where somebody has them. InvalidError for what
    cannot be chosen or written to, RefusedError while a trace may be left.
    """
    require_new(out)
    asked = choose_one(shelf, request_id)
    found = search(asked, keys_of_requests((asked,), hasher, plain()))
    data = make_certificate(
        asked, found.answer, found.place, found.standing, signer, nonce=secrets.token_hex(16)
    )
    files.write_durable(out, data)
    return IssuedCertificate(
        out, asked, found.answer, tuple(not_stated(found.place, found.standing))
    )


def search_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    keys: ErasureKeys,
    *,
    receipt: Path | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> SearchedPlace:
    """Search the chosen partitions of a data directory, whose receipts are read first.

    ``receipt`` None are the receipts that a loop keeps there. RefusedError for changed ones.
    """
    root = selection.directory.root
    standing = read_standing(
        files, receipt_paths(root, receipt), read_round_receipts(files, root, receipt),
        in_directory=receipt is None,
    )  # fmt: skip
    answer = find_traces(
        selection, files, now_ms, keys, planned=planned, progressed=progressed, runner=runner
    )
    return SearchedPlace(answer, directory_place(read_identity(files, root)), standing)
