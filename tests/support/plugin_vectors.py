"""Objects that Aiven's plugin wrote of real segments, and those segments: ``aiven_plugin.tar.xz``.

How they were made is in ``tests/golden/README.md``.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.format.identifier import decode_id
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.support.archive import names, unpack

ARCHIVE = Path(__file__).resolve().parent.parent / "golden" / "aiven_plugin.tar.xz"
SUFFIXES = ("log", "indexes", "rsm-manifest")
CASES = (
    "A-both-10000", "A-both-4194304", "A-enc-10000", "A-enc-4194304", "A-plain-10000",
    "A-plain-10000-op_ok", "A-plain-10000-rs", "A-plain-10000-rs_op_ok", "A-plain-4194304",
    "A-zstd-10000", "A-zstd-4194304", "B-both-700", "B-enc-19787", "B-plain-19787", "B-zstd-100",
    "C-both-10000", "C-plain-10000",
)  # fmt: skip


class PluginCase(Struct, frozen=True):
    """A segment, its files, and the three objects that the plugin made of it."""

    segment: RemoteLogSegment
    log: bytes
    auxiliary: dict[AuxiliaryFile, bytes]
    objects: dict[str, bytes]
    keys: dict[str, str]
    chunk_size: int
    prefix: str
    is_compressed: bool
    is_encrypted: bool
    fields: tuple[str, ...]

    def place(self, root: Path) -> None:
        """Write the objects where the plugin's file system backend would."""
        for suffix, data in self.objects.items():
            path = root / self.keys[suffix]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def unpack_vectors(directory: Path) -> None:
    """Write cases, inputs and the key pair below ``directory``."""
    assert {"cases", "input", "keys"} == set(names(ARCHIVE))
    unpack(ARCHIVE, directory)
    assert set(CASES) == {path.name for path in (directory / "cases").iterdir()}


def read_case(directory: Path, name: str) -> PluginCase:
    """Return a case of what :func:`unpack_vectors` wrote."""
    folder = directory / "cases" / name
    case = json.loads((folder / "case.json").read_text())
    source = directory / "input" / case["input"]
    files = {
        kind: (source / f"segment.{kind}").read_bytes()
        for kind in AuxiliaryFile
        if (source / f"segment.{kind}").exists()
    }
    custom = case["customMetadataHex"]
    segment = _segment(source, None if custom is None else bytes.fromhex(custom))
    return PluginCase(
        segment=segment,
        log=(source / "segment.log").read_bytes(),
        auxiliary=files,
        objects={each: (folder / f"segment.{each}").read_bytes() for each in SUFFIXES},
        keys={key.rpartition(".")[2]: key for key in case["objectKeys"]},
        chunk_size=case["chunk.size"],
        prefix=case["key.prefix"],
        is_compressed=case["compression"],
        is_encrypted=case["encryption"],
        fields=tuple(filter(None, case["custom.metadata.fields.include"].split(","))),
    )


def _segment(source: Path, custom: bytes | None) -> RemoteLogSegment:
    lines = (source / "meta.properties").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    partition = TopicIdPartition(
        found["topic"], decode_id(found["topicId"]), int(found["partition"])
    )
    epochs = (each.split(":") for each in found["epochs"].split(","))
    return RemoteLogSegment(
        id=RemoteLogSegmentId(partition, decode_id(found["id"])),
        start_offset=int(found["start"]),
        end_offset=int(found["end"]),
        broker_id=int(found["broker"]),
        max_timestamp_ms=int(found["maxts"]),
        event_timestamp_ms=int(found["evts"]),
        epochs=tuple(EpochStart(int(epoch), int(start)) for epoch, start in epochs),
        size_bytes=int(found["size"]),
        custom_metadata=custom,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )
