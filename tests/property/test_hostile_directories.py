"""Any bytes in any file of a partition directory: cleaned, or an error that says where, and soon.

A sound directory is damaged in a few places (bytes flipped, put in, cut out, whole files replaced)
and cleaned. Whatever happens, nothing but a :class:`CorruptError` or :class:`RefusedError` with a
path may come out, a failed call leaves the directory as it was, and a finished one leaves a
directory that can be cleaned again.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.batch import HEADER_BYTES, encode_batch
from keeplast.format.checksum import crc32, crc32c
from keeplast.format.compression import Codec
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from keeplast.format.message_set import read_entries
from keeplast.format.record import Record
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Shape, Strategy
from tests.support.bounded_work import bounded_work
from tests.support.legacy_sets import encode_message_set
from tests.support.mixed_log import segments, write_mixed_log
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    coordinator,
    last_round,
    one,
    records_of,
    write_partition,
)
from tests.support.replay import tree
from tests.support.turns import Turn, examples

KINDS = (LOG, LOG, LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
BASES = tuple(segments())


class Damage(Struct, frozen=True):
    """One change to one file; positions are shares of its length in 65,536ths."""

    base: int
    kind: str
    action: str
    position: int
    content: bytes
    seals: bool

    def apply(self, directory: Path) -> None:
        path = directory / f"{self.base:020d}{self.kind}"
        data = bytearray(path.read_bytes() if path.exists() else b"")
        at = self.position * len(data) >> 16
        if self.action == "replace":
            data[:] = self.content
        elif self.action == "insert":
            data[at:at] = self.content
        elif self.action == "cut":
            del data[at : at + len(self.content)]
        elif self.action == "truncate":
            del data[at:]
        else:
            data[at : at + len(self.content)] = self.content
        if self.seals and self.kind == LOG:
            data = sealed(data)
        path.write_bytes(data)


def sealed(data: bytearray) -> bytearray:
    """Give every batch that still looks like one a right checksum: crafted, not rotten."""
    try:
        for entry in read_entries(bytes(data)):
            start, end = entry.position, entry.end
            if entry.magic == 2 and end - start >= HEADER_BYTES:
                struct.pack_into(">I", data, start + 17, crc32c(bytes(data[start + 21 : end])))
            elif entry.magic < 2:
                struct.pack_into(">I", data, start + 12, crc32(bytes(data[start + 16 : end])))
    except CorruptError:
        pass
    return data


EDGES = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01"]
NUMBERS = [byte * 8 for byte in EDGES] + [
    struct.pack(">q", number) for number in (2**31 - 1, 2**63 - 1, 2**63 - 8, -2)
]
"""What a field of up to eight bytes is made to begin with: numbers next to the ends of a type."""
FIELDS = ((0, 8), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
OLD_FIELDS = ((0, 8), (17, 1), (18, 4), (22, 4))
"""Position in its batch and width of each field but those that a size or a checksum covers."""


def damages() -> st.SearchStrategy[Damage]:
    """Draw changes of every kind; runs of one byte reach the edges of numbers."""
    runs = st.builds(lambda byte, n: byte * n, st.sampled_from(EDGES), st.integers(1, 9))
    return st.builds(
        Damage,
        base=st.sampled_from(BASES),
        kind=st.sampled_from(KINDS),
        action=st.sampled_from(["overwrite", "overwrite", "insert", "cut", "truncate", "replace"]),
        position=st.integers(0, (1 << 16) - 1),
        content=st.one_of(st.binary(max_size=300), runs),
        seals=st.booleans(),
    )


def header_damages() -> list[Damage]:
    """Return one change of each field of each batch header for each edge, with a right checksum."""
    return [
        Damage(
            base, LOG, "overwrite", -(-((entry.position + field) << 16) // len(data)),
            edge[:width], True,
        )
        for base, data in segments().items()
        for entry in read_entries(data)
        for field, width in (FIELDS if entry.magic == 2 else OLD_FIELDS)
        for edge in NUMBERS
    ]  # fmt: skip


def _survives(damage: Callable[[Path], None], *, is_small: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_mixed_log(Path(scratch))
        damage(directory)
        request = clean_request(directory, topic=SMALL_SEGMENTS if is_small else COMPACT)
        for _ in range(2):
            before = tree(directory)
            with bounded_work():
                report = last_round(coordinator().clean(request))
            if report.failure is not None:
                _is_reported(report.failure)
                assert before == tree(directory)
                return
            request = replace(request, first_dirty_offset=0)


def _is_reported(error: Exception) -> None:
    if isinstance(error, CorruptError):
        assert error.path is not None
        assert error.position is not None
    else:
        assert isinstance(error, RefusedError)
        assert "path=" in str(error)


@given(changes=st.lists(damages(), min_size=1, max_size=3), is_small=st.booleans())
@settings(max_examples=examples(150))
def test_damaged_files_are_cleaned_or_reported(changes: list[Damage], is_small: bool) -> None:
    def damage(directory: Path) -> None:
        for change in changes:
            change.apply(directory)

    _survives(damage, is_small=is_small)


def test_crafted_headers_are_cleaned_or_reported(turn: Turn) -> None:
    damages = header_damages()
    for n in turn.seeds(len(damages), 40):
        _survives(damages[n].apply, is_small=n % 2 == 0)


@pytest.mark.parametrize("shape", [Shape.PARTITION, Shape.BROADCAST, Shape.BUCKET])
def test_a_negative_offset_stays_and_its_version_wins_over_no_other(
    tmp_path: Path, shape: Shape
) -> None:
    data = bytearray(encode_batch([Record(4, 9, b"k", b"new")], base_offset=3))
    data[HEADER_BYTES + 3] = 9  # the record's own offset: five below its batch
    log = {0: one(0, b"k", timestamp=1) + one(1, b"k", timestamp=2), 3: bytes(sealed(data)), 5: b""}
    directory = write_partition(tmp_path, log)
    topic = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    clean(replace(clean_request(directory, topic=topic), shape=shape))
    assert [1, -2] == [each.offset for each in records_of(directory)]


def test_offsets_of_an_old_set_that_descend_are_damage_to_a_verification(tmp_path: Path) -> None:
    old = [Record(offset, NOW_MS, b"k", b"v") for offset in (3, 1, 4)]
    data = encode_message_set(old, magic=0, codec=Codec.LZ4)
    log = VerifiedLog(write_partition(tmp_path, {0: data, 5: one(5, b"k")}), LocalFiles())
    with pytest.raises(CorruptError, match=r"records do not fit their batch.* position=0 "):
        list(log.parts(np.array([5, 7], np.uint64), COMPACT, checks_crc=True))
