"""``keeplast tier explain``: what there is of one key in a store, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.explain import Header, Key, Offset, Values, asked_key
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import FACTS, BrokerConfig, Json, NowMs
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.tier.options import StoreCall, spoken_cleaner

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
    readers: ReaderOptions,
    workers: RunnerOptions,
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
    from keeplast.cli.frame.keys import KEY_WORDS
    from keeplast.cli.frame.packages import check_packages
    from keeplast.cli.show.explain import render_explained
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles
    from keeplast.survey.receipt_book import read_receipts

    asked, brokers = asked_key(key, offset, header), readers.brokers()
    receipts = () if receipt is None else read_receipts(receipt, LocalFiles())
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    check_packages()
    from keeplast.service.store_answer import answer_from_store

    with (
        call.opened(broker_config=broker_config, brokers=brokers, only_looks=True) as opened,
        ProgressEvents("searching") as events,
        search_runner(workers) as runner,
    ):
        cleaner = spoken_cleaner(broker_config)
        answer = answer_from_store(
            opened, call.chosen(opened), cleaner, now_ms, asked, receipts=receipts,
            planned=events.planned, progressed=events.progressed, runner=runner,
        )  # fmt: skip
    if not as_json:
        print_result(*render_explained(answer, values=values, key_words=KEY_WORDS))
    return DONE, answer.document(values=values)
