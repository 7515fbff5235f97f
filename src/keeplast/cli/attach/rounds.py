"""What ``keeplast attach clean`` and ``plan`` do to each partition that was chosen.

A fault of one partition is in its report and stops no other; the greatest exit code counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace

from rich.console import RenderableType

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.round import (
    RoundCosts,
    RoundWish,
    clean_attached,
    clean_to,
    margin_of,
    plan_attached,
)
from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT
from keeplast.attach.upkeep.repair import repair
from keeplast.cli.attach.options import (
    AttachedCleanOptions,
    ClusterOptions,
    RoundChoice,
    TierOptions,
    WantedOptions,
    fold,
)
from keeplast.cli.frame import wiring
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.frame.verdict import is_stopped, report_errors, report_exit_code
from keeplast.cli.show.attach import costs_table, tombstone_lines
from keeplast.cli.show.outcome import closing_line
from keeplast.cli.show.output import print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.tables import (
    bounds_table,
    filter_lines,
    note_lines,
    reasons_table,
    summary_table,
)
from keeplast.clock import SystemClock
from keeplast.cluster.check import Severity, check_cluster, check_topic
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.facts import ASSUMED_OF_BROKERS, ClusterFacts, TopicFacts
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.errors import CompactionError, RefusedError, StoppedError
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.runner import Runner
from keeplast.run.place import RunnerFor
from keeplast.run.receipt import Receipt
from keeplast.service.cluster_answer import choose_attached
from keeplast.service.receipts import receipt_to
from keeplast.service.tombstone_dates import find_tombstones
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName

Behind = Callable[[Publisher, Receipt | None], None]
"""What is done to a partition behind its round, while it is held; ``receipt`` takes lines."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What was opened for a call, and what was read of the cluster when it began."""

    client: ClusterClient
    facts: ClusterFacts
    settings: Settings
    layout: RemoteLayout
    log: DecisionLog
    address: str
    groups: BrokerGroups
    keep_sources_ms: int = 0

    def terms(self, topic: TopicFacts) -> AttachTerms:
        """Return what the check is told of a topic."""
        policy = self.settings.topic_config(topic.name).cleanup_policy
        return AttachTerms(policy, self.address, self.keep_sources_ms)

    def wish(self, topic: TopicFacts, choice: RoundChoice) -> RoundWish:
        """Return what is asked of a topic's rounds."""
        config = self.settings.topic_config(topic.name)
        return RoundWish(
            topic=config, margin_bytes=margin_of(config, topic),
            cleaner=self.settings.cleaner_config(), keyless=choice.keyless, force=choice.force,
            brokers=self.groups,
        )  # fmt: skip

    def chosen(self, choice: RoundChoice) -> list[tuple[TopicFacts, int]]:
        """Return the chosen partitions; InvalidError when there is none."""
        return choose_attached(self.facts, choice.partitions)


def clean_topics(options: AttachedCleanOptions, *, as_json: bool) -> Result:
    """Do a round for each chosen partition."""
    # What an argument can be wrong about is found before anything is opened.
    receipt = receipt_to(LocalFiles(), options.receipt)
    _ = options.work.memory_bytes, options.work.task_memory_bytes
    workers = options.workers
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    with options.tier.open_log() as log:
        call = replace(
            _open(options.cluster, options.tier, options.wanted, log),
            keep_sources_ms=options.keep_sources or 0,
        )
        chosen = call.chosen(options.choice)
        wiring.say_start(workers.chosen_runner)
        done, signal_code = _do_rounds(call, chosen, options, receipt)
    if not as_json:
        print_result(*_report_parts(done))
    for message in report_errors(done):
        say(message, kind="error")
    code = report_exit_code(done)
    if signal_code is not None and is_stopped(done):
        code = signal_code
    return code, done


def clean_holding(
    options: AttachedCleanOptions,
    log: DecisionLog,
    partitions: Collection[TopicPartition],
    behind: Behind,
) -> tuple[CleanReport, int | None]:
    """Do a round for each of ``partitions``, and ``behind`` while it is still held.

    Returns the exit code of the signal that ended it too, None without one.
    """
    receipt = receipt_to(LocalFiles(), options.receipt)
    call = _open(options.cluster, options.tier, options.wanted, log)
    chosen = [
        (topic, number)
        for topic, number in call.chosen(options.choice)
        if TopicPartition(topic.name, number) in partitions
    ]
    return _do_rounds(call, chosen, options, receipt, behind)


def _open(
    cluster: ClusterOptions, tier: TierOptions, wanted: WantedOptions, log: DecisionLog
) -> _Call:
    client = cluster.connect()
    facts = client.read_facts(cluster.topics)
    settings = wanted.settings_of(facts.topics)
    return _Call(
        client, facts, settings, tier.open_layout(), log, cluster.bootstrap_server,
        BrokerGroups(client),
    )  # fmt: skip


def _do_rounds(
    call: _Call,
    chosen: list[tuple[TopicFacts, int]],
    options: AttachedCleanOptions,
    receipt: Receipt | None,
    behind: Behind = lambda publisher, receipt: None,
) -> tuple[CleanReport, int | None]:
    stopping = threading.Event()
    reports: list[PartitionReport] = []
    with (
        ProgressEvents("cleaning") as events,
        wiring.open_runner(
            options.workers.chosen_runner, master=options.workers.master,
            cores=options.workers.cores,
        ) as runner,
        StopSignals(stopping.set) as signals,
    ):  # fmt: skip

        def progressed(read_bytes: int) -> None:
            events.progressed(read_bytes)
            if stopping.is_set():
                raise StoppedError("stopped on request; what is published stays, run again")

        for topic, number in chosen:
            report = _do_round(call, topic, number, options, runner, progressed, receipt, behind)
            events.finished(TopicPartition(topic.name, number), report)
            reports.append(PartitionReport(topic.name, number, (report,)))
    return CleanReport(tuple(reports)), signals.exit_code


