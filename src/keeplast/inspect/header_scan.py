"""What the batch headers of a whole log tell: codecs, delete horizons, tombstones by stage.

No record is looked into and no CRC is checked; whoever shows a log asks for it, because every byte
of the log is read for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.format.compression import Codec
from keeplast.inspect.stages import Progressed, Stages, stages_of
from keeplast.inspect.verified_log import WINDOW_BYTES, VerifiedLog
from keeplast.log.files import FileSystem
from keeplast.log.windows import WindowBuffers
from keeplast.survey.horizons import FoundHorizons

_NAMES = {each.value: each.name.lower() for each in Codec}


@dataclass(frozen=True, slots=True)
class SegmentHeaders:
    """The batches of one segment; ``codecs`` counts them by codec.

    ``stamped`` are those with a delete horizon, the first of which is ``first_horizon_ms`` and the
    last ``last_horizon_ms``, None without any.
    """

    batches: int
    records: int
    codecs: Mapping[str, int]
    stamped: int
    first_horizon_ms: int | None
    last_horizon_ms: int | None


@dataclass(frozen=True, slots=True)
class LogHeaders:
    """What all headers of a log tell; ``segments`` by base offset."""

    segments: Mapping[int, SegmentHeaders]
    stages: Stages


def scan_headers(path: Path, files: FileSystem, now_ms: int, progressed: Progressed) -> LogHeaders:
    """Read the headers of the partition directory ``path`` once, without its lock.

    ``progressed`` hears of the bytes of the log, and what it raises ends the scan. CorruptError
    where a batch's size cannot be right, OSError where files go meanwhile.
    """
    log = VerifiedLog(path, files)
    buffers = WindowBuffers(WINDOW_BYTES)
    segments, staged = {}, FoundHorizons()
    for segment in log.segments:
        batches = records = stamped = 0
        codecs: Counter[str] = Counter()
        horizons: list[int] = []
        for window in log.windows_of(segment, buffers, checks_crc=False):
            table = window.table[: window.batches]
            staged.take(table)
            batches += len(table)
            records += int(table[:, t.COUNT].sum())
            numbers, counts = np.unique(table[:, t.ATTRIBUTES] & t.CODEC_MASK, return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                codecs[_NAMES.get(number, str(number))] += count
            found = table[
                (table[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0) & (table[:, t.MAGIC] == 2)
            ]
            if len(found):
                stamped += len(found)
                stamps = found[:, t.BASE_TIMESTAMP]
                horizons += [int(stamps.min()), int(stamps.max())]
            progressed(window.length)
        segments[segment.base_offset] = SegmentHeaders(
            batches, records, dict(sorted(codecs.items())), stamped,
            min(horizons, default=None), max(horizons, default=None),
        )  # fmt: skip
    return LogHeaders(segments, stages_of(staged, now_ms))
