"""The checksum kernels give what the checksum library gives, whatever the length and the start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keeplast.columns import machine
from keeplast.format.checksum import crc32c
from tests.support.called_part import called_part

# Around the borders of what is taken in three runs at a time, and of what is not.
LENGTHS = sorted(
    {*range(40), *(n + d for n in (128, 384, 768, 2048, 6144, 12288) for d in range(-9, 10)), 40000}
)


@pytest.mark.parametrize(
    "kernel", [called_part(machine.crc32c), called_part(machine.crc32c_by_table)]
)
def test_crc32c_of_any_length(kernel: Callable[[object, int, int], int]) -> None:
    data = np.random.default_rng(7).integers(0, 256, 40_016, dtype=np.uint8)
    for length in LENGTHS:
        start = length % 13
        expected = crc32c(data.data[start : start + length])
        assert expected == kernel(data, start, start + length)
