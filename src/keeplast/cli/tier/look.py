"""``keeplast tier status`` and ``verify``: what a store holds, and whether that is so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import BrokerConfig, Json, Note
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.tier.options import StoreCall, local_places, spoken_cleaner

if TYPE_CHECKING:
    from keeplast.inspect.verdicts import VerificationReport
    from keeplast.model.partition import TopicPartition
    from keeplast.store.tiered_store import TieredStore
    from keeplast.store.verification import TierJudgement
    from keeplast.survey.receipt_book import RoundReceipt
    from keeplast.survey.receipt_chain import ChainReport

Local = Annotated[
    Path | None,
    typer.Option(
        "--local", metavar="DIR", show_default=False,
        help="The data directory of a host: its local logs are shown too. Only read.",
    ),
]  # fmt: skip
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", show_default=False,
        help="A receipt file of rounds in this store: its lines are held against what was kept.",
    ),
]  # fmt: skip
ErasedBy = Annotated[
    bool,
    typer.Option(
        "--erased-by",
        help="Say too by when what is overwritten or deleted now is gone from the objects, while "
        "keeplast tier run goes and its rounds succeed. Reads what segments say of tombstones.",
    ),
]  # fmt: skip


@command(
    first=("store", "topics", "local"), example="keeplast tier status --store sqlite:///meta.db"
)
def status(
    call: StoreCall,
    readers: ReaderOptions,
    local: Local = None,
    erased_by: ErasedBy = False,
    broker_config: BrokerConfig = None,
    as_json: Json = False,
) -> Result:
    """Show each partition: what is cleaned and dirty, in which tier, and what waits to be removed.

    With `--local` the local log of a host is shown beside what is in object storage.
    """
    from keeplast.cli.show.output import print_result, screen_width
    from keeplast.cli.show.tier_status import (
        erased_lines,
        given_up_lines,
        status_parts,
        wait_lines,
    )
    from keeplast.service.documents import store_document

    erasures = {}
    places, brokers = local_places(local), readers.brokers()
    with call.opened(broker_config=broker_config, brokers=brokers, only_looks=True) as opened:
        found = [opened.status(each, places(each)) for each in call.chosen(opened)]
        given_up = [each for each in opened.forgotten() if call.scope.includes(each)]
        if erased_by:
            from keeplast.service.tier_pace import tier_pace

            pace = tier_pace(spoken_cleaner(broker_config), [each.remote_bytes for each in found])
            for each in found:
                erasures[each.partition] = opened.erased_by(
                    each.partition, pace, places(each.partition)
                )
    if not as_json:
        print_result(
            *status_parts(found, screen_width()), *wait_lines(found), *erased_lines(erasures),
            *given_up_lines(given_up),
        )  # fmt: skip
    return 0, store_document(found, given_up, erasures)


@command(
    first=("store", "topics", "receipt"),
    example="keeplast tier verify --store sqlite:///meta.db",
)
def verify(
    call: StoreCall, receipt: ReceiptFile = None, note: Note = False, as_json: Json = False
) -> Result:
    """Read every live object and check the store's invariants; changes nothing.

    With `--receipt` also that no line of it was changed, moved or removed, up to the last one that
    a commit of the store has kept; where it keeps some, a file that is none of those is a problem.
    With `--note` each verdict is appended to it, for the rounds that what is live has come of.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.show.tier_status import findings_document, findings_lines
    from keeplast.store.verification import judge_partition

    rounds: tuple[RoundReceipt, ...] = ()
    if note:
        from keeplast.cli.verify_note import note_all, read_judged

        rounds = read_judged(receipt, notes=True)
    found, judged = {}, {}
    with call.opened(only_looks=True) as opened:
        parts = opened.parts()
        for each in call.chosen(opened):
            with ProgressEvents(f"reading {each}") as events:
                judged[each] = judge_partition(
                    parts.metadata, parts.objects, each, events.progressed, events.planned
                )
            found[each] = judged[each].findings
            if not as_json:
                print_result(*findings_lines({each: found[each]}))
        chain = None if receipt is None else _chain(opened, receipt)
    broken = any(found.values()) or (chain is not None and bool(chain.problems))
    document: dict[str, Any] = {"partitions": findings_document(found)}
    if chain is not None:
        document["receipt"] = {
            "sentence": chain.sentence,
            "is_tail_proven": chain.is_tail_proven,
            "host": None if chain.chain is None else chain.chain.host,
            "chains_elsewhere": len(chain.others),
            "problems": chain.problems,
        }
        if not as_json:
            print_result(f"receipt: {chain.sentence}", *(f"  {each}" for each in chain.problems))
    if note and receipt is not None and chain is not None:
        reports = {each: _report(each, judged[each], rounds, chain) for each in judged}
        document["noted"] = note_all(receipt, reports)
    return CHECK_FAILED if broken else DONE, document


def _report(
    partition: TopicPartition,
    judged: TierJudgement,
    rounds: tuple[RoundReceipt, ...],
    chain: ChainReport,
) -> VerificationReport:
    """Return what is noted of a partition: what is broken, and of which rounds that is said."""
    from keeplast.format.filename import LOG
    from keeplast.inspect.receipt_groups import Print, rounds_behind, rounds_within
    from keeplast.inspect.receipt_proof import chain_check
    from keeplast.inspect.verdicts import Findings, VerificationReport
    from keeplast.model.verdict import JudgedBy

    broken: dict[str, Findings] = {}
    for each in judged.findings:
        broken.setdefault(each.invariant, Findings()).add(each.problem, offset=each.offset)
    state = judged.state
    live = {
        each.base_offset: Print(each.size_bytes, each.files[LOG].crc32c)
        for each in judged.segments
        if LOG in each.files
    }
    mine = [each for each in rounds if each.partition == partition]
    # What was replaced is not what is broken.
    judged_rounds = rounds_within(mine, live) if broken else rounds_behind(mine, live)
    return VerificationReport(
        str(partition),
        (*(broken[name].check(name, name) for name in sorted(broken)), chain_check(chain)),
        rounds=tuple(each.name for each in judged_rounds),
        judged_by=None
        if state is None
        else JudgedBy("tier verify", state.leader_epoch, state.first_dirty()),
    )


def _chain(opened: TieredStore, path: Path) -> ChainReport:
    """Return what a receipt's chain proves by the heads that the store has kept."""
    from keeplast.log.files import LocalFiles
    from keeplast.survey.kept_heads import read_kept_chain

    return read_kept_chain(path, LocalFiles(), opened.parts().metadata.facts)
