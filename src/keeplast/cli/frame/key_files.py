"""Files that an operator keeps apart: keys of records, one a line, and the key to hash them with.

What a reader must not break: no error has anything of a line in it but its number. Keys are in
files so that none need stand in a list of processes.
"""

from __future__ import annotations

import codecs
import re
import stat
from pathlib import Path

from keeplast.cli.show.output import say
from keeplast.errors import InvalidError
from keeplast.model.erasure_request import (
    HASH_KEY_BYTES_MAX,
    KEYS_MAX,
    KeyForm,
    KeyHasher,
    decode_key,
)

KEY_BYTES_MAX = 1 << 20
KEY_WORDS = (
    "text, hex:DIGITS, base64:DATA, or @FILE whose bytes are the key; text:TEXT is taken as it "
    "stands"
)
FROM_FILE = "@"
FORMS = {"text:": KeyForm.TEXT, "hex:": KeyForm.HEX, "base64:": KeyForm.BASE64}


def parse_key(text: str) -> bytes:
    """Return the bytes of a key; InvalidError, without the key, for what is none.

    A file's bytes are all of it, a newline at its end included only if there are two: editors add
    one, on some systems after a carriage return.
    """
    if text.startswith(FROM_FILE):
        return _read_key(Path(text.removeprefix(FROM_FILE)).expanduser())
    for prefix, form in FORMS.items():
        if text.startswith(prefix):
            return decode_key(text.removeprefix(prefix), form)
    return decode_key(text, KeyForm.TEXT)


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidError(
            f"the file of a key cannot be read; name another one. path={path} "
            f"error={(error.strerror or str(error)).lower()}",
            code="K136",
        ) from None
    if len(data) > KEY_BYTES_MAX:
        raise InvalidError(
            f"the file is larger than a key can be; name another one. path={path} "
            f"limit={KEY_BYTES_MAX}",
            code="K136",
        )
    has_newline = data.endswith(b"\n")
    return data.removesuffix(b"\n").removesuffix(b"\r") if has_newline else data


KEYS_FILE_WORDS = (
    "one key a line: text, hex:DIGITS or base64:DATA; text:TEXT is taken as it stands. Empty lines "
    "count for nothing"
)
FILE_BYTES_MAX = 256 << 20
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What some editors put before the first line; a key that is not meant would be searched for."""
_MEANT = "; write text: before it if it is meant so"
DOUBTS = (
    (
        re.compile(rb"[ \t]\Z"),
        "a key ends in white space, which counts as part of it; take it out if it is not meant",
    ),
    (re.compile(rb"\A[ \t]"), f"a key begins with white space, which counts as part of it{_MEANT}"),
    (
        re.compile(rb"\A([\"'`]).*\1[ \t]*\Z"),
        f"a key stands in quotation marks, which count as part of it{_MEANT}",
    ),
    (
        re.compile(rb"\A(?!(?:text|hex|base64):)(?i:[ \t]*(?:text|hex|base64)[ \t]*:)"),
        f"a line is taken as text: text:, hex: and base64: are written small and at once{_MEANT}",
    ),
    (re.compile(rb"\A#"), f"a line that begins with # is a key, and no comment{_MEANT}"),
    (
        re.compile(rb"\A(?!text:).*\x00"),
        f"a key has bytes of zero: is the file UTF-16? Save it as UTF-8{_MEANT}",
    ),
)
"""What is in a line that is probably meant otherwise, and what is said of it."""


def read_keys(path: Path) -> dict[int, bytes]:
    """Return the keys of a file by their line, from 1 on; InvalidError names the line alone.

    Lines that look like another key than they are (:data:`DOUBTS`) are taken as they stand, with a
    warning. A key that was not meant is found nowhere, which would pass for gone.
    """
    data = _read(path, FILE_BYTES_MAX, "the file of --keys")
    if data.startswith(BYTE_ORDER_MARKS):
        raise InvalidError(
            "the file begins with a byte order mark, which would count as part of a key. Save it "
            f"as UTF-8 without one, or write that key as hex:DIGITS. path={path} line=1",
            code="K136",
        )
    found: dict[int, bytes] = {}
    doubted: dict[str, list[int]] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.removesuffix(b"\r")
        if not text:
            continue
        if len(found) == KEYS_MAX or len(text) > 2 * KEY_BYTES_MAX + len("base64:"):
            raise InvalidError(
                f"too many keys, or too long a line; a file has up to {KEYS_MAX} keys of up to "
                f"{KEY_BYTES_MAX} bytes. path={path} line={number}",
                code="K136",
            )
        try:
            found[number] = _parse(text)
        except InvalidError as error:
            raise InvalidError(f"{error} path={path} line={number}", code=error.code) from None
        for look, words in DOUBTS:
            if look.search(text):
                doubted.setdefault(words, []).append(number)
    for words, numbers in doubted.items():
        say(f"{words}. path={path} line={numbers[0]} lines={len(numbers)}", kind="warning")
    if not found:
        raise InvalidError(f"the file has no key; give {KEYS_FILE_WORDS}. path={path}", code="K136")
    return found


def read_hasher(path: Path) -> KeyHasher:
    """Return what hashes with the key in a file, without the newline that an editor adds."""
    warn_if_open(path, "the hash key", "find out the keys with it")
    data = _read(path, HASH_KEY_BYTES_MAX + 2, "the hash key").rstrip(b"\r\n")
    try:
        return KeyHasher(data)
    except InvalidError as error:
        raise InvalidError(f"{error} path={path}", code=error.code) from None


def warn_if_open(path: Path, what: str, why: str) -> None:
    """Say so where ``what``, a file that is secret, may be read by every user of the host."""
    try:
        is_open = path.stat().st_mode & stat.S_IROTH
    except OSError:
        return  # the read that follows says what is wrong
    if is_open:
        say(
            f"every user of this host may read {what}, and {why}; chmod 600. path={path}",
            kind="warning",
        )


def _parse(line: bytes) -> bytes:
    for prefix, form in FORMS.items():
        if line.startswith(prefix.encode()):
            rest = line[len(prefix) :]
            return rest if form is KeyForm.TEXT else decode_key(rest.decode("latin-1"), form)
    return line


def _read(path: Path, limit: int, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InvalidError(
            f"{what} cannot be read; correct the path. path={path} "
            f"error={(error.strerror or str(error)).lower()}",
            code="K136",
        ) from None
    if len(data) > limit:
        raise InvalidError(
            f"{what} is too large; correct the path. path={path} bytes_max={limit}", code="K136"
        )
    return data
