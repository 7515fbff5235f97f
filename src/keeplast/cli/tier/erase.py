"""``keeplast tier erase``: what a store has of keys that must go, whether they do, and by when."""

from __future__ import annotations

from keeplast.cli.erase import KeyOptions, asked_keys, say_answer
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import BrokerConfig, Json, NowMs
from keeplast.cli.tier.options import StoreAddress, broker_settings


@command(
    first=("store", "keys", "hash_key"),
    example="keeplast tier erase --store sqlite:///meta.db --keys leaving.txt --hash-key hash.key "
    "--topic customers --requests erasures",
)
def erase(
    call: StoreAddress,
    about: KeyOptions,
    broker_config: BrokerConfig = None,
    now_ms: NowMs = None,
    as_json: Json = False,
) -> Result:
    """Show for each key whether its delete is decided, where a store has it, and until when.

    Replaced segments are searched too; objects that no row names are not, nor what a host has not
    copied yet. The request is kept in --requests, if that is given. keeplast tier clean and collect
    do what may be done; a store has no certificate.
    """
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.erase import render_answer
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.config.mapping import cleaner_config
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure_book import add_request

    path = None if about.requests is None else about.requests.absolute()
    keys, topics, requests = asked_keys(about, path)
    check_packages()
    from keeplast.service.store_erasing import find_store_traces

    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    with call.opened(broker_config=broker_config) as opened, ProgressEvents("searching") as events:
        there = opened.partitions()
        strange = sorted(set(about.topics) - {each.topic for each in there})
        if strange:
            raise InvalidError(f"no such topic in the store; correct --topic. topic={strange[0]}")
        answer = find_store_traces(
            opened, [each for each in there if not topics or each.topic in topics],
            cleaner_config({}, cluster=broker_settings(broker_config)), now_ms, keys,
            planned=events.planned, progressed=events.progressed,
        )  # fmt: skip
    request = requests[0] if len(requests) == 1 else None
    if path is not None and not about.dry_run and not about.reapply:
        request = add_request(LocalFiles(), path, keys, about.topics, answer, answer.now_ms)
    code = say_answer(answer, about.topics)
    if not as_json:
        name = [] if request is None else [f"request {request.request_id}"]
        print_result(*name, *render_answer(answer))
    return code, {
        "request": None if request is None else request.request_id,
        "requests": [each.request_id for each in requests],
        **answer.document(),
    }
