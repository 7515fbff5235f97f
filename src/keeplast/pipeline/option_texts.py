"""The options of a query as Spark hands them over: texts, each read as what it has to be.

Names have no case, as everywhere in Spark. Whatever cannot be read is an InvalidError that names
the option, its value and what may stand there instead.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from keeplast.errors import InvalidError
from keeplast.model.offsets import INT64_MAX
from keeplast.model.size import parse_size
from keeplast.pipeline.foreign_options import (
    IGNORED,
    LOCATION,
    MANAGED,
    OF_TABLES,
    REMOVED,
    TABLE_OPTION,
    instead_of,
)

_E = TypeVar("_E", bound=StrEnum)
_D = TypeVar("_D")


class OptionTexts:
    """The given texts by name."""

    def __init__(
        self, given: Mapping[str, str], names: Sequence[str], *, prefixes: tuple[str, ...]
    ) -> None:
        """Take ``given``; InvalidError for a name not in ``names`` and with none of ``prefixes``.

        What Spark adds of a table is no option, but its location is a path.
        """
        lowered = {name.lower(): name for name in names}
        self._texts = {}
        all_given = {name.lower(): text for name, text in given.items()}
        for name, text in all_given.items():
            if name in lowered or name.startswith(prefixes):
                self._texts[name] = text
            elif name not in IGNORED | OF_TABLES and not _is_copy(name, all_given):
                raise _unknown(name, lowered)
        if LOCATION in all_given and all_given.get(MANAGED, "false").lower() != "true":
            self._texts.setdefault("path", all_given[LOCATION])

    def text(self, name: str, otherwise: _D) -> str | _D:
        """Return what was given for ``name``, ``otherwise`` when nothing was."""
        return self._texts.get(name.lower(), otherwise)

    def refuse(self, name: str, why: str) -> None:
        """Raise InvalidError when ``name`` was given; ``why`` says what helps."""
        if name.lower() in self._texts:
            raise InvalidError(f"{why}. {name}={self._texts[name.lower()]}")

    def given(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` were given, in their order."""
        return [name for name in names if name.lower() in self._texts]

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options that have a prefix, without it."""
        return {
            name.removeprefix(prefix): text
            for name, text in self._texts.items()
            if name.startswith(prefix)
        }

    def choice(self, name: str, choices: type[_E], otherwise: _D) -> _E | _D:
        """Return the member of ``choices`` that is named, ``otherwise`` when none is."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        try:
            return choices(text.strip().lower())
        except ValueError:
            words = " or ".join(choices)
            raise InvalidError(
                f"not a value of this option; give {words}. {name}={text!r}"
            ) from None

    def boolean(self, name: str, *, otherwise: bool) -> bool:
        """Return what is given, ``otherwise`` when nothing is."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise InvalidError(f"not a value of this option; give true or false. {name}={text!r}")
        return word == "true"

    def integer(
        self, name: str, otherwise: _D, *, least: int = 1, most: int = INT64_MAX
    ) -> int | _D:
        """Return a number in ``[least, most]``, ``otherwise`` when none was given."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        if re.fullmatch(r"-?[0-9]{1,19}", text.strip()) is None or not least <= int(text) <= most:
            raise InvalidError(f"not a number from {least} to {most}. {name}={text!r}")
        return int(text)

    def size(self, name: str, otherwise: int, *, least: int = 1) -> int:
        """Return the bytes that are given, as ``65536`` or ``64m``; at least ``least``."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        size = parse_size(text, name)
        if not least <= size <= INT64_MAX:
            raise InvalidError(f"not a size from {least} to {INT64_MAX} bytes. {name}={text!r}")
        return size


def _is_copy(name: str, given: Mapping[str, str]) -> bool:
    return name.startswith(TABLE_OPTION) and name.removeprefix(TABLE_OPTION) in given


def _unknown(name: str, known: Mapping[str, str]) -> InvalidError:
    """Return the error for an option that means nothing here, with what comes nearest to it.

    Without its value, which may be a secret: ``kafka.sasl.jaas.config``, or a misspelt ``object.``.
    """
    if name in REMOVED:
        return InvalidError(f"this option is no more: {REMOVED[name]}. option={name}")
    instead = instead_of(name)
    if instead is not None:
        return InvalidError(
            f"this option of Spark's Kafka source is not one of kafka-log: {instead}. option={name}"
        )
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = (
        f"did you mean {known[close[0]]}" if close else f"choose from {', '.join(known.values())}"
    )
    return InvalidError(f"unknown option; {hint}. option={name}")


def read_object(name: str, text: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f"not understood; {remedy}. {name}={text!r}")
    return document
