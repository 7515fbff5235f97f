"""The operator's key ring, and what Aiven's plugin encrypts with a segment's data key.

A data key is AES-256, drawn for one segment, and stored wrapped: RSA-OAEP with SHA3-512 as label
hash and in MGF1, empty label. Each chunk and each index is ``IV (12) | AES-GCM ciphertext | tag
(16)``, all with the segment's key and AAD.

The rule: **no plain key leaves the process**. A :class:`KeyRing` holds names of files, and is what
travels; keys are read where they are used, and stand in no ``repr``, pickle or error. The only home
of the encryption libraries. Answers to ``RsaEncryptionProvider``, ``AesEncryptionProvider``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from msgspec import Struct

from keeplast.cluster.layouts.aiven_manifest import SEAL_BYTES, Sealing
from keeplast.errors import CorruptError, InvalidError, RefusedError, invariant
from keeplast.format.checksum import Buffer

KEY_BYTES = 32
AAD_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16
RSA_BITS_MIN = 2048
PEM_BYTES_MAX = 1 << 16
_KEYS_KEPT = 32

Draw = Callable[[int], bytes]
"""Gives so many random bytes."""


class KeyPair(Struct, frozen=True):
    """The PEM files of a key pair: public to wrap (X.509), private to unwrap (PKCS#8)."""

    key_id: str
    public_file: Path | None
    private_file: Path | None


class KeyRing(Struct, frozen=True):
    """The key pairs that may be used for reading, and the id of the one for writing."""

    pairs: tuple[KeyPair, ...] = ()
    active_id: str | None = None

    def check(self) -> None:
        """InvalidError unless every file of the ring is a key that can be used."""
        if self.active_id is not None:
            self._pair(self.active_id)
        for pair in self.pairs:
            for path, is_private in ((pair.public_file, False), (pair.private_file, True)):
                if path is not None:
                    _read_key(path, is_private=is_private)

    def open(self, sealing: Sealing, draw: Draw = secrets.token_bytes) -> SegmentCipher:
        """Return what reads a segment, and writes more of it.

        RefusedError when the key pair is not in the ring, CorruptError when it does not fit.
        """
        path = self._pair(sealing.key_id).private_file
        if path is None:
            raise RefusedError(
                "no private key to read a segment with; name its file "
                f"(encryption.key.pairs.{sealing.key_id}.private.key.file). "
                f"key_id={sealing.key_id!r}",
                code="K439",
            )
        try:
            key = PKCS1_OAEP.new(_read_key(path, is_private=True), SHA3_512).decrypt(
                sealing.wrapped_key
            )
        except (ValueError, TypeError):
            key = b""
        if len(key) != KEY_BYTES:
            raise CorruptError(
                "the data key of a segment does not open with the key pair it names", position=0,
                expected=f"a key for {sealing.key_id!r}", found="another one, or damage",
                code="K440",
            )  # fmt: skip
        return SegmentCipher(key, sealing.aad, draw)

    def new_segment(
        self, key_id: str | None, draw: Draw = secrets.token_bytes
    ) -> tuple[Sealing, SegmentCipher]:
        """Draw a data key for a new segment and wrap it for the active key pair.

        Where none is active it is the pair ``key_id``, which older segments name.
        """
        wanted = self.active_id or key_id
        if wanted is None:
            raise InvalidError(
                "name the key pair to encrypt with (encryption.key.pair.id)", code="K439"
            )
        pair = self._pair(wanted)
        path = pair.public_file or pair.private_file
        if path is None:
            raise InvalidError(
                "no public key to encrypt with; name its file "
                f"(encryption.key.pairs.{wanted}.public.key.file). key_id={wanted!r}",
                code="K439",
            )
        public = _read_key(path, is_private=pair.public_file is None).public_key()
        key, aad = draw(KEY_BYTES), draw(AAD_BYTES)
        wrapped = PKCS1_OAEP.new(public, SHA3_512).encrypt(key)
        return Sealing(wanted, wrapped, aad), SegmentCipher(key, aad, draw)

    def _pair(self, key_id: str) -> KeyPair:
        for pair in self.pairs:
            if pair.key_id == key_id:
                return pair
        raise RefusedError(
            "a segment's key pair is not in the key ring; name its files "
            "(encryption.key.pairs and encryption.key.pairs.ID.private.key.file). "
            f"key_id={key_id!r} ring={','.join(pair.key_id for pair in self.pairs) or 'empty'}",
            code="K439",
        )


class ChunkSealer:
    """One chunk while it is encrypted: its IV comes before the first part, its tag after all."""

    def __init__(self, key: algorithms.AES256, aad: bytes, iv: bytes) -> None:
        self._context = Cipher(key, modes.GCM(iv)).encryptor()
        self._context.authenticate_additional_data(aad)
        self._iv = iv

    def update(self, data: Buffer, room: memoryview) -> memoryview:
        """Return the next part encrypted, at the beginning of ``room``, with the IV if it is first.

        ``room`` is SEAL_BYTES longer than ``data`` at least: the library wants a block of it.
        """
        at = len(self._iv)
        room[:at] = self._iv
        self._iv = b""
        return room[: at + self._context.update_into(data, room[at:])]

    def finish(self) -> bytes:
        """Return the tag: the chunk is whole."""
        _finish(self._context)
        return self._context.tag


class SegmentCipher:
    """Encrypts and decrypts the chunks and indexes of one segment; stays in its process."""

    def __init__(self, key: bytes, aad: bytes, draw: Draw) -> None:
        self._key = algorithms.AES256(key)
        self._aad = aad
        self._draw = draw

    def seal(self, data: Buffer) -> bytes:
        """Return ``data`` encrypted under a fresh IV, SEAL_BYTES longer."""
        sealer = self.sealer()
        room = memoryview(bytearray(memoryview(data).nbytes + SEAL_BYTES))
        return bytes(sealer.update(data, room)) + sealer.finish()

    def sealer(self) -> ChunkSealer:
        """Begin a chunk, under a fresh IV, that is encrypted part by part."""
        return ChunkSealer(self._key, self._aad, self._draw(IV_BYTES))

    def unseal(self, data: Buffer) -> bytes:
        """Return what was sealed; CorruptError when a bit of it has changed."""
        return bytes(self.unseal_into(data, memoryview(bytearray(memoryview(data).nbytes))))

    def unseal_into(self, data: Buffer, room: memoryview) -> memoryview:
        """As :meth:`unseal`, into the beginning of ``room``, as large as ``data`` at least."""
        view = memoryview(data)
        if len(view) < SEAL_BYTES:
            raise _damaged(len(view))
        end = len(view) - TAG_BYTES
        return self.unseal_parts(
            bytes(view[:IV_BYTES]), bytes(view[end:]), (view[IV_BYTES:end],), room
        )  # fmt: skip

    def unseal_parts(
        self, iv: bytes, tag: bytes, parts: Iterable[memoryview], room: memoryview
    ) -> memoryview:
        """As :meth:`unseal_into`, of encrypted bytes that come in parts.

        Until this returns ``room`` holds nothing that a caller may use; nor does it after an error.
        """
        context = Cipher(self._key, modes.GCM(iv, tag)).decryptor()
        context.authenticate_additional_data(self._aad)
        size = 0
        try:
            for part in parts:
                size += context.update_into(part, room[size:])
            _finish(context)
        except InvalidTag:
            raise _damaged(size + SEAL_BYTES) from None
        return room[:size]

    def __reduce__(self) -> str:
        """Refuse to travel."""
        raise TypeError("a segment's plain key stays in its process")


def _finish(context: CipherContext) -> None:
    """Check the tag, or make it; InvalidTag for a wrong one."""
    invariant(context.finalize() == b"", "AES-GCM has changed a length")


def _damaged(size: int) -> CorruptError:
    return CorruptError(
        "encrypted data is damaged, or encrypted with another key", expected="a valid tag",
        found=f"{size} bytes", code="K440",
    )  # fmt: skip


def _read_key(path: Path, *, is_private: bool) -> RSA.RsaKey:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, str(error.strerror).lower()) from None
    return _read_key_once(path, is_private, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=_KEYS_KEPT)
def _read_key_once(path: Path, is_private: bool, mtime_ns: int, size: int) -> RSA.RsaKey:
    """Read a PEM file; changed ones are read again."""
    if size > PEM_BYTES_MAX or not path.is_file():
        raise _unreadable(path, f"it is no file of at most {PEM_BYTES_MAX} bytes")
    try:
        key = RSA.import_key(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, str(error.strerror).lower()) from None
    except (ValueError, IndexError, TypeError):
        raise _unreadable(path, "it is no PEM of an RSA key without a password") from None
    if is_private and not key.has_private():
        raise _unreadable(path, "it has no private key")
    if key.size_in_bits() < RSA_BITS_MIN:
        raise _unreadable(path, f"its key has fewer than {RSA_BITS_MIN} bits")
    return key


def _unreadable(path: Path, why: str) -> InvalidError:
    return InvalidError(f"a file of the key ring cannot be used; {why}. path={path}", code="K439")
