"""What counts for one topic, and what values must not say together.

Checks run on effective values, whichever sources they come from, so that a pair such as the two
lags is caught when its second half is set. A contradiction is refused; a hazard is said
(:mod:`keeplast.cleaner.hazards`). Answers to ``LogConfig.validate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keeplast.config.definition import Scope, Value
from keeplast.errors import InvalidError, InvariantError
from keeplast.format.consumer_offsets import group_name
from keeplast.model.topic_config import AS_TOTAL

GROUPS_MAX = 32
"""Groups that one topic's tombstones may wait for."""


@dataclass(frozen=True, slots=True)
class Effective:
    """A value and where it came from; ``source`` None means Kafka's default.

    ``key`` is the name under which the source gave it.
    """

    value: Value | None
    source: str | None = None
    scope: Scope | None = None
    key: str | None = None

    @property
    def is_default(self) -> bool:
        """True when no source set it."""
        return self.source is None

    @property
    def number(self) -> int | float:
        """The value of a setting that is a number."""
        if not isinstance(self.value, int | float):
            raise InvariantError(f"a number was defined as something else. value={self.value!r}")
        return self.value


def contradictions(values: Mapping[str, Effective]) -> list[str]:
    """Return a sentence with the remedy for each thing that ``values`` (by key) must not say."""
    found: list[str] = []
    if values["min.compaction.lag.ms"].number > values["max.compaction.lag.ms"].number:
        found.append(
            "min.compaction.lag.ms above max.compaction.lag.ms; lower the first or raise the "
            f"second. {_name_sources(values, 'min.compaction.lag.ms', 'max.compaction.lag.ms')}"
        )
    if values["undo.retention.ms"].number > values["max.compaction.lag.ms"].number:
        found.append(
            "undo.retention.ms above max.compaction.lag.ms: what was deleted would lie on the disk "
            "for longer than it may lie in the log; lower the first or raise the second. "
            f"{_name_sources(values, 'undo.retention.ms', 'max.compaction.lag.ms')}"
        )
    header = values["compaction.strategy.header"]
    if values["compaction.strategy"].value == "header" and not header.value:
        found.append(
            "strategy header without the name of a header; set compaction.strategy.header. "
            f"{_name_sources(values, 'compaction.strategy', 'compaction.strategy.header')}"
        )
    found += _find_no_groups(values["tombstones.wait.for.groups"])
    for unit in ("ms", "bytes"):
        local, total = f"local.retention.{unit}", f"retention.{unit}"
        if _is_tiered(values, local) and _is_longer(values[local].number, values[total].number):
            found.append(
                f"{local} above {total}: the local part is kept longer than the whole; lower it, "
                f"or say -2 to follow {total}. {_name_sources(values, local, total)}"
            )
    return found


def _find_no_groups(effective: Effective) -> list[str]:
    """Return what is wrong with the groups that are waited for."""
    groups = effective.value if isinstance(effective.value, tuple) else ()
    where = f"key=tombstones.wait.for.groups source={effective.source or 'default'}"
    if len(groups) > GROUPS_MAX:
        return [f"too many groups to wait for; name {GROUPS_MAX} at most. {where}"]
    for group in groups:
        try:
            group_name(group)
        except InvalidError as error:
            return [f"{error} {where}"]
    return []


def _is_tiered(values: Mapping[str, Effective], key: str) -> bool:
    """Say whether the local retention matters: the topic is tiered, or has a value of its own.

    A cluster's value says nothing about topics that are not tiered, in Kafka either.
    """
    return values["remote.storage.enable"].value is True or values[key].scope is Scope.TOPIC


def _is_longer(local: int | float, total: int | float) -> bool:
    if total < 0 or local == AS_TOTAL:
        return False
    return local < 0 or local > total


def _name_sources(values: Mapping[str, Effective], *keys: str) -> str:
    return " ".join(
        f"{key}={'' if values[key].value is None else values[key].value} "
        f"source={values[key].source or 'default'}"
        for key in keys
    )
