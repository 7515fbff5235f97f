"""Decodes values that a schema registry's serializers wrote: Avro, JSON and Protobuf.

Each begins with a byte 0 and the schema's id, four bytes, big-endian; Protobuf's then name the
message in its file by indexes. The registry is a dict here: in yours it is asked once an id, for
``GET /schemas/ids/ID``, and the answers are kept.

Run it as ``python examples/schema-registry/decode.py``; README.md says what it needs.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor

MAGIC = 0
FRAME = struct.Struct(">bI")
INDEXES_MAX = 100
"""Messages nest no deeper in any file that people write."""


class NotFramedError(ValueError):
    """A value was not written by a registry's serializer, or names a schema that is not there."""


@dataclass(frozen=True)
class Schema:
    """A schema as the registry has it: AVRO, JSON or PROTOBUF, and its text.

    Of Protobuf it is the file's descriptor, serialized: ``protoc --descriptor_set_out`` makes it.
    """

    kind: str
    text: str | bytes


class Decoder:
    """Decodes values by the schemas of a registry, each prepared once."""

    def __init__(self, registry: Mapping[int, Schema]) -> None:
        """Take the registry."""
        self._registry = registry
        self._prepared: dict[int, Callable[[bytes], Any]] = {}

    def decode(self, value: bytes | None) -> Any:
        """Return what a record's value says; None of a tombstone, which no serializer frames."""
        if value is None:
            return None
        if len(value) < FRAME.size or value[0] != MAGIC:
            raise NotFramedError(
                f"no schema registry's serializer wrote this. bytes={value[:16]!r}"
            )
        _, number = FRAME.unpack_from(value)
        if number not in self._prepared:
            if number not in self._registry:
                raise NotFramedError(f"the registry has no such schema. id={number}")
            self._prepared[number] = _PREPARE[self._registry[number].kind](self._registry[number])
        return self._prepared[number](value[FRAME.size :])


def _avro(schema: Schema) -> Callable[[bytes], Any]:
    parsed = fastavro.parse_schema(json.loads(schema.text))
    return lambda data: fastavro.schemaless_reader(io.BytesIO(data), parsed, None)


def _json(schema: Schema) -> Callable[[bytes], Any]:
    # Whether it fits the schema was checked when it was written.
    return json.loads


def _protobuf(schema: Schema) -> Callable[[bytes], Any]:
    assert isinstance(schema.text, bytes)
    pool = descriptor_pool.DescriptorPool()
    file = pool.AddSerializedFile(schema.text)
    messages = list(descriptor_pb2.FileDescriptorProto.FromString(schema.text).message_type)

    def decode(data: bytes) -> Any:
        indexes, at = read_indexes(data)
        found: Descriptor = file.message_types_by_name[messages[indexes[0]].name]
        for index in indexes[1:]:
            found = found.nested_types[index]
        message = message_factory.GetMessageClass(found)()
        message.ParseFromString(data[at:])
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    return decode


def read_indexes(data: bytes) -> tuple[list[int], int]:
    """Return which message of the file it is, and where the message begins.

    A count and so many indexes, each a zigzag varint; a single 0 stands for the first message.
    """
    count, at = read_varint(data, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise NotFramedError(f"no list of message indexes. count={count}")
    indexes = []
    for _ in range(count):
        index, at = read_varint(data, at)
        if index < 0:
            raise NotFramedError(f"no index of a message. index={index}")
        indexes.append(index)
    return indexes or [0], at


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of at most five bytes, and where it ends."""
    result = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
    raise NotFramedError("the message indexes end early, or are too long")


_PREPARE = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}


def frame(number: int, data: bytes) -> bytes:
    """Return a value as a serializer writes it."""
    return FRAME.pack(MAGIC, number) + data


def example_registry() -> dict[int, Schema]:
    """Return a registry with a schema of each kind."""
    avro = {
        "type": "record", "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Ignored")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    return {
        1: Schema("AVRO", json.dumps(avro)),
        2: Schema("JSON", '{"type": "object"}'),
        3: Schema("PROTOBUF", file.SerializeToString()),
    }


def example_values(registry: Mapping[int, Schema]) -> list[bytes | None]:
    """Return values as producers write them, and a tombstone."""
    avro = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(registry[1].text))
    fastavro.schemaless_writer(avro, parsed, {"id": 41, "note": "late"})
    return [
        frame(1, avro.getvalue()),
        frame(2, b'{"id": 42}'),
        # Message 1 of the file: a list of one index. Then message 0 in message 1.
        frame(3, bytes([2, 2]) + bytes([0x08, 43])),
        frame(3, bytes([4, 2, 0]) + b"\x0a\x03abc"),
        None,
    ]


def main() -> None:
    """Decode a value of each kind."""
    registry = example_registry()
    decoder = Decoder(registry)
    for value in example_values(registry):
        print(value if value is None else value[:5].hex(), decoder.decode(value))


if __name__ == "__main__":
    main()
