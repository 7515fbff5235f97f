"""Records of ``__consumer_offsets``: committed offsets, groups and their members.

A key is an int16 that says what the record is about, then plain fields. A value is an int16
version, then fields in the encoding of that version. No value means that the thing is gone.

    ====  ===========================================  ==================================
    type  key                                          value
    ====  ===========================================  ==================================
    0, 1  group, topic, partition                      offset commit 0 to 4
    2     group                                        classic group 0 to 4
    3-23  group; for some a member or an expression    not decoded: the type says enough
    ====  ===========================================  ==================================

A type that is not in the list, and a version above those known, are shown as such and are no error:
they are a newer Kafka's. Answers to ``GroupCoordinatorRecordSerde`` and the generated classes
``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey`` and ``GroupMetadataValue``.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.checksum import Buffer
from keeplast.format.fields import FieldReader
from keeplast.format.identifier import ID_BYTES

TOPIC = "__consumer_offsets"
PARTITIONS_DEFAULT = 50
"""``offsets.topic.num.partitions``, when it is not set."""
OFFSET_COMMIT_VERSION_MAX = 4
GROUP_VERSION_MAX = 4
FLEXIBLE_FROM = 4
GROUP_BYTES_MAX = (1 << 15) - 1
GROUP_SHOWN_MAX = 80
_LENGTH, _CHAR = struct.Struct(">h"), struct.Struct(">H")
MEMBER_BYTES_MIN = 8
"""Fewer than any member takes; a bound on what a count may claim."""

OFFSET_COMMIT = "offset commit"
GROUP = "group"
UNKNOWN = "unknown"

_TYPES: dict[int, tuple[str, str | None]] = {
    3: ("consumer group", None),
    4: ("consumer group partitions", None),
    5: ("consumer group member", "member"),
    6: ("consumer group target assignment", None),
    7: ("consumer group target assignment of a member", "member"),
    8: ("consumer group assignment of a member", "member"),
    9: ("share group partitions", None),
    10: ("share group member", "member"),
    11: ("share group", None),
    12: ("share group target assignment", None),
    13: ("share group target assignment of a member", "member"),
    14: ("share group assignment of a member", "member"),
    15: ("share group state of partitions", None),
    16: ("consumer group regular expression", "expression"),
    17: ("streams group", None),
    18: ("streams group partitions", None),
    19: ("streams group member", "member"),
    20: ("streams group target assignment", None),
    21: ("streams group target assignment of a member", "member"),
    22: ("streams group assignment of a member", "member"),
    23: ("streams group topology", None),
}


class CoordinatorKey(Struct, frozen=True):
    """What a record is about; ``subject`` is the member or expression of types that have one."""

    type_number: int
    type_name: str
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    subject: str | None = None


class OffsetCommit(Struct, frozen=True):
    """A committed offset; -1 and None for what its version does not have."""

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: bytes | None = None


class GroupMember(Struct, frozen=True):
    """A member of a classic group; sizes stand for what the members agree on among themselves."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription_bytes: int
    assignment_bytes: int


class ClassicGroup(Struct, frozen=True):
    """A classic group; ``state_timestamp`` is -1 before version 2."""

    version: int
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[GroupMember, ...]


class UnknownValue(Struct, frozen=True):
    """A value of a type or version that is not decoded; version -1 where even that is unknown."""

    version: int
    size_bytes: int


CoordinatorValue = OffsetCommit | ClassicGroup | UnknownValue


def group_name(group: str) -> bytes:
    """Return a group as every key that is about it has it after its type.

    InvalidError when no key can have it.
    """
    try:
        name = group.encode()
    except UnicodeEncodeError:
        name = b""
    if not 0 < len(name) <= GROUP_BYTES_MAX:
        raise InvalidError(
            f"not the name of a consumer group; give 1 to {GROUP_BYTES_MAX} bytes of text. "
            f"group={group[:GROUP_SHOWN_MAX]!r}",
            code="K107",
        )
    return _LENGTH.pack(len(name)) + name


def home_partition(group: str, partitions: int) -> int:
    """Return which of so many partitions of the topic all records of a group are in.

    Answers to ``GroupCoordinatorService.partitionFor``: Java's hash of the name, without its sign.
    """
    value = 0
    for (unit,) in _CHAR.iter_unpack(group.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    magnitude = value if value < 1 << 31 else (1 << 32) - value
    # The one number without a counterpart counts as 0.
    return magnitude % (1 << 31) % partitions


def decode_key(key: Buffer | None) -> CoordinatorKey:
    """Return what a record is about, or raise :class:`CorruptError`."""
    if key is None:
        raise CorruptError(
            "record of the offsets topic without a key",
            position=0,
            expected="a key",
            found="null",
            code="K223",
        )
    fields = FieldReader(key, "key of the offsets topic")
    number = fields.int16()
    if number in (0, 1):
        found = CoordinatorKey(
            number, OFFSET_COMMIT, fields.text(), topic=fields.text(), partition=fields.int32()
        )
    elif number == 2:
        found = CoordinatorKey(number, GROUP, fields.text())
    elif number in _TYPES:
        name, subject = _TYPES[number]
        group = fields.text()
        found = CoordinatorKey(number, name, group, subject=fields.text() if subject else None)
    else:
        return CoordinatorKey(number, UNKNOWN)
    fields.end()
    return found


def decode_value(key: CoordinatorKey, value: Buffer | None) -> CoordinatorValue | None:
    """Return the value of a record with ``key``, None for a tombstone, or raise CorruptError."""
    if value is None:
        return None
    if key.type_name == UNKNOWN:
        return UnknownValue(-1, len(value))
    fields = FieldReader(value, f"{key.type_name} of the offsets topic")
    version = fields.int16()
    if version < 0:
        raise CorruptError(
            "negative version in the offsets topic",
            position=0,
            expected="0 or more",
            found=version,
            code="K223",
        )
    fields.is_flexible = version >= FLEXIBLE_FROM
    if key.type_name == OFFSET_COMMIT and version <= OFFSET_COMMIT_VERSION_MAX:
        return _offset_commit(fields, version)
    if key.type_name == GROUP and version <= GROUP_VERSION_MAX:
        return _classic_group(fields, version)
    return UnknownValue(version, len(value))


def _offset_commit(fields: FieldReader, version: int) -> OffsetCommit:
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else -1
    metadata = fields.text()
    commit_timestamp = fields.int64()
    expire_timestamp = fields.int64() if version == 1 else -1
    tags = fields.tags()
    fields.end()
    topic_id = tags[0].raw(ID_BYTES) if 0 in tags else None
    return OffsetCommit(
        version, offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id
    )


def _classic_group(fields: FieldReader, version: int) -> ClassicGroup:
    protocol_type, generation = fields.text(), fields.int32()
    protocol, leader = fields.nullable_text(), fields.nullable_text()
    state_timestamp = fields.int64() if version >= 2 else -1
    count = fields.count(MEMBER_BYTES_MIN)
    members = tuple(_member(fields, version) for _ in range(count))
    fields.tags()
    fields.end()
    return ClassicGroup(
        version, protocol_type, generation, protocol, leader, state_timestamp, members
    )


def _member(fields: FieldReader, version: int) -> GroupMember:
    member = GroupMember(
        member_id=fields.text(),
        group_instance_id=fields.nullable_text() if version >= 3 else None,
        client_id=fields.text(),
        client_host=fields.text(),
        rebalance_timeout_ms=fields.int32() if version >= 1 else -1,
        session_timeout_ms=fields.int32(),
        subscription_bytes=len(fields.blob()),
        assignment_bytes=len(fields.blob()),
    )
    fields.tags()
    return member
