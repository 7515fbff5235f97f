"""Signatures: the operator's Ed25519 key pair, as PEM files that OpenSSL makes.

What is signed begins with a line that says what it is, so that no signature counts for anything
else. A private key stands in no ``repr`` and no error. One of the two homes of ``cryptography``,
which comes with an extra: a module that imports this has asked whether it is installed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from keeplast.errors import InvalidError

PEM_BYTES_MAX = 1 << 16
MAKING = "openssl genpkey -algorithm ed25519 -out sign.pem"
MAKING_PUBLIC = "openssl pkey -in sign.pem -pubout -out sign.pub"


class Signer:
    """The private key of ``path``; InvalidError when there is none that can be used."""

    def __init__(self, path: Path) -> None:
        data = _read(path)
        try:
            found = load_pem_private_key(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if not isinstance(found, Ed25519PrivateKey):
            raise InvalidError(
                "not an Ed25519 private key in PEM without a password; make one with: "
                f"{MAKING}. path={path}",
                code="K619",
            )
        self._key = found
        self.key_id = _key_id(found.public_key())

    def sign(self, context: bytes, data: bytes) -> bytes:
        """Return the signature of ``data``, which is ``context``; 64 bytes."""
        return self._key.sign(context + b"\n" + data)


class SignatureCheck:
    """The public key of ``path``; InvalidError when there is none that can be used."""

    def __init__(self, path: Path) -> None:
        data = _read(path)
        try:
            found = load_pem_public_key(data)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if not isinstance(found, Ed25519PublicKey):
            raise InvalidError(
                "not an Ed25519 public key in PEM; make it of the private one with: "
                f"{MAKING_PUBLIC}. path={path}",
                code="K619",
            )
        self._key = found
        self.key_id = _key_id(found)

    def holds(self, context: bytes, data: bytes, signature: bytes) -> bool:
        """Say whether this key's owner has signed ``data`` as ``context``."""
        try:
            self._key.verify(signature, context + b"\n" + data)
        except InvalidSignature:
            return False
        return True


def _key_id(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidError(
            f"the file of a key cannot be read; name another one. path={path} "
            f"error={(error.strerror or str(error)).lower()}",
            code="K619",
        ) from None
    if len(data) > PEM_BYTES_MAX:
        raise InvalidError(
            f"the file is larger than a key. path={path} limit={PEM_BYTES_MAX}", code="K619"
        )
    return data
