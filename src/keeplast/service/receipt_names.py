"""The files at a data directory's root in which the daemon keeps its receipts, by name.

Whoever looks at them only must not import what writes them: :mod:`keeplast.service.receipts`.
"""

from __future__ import annotations

FILE_NAME = "keeplast-receipts"
PREVIOUS_NAME = "keeplast-receipts.1"
