"""``keeplast tier configure``: other settings for partitions of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import each_partition, store_call

if TYPE_CHECKING:
    from keeplast.cli.tier.steps import Step
    from keeplast.store.migration import Migration

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
    broker_config: options.BrokerConfig = None,
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

    def step() -> Step[Migration]:
        from keeplast.cli.tier.steps import settings_step
        from keeplast.model.size import parse_size

        return settings_step(
            _changes(config, unset), plans=plan, drops_keyless=drop_keyless, takes_over=take_over,
            cores=cores, memory_bytes=parse_size(memory, "--memory"),
        )  # fmt: skip

    call = store_call(store, topic, partition, object_option, owner, broker_config)
    each_partition(call, step, as_json=as_json)


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
