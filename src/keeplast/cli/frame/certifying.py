"""What every certificate command does: choose the request, search the place, sign what was found.

The rule that a reader must not break: **what is signed is what one search found**. Nothing is
written while a trace may be left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keeplast.cli.frame.command import Result
from keeplast.cli.frame.erasure_options import HashKey, Keys, Out, RequestId, Requests, SignKey

if TYPE_CHECKING:
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.certificate import CertifiedPlace, ReceiptStanding
    from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.erasure_book import RequestShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOptions:
    """What every certificate command takes."""

    hash_key: HashKey
    sign_key: SignKey
    out: Out
    request: RequestId = None
    keys: Keys = None
    requests: Requests = None


@dataclass(frozen=True, slots=True)
class SearchedPlace:
    """What a certificate rests on; ``place`` was read before it was searched."""

    answer: ErasureAnswer
    place: CertifiedPlace
    standing: ReceiptStanding


SearchPlace = Callable[["ErasureRequest", "ErasureKeys"], SearchedPlace]


def sign_certificate(
    options: CertificateOptions, shelf: RequestShelf, search: SearchPlace, *, as_json: bool
) -> Result:
    """Search for the keys of the chosen request, and write a certificate down.

    RefusedError while a trace may be left; InvalidError for what cannot be signed with, or written
    to.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.frame.key_files import read_hasher, read_keys, warn_if_open
    from keeplast.cli.frame.packages import check_signing
    from keeplast.cli.show.output import print_result
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles
    from keeplast.model.escapes import printable
    from keeplast.service.erasure_book import choose_one, keys_of_requests

    check_signing()
    from keeplast.service.certificate import make_certificate, not_stated
    from keeplast.signing import Signer

    files, out = LocalFiles(), options.out
    if files.exists(out):
        raise InvalidError(f"there is a file; name a new one. --out={out}")
    signer, hasher = Signer(options.sign_key), read_hasher(options.hash_key)
    warn_if_open(options.sign_key, "sign with it in your name")
    asked = choose_one(shelf, options.request)
    plain = None if options.keys is None else read_keys(options.keys)
    found = search(asked, keys_of_requests((asked,), hasher, plain))
    answer = found.answer
    data = make_certificate(
        asked, answer, found.place, found.standing, signer, nonce=secrets.token_hex(16)
    )
    files.write_durable(out, data)
    gaps = not_stated(found.place, found.standing)
    if not as_json:
        print_result(
            f"{out}: no record with one of {len(asked.keys)} key(s) was found in "
            f"{len(answer.searches)} partition(s); it says what was searched, and what was not",
            *(f"not stated: {printable(each)}" for each in gaps),
        )
    return DONE, {
        "request": asked.request_id,
        "certificate": out,
        "signed_by": signer.key_id,
        "not_stated": gaps,
        **answer.document(),
    }
