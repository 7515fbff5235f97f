"""The settings of a store: what is kept with each partition, and changing it.

Topics' settings are kept with the partitions; beneath them a broker's file counts, and the
cleaner's own settings are those of every source. A fault of one partition is in the answer and
stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from keeplast.config.layers import PartitionChoice, SettingSources, flags_layer, read_broker_config
from keeplast.config.mapping import BROKER_POLICY, KEPT_SOURCE
from keeplast.config.precedence import Settings
from keeplast.config.setting_rows import of_the_cleaner
from keeplast.config.sources import read_layers
from keeplast.errors import CompactionError, InvalidError
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.service.place_settings import (
    ChangeTerms,
    ConfiguredPartition,
    ConfiguredPlace,
    PlaceSettings,
)
from keeplast.service.store_choice import choose_partitions
from keeplast.store.tiered_store import TieredStore

NAMES_MAX = 10


def store_settings(
    opened: TieredStore, files: FileSystem, sources: SettingSources, topic: str | None
) -> PlaceSettings:
    """Return what counts in a store: of ``topic`` what its first partition keeps.

    A warning names the partitions that keep other settings. InvalidError for a topic that the store
    does not have.
    """
    layers = [of_the_cleaner(layer) for layer in read_layers(files, sources)]
    broker = None
    if sources.broker_config is not None:
        broker = read_broker_config(sources.broker_config, files)
        # The policy of a partition is kept with it, and never a broker's default.
        cluster = {key: text for key, text in broker.layer.cluster.items() if key != BROKER_POLICY}
        broker = replace(broker, layer=replace(broker.layer, cluster=cluster))
    warnings: tuple[str, ...] = () if broker is None else broker.warnings
    if topic is not None:
        first, *others = _partitions_of(opened, topic)
        kept = opened.state(first).settings
        own = flags_layer(f"{key}={text}" for key, text in kept.items())
        layers.insert(0, replace(own, source=KEPT_SOURCE))
        different = [each for each in others if opened.state(each).settings != kept]
        if different:
            names = ", ".join(map(str, different[:NAMES_MAX]))
            names += ", …" if len(different) > NAMES_MAX else ""
            warnings = (
                *warnings,
                "partitions of the topic keep other settings; keeplast configure makes them equal. "
                f"shown={first} different={names}",
            )
    return PlaceSettings(Settings(layers, broker=broker), warnings=warnings)


def _partitions_of(opened: TieredStore, topic: str) -> Sequence[TopicPartition]:
    found = [each for each in opened.partitions() if each.topic == topic]
    if not found:
        raise InvalidError(
            f"no such topic in the store; correct --topic. topic={topic}", code="K114"
        )
    return found


def configure_store(
    opened: TieredStore,
    changes: Mapping[str, str | None],
    scope: PartitionChoice,
    terms: ChangeTerms,
    *,
    open_runner: Callable[[], AbstractContextManager[Runner]],
    memory_bytes: int,
    progressed: Callable[[int], None],
) -> ConfiguredPlace:
    """Change what is kept with each chosen partition, as its owner.

    A runner is opened where records are counted.
    """
    done: list[ConfiguredPartition] = []
    for each in choose_partitions(opened, scope):
        try:
            if terms.plans:
                found = opened.plan_settings(
                    each, changes, lambda files: open_runner(), memory_bytes=memory_bytes,
                    progressed=progressed,
                )  # fmt: skip
            else:
                found = opened.configure(
                    each, changes, lambda files: open_runner(), drops_keyless=terms.drops_keyless,
                    takes_over=terms.takes_over, memory_bytes=memory_bytes, progressed=progressed,
                )  # fmt: skip
            done.append(ConfiguredPartition(each, found))
        except (CompactionError, OSError) as error:
            done.append(ConfiguredPartition(each, failure=error))
    hazards = dict.fromkeys(
        hazard for each in done if each.migration is not None for hazard in each.migration.hazards
    )
    warnings = tuple(hazards) if done else ("the store has no partitions: nothing is changed",)
    return ConfiguredPlace(partitions=tuple(done), warnings=warnings)
