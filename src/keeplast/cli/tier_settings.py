"""``keeplast tier configure``: other settings for partitions of a store."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli import options
from keeplast.cli import tier_options as shared
from keeplast.cli.tier_options import each_partition, store_call

if TYPE_CHECKING:
    from keeplast.engine.tier_migration import Migration
    from keeplast.engine.tiered_store import TieredStore
    from keeplast.model.partition import TopicPartition

Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="KEY", help="A setting to take out; repeatable."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Only say what would follow; changes nothing.")]
DropKeyless = Annotated[
    bool,
    typer.Option(
        "--drop-keyless",
        help="Confirm that records without a key go when a topic becomes compacted.",
    ),
]


def configure(
    store: shared.Store,
    config: options.Config = None,
    unset: Unset = None,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    plan: Plan = False,
    drop_keyless: DropKeyless = False,
    cores: options.Cores = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Change what is kept with partitions: `--config cleanup.policy=compact,delete`.

    A topic that becomes compacted is read once first. Records without a key belong to no key and
    would go: they are counted, and the change is refused until `--drop-keyless` confirms it.
    """

    def check() -> None:
        from keeplast.cli.sizes import parse_size

        _changes(config, unset)
        parse_size(memory, "--memory")

    def act(opened: TieredStore, each: TopicPartition) -> dict[str, Any]:
        from keeplast.cli import wiring
        from keeplast.cli.progress import ProgressEvents
        from keeplast.cli.sizes import parse_size
        from keeplast.cli.wiring import RunnerName

        changes = _changes(config, unset)
        memory_bytes = parse_size(memory, "--memory")
        with (
            ProgressEvents(f"reading {each}") as events,
            wiring.open_runner(RunnerName.LOCAL, master=None, cores=cores) as runner,
        ):
            if plan:
                found = opened.plan_settings(
                    each, changes, lambda files: nullcontext(runner),
                    memory_bytes=memory_bytes, progressed=events.progressed,
                )  # fmt: skip
            else:
                found = opened.configure(
                    each, changes, lambda files: nullcontext(runner),
                    drops_keyless=drop_keyless, takes_over=take_over,
                    memory_bytes=memory_bytes, progressed=events.progressed,
                )  # fmt: skip
        return _facts(found, changed=not plan)

    call = store_call(store, topic, partition, object_option, owner)
    each_partition(call, act, check=check, as_json=as_json)


def _changes(config: list[str] | None, unset: list[str] | None) -> dict[str, str | None]:
    """Return the changes by key; InvalidError without any, or for one that cannot be read."""
    from keeplast.errors import InvalidError

    changes: dict[str, str | None] = {}
    for text in config or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidError(f"give KEY=VALUE. --config={text}")
        changes[key.strip()] = value.strip()
    changes.update(dict.fromkeys(unset or ()))
    if not changes:
        raise InvalidError("say what to change: --config KEY=VALUE, or --unset KEY")
    return changes


def _facts(found: Migration, *, changed: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"changed": changed, "settings": dict(found.settings)}
    if found.becomes_compacted:
        facts.update(
            becomes_compacted=True, records=found.records,
            keyless_records=found.keyless_records, keyless_bytes=found.keyless_bytes,
        )  # fmt: skip
    return facts
