"""Moments as people write them: ISO 8601 with a zone, or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

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
        raise typer.BadParameter(f"not a time; write {TIME_WORDS}. value={text!r}") from None
    if found.tzinfo is None:
        raise typer.BadParameter(
            f"a time without a zone is another one elsewhere; write Z or +02:00 behind it. "
            f"value={text!r}"
        )
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    if since.total_seconds() < 0:
        raise typer.BadParameter(f"this is before 1970; write {TIME_WORDS}. value={text!r}")
    return round(since.total_seconds() * 1000)
