"""What decides which record of a key is the one that stays (KIP-280), and what it costs to know.

The record of the greatest rank wins; a rank is (has a version, version, offset), where

* ``offset`` gives every record the same version, so that the last one in the log wins;
* ``timestamp`` takes the record's timestamp, the batch's maximum with LogAppendTime; a record
  without one has no version;
* ``header`` takes the last header of the configured name when its value is eight bytes, a signed
  big-endian number. Any other record has no version and ranks below all that have one.

Source: cleaning.md section 9.2.
"""

from __future__ import annotations

from enum import StrEnum

SLOT_BYTES = 24
"""A slot of the key map: 128 bits of hash and an offset."""
VERSIONED_SLOT_BYTES = 32
"""A slot of a key map that ranks by version too."""


class Strategy(StrEnum):
    """A topic's ``compaction.strategy`` (KIP-280): which record of a key stays."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"

    @property
    def slot_bytes(self) -> int:
        """Return what a key takes in the key map."""
        return SLOT_BYTES if self is Strategy.OFFSET else VERSIONED_SLOT_BYTES
