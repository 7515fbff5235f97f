"""The one form in which a signed statement is written, so that every change to it shows. Pure.

JSON with sorted names, one space of indent, ASCII alone, and a newline at the end. Whoever reads
one compares the bytes with those that he would have written: a name that stands twice, another
order, a space more are found like any other edit.
"""

from __future__ import annotations

import json
from typing import Any

from keeplast.errors import InvalidError


def statement_bytes(statement: dict[str, Any]) -> bytes:
    """Return the bytes of a statement; what is signed, and what lies in a file."""
    return json.dumps(statement, sort_keys=True, indent=1, ensure_ascii=True).encode() + b"\n"


def read_statement(data: bytes) -> dict[str, Any]:
    """Return the statement in ``data``; InvalidError unless it is written as it would be here."""
    try:
        found = json.loads(data)
        is_ours = isinstance(found, dict) and statement_bytes(found) == data
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"not a statement of keeplast. problem={error}") from None
    if not is_ours:
        raise InvalidError(
            "it is not as it was written: something in it was edited, added, doubled or put in "
            "another order."
        )
    return dict(found)
