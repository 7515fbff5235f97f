"""``keeplast attach verify``: judge independently what brokers serve of compacted topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import ClusterOptions, Partitions, TierOptions, WantedOptions
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import memory_size
from keeplast.cli.frame.parameters import FACTS, MEMORY_DEFAULT, RUN, Json, Note
from keeplast.errors import CompactionError, InvalidError
from keeplast.model.partition import TopicPartition

if TYPE_CHECKING:
    from keeplast.inspect.verdicts import VerificationReport
    from keeplast.survey.receipt_book import RoundReceipt

Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also when a check cannot be judged.")
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", rich_help_panel=RUN,
        help="What sorting keys may hold in memory; the rest lies in the system's temporary "
        "directory.",
    ),
]  # fmt: skip
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", show_default=False, rich_help_panel=FACTS,
        help="A receipt file of rounds of these topics: that no line of it was changed, or cut "
        "off before what the decision log has kept, is a check more.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedVerifyOptions:
    """What ``attach verify`` takes."""

    cluster: ClusterOptions
    tier: TierOptions
    wanted: WantedOptions
    partitions: Partitions = ()
    receipt: ReceiptFile = None
    note: Note = False
    memory: Memory = MEMORY_DEFAULT
    strict: Strict = False


@command(
    first=("bootstrap_server", "store", "storage"),
    example="keeplast attach verify --bootstrap-server localhost:9092 --store sqlite:///decisions.db"
    " --storage local:/mnt/tier --topic orders",
)
def verify(options: AttachedVerifyOptions, as_json: Json = False) -> Result:
    """Read partitions through brokers and from their objects, and judge what is there.

    Consumers read in both isolation levels, without a group; each object that brokers would read is
    read too, since their caches hide what is missing. Compared are both with each other, with the
    decision log, and what was replaced with what is served. Each check *holds*, is *broken* (exit
    1), or *cannot be judged*, with the reason. Nothing is changed; with --note each verdict is
    appended to the receipt, for the rounds that what is served has come of.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE, error_exit_code
    from keeplast.cli.show.outcome import checks_line
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.verify import render
    from keeplast.errors import error_text
    from keeplast.model.verdict import Verdict

    code, reports, noted = DONE, [], 0
    documents: list[object] = []
    for partition, found in _reports(options):
        name = str(partition)
        if isinstance(found, Exception):
            code = max(code, error_exit_code(found))
            documents.append({"partition": name, "error": error_text(found)})
            say(f"{name}: {error_text(found)}", kind="error")
            continue
        reports.append(found)
        documents.append(found)
        if not as_json:
            print_result(*render(found))
        if options.note and options.receipt is not None:
            from keeplast.cli.verify_note import note_all

            noted += note_all(options.receipt, {partition: found})
    verdicts = {each.verdict for each in reports}
    if not as_json and (len(reports) > 1 or Verdict.UNJUDGED in verdicts):
        print_result("", checks_line(reports, is_strict=options.strict))
    if Verdict.BROKEN in verdicts or (options.strict and Verdict.UNJUDGED in verdicts):
        code = max(code, CHECK_FAILED)
    document: dict[str, object] = {"partitions": documents}
    if options.note:
        document["noted"] = noted
    return code, document


def _reports(
    options: AttachedVerifyOptions,
) -> Iterator[tuple[TopicPartition, VerificationReport | CompactionError | OSError]]:
    """Yield what is found of each partition, or why nothing could be."""
    from keeplast.attach.proof.verification import AttachedVerifier, AttachedVerifySettings
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.verify_note import read_judged
    from keeplast.inspect.receipt_proof import with_check
    from keeplast.log.files import LocalFiles
    from keeplast.model.redaction import shown_url
    from keeplast.survey.kept_heads import read_kept_chain
    from keeplast.tier.metadata.database import is_missing

    rounds: tuple[RoundReceipt, ...] = read_judged(options.receipt, notes=options.note)
    memory_bytes = memory_size(options.memory)
    store = options.tier.store
    if is_missing(store):
        raise InvalidError(f"there is no such decision log. --store={shown_url(store)}")
    client = options.cluster.connect()
    layout = options.tier.open_layout()
    facts = client.read_facts(options.cluster.topics)
    settings = options.wanted.settings_of(facts.topics)
    chosen = [
        (topic, number)
        for topic in facts.topics
        for number in range(topic.partition_count)
        if not options.partitions or number in options.partitions
    ]
    if not chosen:
        raise InvalidError(
            "no such partition of a tiered topic; correct --topic and --partition. "
            f"partitions={list(options.partitions)} topics={[each.name for each in facts.topics]}"
        )
    with options.tier.open_log(only_looks=True) as log:
        chain = None
        if options.receipt is not None:
            chain = read_kept_chain(options.receipt, LocalFiles(), log.facts)
        for topic, number in chosen:
            partition = TopicPartition(topic.name, number)
            with ProgressEvents(f"reading {partition}") as events:
                verifier = AttachedVerifier(client, log, layout, events.progressed, events.planned)
                wanted = AttachedVerifySettings(
                    topic=settings.topic_config(topic.name), memory_bytes=memory_bytes,
                    receipts=tuple(each for each in rounds if each.partition == partition),
                )  # fmt: skip
                found: VerificationReport | CompactionError | OSError
                try:
                    report = verifier.verify(topic, number, wanted)
                    found = report if chain is None else with_check(report, chain)
                except (CompactionError, OSError) as error:
                    found = error
            yield partition, found
