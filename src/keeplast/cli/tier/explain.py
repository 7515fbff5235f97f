"""``keeplast tier explain``: what there is of one key in a store, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.explain import Header, Key, Offset, Values, asked_key, require_one
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import FACTS, BrokerConfig, Json, NowMs
from keeplast.cli.tier.options import StoreCall, broker_settings

Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where rounds wrote their receipts.",
        rich_help_panel=FACTS,
    ),
]


@command(
    first=("store", "topics", "offset"),
    example="keeplast tier explain customer-17 --store sqlite:///meta.db --topic orders",
)
def explain(
    call: StoreCall,
    key: Key = None,
    offset: Offset = None,
    values: Values = False,
    header: Header = None,
    broker_config: BrokerConfig = None,
    receipt: Receipts = None,
    now_ms: NowMs = None,
    as_json: Json = False,
) -> Result:
    """Show every record of one key in object storage, replaced segments included.

    Says what becomes of each and when, and by when the last is gone. What a host has not copied
    yet is shown by keeplast explain DATA_DIR. Changes nothing.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.explain import (
        ExplainedPartition,
        explained_document,
        render_explained,
    )
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.config.mapping import cleaner_config
    from keeplast.inspect.traces import find_last_trace
    from keeplast.log.files import LocalFiles
    from keeplast.rewrite.workspace import Workspace
    from keeplast.service.status import ErasedBy
    from keeplast.service.status_words import erased_sentence
    from keeplast.service.tier_pace import tier_pace
    from keeplast.store.explain import explain_stored
    from keeplast.survey.receipt_book import read_receipts
    from keeplast.survey.request import MEMORY_BYTES_DEFAULT

    asked = asked_key(key, offset, header)
    receipts = () if receipt is None else read_receipts(receipt, LocalFiles())
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    workspace = Workspace(MEMORY_BYTES_DEFAULT)
    parts = []
    with (
        call.opened(broker_config=broker_config) as opened,
        ProgressEvents("searching") as events,
    ):
        looks = [opened.look(each) for each in call.chosen(opened)]
        looks = [each for each in looks if each.topic.is_compacted and each.state.routes]
        require_one(asked, len(looks))
        cleaner = cleaner_config({}, cluster=broker_settings(broker_config))
        pace = tier_pace(cleaner, [each.state.effective_bytes() for each in looks])
        events.planned(sum(each.state.effective_bytes() + each.orphan_bytes for each in looks))
        for look in looks:
            partition = look.state.partition
            found, copies = explain_stored(
                look, opened.parts().objects, asked, now_ms, workspace, events.progressed
            )
            bound = opened.erased_by(partition, pace)
            trace = find_last_trace(
                found, erased_by_ms=bound.by_ms,
                turn_ms=2 * pace.pass_ms + max(pace.grace_ms, pace.garbage_age_ms),
                has_expired_rounds=cleaner.has_expired_rounds,
            )  # fmt: skip
            erased = ErasedBy(bound.by_ms, bound.eligible_by_ms, bound.basis)
            parts.append(
                ExplainedPartition(
                    found, trace, erased_sentence(erased, now_ms, loop="keeplast tier run"),
                    [each for each in receipts if each.partition == partition], copies,
                )
            )  # fmt: skip
    if not as_json:
        print_result(*render_explained(parts, values=values))
    return DONE, explained_document(parts, values=values, key=asked.key)
