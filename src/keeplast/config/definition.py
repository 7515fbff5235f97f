"""What is said about one setting: names, type, default, range, trade-off, and whether it acts.

Everything else about settings follows from values of :class:`Definition`: parsing, validation,
messages, ``keeplast config`` and the reference page. Answers to ``ConfigDef.ConfigKey`` and
``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from keeplast.model.offsets import INT32_MAX, INT64_MAX

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DOUBLE_MAX = 1.7976931348623157e308

Value = int | float | bool | str | tuple[str, ...]


class ValueType(Enum):
    """How a value is written."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"


INTEGER_BOUNDS: dict[ValueType, tuple[int, int]] = {
    ValueType.INT: (-INT32_MAX - 1, INT32_MAX),
    ValueType.LONG: (-INT64_MAX - 1, INT64_MAX),
}


class Scope(Enum):
    """What one value of a key is about."""

    TOPIC = "topic"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker's name for a topic setting; ``factor`` turns its unit into the topic's.

    ``is_endless_below_zero``: any negative value means -1, without limit, and 0 is refused.
    """

    key: str
    factor: int = 1
    is_endless_below_zero: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting.

    ``about`` is a sentence with the trade-off. ``minimum`` and ``maximum`` are inclusive and apply
    to the value in the topic's unit; ``outside`` lists values that are allowed although they lie
    outside. ``empty_means`` is what an empty text stands for; ``ignores_case`` accepts a choice in
    other spellings of case. ``field`` names the field of ``TopicConfig`` or ``CleanerConfig`` that
    carries the value; ``idle`` says why the value changes nothing here. ``overridden_by`` is a
    second topic spelling, which wins when both are set.
    """

    key: str
    type: ValueType
    default: Value | None
    about: str
    synonyms: tuple[Synonym, ...] = ()
    scope: Scope = Scope.TOPIC
    minimum: int | float | None = None
    maximum: int | float | None = None
    outside: tuple[int, ...] = ()
    choices: tuple[str, ...] | None = None
    empty_means: str | None = None
    ignores_case: bool = False
    field: str | None = None
    idle: str | None = None
    overridden_by: str | None = None

    @property
    def has_effect(self) -> bool:
        """True when the value changes what keeplast does."""
        return self.idle is None


def same_key(key: str) -> tuple[Synonym, ...]:
    """Return the synonyms of a setting that brokers know by one name, in the topic's unit."""
    return (Synonym(key),)


def topic_spellings(definition: Definition) -> tuple[str, ...]:
    """Return the keys under which a topic sets ``definition``, the winning one first."""
    if definition.scope is Scope.CLUSTER:
        return ()
    if definition.overridden_by is not None:
        return (definition.overridden_by, definition.key)
    return (definition.key,)


def cluster_spellings(definition: Definition) -> tuple[Synonym, ...]:
    """Return the keys under which a cluster sets ``definition``, the winning one first.

    The topic's spelling comes last: it is understood where the place already says "cluster".
    """
    own = tuple(Synonym(key) for key in topic_spellings(definition) or (definition.key,))
    named = {synonym.key for synonym in definition.synonyms}
    return definition.synonyms + tuple(synonym for synonym in own if synonym.key not in named)
