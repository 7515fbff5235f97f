"""Numba kernels: bytes to columns and back, per batch and per record. Pure.

Importing it points the compiler at the cache first: numba asks as it decorates.

``load`` of :mod:`keeplast.columns.kernel` knows every kernel because they are all imported here.
"""

from keeplast import kernel_cache

kernel_cache.install()

from keeplast.columns import (  # noqa: E402
    arrow_columns,
    batches,
    filters,
    fingerprints,
    rebuild,
    retained,
    rows,
    shortcuts,
    transactions,
    unpack,
    version_ranks,
    winners,
)

__all__ = [
    "arrow_columns",
    "batches",
    "filters",
    "fingerprints",
    "rebuild",
    "retained",
    "rows",
    "shortcuts",
    "transactions",
    "unpack",
    "version_ranks",
    "winners",
]
