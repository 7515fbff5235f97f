"""Numba kernels: bytes to columns and back, per batch and per record. Pure.

``load`` of :mod:`keeplast.columns.kernel` knows every kernel because they are all imported here.
"""

from keeplast.columns import (
    arrow_columns,
    filters,
    fingerprints,
    index_entries,
    key_stream,
    legacy,
    noting,
    ranks,
    rebuild,
    rows,
    scan,
    skim,
    transactions,
    unpack,
    verdicts,
    versions,
    winners,
)

__all__ = [
    "arrow_columns",
    "filters",
    "fingerprints",
    "index_entries",
    "key_stream",
    "legacy",
    "noting",
    "ranks",
    "rebuild",
    "rows",
    "scan",
    "skim",
    "transactions",
    "unpack",
    "verdicts",
    "versions",
    "winners",
]
