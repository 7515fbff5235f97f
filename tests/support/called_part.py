"""Parts of kernels as functions of their own: only kernels can call a part itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def called_part(part: Any) -> Callable[..., Any]:
    """Return what the source of ``part`` gives when it is compiled for Python to call."""
    function: Callable[..., Any] = njit(part.py_func)
    return function
