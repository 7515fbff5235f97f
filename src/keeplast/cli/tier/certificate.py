"""``keeplast tier certificate``: sign that a store has no trace of the keys of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keeplast.cli.frame.certifying import CertificateOptions, sign_certificate
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.erasure_options import Receipts
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import BrokerConfig, Json
from keeplast.cli.tier.options import StoreAddress, spoken_cleaner

if TYPE_CHECKING:
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure.certificate_issue import SearchedPlace
    from keeplast.service.erasure.erasure_answer import ErasureKeys


@command(
    first=("hash_key", "sign_key", "out"),
    example="keeplast tier certificate --store sqlite:///meta.db --hash-key hash.key --sign-key "
    "sign.pem --out gone.json",
)
def certificate(
    call: StoreAddress,
    options: CertificateOptions,
    workers: RunnerOptions,
    broker_config: BrokerConfig = None,
    receipt: Receipts = None,
    as_json: Json = False,
) -> Result:
    """Search a store for the keys of a request, and sign that no trace of them was found.

    Live segments, replaced ones, and the list of objects. Refused while there is a trace, or an
    object that no row of the metadata names. keeplast erasure verify proves it, with --store too.
    """
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock

    check_packages()

    from keeplast.service.erasure.store_certificate import search_store
    from keeplast.service.store_shelf import store_shelf

    def search(asked: ErasureRequest, keys: ErasureKeys) -> SearchedPlace:
        with (
            call.opened(broker_config=broker_config) as opened,
            ProgressEvents("searching") as events,
            search_runner(workers) as runner,
        ):
            return search_store(
                opened, asked.topics, spoken_cleaner(broker_config),
                SystemClock().now_ms(), keys, receipt=receipt, planned=events.planned,
                progressed=events.progressed, runner=runner,
            )  # fmt: skip

    with store_shelf(call.store, options.requests) as shelf:
        return sign_certificate(options, shelf, search, as_json=as_json)
