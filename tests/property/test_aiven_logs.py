"""Whatever is written in chunks is read again: any size, any chunk, any range, all variants."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.cluster.layouts import aiven_log
from keeplast.cluster.layouts.aiven import (
    CustomMetadata,
    decode_custom_metadata,
    encode_custom_metadata,
)
from keeplast.cluster.layouts.aiven_encryption import KeyRing
from keeplast.cluster.layouts.aiven_log import AivenLogWriter, AivenSegmentReader, pack_indexes
from keeplast.cluster.layouts.aiven_manifest import (
    decode_manifest,
    decode_sizes,
    decode_written,
    encode_manifest,
    encode_sizes,
)
from keeplast.cluster.layouts.layout import ALWAYS_THERE, AuxiliaryFile
from keeplast.errors import CorruptError, RefusedError
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.stores import open_tree
from tests.support.remote_segments import remote_segment

INT32_MAX = (1 << 31) - 1


@settings(
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
)
@given(
    chunk=st.integers(1, 3000),
    content=st.tuples(st.integers(1, 6000), st.integers(0, 255), st.booleans()),
    cut=st.integers(1, 4000),
    ranges=st.lists(st.tuples(st.integers(0, 6100), st.integers(0, 6100)), max_size=6),
    fetch=st.integers(1, 5000),
    is_in_files=st.booleans(),
    is_compressed=st.booleans(),
    is_encrypted=st.booleans(),
    auxiliary=st.dictionaries(st.sampled_from(AuxiliaryFile), st.binary(max_size=50)),
)
def test_a_log_comes_back(
    ring: KeyRing,
    tmp_path: Path,
    chunk: int,
    content: tuple[int, int, bool],
    cut: int,
    ranges: list[tuple[int, int]],
    fetch: int,
    is_in_files: bool,
    is_compressed: bool,
    is_encrypted: bool,
    auxiliary: dict[AuxiliaryFile, bytes],
) -> None:
    size, seed, is_random = content
    drawn = np.random.default_rng(seed).integers(0, 256 if is_random else 3, size, np.uint8)
    log = drawn.tobytes()
    files = {**dict.fromkeys(ALWAYS_THERE, b"x"), **auxiliary}
    url = f"file://{tempfile.mkdtemp(dir=tmp_path)}" if is_in_files else "memory://"
    objects = open_tree(url)
    sealing, cipher = ring.new_segment(None) if is_encrypted else (None, None)
    writer = AivenLogWriter(
        NewObject(objects, "log"), chunk, sealing, cipher, is_compressed=is_compressed
    )
    for at in range(0, size, cut):
        writer.write(memoryview(log)[at : at + cut])
    written = writer.close()
    assert size == written.size_bytes
    found, indexes = pack_indexes(files, cipher)
    objects.put_new("indexes", indexes)
    segment = remote_segment(size_bytes=size)
    data = encode_manifest(replace(decode_written(written.description), files=found), segment)
    manifest = decode_manifest(data)
    assert data == encode_manifest(manifest, segment)
    opened = None if manifest.sealing is None else ring.open(manifest.sealing)
    assert objects.stat("log").size_bytes == manifest.chunks.stored_size
    with (
        patch.object(aiven_log, "FETCH_BYTES", fetch),
        patch.object(aiven_log, "PART_BYTES", fetch),
    ):
        reader = AivenSegmentReader(objects, url, "log", "indexes", manifest, opened)
        for start, end in [*ranges, (0, size)]:
            assert log[start:end] == reader.read_log(start, end)
    assert {kind: files.get(kind) for kind in AuxiliaryFile} == {
        kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile
    }


@given(st.lists(st.integers(1, INT32_MAX)))
def test_sizes_of_chunks_come_back(sizes: list[int]) -> None:
    assert sizes == list(decode_sizes(encode_sizes(np.array(sizes, np.int64))))


@given(
    st.none() | st.integers(0, (1 << 63) - 1), st.none() | st.text(), st.none() | st.text()
)  # fmt: skip
def test_custom_metadata_comes_back(size: int | None, prefix: str | None, key: str | None) -> None:
    fields = CustomMetadata(size, prefix, key)
    assert fields == decode_custom_metadata(encode_custom_metadata(fields))


@given(
    at=st.integers(0, 400),
    length=st.integers(0, 30),
    put=st.text(alphabet='{}[]":,0123456789-+.eEtrufalsn\\\0é', max_size=12),
    is_compressed=st.booleans(),
)
def test_a_changed_manifest_is_read_or_refused(
    at: int, length: int, put: str, is_compressed: bool
) -> None:
    objects = open_tree("memory://")
    writer = AivenLogWriter(NewObject(objects, "log"), 7, None, None, is_compressed=is_compressed)
    writer.write(bytes(100))
    found, _ = pack_indexes(dict.fromkeys(ALWAYS_THERE, b"x"), None)
    manifest = replace(decode_written(writer.close().description), files=found)
    data = encode_manifest(manifest, remote_segment(size_bytes=100)).decode()
    with contextlib.suppress(CorruptError, RefusedError):
        decode_manifest((data[:at] + put + data[at + length :]).encode())
