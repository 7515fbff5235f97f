"""``keeplast tier clean``, ``expire`` and ``collect``: one step of the upkeep of each partition.

``keeplast tier run`` does them in a loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import Result, check_packages, each_partition, store_call

if TYPE_CHECKING:
    from keeplast.cli.tier.steps import Step
    from keeplast.survey.report import ExpiryReport
    from keeplast.tier.metadata.collection import Collected


def clean(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    force: options.Force = False,
    expired: options.Expired = False,
    runner: options.Runner = RunnerName.LOCAL,
    master: shared.Master = None,
    cores: options.Cores = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    shape: options.Shape = None,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    grace_ms: shared.GraceMs = None,
    broker_config: options.BrokerConfig = None,
    receipt: options.Receipt = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Do one round for each partition: read and written as streams, no segment on this disk.

    On Spark the executors read and write the object store themselves. What `run` has set aside is
    tried too: who asks for a round by hand wants to see how it ends.
    """

    def body() -> Result:
        check_packages()
        from keeplast.cleaner.shapes import Shape
        from keeplast.cli.tier.clean import CleanCall, clean_partitions
        from keeplast.cli.tier.steps import receipt_writer
        from keeplast.config.broker_config import broker_settings
        from keeplast.config.mapping import cleaner_config
        from keeplast.model.size import parse_size
        from keeplast.model.topic_config import CleanerConfig
        from keeplast.store.tiered_store import GRACE_MS_DEFAULT

        cleaner = CleanerConfig()
        if broker_config is not None:
            cleaner = cleaner_config({}, cluster=broker_settings(broker_config))
        rounds = CleanCall(
            runner=runner, master=master, cores=cores,
            memory_bytes=parse_size(memory, "--memory"),
            task_memory_bytes=parse_size(task_memory, "--task-memory"),
            shape=None if shape is None else Shape(shape),
            grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
            force=force, expired=expired, takes_over=take_over,
            receipt=receipt_writer(receipt), cleaner=cleaner, assumed={},
        )  # fmt: skip
        call = store_call(store, topic, partition, object_option, owner, broker_config)
        with call.opened() as opened:
            chosen = call.chosen(opened)
            assumed = call.say_assumed(opened, chosen, is_forced=force, expires=False)
            rounds = replace(rounds, assumed=assumed)
            return clean_partitions(opened, chosen, rounds, as_json=as_json)

    run_guarded(body, as_json=as_json)


def expire(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    grace_ms: shared.GraceMs = None,
    broker_config: options.BrokerConfig = None,
    log_start: Annotated[
        int | None,
        typer.Option(
            "--log-start", metavar="OFFSET", min=0,
            help="Let the log of one partition start there, as DeleteRecords does; never back.",
        ),
    ] = None,
    receipt: shared.ExpiryReceipt = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Let go what retention and the log start offset let go."""

    def step() -> Step[ExpiryReport]:
        from keeplast.errors import InvalidError

        if log_start is not None and not (len(topic or ()) == len(partition or ()) == 1):
            raise InvalidError(
                "a log start is one partition's; name it with --topic and --partition"
            )
        from keeplast.cli.tier.steps import expiry_step

        return expiry_step(
            grace_ms=grace_ms, takes_over=take_over, receipt=receipt, log_start=log_start
        )

    call = store_call(store, topic, partition, object_option, owner, broker_config)
    each_partition(call, step, as_json=as_json, assumes_retention=True)


def collect(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    garbage_age_ms: shared.GarbageAgeMs = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Remove replaced segments whose grace has passed, and objects that nobody names."""

    def step() -> Step[Collected]:
        from keeplast.cli.tier.steps import collection_step

        return collection_step(garbage_age_ms=garbage_age_ms, takes_over=take_over)

    each_partition(
        store_call(store, topic, partition, object_option, owner), step, as_json=as_json,
        with_forgotten=True,
    )  # fmt: skip
