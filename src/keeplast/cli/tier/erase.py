"""``keeplast tier erase``: what a store has of keys that must go, whether they do, and by when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.erase import ROUNDS_OF_NOW, KeyOptions, asked_keys, say_answer
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import ROUND, BrokerConfig, Json, NowMs, Receipt
from keeplast.cli.tier.options import GraceOptions, OwnedCall, broker_settings

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition
    from keeplast.service.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.store.tiered_store import TieredStore

Now = Annotated[
    bool,
    typer.Option(
        "--now",
        help="Do what may be done now: clean, drop what has expired, collect what was replaced "
        "once its grace has passed. What has to wait has its date.",
        rich_help_panel=ROUND,
    ),
]


@command(
    first=("store", "keys", "hash_key"),
    example="keeplast tier erase --store sqlite:///meta.db --keys leaving.txt --hash-key hash.key "
    "--topic customers --requests erasures",
)
def erase(
    call: OwnedCall,
    about: KeyOptions,
    grace: GraceOptions,
    now: Now = False,
    broker_config: BrokerConfig = None,
    receipt: Receipt = None,
    now_ms: NowMs = None,
    as_json: Json = False,
) -> Result:
    """Show for each key whether its delete is decided, where a store has it, and until when.

    Replaced segments are searched too; what a host has not copied yet is not. The request is kept
    in --requests, if that is given. --now cleans and collects what may go, as the partitions'
    owner.
    """
    from keeplast.cli.frame.exit_codes import DONE, error_exit_code
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.erase import render_answer
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import print_result, say
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles
    from keeplast.service.erasure_book import add_request

    if call.scope.partitions:
        raise InvalidError(
            "a request is of whole topics; leave --partition out. "
            f"--partition={list(call.scope.partitions)}"
        )
    if now and about.dry_run:
        raise InvalidError("--now changes logs and --dry-run nothing; leave one out. --now=True")
    path = None if about.requests is None else about.requests.absolute()
    keys, topics, requests = asked_keys(about, call.scope.topics, path)
    check_packages()
    answer = _find(call, topics, keys, broker_config, now_ms)
    request = requests[0] if len(requests) == 1 else None
    if path is not None and not about.dry_run and not about.reapply:
        request = add_request(LocalFiles(), path, keys, topics, answer, answer.now_ms)
    faults: list[tuple[TopicPartition, Exception]] = []
    if now and answer.there:
        faults = _clean(call, grace, answer.partitions_with_traces(), broker_config, receipt)
        answer = _find(call, topics, keys, broker_config, now_ms)
    code = say_answer(answer, call.scope.topics)
    for partition, error in faults:
        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error), DONE)
    if not as_json:
        name = [] if request is None else [f"request {request.request_id}"]
        print_result(*name, *render_answer(answer))
    document: dict[str, Any] = {
        "request": None if request is None else request.request_id,
        "requests": [each.request_id for each in requests],
        **answer.document(),
    }
    return code, document


def choose_stored(opened: TieredStore, topics: Sequence[str]) -> list[TopicPartition]:
    """Return a store's partitions of ``topics``, all without any; InvalidError where one is not."""
    from keeplast.errors import InvalidError

    there = opened.partitions()
    strange = sorted(set(topics) - {each.topic for each in there})
    if strange:
        raise InvalidError(f"no such topic in the store; correct --topic. topic={strange[0]}")
    return [each for each in there if not topics or each.topic in topics]


def _find(
    call: OwnedCall,
    topics: Sequence[str],
    keys: ErasureKeys,
    broker_config: Path | None,
    now_ms: int | None,
) -> ErasureAnswer:
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.config.mapping import cleaner_config
    from keeplast.service.store_erasing import find_store_traces

    with call.opened(broker_config=broker_config) as opened, ProgressEvents("searching") as events:
        return find_store_traces(
            opened, choose_stored(opened, topics),
            cleaner_config({}, cluster=broker_settings(broker_config)),
            SystemClock().now_ms() if now_ms is None else now_ms, keys,
            planned=events.planned, progressed=events.progressed,
        )  # fmt: skip


def _clean(
    call: OwnedCall,
    grace: GraceOptions,
    partitions: Sequence[TopicPartition],
    broker_config: Path | None,
    receipt: Path | None,
) -> list[tuple[TopicPartition, Exception]]:
    """Do rounds of the partitions in which a key is, and collect; returns what failed of each."""
    from keeplast.cli.tier.steps import receipt_writer
    from keeplast.errors import CompactionError

    line_to = receipt_writer(receipt)
    faults: list[tuple[TopicPartition, Exception]] = []
    left = list(partitions)
    for number in range(ROUNDS_OF_NOW):
        # Each by itself: one remembers what it has examined, and dates of that moment with it.
        with call.opened(broker_config=broker_config) as opened:
            for each in tuple(left):
                try:
                    opened.clean(
                        each, takes_over=call.take_over, grace_ms=grace.milliseconds,
                        receipt=line_to, force=True, expired=True,
                    )  # fmt: skip
                    if number + 1 == ROUNDS_OF_NOW:
                        opened.collect(each, takes_over=call.take_over)
                except (CompactionError, OSError) as error:
                    faults.append((each, error))
                    left.remove(each)
    return faults
