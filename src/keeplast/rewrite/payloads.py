"""How often the records of compressed batches were decompressed, and how often that was saved.

Every pass needs the records of a batch. What the first one has decompressed is kept for those that
follow while there is room (:class:`keeplast.rewrite.workspace.DecompressedCache`); these numbers
say whether there was.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payloads:
    """Compressed batches whose records were needed, by where these came from.

    A batch counts once each time that it was decompressed, and once each time that a later pass
    found it decompressed in memory. Bytes are those of the records, uncompressed.
    """

    decompressed: int = 0
    decompressed_bytes: int = 0
    reused: int = 0
    reused_bytes: int = 0

    def __add__(self, other: Payloads) -> Payloads:
        """Return the sum of two parts of a round."""
        return Payloads(
            self.decompressed + other.decompressed,
            self.decompressed_bytes + other.decompressed_bytes,
            self.reused + other.reused,
            self.reused_bytes + other.reused_bytes,
        )


NO_PAYLOADS = Payloads()
"""Nothing compressed was met."""
