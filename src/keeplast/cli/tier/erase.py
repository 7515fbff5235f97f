"""``keeplast tier erase``: what a store has of keys that must go, whether they do, and by when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import (
    Acted,
    KeyOptions,
    asked_keys,
    check_call,
    erase_keys,
    search_runner,
)
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import ROUND, BrokerConfig, Json, NowMs, Receipt
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.tier.options import GraceOptions, OwnedCall, spoken_cleaner

if TYPE_CHECKING:
    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.model.erasure_request import ErasureRequest
    from keeplast.service.erasure.erasure_answer import ErasureAnswer
    from keeplast.service.erasure.erasure_call import AskedErasure

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
    "--topic customers",
)
def erase(
    call: OwnedCall,
    about: KeyOptions,
    grace: GraceOptions,
    workers: RunnerOptions,
    readers: ReaderOptions,
    now: Now = False,
    broker_config: BrokerConfig = None,
    receipt: Receipt = None,
    now_ms: NowMs = None,
    as_json: Json = False,
) -> Result:
    """Show for each key whether its delete is decided, where a store has it, and until when.

    Replaced segments are searched too; what a host has not copied yet is not. The request is kept
    in the store's metadata, or in --requests. --now cleans and collects what may go, as the
    partitions' owner.
    """
    from keeplast.cli.frame.packages import check_packages
    from keeplast.errors import InvalidError

    if call.scope.partitions:
        raise InvalidError(
            "a request is of whole topics; leave --partition out. "
            f"--partition={list(call.scope.partitions)}"
        )
    check_call(about, now=now, now_ms=now_ms)
    brokers = readers.brokers()
    check_packages()
    from keeplast.service.erasure.erasure_book import name_elsewhere
    from keeplast.service.store_shelf import store_shelf

    with (
        store_shelf(call.store, None) as own,
        store_shelf(call.store, about.requests) as shelf,
    ):

        def kept(requests: Sequence[ErasureRequest]) -> None:
            # Undo heeds the store's own list, and no other.
            if about.requests is not None:
                name_elsewhere(own, requests)

        asked = asked_keys(about, call.scope.topics, shelf)
        eraser = _StoreEraser(call, grace, workers, asked, broker_config, receipt, now_ms, brokers)
        return erase_keys(about, asked, shelf, eraser, now=now, as_json=as_json, kept=kept)


@dataclass(frozen=True, slots=True)
class _StoreEraser:
    """The chosen partitions of a store."""

    call: OwnedCall
    grace: GraceOptions
    workers: RunnerOptions
    asked: AskedErasure
    broker_config: Path | None
    receipt: Path | None
    now_ms: int | None
    brokers: BrokerGroups | None

    def find(self) -> ErasureAnswer:
        """Search live segments and replaced ones."""
        from keeplast.cli.show.progress import ProgressEvents
        from keeplast.clock import SystemClock
        from keeplast.service.erasure.store_erasing import find_store_traces
        from keeplast.service.store_choice import choose_topics

        with (
            self.call.opened(broker_config=self.broker_config, brokers=self.brokers) as opened,
            ProgressEvents("searching") as events,
            search_runner(self.workers) as runner,
        ):
            return find_store_traces(
                opened, choose_topics(opened, self.asked.topics),
                spoken_cleaner(self.broker_config),
                SystemClock().now_ms() if self.now_ms is None else self.now_ms, self.asked.keys,
                planned=events.planned, progressed=events.progressed, runner=runner,
            )  # fmt: skip

    def act(self, answer: ErasureAnswer) -> Acted:
        """Do rounds of the partitions in which a key is, and collect."""
        from keeplast.cli.frame.exit_codes import error_exit_code
        from keeplast.cli.show.fault import fault_text
        from keeplast.cli.tier.steps import receipt_writer
        from keeplast.service.erasure.store_erasing import clean_store_traces

        faults = clean_store_traces(
            lambda: self.call.opened(broker_config=self.broker_config, brokers=self.brokers),
            answer.partitions_with_traces(), takes_over=self.call.take_over,
            grace_ms=self.grace.milliseconds, receipt=receipt_writer(self.receipt),
            cleaner=spoken_cleaner(self.broker_config),
        )  # fmt: skip
        return Acted(
            max((error_exit_code(error) for _, error in faults), default=0),
            tuple(f"{partition}: {fault_text(error)}" for partition, error in faults),
        )

    def document(self) -> dict[str, Any]:
        """Return nothing beside the answer."""
        return {}
