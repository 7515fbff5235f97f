"""What decides which record of a key is its last one (KIP-280), and what remembering it costs."""

from __future__ import annotations

SLOT_BYTES = 24
"""A slot of the key map: 128 bits of hash and an offset."""
VERSIONED_SLOT_BYTES = 32
"""A slot of a key map that ranks by version too."""
