"""``keeplast attach erase``: what a remote tier has of keys that must go, whether they do, by when.

Only with ``--now`` is anything claimed or changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.attach.options import (
    AttachedCleanOptions,
    BrokerMetricsUrls,
    ClusterAddress,
    ClusterOptions,
    KeylessChoice,
    RoundChoice,
    TakeOver,
    TierOptions,
    WantedOptions,
    decision_log_there,
    fold,
    why_wait_of,
)
from keeplast.cli.attach.upkeep import GraceMs
from keeplast.cli.erase import Topics
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import (
    Acted,
    KeyOptions,
    asked_keys,
    check_call,
    erase_keys,
    search_runner,
)
from keeplast.cli.frame.options import RunnerOptions, WorkOptions
from keeplast.cli.frame.parameters import ROUND, Json, Receipt
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.keyless import Keyless

if TYPE_CHECKING:
    from keeplast.attach.held.publication import Publisher
    from keeplast.cluster.client import ClusterClient
    from keeplast.cluster.facts import ClusterFacts
    from keeplast.cluster.metadata_log import FoldedMetadata
    from keeplast.run.receipt import Receipt as ReceiptWriter
    from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.erasure.erasure_call import AskedErasure
    from keeplast.survey.report import CleanReport
    from keeplast.tier.metadata.decisions import DecisionLog

Now = Annotated[
    bool,
    typer.Option(
        "--now",
        help="Do what may be done now, under live brokers: claim, clean, collect what was replaced "
        "once its grace has passed. What has to wait has its date, where there is one.",
        rich_help_panel=ROUND,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedEraseOptions:
    """What ``attach erase`` takes."""

    about: KeyOptions
    cluster: ClusterAddress
    topics: Topics = ()
    tier: TierOptions
    wanted: WantedOptions
    now: Now = False
    grace_ms: GraceMs = None
    broker_metrics: BrokerMetricsUrls = ()
    keyless: KeylessChoice = Keyless.FAIL
    workers: RunnerOptions
    work: WorkOptions
    receipt: Receipt = None
    take_over: TakeOver = False

    @property
    def grace(self) -> int:
        """Return how long replaced segments lie; InvalidError when readers would fail."""
        from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace

        return check_grace(
            GRACE_MS_DEFAULT if self.grace_ms is None else self.grace_ms,
            is_object_store=self.tier.is_object_store,
        )


@command(
    first=("keys", "hash_key", "topics"),
    example="keeplast attach erase --bootstrap-server localhost:9092 --storage local:/mnt/tier "
    "--store sqlite:///decisions.db --keys leaving.txt --hash-key hash.key --topic customers",
)
def erase(options: AttachedEraseOptions, as_json: Json = False) -> Result:
    """Show for each key whether its delete is decided, where the remote tier has it, until when.

    Segments that brokers serve, and those that wait to be collected; not what brokers alone have.
    The request is kept beside the decisions, or in --requests. A key's own tombstone is a trace
    too. keeplast attach certificate says it in writing when nothing is left.
    """
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.packages import check_packages

    about = options.about
    check_call(about, now=options.now)
    # What an argument can be wrong about is found before anything is opened.
    _ = (
        options.grace,
        why_wait_of(options.broker_metrics),
        options.work.memory_bytes,
        options.work.task_memory_bytes,
    )
    wiring.check_runner(options.workers.chosen_runner, master=options.workers.master)
    check_packages()
    from keeplast.service.store_shelf import store_shelf

    with (
        decision_log_there(options.tier.store) as log,
        store_shelf(options.tier.store, about.requests) as shelf,
    ):
        if log is None:
            raise InvalidError("name the decision log. --store=None")
        asked = asked_keys(about, options.topics, shelf)
        eraser = _TierEraser(options, asked, log)
        return erase_keys(about, asked, shelf, eraser, now=options.now, as_json=as_json)


@dataclass(frozen=True, slots=True)
class SearchedCluster:
    """A cluster as it stands, whose metadata topic was read to its end."""

    client: ClusterClient
    facts: ClusterFacts
    folded: FoldedMetadata


def look_at_cluster(
    cluster: ClusterAddress, topics: tuple[str, ...], log: DecisionLog
) -> SearchedCluster:
    """Read what there is of ``topics``, of every tiered one without; RefusedError for no tier."""
    client = cluster.connect()
    facts = client.read_facts(topics)
    if facts.metadata_topic is None:
        raise RefusedError("nothing was ever copied to a remote tier here")
    folded = fold(client, facts, facts.metadata_topic, log)
    folded.require_sound()
    return SearchedCluster(client, facts, folded)


def search_tier(
    found: SearchedCluster,
    tier: TierOptions,
    wanted: WantedOptions,
    log: DecisionLog,
    keys: ErasureKeys,
    grace_ms: int,
    workers: RunnerOptions,
) -> ErasureAnswer:
    """Search the remote tier of the topics that were looked at."""
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.service.erasure.attached_erasing import find_attached_traces

    with ProgressEvents("searching") as events, search_runner(workers) as runner:
        return find_attached_traces(
            found.client, found.facts, found.folded.cache, log, tier.open_layout(),
            wanted.settings_of(found.facts.topics), SystemClock(), keys, grace_ms=grace_ms,
            planned=events.planned, progressed=events.progressed, runner=runner,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TierEraser:
    """The remote tier of the topics that are asked about."""

    options: AttachedEraseOptions
    asked: AskedErasure
    log: DecisionLog

    def find(self) -> ErasureAnswer:
        """Search what brokers serve and what they hide; claims nothing."""
        options = self.options
        found = look_at_cluster(options.cluster, self.asked.topics, self.log)
        return search_tier(
            found, options.tier, options.wanted, self.log, self.asked.keys, options.grace,
            options.workers,
        )  # fmt: skip

    def act(self, answer: ErasureAnswer) -> Acted:
        """Do rounds, and collect behind each; nothing that may not be done is done."""
        from keeplast.attach.upkeep.collection import collect
        from keeplast.cli.attach.rounds import clean_holding
        from keeplast.cli.frame.verdict import report_errors, report_exit_code
        from keeplast.cli.show.output import say
        from keeplast.service.erasure.directory_erasing import ROUNDS_OF_NOW

        options, grace_ms = self.options, self.options.grace
        why_wait = why_wait_of(options.broker_metrics)
        cleaning = AttachedCleanOptions(
            cluster=ClusterOptions(
                bootstrap_server=options.cluster.bootstrap_server,
                command_config=options.cluster.command_config, topics=self.asked.topics,
            ),
            tier=options.tier,
            wanted=options.wanted, choice=RoundChoice(force=True, keyless=options.keyless),
            workers=options.workers, work=options.work, receipt=options.receipt,
            take_over=options.take_over,
        )  # fmt: skip

        def behind(publisher: Publisher, receipt: ReceiptWriter | None) -> None:
            found = collect(publisher, grace_ms, receipt=receipt, why_wait=why_wait)
            if found.held_back is not None:
                say(f"{publisher.name}: nothing is deleted: {found.held_back}", kind="warning")

        done: list[CleanReport] = []
        while len(done) < ROUNDS_OF_NOW:
            report, stopped = clean_holding(
                cleaning, self.log, answer.partitions_with_traces(), behind
            )
            done.append(report)
            if stopped is not None:
                break
        worst = max(done, key=report_exit_code)
        code = max(report_exit_code(worst), stopped or 0)
        return Acted(code, tuple(report_errors(worst)), {"rounds": done[0].partitions})

    def document(self) -> dict[str, Any]:
        """Return that no rounds were done as yet."""
        return {"rounds": None}
