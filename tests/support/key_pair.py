"""Files that an operator keeps apart, made for a test: a key pair, a hash key, keys of records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from msgspec import Struct


class OperatorFiles(Struct, frozen=True):
    """Where they lie."""

    sign_key: Path
    public_key: Path
    hash_key: Path
    keys: Path


def write_operator_files(
    folder: Path, keys: Iterable[bytes] = (), *, seed: bytes = b"\x01"
) -> OperatorFiles:
    """Make all of them in ``folder``; the same seed gives the same pair."""
    folder.mkdir(parents=True, exist_ok=True)
    private = Ed25519PrivateKey.from_private_bytes(seed * 32)
    files = OperatorFiles(
        folder / "sign.pem", folder / "sign.pub", folder / "hash.key", folder / "keys.txt"
    )
    files.sign_key.write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    files.public_key.write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    files.hash_key.write_bytes(b"%064d\n" % 7)
    files.keys.write_bytes(b"".join(each + b"\n" for each in keys))
    for secret in (files.sign_key, files.hash_key):
        secret.chmod(0o600)
    return files
