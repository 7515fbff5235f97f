"""The first pass over plain batches: the rows of the other way, and no damage passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.columns.retained import DISORDER
from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, Record
from keeplast.log.files import LocalReadHandle
from keeplast.rewrite import index
from keeplast.rewrite.index import PIECE_BYTES, KeyStream
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from tests.support.heard_calls import hear
from tests.support.kernel_window import HASH_KEY, PATH, MemoryHandle, rows_of, windows_of
from tests.support.partition_maker import (
    clean,
    clean_at,
    clean_request,
    data_batch,
    marker,
    one,
    write_partition,
)

LARGE = bytes(100_000)
Found = list[tuple[int, tuple[int, int]]]


def plain_log(seed: int) -> bytes:
    """Return batches of all sizes, with large keys and values, null ones, and empty batches."""
    rng = random.Random(seed)
    parts: list[bytes] = []
    offset = 0
    for _ in range(60):
        records = []
        for _ in range(rng.choice((1, 1, 2, 30))):
            key = rng.choice(
                (None, b"", b"k%d" % rng.randrange(9), rng.randbytes(70), LARGE[:9000])
            )
            value = rng.choice(
                (None, b"", b"v", rng.randbytes(300), LARGE[: rng.randrange(100_000)])
            )
            headers = ((b"h", LARGE[:20_000]),) if rng.random() < 0.1 else ()
            records.append(Record(offset, rng.randrange(1 << 40), key, value, headers))
            offset += rng.choice((1, 1, 5))
        parts.append(encode_batch(records))
        if rng.random() < 0.1:
            parts.append(encode_batch([], base_offset=offset, last_offset=offset + 1))
            offset += 2
    return b"".join(parts)


def streamed(data: bytes, path: Path, window_bytes: int, first_dirty: int = 0) -> Found:
    """Return offset and hash of every row that the stream makes of a file."""
    workspace = Workspace(MEMORY_BYTES_MIN)
    workspace.buffers.window_bytes = window_bytes
    path.write_bytes(data)
    handle = LocalReadHandle(path)
    found: Found = []

    def enough() -> None:
        held, workspace.rows_held = workspace.rows_held, 0
        hashes = [(int(a), int(b)) for a, b in workspace.hashes[:held].tolist()]
        found.extend(zip(workspace.offsets[:held].tolist(), hashes, strict=True))

    stream = KeyStream(workspace, HASH_KEY, first_dirty, -1)
    end = stream.read(handle, path, 0, len(data), enough, lambda count: None)
    enough()
    handle.close()
    assert (len(data), found[-1][0]) == (end, stream.last_offset)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window_bytes", [64, 5000, 1 << 20])
def test_stream_finds_the_rows_that_windows_have(
    seed: int, window_bytes: int, tmp_path: Path
) -> None:
    data = plain_log(seed) + one(9999, b"end")
    rows = [row for window in windows_of(data) for row in rows_of(window)]
    expected = [(row.offset, row.hashes) for row in rows if row.flags & 1]
    assert expected == streamed(data, tmp_path / "log", window_bytes)
    late = [(offset, hashes) for offset, hashes in expected if offset >= 50]
    assert late == streamed(data, tmp_path / "log", window_bytes, first_dirty=50)


def test_large_values_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    hear(
        monkeypatch,
        LocalReadHandle,
        "pread_into",
        lambda self, buffer, position: read.append(len(buffer)),
    )
    data = b"".join(one(i, b"k%d" % i, LARGE) for i in range(100))
    streamed(data, tmp_path / "log", 1 << 16)
    assert sum(read) < (1 << 16) + 101 * 2 * PIECE_BYTES


def test_offsets_that_do_not_ascend_are_refused() -> None:
    data = one(5, b"a") + one(5, b"b") + one(6, b"c")
    stream = KeyStream(Workspace(MEMORY_BYTES_MIN), HASH_KEY, 0, -1)
    end = stream.read(MemoryHandle(data), PATH, 0, len(data), lambda: None, lambda count: None)
    assert (len(data), DISORDER) == (end, stream.last_offset)


@pytest.mark.parametrize(
    "other",
    [
        encode_batch([Record(3, -1, b"b", b"v")], codec=Codec.LZ4),
        data_batch(3, 7, [b"b"]),
        marker(3, 7, ControlType.ABORT),
        bytes(20),
        one(3, b"b")[:69],
    ],
    ids=["compressed", "transactional", "control", "zeros", "cut"],
)
def test_stream_stops_before_what_is_not_plain(other: bytes) -> None:
    data = one(1, b"a") + one(2, b"a")
    stream = KeyStream(Workspace(MEMORY_BYTES_MIN), HASH_KEY, 0, -1)
    whole = data + other
    end = stream.read(MemoryHandle(whole), PATH, 0, len(whole), lambda: None, lambda count: None)
    assert len(data) == end


def mixed_segments() -> dict[int, bytes]:
    """Return plain, compressed and transactional batches in turns, in which some records go."""
    parts = []
    for i in range(0, 400, 4):
        key = b"k%d" % (i % 36)
        parts.append(one(i, key, LARGE[:40_000] if i % 40 == 0 else b"v"))
        parts.append(encode_batch([Record(i + 1, -1, key, b"w")], codec=Codec.ZSTD))
        parts.append(data_batch(i + 2, 7, [key]))
        parts.append(marker(i + 3, 7, ControlType.ABORT if i % 8 else ControlType.COMMIT))
    return {0: b"".join(parts), 400: b"".join(one(400 + i, b"k%d" % i) for i in range(9)), 409: b""}


def test_kinds_of_batches_may_alternate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streaming = write_partition(tmp_path / "a", mixed_segments())
    windows = write_partition(tmp_path / "b", mixed_segments())
    report = clean_at(streaming)
    monkeypatch.setattr(KeyStream, "read", lambda self, handle, path, start, *rest: start)
    other = clean_at(windows)
    assert report.stats is not None
    assert other.stats is not None
    assert other.stats.map_messages_read == report.stats.map_messages_read
    assert other.stats.map_bytes_read == report.stats.map_bytes_read
    assert (other.end_offset, other.reasons) == (report.end_offset, report.reasons)
    assert _logs(windows) == _logs(streaming)


def _logs(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("0*")}


SUPERSEDED = one(0, b"x", LARGE)
KEPT = one(1, b"y", LARGE)
MANY = encode_batch([Record(2 + i, -1, b"x", LARGE[:30_000]) for i in range(4)])
DAMAGED = {"superseded": 0, "kept": len(SUPERSEDED), "of several": len(SUPERSEDED + KEPT)}
PLACES: dict[str, Callable[[int], int]] = {
    "offset": lambda size: 3,
    "crc": lambda size: 18,
    "last offset": lambda size: 26,
    "producer": lambda size: 45,
    "length of the record": lambda size: 62,
    "offset of the record": lambda size: 66,
    "key": lambda size: 69,
    "value": lambda size: 50_000,
    "last byte": lambda size: size - 1,
}


@pytest.mark.parametrize("which", DAMAGED)
@pytest.mark.parametrize("place", PLACES)
def test_damage_is_found_wherever_it_is(which: str, place: str, tmp_path: Path) -> None:
    data = bytearray(SUPERSEDED + KEPT + MANY + one(6, b"x"))
    start = DAMAGED[which]
    size = int.from_bytes(data[start + 8 : start + 12], "big") + 12
    data[start + PLACES[place](size)] ^= 0x15
    directory = write_partition(tmp_path, {0: b"", 7: one(7, b"z"), 8: b""})
    (directory / f"{0:020d}.log").write_bytes(data)
    before = _logs(directory)
    request = replace(clean_request(directory), memory_bytes=MEMORY_BYTES_DEFAULT)
    with pytest.raises(CorruptError, match=f"position={start} "):
        clean(request)
    assert before == _logs(directory)


def test_a_piece_is_smaller_than_what_is_stepped_over() -> None:
    assert PIECE_BYTES < index.STEP_BYTES_MIN
