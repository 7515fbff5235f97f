"""Values as people write them on a command line: directories, spans of time, moments.

A directory on a disk or in an object store is a path or a URL. A span of time is a number, or one
with a unit. A bare number counts in the unit of the option's name, as settings of Kafka's do. A
moment is ISO 8601 with a zone, or milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.cli.frame.lazy import BadValue
from keeplast.errors import InvalidError
from keeplast.log.paths import place_path
from keeplast.model.text import SPAN_MS_MAX, find_span
from keeplast.tier.objects.object_store import read_option

if TYPE_CHECKING:
    from keeplast.log.files import FilesRecipe


def place(text: str) -> Path:
    """Return the path of an argument; for Typer, which shows the mistake as one of usage."""
    try:
        return place_path(text)
    except InvalidError as error:
        raise BadValue(str(error), code=error.code) from error


def recipe_for(places: Iterable[Path | None], object_options: Sequence[str]) -> FilesRecipe:
    """Return how to open the files of a call; InvalidError when a store needs what is not there."""
    from keeplast.tier.objects.places import recipe_of

    return recipe_of(places, dict(object_option(text) for text in object_options))


def object_option(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; the value may be a secret and is in no error.

    It may also be named, as ``KEY=@FILE`` or ``KEY=env:NAME``.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidError(
            "give KEY=VALUE. --object-option=" + (key if not separator else "=..."), code="K112"
        )
    return key, read_option(f"--object-option={key}", value)


SPAN_WORDS = "90s, 30min, 12h or 7d"


def span_ms(text: str) -> int:
    """Return the milliseconds that ``text`` means, at least 0; for Typer, a mistake is of usage."""
    return _read_span(text, "milliseconds", 1)


def span_seconds(text: str) -> int:
    """Return the whole seconds that ``text`` means, at least 1; for Typer as :func:`span_ms`."""
    seconds, rest = divmod(_read_span(text, "seconds", 1000), 1000)
    if rest or not seconds:
        raise BadValue(
            f"not a number of whole seconds; give at least 1. value={text!r}", code="K105"
        )
    return seconds


def _read_span(text: str, unit: str, unit_ms: int) -> int:
    span = find_span(text, unit_ms)
    if span is None:
        raise BadValue(
            f"not a span of time; write {unit}, or {SPAN_WORDS}. value={text!r}", code="K105"
        )
    if span > SPAN_MS_MAX:
        raise BadValue(f"too long; give at most {SPAN_MS_MAX} ms. value={text!r}", code="K105")
    return span


TIME_WORDS = "2026-05-31T22:00:00Z, or milliseconds since 1970"
MS_CHARS_MAX = 15


def time_ms(text: str) -> int:
    """Return milliseconds since 1970, at least 0; for Typer, a mistake is one of usage."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal() and len(stripped) <= MS_CHARS_MAX:
        return int(stripped)
    try:
        found = datetime.fromisoformat(stripped)
    except ValueError:
        raise BadValue(f"not a time; write {TIME_WORDS}. value={text!r}", code="K105") from None
    if found.tzinfo is None:
        raise BadValue(
            f"a time without a zone is another one elsewhere; write Z or +02:00 after it. "
            f"value={text!r}",
            code="K105",
        )
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    if since.total_seconds() < 0:
        raise BadValue(f"this is before 1970; write {TIME_WORDS}. value={text!r}", code="K105")
    return round(since.total_seconds() * 1000)
