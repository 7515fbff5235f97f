"""``keeplast attach explain``: what there is of one key in a live cluster's remote tier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.attach.options import (
    ClusterOptions,
    Partitions,
    Storage,
    StorageOptions,
    TierOptions,
    WantedOptions,
    decision_log_there,
    fold,
)
from keeplast.cli.attach.upkeep import GraceMs
from keeplast.cli.explain import Header, Key, Offset, Values, asked_key
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import FACTS, Json
from keeplast.errors import RefusedError

DecisionStore = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="The decision log: it says how far a partition is clean, and when what was replaced "
        "may be collected. Default: none.",
    ),
]  # fmt: skip
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", help="Where rounds wrote their receipts.",
        rich_help_panel=FACTS,
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedExplainOptions:
    """What ``attach explain`` takes beside the key."""

    key: Key = None
    cluster: ClusterOptions
    storage: Storage
    storage_options: StorageOptions = ()
    store: DecisionStore = None
    wanted: WantedOptions
    offset: Offset = None
    partitions: Partitions = ()
    values: Values = False
    header: Header = None
    grace_ms: GraceMs = None
    workers: RunnerOptions
    receipt: Receipts = None


@command(
    first=("bootstrap_server", "storage", "topics"),
    example="keeplast attach explain customer-17 --bootstrap-server localhost:9092"
    " --storage local:/mnt/tier --store sqlite:///decisions.db --topic orders",
)
def explain(options: AttachedExplainOptions, as_json: Json = False) -> Result:
    """Show every record of one key in the remote tier: what brokers serve, and what was replaced.

    Says what becomes of each, when, and by when the last is gone, and what was not searched: what
    brokers alone have. All partitions of the chosen topics are read once, from their objects. Joins
    no group, claims nothing and writes nothing.
    """
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
    from keeplast.cli.frame.exit_codes import DONE, REFUSED, error_exit_code
    from keeplast.cli.frame.keys import KEY_WORDS
    from keeplast.cli.show.explain import render_explained
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles
    from keeplast.service.cluster_answer import answer_from_cluster, choose_attached
    from keeplast.survey.receipt_book import read_receipts

    asked = asked_key(options.key, options.offset, options.header)
    receipts = () if options.receipt is None else read_receipts(options.receipt, LocalFiles())
    tier = TierOptions(
        store=options.store or "", storage=options.storage,
        storage_options=options.storage_options,
    )  # fmt: skip
    grace_ms = check_grace(
        GRACE_MS_DEFAULT if options.grace_ms is None else options.grace_ms,
        is_object_store=tier.is_object_store,
    )
    layout = tier.open_layout()
    with decision_log_there(options.store, only_looks=True) as log:
        client = options.cluster.connect()
        facts = client.read_facts(options.cluster.topics)
        chosen = choose_attached(facts, options.partitions)
        asked.require_one(len(chosen))
        if facts.metadata_topic is None:
            raise RefusedError("nothing was ever copied to a remote tier here")
        folded = fold(client, facts, facts.metadata_topic, log)
        folded.require_sound()
        settings = options.wanted.settings_of(facts.topics)
        with ProgressEvents("searching") as events, search_runner(options.workers) as runner:
            answer = answer_from_cluster(
                client, facts, folded.cache, log, layout, settings, chosen, SystemClock(), asked,
                grace_ms=grace_ms, receipts=receipts, planned=events.planned,
                progressed=events.progressed, runner=runner,
            )  # fmt: skip
    for partition, reason in answer.left_out:
        say(f"{partition} is not searched: {reason}", kind="note")
    code = DONE
    for partition, error in answer.faults:
        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error))
    if not answer.parts and not answer.faults:
        code = REFUSED  # nobody knows whether the key is there
    if not as_json:
        print_result(*render_explained(answer, values=options.values, key_words=KEY_WORDS))
    return code, answer.document(values=options.values, fault_text=fault_text)
