"""A document as the text that is printed and served.

Imports nothing heavy: every command prints, also one that only says what commands there are.
"""

from __future__ import annotations

import json

from keeplast.log.object_paths import shown
from keeplast.model.document import document_of


def document_text(document: object) -> str:
    """Return the whole document of a command as text; places in object stores are URLs."""
    return shown(json.dumps(document_of(document), indent=1)) + "\n"