def _do_round(
    call: _Call,
    topic: TopicFacts,
    number: int,
    options: AttachedCleanOptions,
    runner: Runner,
    progressed: Callable[[int], None],
    receipt: Receipt | None,
    behind: Behind,
) -> RoundReport:
    """Claim, repair, do a round, then ``behind``; what is no defect of ours is in its report."""
    work = options.work
    try:
        progressed(0)
        wish = replace(
            call.wish(topic, options.choice), memory_bytes=work.memory_bytes,
            task_memory_bytes=work.task_memory_bytes, shape=work.shape,
        )  # fmt: skip
        publisher = claim(
            call.client, call.log, call.layout, name_of(topic, number), call.facts.cluster_id,
            call.terms(topic), takes_over=options.take_over,
        )  # fmt: skip
        try:
            repair(publisher)
            report = clean_attached(
                publisher, wish, lambda _: nullcontext(runner), SystemClock(),
                progressed=progressed, receipt=receipt,
            )  # fmt: skip
            behind(publisher, receipt)
            return report
        finally:
            publisher.close()
    except (CompactionError, OSError) as error:
        return RoundReport(error=describe_error(error), failure=error)


def _report_parts(done: CleanReport) -> Iterator[RenderableType]:
    """Yield the summary, and what there is to know besides."""
    yield summary_table(done)
    reasons = reasons_table(done)
    for more in (note_lines(done), [] if reasons is None else [reasons], filter_lines(done)):
        if more:
            yield ""
            yield from more
    yield ""
    yield closing_line(done)


def plan_topics(
    cluster: ClusterOptions,
    tier: TierOptions,
    wanted: WantedOptions,
    choice: RoundChoice,
    *,
    exact: bool,
    as_json: bool,
) -> Result:
    """Say what a round of each chosen partition would do, and what it would cost."""
    with tier.open_log() as log, ExitStack() as stack:
        call = _open(cluster, tier, wanted, log)
        chosen = call.chosen(choice)
        if call.facts.metadata_topic is None:
            raise RefusedError("nothing was ever copied to a remote tier here")
        folded = fold(call.client, call.facts, call.facts.metadata_topic, call.log)
        folded.require_sound()
        counting = None
        if exact:
            events = stack.enter_context(ProgressEvents("counting"))
            runner = stack.enter_context(
                wiring.open_runner(wiring.RunnerName.LOCAL, master=None, cores=None)
            )
            counting = (lambda _: nullcontext(runner)), events.progressed
        planned = [
            (topic, number, *_plan(call, topic, number, choice, folded.cache.partitions.get(
                name_of(topic, number)), counting))
            for topic, number in chosen
        ]  # fmt: skip
        ranges = {
            topic.name: call.client.read_ranges(topic)
            for topic in {each.name: each for each, _ in chosen}.values()
        }
        tombstones = find_tombstones(
            call.facts, ranges, folded.cache.partitions, call.log, call.settings,
            GRACE_MS_DEFAULT, chosen,
        )  # fmt: skip
    report = CleanReport(
        tuple(PartitionReport(topic.name, number, (each,)) for topic, number, each, _ in planned)
    )
    costs = [
        (TopicPartition(topic.name, number), cost)
        for topic, number, _, cost in planned
        if cost is not None
    ]
    if not as_json:
        reasons = reasons_table(report)
        print_result(bounds_table(report))
        for more in (
            [summary_table(report)] if exact else [], [] if reasons is None else [reasons],
            note_lines(report), [*tombstone_lines(tombstones)],
            [costs_table(costs)] if costs else [],
        ):  # fmt: skip
            if more:
                print_result("", *more)
        print_result(
            "", closing_line(report, done="to be cleaned"), f"assumed: {ASSUMED_OF_BROKERS}"
        )
    for message in report_errors(report):
        say(message, kind="error")
    return report_exit_code(report), {
        "plan": report,
        "assumed": ASSUMED_OF_BROKERS,
        "costs": [
            {"topic": at.topic, "partition": at.partition, "costs": cost} for at, cost in costs
        ],
        "tombstones": tombstones,
    }


def _plan(
    call: _Call, topic: TopicFacts, number: int, choice: RoundChoice, cache: PartitionCache | None,
    counting: tuple[RunnerFor, Callable[[int], None]] | None,
) -> tuple[RoundReport, RoundCosts | None]:  # fmt: skip
    try:
        terms = call.terms(topic)
        found = list(check_cluster(call.facts, call.address))
        found += check_topic(topic, terms.policy, call.address)
        for each in found:
            if each.severity is Severity.REFUSES:
                raise RefusedError(f"{each.words}; see keeplast attach check. rule={each.rule}")
        name = name_of(topic, number)
        held = call.log.find(AttachedName(call.facts.cluster_id, name))
        start = call.client.read_ranges(topic)[number].start
        known = PartitionCache() if cache is None else cache
        return plan_attached(
            call.layout, name, known, call.wish(topic, choice), SystemClock(), log_start=start,
            cleaned_to=start if held is None else clean_to(call.log, held, known, start),
            holds=() if held is None else held.holds,
            counting=None if counting is None else counting[0],
            progressed=(lambda count: None) if counting is None else counting[1],
        )  # fmt: skip
    except (CompactionError, OSError) as error:
        return RoundReport(error=describe_error(error), failure=error), None
