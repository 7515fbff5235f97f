"""``keeplast tier configure``: other settings for partitions of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import memory_size
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import MEMORY_DEFAULT, BrokerConfig, Cores, Flags, Json, Memory
from keeplast.cli.tier.options import OwnedCall

Unset = Annotated[
    tuple[str, ...],
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


@command(
    first=("store", "flags", "topics"),
    example="keeplast tier configure --store sqlite:///meta.db --topic t --config segment.ms=1",
)
def configure(
    call: OwnedCall,
    flags: Flags = (),
    broker_config: BrokerConfig = None,
    unset: Unset = (),
    plan: Plan = False,
    drop_keyless: DropKeyless = False,
    cores: Cores = None,
    memory: Memory = MEMORY_DEFAULT,
    as_json: Json = False,
) -> Result:
    """Change what is kept with partitions: `--config cleanup.policy=compact,delete`.

    A topic that becomes compacted is read once first. Records without a key belong to no key and
    would go: they are counted, and the change is refused until `--drop-keyless` confirms it.
    """
    check_packages()
    from keeplast.cli.tier.steps import each_partition, settings_step

    step = settings_step(
        _changes(flags, unset), plans=plan, drops_keyless=drop_keyless,
        takes_over=call.take_over, cores=cores, memory_bytes=memory_size(memory),
    )  # fmt: skip
    return each_partition(call, step, as_json=as_json, broker_config=broker_config)


def _changes(flags: tuple[str, ...], unset: tuple[str, ...]) -> dict[str, str | None]:
    """Return the changes by key; InvalidError without any, or for one that cannot be read."""
    from keeplast.errors import InvalidError

    changes: dict[str, str | None] = {}
    for text in flags:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidError(f"give KEY=VALUE. --config={text}")
        changes[key.strip()] = value.strip()
    changes.update(dict.fromkeys(unset))
    if not changes:
        raise InvalidError("say what to change: --config KEY=VALUE, or --unset KEY")
    return changes
