"""The line for an error, as every command says it: no secret, and whose right is missing."""

from __future__ import annotations

from keeplast.errors import error_text
from keeplast.log.file_rights import right_words
from keeplast.model.redaction import without_secrets


def fault_text(error: Exception) -> str:
    """Return the sentence for ``error``; after a missing right with ``user`` and ``right``."""
    return without_secrets(error_text(error) + right_words(error))
