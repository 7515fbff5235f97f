"""``keeplast.certify`` and ``verify_certificate``: a signed statement that no trace was found.

What a reader must not break: what is signed is what one search found, and nothing is written while
a trace may be left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from keeplast.api.erase import key_hasher, key_lines
from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, SearchTerms
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.service.erasure.certificate import (
    CERTIFICATE_BYTES_MAX,
    IssuedCertificate,
    SearchedPlace,
    issue_certificate,
    require_new,
)
from keeplast.service.erasure.certificate_check import (
    IS_FINE,
    PartitionStanding,
    lines_within,
    read_certificate,
)
from keeplast.service.erasure.erasure_answer import ErasureKeys
from keeplast.service.search_tasks import SearchRunner
from keeplast.signing import SignatureCheck, Signer


class VerifiedCertificate(Struct, frozen=True):
    """A certificate that is as it was signed; ``statement`` is what it says.

    ``keys_within`` says of each key that was given, in order, whether it is about that, and
    ``standings`` how each partition is now where a place was named.
    """

    statement: Mapping[str, Any]
    keys_within: tuple[bool, ...] = ()
    standings: tuple[PartitionStanding, ...] = ()

    @property
    def holds(self) -> bool:
        """Say whether it is about all keys, and what is there now is as it says, or later."""
        are_fine = all(each.standing in IS_FINE for each in self.standings)
        return are_fine and all(self.keys_within)


def certify(
    place: AskedPlace | str | Path,
    out: str | Path,
    *,
    hash_key: bytes,
    sign_key: str | Path,
    request: str | None = None,
    keys: Collection[bytes] | None = None,
    requests: Path | None = None,
    receipt: Path | None = None,
    runner: SearchRunner | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> IssuedCertificate:
    """Search a place for the keys of an erasure request, and sign that no trace was found.

    ``out`` is a new file, outside of a data directory. ``sign_key`` is the file of an Ed25519
    private key in PEM, ``hash_key`` as for :func:`erase`; ``request`` names one by its id, None the
    only one. With ``keys`` the search is faster. ``requests`` is where requests are kept if not in
    the place; ``receipt`` where rounds wrote theirs, None what a directory keeps.

    RefusedError while a trace may be left, with where and until when, and where receipts were
    changed; InvalidError for what cannot be used or is not there.
    """
    files, path, where = LocalFiles(), Path(out).absolute(), placed(place)
    require_new(path)
    where.require_elsewhere(path)
    signer, hasher = Signer(Path(sign_key)), key_hasher(hash_key)
    plain = None if keys is None else key_lines(keys)
    terms = SearchTerms(runner=runner, receipt=receipt, planned=planned, progressed=progressed)

    def search(asked: ErasureRequest, wanted: ErasureKeys) -> SearchedPlace:
        return where.search_all(asked, wanted, terms)

    with where.shelves(requests) as shelves:
        return issue_certificate(
            path, files, shelves.shelf, request, hasher, lambda: plain, signer, search
        )


def verify_certificate(
    file: str | Path,
    public_key: str | Path,
    *,
    hash_key: bytes | None = None,
    keys: Collection[bytes] = (),
    place: AskedPlace | str | Path | None = None,
    receipt: Path | None = None,
    progressed: Callable[[int], None] = lambda _: None,
) -> VerifiedCertificate:
    """Prove that a certificate is as it was signed, and look what is in ``place`` now, if given.

    ``public_key`` is the file of the signer's Ed25519 public key in PEM. Only the ``hash_key``
    shows whether it is about ``keys``; without it no key is looked for in the place either.
    ``receipt`` is a file of receipts that must reach the certificate's.
    :attr:`VerifiedCertificate.holds` is the verdict.

    InvalidError for a file that is not there, is no certificate, or is not as it was signed, and
    for a hash key that is not the certificate's.
    """
    files, path = LocalFiles(), Path(file)
    lines = key_lines(keys)
    if lines and hash_key is None:
        raise InvalidError("keys are compared by their hashes; give hash_key too", code="K102")
    check = SignatureCheck(Path(public_key))
    try:
        data = files.read_bytes(path, CERTIFICATE_BYTES_MAX)
    except FileNotFoundError as error:
        raise InvalidError(
            f"no such certificate; correct the path. path={path}", code="K110"
        ) from error
    try:
        statement = read_certificate(data, check)
    except InvalidError as error:
        raise InvalidError(f"{error} path={path}", code=error.code) from error
    hasher = None if hash_key is None else key_hasher(hash_key)
    within = {} if hasher is None or not lines else lines_within(statement, hasher, lines)
    standings: Sequence[PartitionStanding] = ()
    if place is not None:
        terms = SearchTerms(receipt=receipt, progressed=progressed)
        standings = placed(place).compare(statement, hasher, terms)
    elif receipt is not None:
        raise InvalidError(
            f"receipts are compared with a place; name it, too. receipt={receipt}", code="K102"
        )
    return VerifiedCertificate(statement, tuple(within.values()), tuple(standings))
