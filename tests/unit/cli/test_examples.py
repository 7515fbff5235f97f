"""The worked examples, as a reader runs them by their pages."""

from __future__ import annotations

import importlib
import importlib.util
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import keeplast
from keeplast.errors import CorruptError
from tests.support.existing import existing

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLE = Path(keeplast.__file__).parent / "samples" / "broker-4.3.0"


def printed(script: str, directory: Path) -> str:
    command = [sys.executable, str(EXAMPLES / script), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.repeats(
    "tests/unit/api/test_exported_state.py::test_the_newest_version_of_incremental_exports_is_taken"
)
def test_a_lost_store_is_made_again_from_a_checkpoint(tmp_path: Path) -> None:
    found = printed("restore-store/restore.py", tmp_path / "try")
    assert "equal to the lost ones; orders go on from 800" in found
    assert "all 1000 orders are in" in found
    versions = sorted(each.name for each in (tmp_path / "try/backup/versions").iterdir())
    assert ["00000002", "00000003"] == versions


def test_devices_that_report_out_of_order_keep_their_greatest_version(tmp_path: Path) -> None:
    found = printed("devices/devices.py", tmp_path / "try")
    assert 6 == found.count("before the round and after it")
    assert "did not come back" in found


@pytest.mark.repeats(
    "tests/simulation/test_erasure_bound.py::test_overwritten_values_are_gone_when_status_said"
)
def test_a_person_is_gone_by_a_date(tmp_path: Path) -> None:
    found = printed("gone-by-a-date/forget.py", tmp_path / "try")
    assert "gone within 7 days and an hour" in found
    assert "no byte of the directory has his key" in found


@pytest.mark.repeats(
    "tests/simulation/test_least_lag.py::test_a_bad_write_is_undone_from_the_value_before_it"
)
def test_a_reader_within_the_lag_misses_nothing_and_a_mistake_is_put_right(tmp_path: Path) -> None:
    found = printed("a-least-lag/mistake.py", tmp_path / "try")
    assert "given all 60 messages" in found
    assert "cleaned_to=120 end_offset=100" in found
    assert "every article has its price" in found


@pytest.fixture(scope="module")
def pgoutput() -> Any:
    path = EXAMPLES / "postgres-cdc/pgoutput.py"
    spec = existing(importlib.util.spec_from_file_location("pgoutput", path))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for their module there.
    sys.modules["pgoutput"] = module
    spec.loader.exec_module(module)
    del sys.modules["pgoutput"]
    return module


RELATION = b"R" + struct.pack(">I", 7) + b"public\0t\0f" + struct.pack(">H", 2)
RELATION += b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\1word\0" + struct.pack(">Ii", 25, -1)
ROW = struct.pack(">H", 2) + b"t" + struct.pack(">I", 1) + b"5"
WORD = b"t" + struct.pack(">I", 2) + b"\xc3\xa9"


def test_messages_of_postgresql_are_rows(pgoutput: Any) -> None:
    decoder = pgoutput.Decoder()
    assert pgoutput.Relation(7, ("id", "word")) == decoder.decode(RELATION)
    seven = struct.pack(">I", 7)
    row = {"id": "5", "word": "\u00e9"}
    assert pgoutput.Change(7, None, row) == decoder.decode(b"I" + seven + b"N" + ROW + WORD)
    # A large value that an update did not touch is in the row that it replaced.
    update = b"U" + seven + b"O" + ROW + WORD + b"N" + ROW + b"u"
    assert pgoutput.Change(7, row, row, is_update=True) == decoder.decode(update)
    gone = {"id": "5", "word": None}
    assert pgoutput.Change(7, gone, None) == decoder.decode(b"D" + seven + b"O" + ROW + b"n")
    assert pgoutput.Truncate((7,)) == decoder.decode(b"T" + struct.pack(">I", 1) + b"\0" + seven)
    commit = b"C\0" + struct.pack(">QQq", 1, 2, 3_000)
    assert pgoutput.Commit(2, pgoutput.POSTGRES_EPOCH_MS + 3) == decoder.decode(commit)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"?", b"B", b"C\0", RELATION[:-1], b"R" + struct.pack(">I", 7) + b"no end",
        b"I" + struct.pack(">I", 8) + b"N" + ROW + WORD, b"I" + struct.pack(">I", 7) + b"K",
        b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3),
        b"I" + struct.pack(">I", 7) + b"N" + ROW + b"x",
        b"I" + struct.pack(">I", 7) + b"N" + ROW + b"t" + struct.pack(">I", 1 << 31),
        b"I" + struct.pack(">I", 7) + b"N" + ROW + WORD + b"more",
        b"T" + struct.pack(">IB", 1 << 31, 0),
    ],
)  # fmt: skip
def test_bytes_that_are_no_message_are_refused(pgoutput: Any, data: bytes) -> None:
    decoder = pgoutput.Decoder()
    decoder.decode(RELATION)
    with pytest.raises(CorruptError, match="pgoutput"):
        decoder.decode(data)


@pytest.mark.repeats(
    "tests/unit/cli/test_export_incremental.py::test_a_version_has_each_key_that_changed_once"
)
@pytest.mark.parametrize("script", ["delta", "iceberg"])
def test_a_lakehouse_table_follows_the_increments(tmp_path: Path, script: str) -> None:
    found = printed(f"lakehouse/{script}.py", tmp_path / "try")
    page = (EXAMPLES / "lakehouse/README.md").read_text()
    assert found in page
    assert "12 delete" in found


def test_a_table_that_missed_a_version_takes_the_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "lakehouse")
    increments: Any = importlib.import_module("increments")
    for end in (60, 150, 339):
        ends = {"orders": {0: end}}
        keeplast.export(SAMPLE, tmp_path, ending_offsets=ends, incremental=True, topics=["orders"])
    wholes = [increments.read_increment(tmp_path, "orders", seen).is_whole for seen in (0, 1, 2)]
    assert [True, True, False] == wholes
    assert increments.read_increment(tmp_path, "orders", 3) is None


def load_decoder() -> Any:
    path = EXAMPLES / "schema-registry/decode.py"
    spec = existing(importlib.util.spec_from_file_location("decode", path))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["decode"] = module
    spec.loader.exec_module(module)
    return module


def test_values_of_a_schema_registry_are_decoded_by_their_ids() -> None:
    decode = load_decoder()
    registry = decode.example_registry()
    decoder = decode.Decoder(registry)
    found = [decoder.decode(value) for value in decode.example_values(registry)]
    assert [{"id": 41, "note": "late"}, {"id": 42}, {"id": "43"}, {"sku": "abc"}, None] == found
    page = (EXAMPLES / "schema-registry/README.md").read_text()
    command = [sys.executable, str(EXAMPLES / "schema-registry/decode.py")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout in page


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"\x01\0\0\0\x01x", b"\0\0\0\0\x09x", b"\0\0\0\0\x03\xff\xff\xff\xff\xff\x7f"],
)
def test_what_no_serializer_wrote_is_no_value(value: bytes) -> None:
    decode = load_decoder()
    with pytest.raises(decode.NotFramedError):
        decode.Decoder(decode.example_registry()).decode(value)


def test_message_indexes_are_read_as_they_are_written() -> None:
    decode = load_decoder()
    assert ([0], 1) == decode.read_indexes(b"\0rest")
    assert ([1, 0], 3) == decode.read_indexes(bytes([4, 2, 0]))
    assert ([64], 3) == decode.read_indexes(bytes([2, 0x80, 1]))
