"""What a kernel cannot spell in Python: unaligned loads and stores, memcpy, the CRC-32C step,
varints.

Nothing here checks a bound: the caller has. Big-endian is Kafka's order on disk; little-endian is
what SipHash and the CRC instruction read.

Varints are as the JVM reads and writes them. A reader returns (value, next position); the position
is -1 when the number runs past ``end`` or past its last permitted byte. Excess bits of the last
byte are dropped, as Java does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from keeplast.columns.kernel import inline, outline

_CPU_FEATURES = binding.get_host_cpu_features()
HAS_CRC_INSTRUCTION = bool(_CPU_FEATURES.get("sse4.2", False))


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _is_bytes(array: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype == types.uint8 and array.layout == "C"


def _load(typing_context: Any, array: Any, index: Any, bits: int, swap: bool) -> Any:
    if not _is_bytes(array) or not isinstance(index, types.Integer):
        return None
    result = types.uint64 if bits == 64 else types.uint32

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        word = ir.IntType(bits)
        value = builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)
        return builder.bswap(value) if swap else value

    return result(array, types.int64), codegen


@intrinsic
def load_le64(typing_context: Any, array: Any, index: Any) -> Any:
    """Return eight bytes at ``index`` as a little-endian uint64."""
    return _load(typing_context, array, index, 64, False)


@intrinsic
def load_be64_unsigned(typing_context: Any, array: Any, index: Any) -> Any:
    """Return eight bytes at ``index`` as a big-endian uint64."""
    return _load(typing_context, array, index, 64, True)


@intrinsic
def load_be32_unsigned(typing_context: Any, array: Any, index: Any) -> Any:
    """Return four bytes at ``index`` as a big-endian uint32."""
    return _load(typing_context, array, index, 32, True)


@intrinsic
def _store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    if not _is_bytes(array) or value not in (types.uint64, types.uint32):
        return None
    bits = value.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1])
        word = ir.IntType(bits)
        builder.store(builder.bswap(args[2]), builder.bitcast(pointer, word.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, value), codegen


@intrinsic
def copy_bytes(
    typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any
) -> Any:
    """Copy ``length`` bytes between arrays that do not overlap."""
    if not (_is_bytes(target) and _is_bytes(source)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _address(context, builder, signature.args[0], args[0], args[1])
        origin = _address(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def table_at(typing_context: Any, address: Any, rows: Any, words: Any) -> Any:
    """Return the uint64 table of ``rows`` by ``words`` that begins at an address.

    The caller that gave the address keeps the table alive until the kernel has returned.
    """
    if not all(isinstance(each, types.Integer) for each in (address, rows, words)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.return_type)(context, builder)
        size = context.get_constant(types.intp, 8)
        context.populate_array(
            array,
            data=builder.inttoptr(args[0], array.data.type),
            shape=[args[1], args[2]],
            strides=[builder.mul(args[2], size), size],
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return types.Array(types.uint64, 2, "C")(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch_row(typing_context: Any, table: Any, row: Any) -> Any:
    """Ask for the cache line in which a row of a uint64 table begins."""
    if not (isinstance(table, types.Array) and table.ndim == 2 and table.layout == "C"):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        pointer = builder.gep(array.data, [builder.mul(args[1], columns)])
        byte_pointer = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32]),
            "llvm.prefetch.p0i8",
        )
        arguments = [builder.bitcast(pointer, byte_pointer), i32(0), i32(3), i32(1)]
        builder.call(function, arguments)
        return context.get_dummy_value()

    return types.void(table, types.int64), codegen


@intrinsic
def _crc_step64(typing_context: Any, crc: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i64, [i64, i64]), "llvm.x86.sse42.crc32.64.64"
        )
        return builder.call(function, args)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def _crc_step8(typing_context: Any, crc: Any, byte: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i8 = ir.IntType(32), ir.IntType(8)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i32, [i32, i8]), "llvm.x86.sse42.crc32.32.8"
        )
        return builder.call(function, args)

    return types.uint32(types.uint32, types.uint8), codegen


@inline
def load_be64(array, index):
    """Return eight bytes at ``index`` as a big-endian int64."""
    return np.int64(load_be64_unsigned(array, index))


@inline
def load_be32(array, index):
    """Return four bytes at ``index`` as a big-endian signed number, in an int64."""
    return np.int64(np.int32(load_be32_unsigned(array, index)))


@inline
def load_be16(array, index):
    """Return two bytes at ``index`` as a big-endian signed number, in an int64."""
    return np.int64(np.int16((np.int64(array[index]) << 8) | np.int64(array[index + 1])))


@inline
def store_be64(array, index, value):
    """Write an int64 big-endian."""
    _store(array, index, np.uint64(value))


@inline
def store_be32(array, index, value):
    """Write the low 32 bits of an int64 big-endian."""
    _store(array, index, np.uint32(np.uint64(value) & np.uint64(0xFFFFFFFF)))


@inline
def store_be16(array, index, value):
    """Write the low 16 bits of an int64 big-endian."""
    array[index] = np.uint8((value >> 8) & 0xFF)
    array[index + 1] = np.uint8(value & 0xFF)


def _tables(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    tables = np.zeros((8, 256), np.uint32)
    crcs: np.ndarray[Any, np.dtype[np.uint32]] = np.arange(256, dtype=np.uint32)
    one = np.uint32(1)
    for _ in range(8):
        crcs = (crcs >> one) ^ (crcs & one) * np.uint32(polynomial)
    tables[0] = crcs
    for slice_ in range(1, 8):
        crcs = tables[0, crcs & 0xFF] ^ (crcs >> 8)
        tables[slice_] = crcs
    return tables


_CRC32C_TABLES = _tables(0x82F63B78)
_CRC32_TABLES = _tables(0xEDB88320)


@outline
def _sliced(tables, array, start, end):
    """Slicing-by-8: eight table look-ups for every eight bytes."""
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        word = load_le64(array, at) ^ np.uint64(crc)
        crc = (
            tables[7, np.int64(word & np.uint64(0xFF))]
            ^ tables[6, np.int64((word >> np.uint64(8)) & np.uint64(0xFF))]
            ^ tables[5, np.int64((word >> np.uint64(16)) & np.uint64(0xFF))]
            ^ tables[4, np.int64((word >> np.uint64(24)) & np.uint64(0xFF))]
            ^ tables[3, np.int64((word >> np.uint64(32)) & np.uint64(0xFF))]
            ^ tables[2, np.int64((word >> np.uint64(40)) & np.uint64(0xFF))]
            ^ tables[1, np.int64((word >> np.uint64(48)) & np.uint64(0xFF))]
            ^ tables[0, np.int64(word >> np.uint64(56))]
        )
        at += 8
    while at < end:
        crc = tables[0, (np.int64(crc) ^ np.int64(array[at])) & 0xFF] ^ (crc >> np.uint32(8))
        at += 1
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@outline
def crc32(array, start, end):
    """Return the CRC-32 of ``array[start:end]`` (magic 0 and 1), in an int64."""
    return _sliced(_CRC32_TABLES, array, start, end)


@outline
def crc32c_by_table(array, start, end):
    """Return the CRC-32C of ``array[start:end]`` on any processor, in an int64."""
    return _sliced(_CRC32C_TABLES, array, start, end)


_BITS = np.arange(32, dtype=np.uint32)


def _image(
    images: np.ndarray[Any, np.dtype[np.uint32]], crcs: np.ndarray[Any, np.dtype[np.uint32]]
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Apply a linear step, given by what it makes of each single bit."""
    found: np.ndarray[Any, np.dtype[np.uint32]]
    found = np.bitwise_xor.reduce((crcs[..., None] >> _BITS & 1) * images, axis=-1)
    return found


