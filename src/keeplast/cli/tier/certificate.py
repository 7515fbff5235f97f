"""``keeplast tier certificate``: sign that a store has no trace of the keys of a request."""

from __future__ import annotations

import secrets

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasure_options import HashKey, Keys, Out, RequestId, Requests, SignKey
from keeplast.cli.frame.parameters import BrokerConfig, Json, Receipt
from keeplast.cli.tier.options import StoreAddress, broker_settings


@command(
    first=("hash_key", "sign_key", "out"),
    example="keeplast tier certificate --store sqlite:///meta.db --requests erasures --hash-key "
    "hash.key --sign-key sign.pem --out gone.json",
)
def certificate(
    call: StoreAddress,
    hash_key: HashKey,
    sign_key: SignKey,
    out: Out,
    requests: Requests = None,
    request: RequestId = None,
    keys: Keys = None,
    broker_config: BrokerConfig = None,
    receipt: Receipt = None,
    as_json: Json = False,
) -> Result:
    """Search a store for the keys of a request, and sign that no trace of them was found.

    Live segments, replaced ones, and the list of objects. Refused while there is a trace, or an
    object that no row of the metadata names. keeplast erasure verify proves it, with --store too.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.frame.key_files import read_hasher, read_keys, warn_if_open
    from keeplast.cli.frame.packages import check_packages, check_signing
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.tier.erase import choose_stored
    from keeplast.clock import SystemClock
    from keeplast.config.mapping import cleaner_config
    from keeplast.errors import InvalidError
    from keeplast.log.erasure_requests import read_requests
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure_book import choose_one, keys_of_requests
    from keeplast.survey.receipt_book import read_receipts

    check_packages()
    check_signing()
    from keeplast.service.certificate import ReceiptStanding, make_certificate, read_standing
    from keeplast.service.store_certificate import store_place
    from keeplast.service.store_erasing import find_store_traces
    from keeplast.signing import Signer

    if requests is None:
        raise InvalidError("say where the requests are kept. --requests=None")
    files = LocalFiles()
    if files.exists(out):
        raise InvalidError(f"there is a file; name a new one. --out={out}")
    signer, hasher = Signer(sign_key), read_hasher(hash_key)
    warn_if_open(sign_key, "sign with it in your name")
    asked = choose_one(read_requests(files, requests), request, requests)
    wanted = keys_of_requests((asked,), hasher, None if keys is None else read_keys(keys))
    standing = ReceiptStanding(None)
    if receipt is not None:
        standing = read_standing(files, (receipt,), read_receipts(receipt, files))
    with call.opened(broker_config=broker_config) as opened, ProgressEvents("searching") as events:
        chosen = choose_stored(opened, asked.topics)
        place = store_place(opened, chosen)
        answer = find_store_traces(
            opened, chosen, cleaner_config({}, cluster=broker_settings(broker_config)),
            SystemClock().now_ms(), wanted, planned=events.planned, progressed=events.progressed,
        )  # fmt: skip
    data = make_certificate(asked, answer, place, standing, signer, nonce=secrets.token_hex(16))
    files.write_durable(out, data)
    if not as_json:
        print_result(
            f"{out}: no record with one of {len(asked.keys)} key(s) was found in "
            f"{len(answer.searches)} partition(s); it says what was searched, and what was not"
        )
    return DONE, {
        "request": asked.request_id,
        "certificate": out,
        "signed_by": signer.key_id,
        **answer.document(),
    }
