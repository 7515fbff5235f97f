"""``keeplast attach certificate``: sign that a remote tier has no trace of a request's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keeplast.cli.attach.erase import look_at_cluster
from keeplast.cli.attach.options import (
    ClusterAddress,
    TierOptions,
    WantedOptions,
    decision_log_there,
)
from keeplast.cli.frame.certifying import CertificateOptions, sign_certificate
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.erasure_options import Receipts
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import Json
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure.certificate_issue import SearchedPlace
    from keeplast.service.erasure.erasure_answer import ErasureKeys


@command(
    first=("hash_key", "sign_key", "out"),
    example="keeplast attach certificate --bootstrap-server localhost:9092 --storage "
    "local:/mnt/tier --store sqlite:///decisions.db --hash-key hash.key --sign-key sign.pem --out "
    "gone.json",
)
def certificate(
    cluster: ClusterAddress,
    tier: TierOptions,
    wanted: WantedOptions,
    options: CertificateOptions,
    workers: RunnerOptions,
    receipt: Receipts = None,
    as_json: Json = False,
) -> Result:
    """Search a remote tier for the keys of a request, and sign that no trace of them was found.

    What brokers serve, what waits to be collected, and the list of objects. Refused while there is
    a trace, a key's own tombstone included, or an object that nobody could search. It says that
    brokers' own disks were not searched.
    """
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock

    check_packages()
    from keeplast.service.erasure.attached_certificate import LiveTier, search_tier
    from keeplast.service.store_shelf import store_shelf

    with (
        decision_log_there(tier.store) as log,
        store_shelf(tier.store, options.requests) as shelf,
    ):
        if log is None:
            raise InvalidError("name the decision log. --store=None")

        def search(asked: ErasureRequest, keys: ErasureKeys) -> SearchedPlace:
            found = look_at_cluster(cluster, asked.topics, log)
            live = LiveTier(
                found.client, found.facts, found.folded, log, tier.open_layout(),
                wanted.settings_of(found.facts.topics),
            )  # fmt: skip
            with ProgressEvents("searching") as events, search_runner(workers) as runner:
                return search_tier(
                    live, SystemClock(), keys, grace_ms=GRACE_MS_DEFAULT, receipt=receipt,
                    planned=events.planned, progressed=events.progressed, runner=runner,
                )  # fmt: skip

        return sign_certificate(options, shelf, search, as_json=as_json)
