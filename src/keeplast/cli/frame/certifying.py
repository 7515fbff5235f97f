"""What every certificate command does with its options, and what it says in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keeplast.cli.frame.command import Result
from keeplast.cli.frame.erasure_options import HashKey, Keys, Out, RequestId, Requests, SignKey

if TYPE_CHECKING:
    from keeplast.service.erasure.certificate_issue import SearchPlace
    from keeplast.service.erasure.erasure_answer import ErasureAnswer
    from keeplast.service.erasure.erasure_book import RequestShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOptions:
    """What every certificate command takes."""

    hash_key: HashKey
    sign_key: SignKey
    out: Out
    request: RequestId = None
    keys: Keys = None
    requests: Requests = None


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
    from keeplast.cli.show.output import print_result, say
    from keeplast.log.files import LocalFiles
    from keeplast.model.escapes import printable
    from keeplast.service.erasure.certificate_issue import issue_certificate, require_new
    from keeplast.service.erasure.erasure_answer import unsearched_words

    check_signing()
    from keeplast.service.erasure.certificate import not_here
    from keeplast.signing import Signer

    files, out = LocalFiles(), options.out
    require_new(out)
    signer, hasher = Signer(options.sign_key), read_hasher(options.hash_key)
    warn_if_open(options.sign_key, "the signing key", "sign with it in your name")
    issued = issue_certificate(
        out, files, shelf, options.request, hasher,
        lambda: None if options.keys is None else read_keys(options.keys), signer, search,
    )  # fmt: skip
    for gone in not_here(issued.request, issued.answer):
        say(f"not searched: {gone}", kind="warning")
    if not as_json:
        print_result(
            f"{out}: no record with one of {len(issued.request.keys)} key(s) was found in "
            f"{len(issued.answer.searches)} partition(s); it says what was searched, and what was "
            f"not{_unknown_words(issued.answer)}",
            *(printable(each) for each in unsearched_words(issued.answer)),
            *(f"not stated: {printable(each)}" for each in issued.not_stated),
        )
    return DONE, {
        "request": issued.request.request_id,
        "certificate": out,
        "signed_by": signer.key_id,
        "not_stated": list(issued.not_stated),
        **issued.answer.document(),
    }


def _unknown_words(answer: ErasureAnswer) -> str:
    unknown = answer.unknown
    if not unknown:
        return ""
    return (
        f": {len(unknown)} path(s) of unknown name, {sum(each.size_bytes for each in unknown)} "
        "bytes, among it"
    )