def _shift_tables(doublings: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return four tables, one a byte of the CRC, that advance it over 2 ** doublings zero bytes."""
    ones = np.uint32(1) << _BITS
    images = _CRC32C_TABLES[0, ones & 0xFF] ^ (ones >> 8)
    for _ in range(doublings):
        images = _image(images, images)
    quarters = np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    return _image(images, np.arange(256, dtype=np.uint32) << quarters)


_LONG_BYTES = 2048
_SHORT_BYTES = 128
_LONG_SHIFT = _shift_tables(11)
_SHORT_SHIFT = _shift_tables(7)


@inline
def _advance(tables, crc):
    """Return the CRC after as many zero bytes as ``tables`` are for."""
    low = np.int64(crc)
    return np.uint64(
        tables[0, low & 0xFF]
        ^ tables[1, (low >> 8) & 0xFF]
        ^ tables[2, (low >> 16) & 0xFF]
        ^ tables[3, (low >> 24) & 0xFF]
    )


@inline
def _three_runs(tables, array, at, length, crc):
    """Return the CRC of three neighbouring runs of ``length`` bytes, taken at the same time.

    The instruction gives a result three cycles after it started, and can be started every cycle.
    """
    second = np.uint64(0)
    third = np.uint64(0)
    end = at + length
    while at < end:
        crc = _crc_step64(crc, load_le64(array, at))
        second = _crc_step64(second, load_le64(array, at + length))
        third = _crc_step64(third, load_le64(array, at + 2 * length))
        at += 8
    return _advance(tables, _advance(tables, crc) ^ second) ^ third


@outline
def _crc32c_by_instruction(array, start, end):
    crc = np.uint64(0xFFFFFFFF)
    at = start
    while at + 3 * _LONG_BYTES <= end:
        crc = _three_runs(_LONG_SHIFT, array, at, _LONG_BYTES, crc)
        at += 3 * _LONG_BYTES
    while at + 3 * _SHORT_BYTES <= end:
        crc = _three_runs(_SHORT_SHIFT, array, at, _SHORT_BYTES, crc)
        at += 3 * _SHORT_BYTES
    while at + 8 <= end:
        crc = _crc_step64(crc, load_le64(array, at))
        at += 8
    short = np.uint32(crc)
    while at < end:
        short = _crc_step8(short, array[at])
        at += 1
    return np.int64(short ^ np.uint32(0xFFFFFFFF))


crc32c = _crc32c_by_instruction if HAS_CRC_INSTRUCTION else crc32c_by_table
"""CRC-32C of ``array[start:end]``, by instruction where the processor has one."""


@outline
def _read_long(data, at, end, last_shift):
    """Read three bytes or more; ``last_shift`` is that of the last byte the number may have.

    Kept out of line: inlined, this loop costs a record ten times what parsing it takes.
    """
    bits = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        if shift == last_shift and byte >= np.uint64(128):
            return np.int64(0), np.int64(-1)
        bits |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            break
        shift += np.uint64(7)
    if last_shift == np.uint64(28):
        bits &= np.uint64(0xFFFFFFFF)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), at


@inline
def _read(data, at, end, last_shift):
    if at >= end:
        return np.int64(0), np.int64(-1)
    low = np.int64(data[at])
    if low < 128:
        return (low >> 1) ^ -(low & 1), at + 1
    if at + 1 >= end:
        return np.int64(0), np.int64(-1)
    high = np.int64(data[at + 1])
    if high < 128:
        bits = (low & 127) | (high << 7)
        return (bits >> 1) ^ -(bits & 1), at + 2
    return _read_long(data, at, end, last_shift)


@inline
def read_varint(data, at, end):
    """Read a zig-zag int32 of one to five bytes."""
    return _read(data, at, end, np.uint64(28))


@inline
def read_varlong(data, at, end):
    """Read a zig-zag int64 of one to ten bytes."""
    return _read(data, at, end, np.uint64(63))


@inline
def _is_shortest(data, start, at, bytes_max, last_max):
    last = data[at - 1]
    return at - start == 1 or (last != 0 and (at - start < bytes_max or last <= last_max))


@inline
def is_shortest_varint(data, start, at):
    """Say whether the varint in ``data[start:at]``, which was read, is as a writer makes it.

    Its last byte shows it: a 0 there adds nothing, and of a fifth one four bits count.
    """
    return _is_shortest(data, start, at, 5, 0x0F)


@inline
def is_shortest_varlong(data, start, at):
    """Say of a varlong what :func:`is_shortest_varint` says; of a tenth byte one bit counts."""
    return _is_shortest(data, start, at, 10, 0x01)


@inline
def varlong_bytes(value):
    """Return how many bytes the shortest encoding of a signed number takes."""
    bits = np.uint64((value << 1) ^ (value >> 63))
    n = 1
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        n += 1
    return n


@inline
def write_varlong(data, at, value):
    """Write the shortest encoding; for an int32 it equals its varint. Returns the next position."""
    bits = np.uint64((value << 1) ^ (value >> 63))
    while bits >= np.uint64(128):
        data[at] = np.uint8((bits & np.uint64(127)) | np.uint64(128))
        bits >>= np.uint64(7)
        at += 1
    data[at] = np.uint8(bits)
    return at + 1
