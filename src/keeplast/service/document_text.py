"""A document as the text that is printed and served.

Imports nothing heavy: every command prints, also one that only says what commands there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from keeplast.log.paths import shown
from keeplast.model.document import document_of, encode

ROWS_AT_ONCE = 200
"""So many rows of a long document are encoded before any other work may come in between."""


def document_text(document: object) -> str:
    """Return the whole document of a command as text; places in object stores are URLs."""
    return shown(json.dumps(document_of(document), indent=1)) + "\n"


def document_pieces(head: Mapping[str, object], name: str, rows: Iterable[object]) -> Iterator[str]:
    """Yield the text of a document of ``head`` and the list ``name``, as its rows are encoded.

    The same document as :func:`document_text` makes of both, a row a line. The whole of it is never
    in memory, and no reader waits longer than for :data:`ROWS_AT_ONCE` rows.
    """
    first = json.dumps(document_of(head))
    yield shown(f'{first[:-1]}, "{name}": [')
    lines: list[str] = []
    begins = "\n"
    for row in rows:
        lines.append(json.dumps(encode(row)))
        if len(lines) >= ROWS_AT_ONCE:
            yield begins + shown(",\n".join(lines))
            begins, lines = ",\n", []
    if lines:
        yield begins + shown(",\n".join(lines))
    yield "\n]}\n"
