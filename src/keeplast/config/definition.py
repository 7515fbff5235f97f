"""What is said about one setting: names, type, default, range, trade-off, and whether it acts.

Everything else about settings follows from values of :class:`Definition`: parsing, validation,
messages, ``keeplast config`` and the reference page. Answers to ``ConfigDef.ConfigKey`` and
``ServerTopicConfigSynonyms``.

The text of a setting becomes its typed value, or an error that says what is wrong with it. Every
source hands over text, also TOML, so that one parser decides. A list is split at commas; spaces
around a value mean nothing. Raises ``InvalidError`` that names key, value and source. Answers to
``ConfigDef.parseType`` and the validators of cleaning.md section 7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.model.partition import INT32_MAX, INT64_MAX
from keeplast.model.text import DURATION_UNITS, duration_text, find_duration, find_size
from keeplast.model.topic_config import AS_TOTAL

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


class Synonym(Struct, frozen=True):
    """A broker's name for a topic setting; ``factor`` turns its unit into the topic's.

    ``is_endless_below_zero``: any negative value means -1, without limit, and 0 is refused.
    """

    key: str
    factor: int = 1
    is_endless_below_zero: bool = False


class Definition(Struct, frozen=True):
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


_SIZE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

SPANS, SIZES = (".ms",), (".bytes", ".buffer.size")
"""How the names of settings end that are milliseconds or bytes."""
NO_LIMIT = "no limit"
_UNIT_WORDS = (
    (SPANS, ", nor a span of time such as 7d, 12h, 30min or 90s"),
    (SIZES, ", nor a size such as 64k, 256m or 1g"),
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def setting_value(
    definition: Definition,
    text: str,
    *,
    source: str,
    spelling: Synonym | None = None,
    is_brokers: bool = False,
) -> Value:
    """Return the value of ``text`` in the topic's unit, inside the definition's range.

    ``spelling`` is the name that was used, with its unit, by default the definition's own;
    ``source`` is for the message. Spans and sizes may be written as they are shown (``7d``,
    ``1g``), but not where ``is_brokers``: a broker does not start on them.
    """
    spelling = Synonym(definition.key) if spelling is None else spelling
    if is_brokers and definition.type in INTEGER_BOUNDS and not _INTEGER.fullmatch(text.strip()):
        raise _no_integer(definition, text.strip(), key=spelling.key, source=source, units="")
    value = _parse(definition, text.strip(), key=spelling.key, source=source)
    if isinstance(value, int) and not isinstance(value, bool):
        if spelling.is_endless_below_zero:
            if value == 0:
                raise InvalidError(
                    f"value outside its range; use at least 1, or -1 for no limit. "
                    f"key={spelling.key} value='0' source={source}",
                    code="K121",
                )
            value = max(value, -1)
        # A negative broker value means "no limit" in every unit; only lengths are converted.
        value = value * spelling.factor if value > 0 else value
    _check_range(definition, value, key=spelling.key, source=source)
    return value


def written_value(definition: Definition, text: str, *, source: str, spelling: Synonym) -> Value:
    """Return the value of ``text`` in the unit of its own name, inside its range."""
    setting_value(definition, text, source=source, spelling=spelling)
    return _parse(definition, text.strip(), key=spelling.key, source=source)


def value_text(value: object) -> str:
    """Return the text of a value that a typed source such as TOML gave."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(value_text(item) for item in value)
    return str(value)


def value_words(definition: Definition, value: Value | None) -> str:
    """Return what a number means, such as ``7 d`` or ``1 GiB``; empty when it says so itself."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    key = definition.key
    if value in (INT64_MAX, DOUBLE_MAX):
        return NO_LIMIT
    if value == AS_TOTAL and key.startswith("local."):
        return f"as {key.removeprefix('local.')}"
    if value < 0:
        return NO_LIMIT if key.startswith(("retention.", "local.")) else ""
    units: Sequence[tuple[str, int]] = ()
    if key.endswith(SPANS):
        units = DURATION_UNITS
    elif key.endswith(SIZES):
        units = _SIZE_UNITS
    exact = next(
        (f"{value // size} {unit}" for unit, size in units if value > 0 and value % size == 0), ""
    )
    is_long = units is DURATION_UNITS and value >= 100 * DURATION_UNITS[0][1]
    return f"about {duration_text(int(value))}" if is_long and not exact.endswith("d") else exact


def value_range(definition: Definition) -> str:
    """Return the accepted values in words, for messages and the reference."""
    if definition.choices is not None:
        prefix = "any of " if definition.type is ValueType.LIST else "one of "
        return prefix + ", ".join(definition.choices)
    if definition.type is ValueType.BOOLEAN:
        return "true or false"
    low, high = definition.minimum, definition.maximum
    if low is None and high is None:
        return "any"
    if high is None:
        words = f"at least {low}"
    elif low is None:
        words = f"at most {high}"
    else:
        words = f"{low} to {high}"
    for extra in definition.outside:
        words += f", or {extra}"
    return words


def _parse(definition: Definition, text: str, *, key: str, source: str) -> Value:
    kind = definition.type
    if kind in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[kind]
        number = int(text) if _INTEGER.fullmatch(text) else _parse_unit(definition, text, key)
        if number is not None and low <= number <= high:
            return number
        units = next((words for ends, words in _UNIT_WORDS if key.endswith(ends)), "")
        raise _no_integer(definition, text, key=key, source=source, units=units)
    if kind is ValueType.DOUBLE:
        if _DOUBLE.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        raise InvalidError(
            f"not a number; correct it. key={key} value={text!r} source={source}", code="K121"
        )
    if kind is ValueType.BOOLEAN:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InvalidError(
            f"neither true nor false; correct it. key={key} value={text!r} source={source}",
            code="K121",
        )
    if kind is ValueType.LIST:
        return tuple(item.strip() for item in text.split(",")) if text else ()
    if not text and definition.empty_means is not None:
        return definition.empty_means
    return text.lower() if definition.ignores_case else text


def _parse_unit(definition: Definition, text: str, key: str) -> int | None:
    """Return the number that a text with a unit means, as values are shown; None for no such."""
    if text == NO_LIMIT:
        return next(
            (each for each in (-1, INT64_MAX) if value_words(definition, each) == NO_LIMIT), None
        )
    if key.endswith(SPANS):
        return find_duration(text)
    return find_size(text) if key.endswith(SIZES) else None


def _no_integer(
    definition: Definition, text: str, *, key: str, source: str, units: str
) -> InvalidError:
    bits = 32 if definition.type is ValueType.INT else 64
    return InvalidError(
        f"not a whole number of {bits} bits{units}; correct it. "
        f"key={key} value={text!r} source={source}",
        code="K121",
    )


def _check_range(definition: Definition, value: Value, *, key: str, source: str) -> None:
    if definition.choices is not None:
        items = value if isinstance(value, tuple) else (value,)
        accepted = all(item in definition.choices for item in items)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = definition.minimum, definition.maximum
        accepted = (low is None or value >= low) and (high is None or value <= high)
        accepted = accepted or value in definition.outside
    else:
        accepted = True
    if not accepted:
        raise InvalidError(
            f"value outside its range; use {value_range(definition)}. "
            f"key={key} value={value_text(value)!r} source={source}",
            code="K121",
        )
