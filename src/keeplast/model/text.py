"""Text for people: spans of time, sizes, and what of a log, a URL or a message may be printed.
Pure.

The rule: nothing that a log or an address contains reaches a person but through here.

*Spans* of time are in words, as people say them. *Sizes* are powers of 1024, as a broker's are:
people write ``256m`` for 256 · 2^20, and read ``256 MiB``.

*Text and bytes from a log* are made safe to print. Keys, values and names are written by strangers.
A terminal obeys what it is sent, so whatever is no visible character leaves here as a backslash
escape. Those are control characters of both ranges, marks that turn the direction of writing,
separators of lines, halves of surrogate pairs.

*URLs and messages* are as they may be shown: to people, in files, on pages. What a reader must not
break: this is the one place that decides what of a URL is shown. Nothing of what stands before a
host (the userinfo) is. Of a query only values are shown that are known to be harmless. Which of the
others is a password is the driver's decision.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import pairwise
from urllib.parse import unquote, unquote_plus

from keeplast.errors import InvalidError

DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
"""Names and milliseconds, the largest first."""
NEAR_MS = 2000
SPAN_MS_MAX = 1 << 62
"""A span that may be added to any time of today; it is longer than anything lasts."""

_DURATION = re.compile(r"([0-9]{1,15})\s*(d|h|min|s|ms)")


def find_duration(text: str) -> int | None:
    """Return the milliseconds that ``text`` means as :func:`duration_text` writes it, or None.

    The blank may be left out: ``7d``, ``12h``, ``30min``, ``90s``.
    """
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else int(match[1]) * dict(DURATION_UNITS).get(match[2], 1)


def find_span(text: str, unit_ms: int = 1) -> int | None:
    """Return the milliseconds of a span with a unit, or of a number that counts ``unit_ms``."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal() and len(stripped) < 20:
        return int(stripped) * unit_ms
    return find_duration(stripped)


def duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 in its largest unit, rounded down: ``4 min``, ``7 d``, ``90 s``.

    A unit is used from two of it on, or when it says the span exactly.
    """
    for unit, size in DURATION_UNITS:
        if milliseconds >= 2 * size or milliseconds == size:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def precise_duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 in its largest unit and the next, rounded down: ``6 d 23 h``.

    The next one is left out where it is zero, and below it nothing is said.
    """
    for (unit, size), (less, part) in pairwise(DURATION_UNITS):
        if milliseconds >= size:
            rest = milliseconds % size // part
            return f"{milliseconds // size} {unit}" + (f" {rest} {less}" if rest else "")
    return duration_text(milliseconds)


def nearest_duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 as :func:`precise_duration_text` does, the second unit rounded to
    the nearest: what is two seconds short of five days is not ``4 d 23 h``.
    """
    part = next((part for (_, size), (_, part) in pairwise(DURATION_UNITS)
                 if milliseconds >= size), 1000)  # fmt: skip
    return precise_duration_text((milliseconds + part // 2) // part * part)


def precise_relative_text(at_ms: int, now_ms: int) -> str:
    """Return the same as :func:`relative_text` in two units.

    What is to come is rounded to the nearest, what is over rounded down. What is nearer than two
    seconds is now, or just now: a page that counts on counts seconds.
    """
    if abs(at_ms - now_ms) < NEAR_MS:
        return "now" if at_ms >= now_ms else "just now"
    span = nearest_duration_text if at_ms > now_ms else precise_duration_text
    return _relative(at_ms, now_ms, span)


def relative_text(at_ms: int, now_ms: int) -> str:
    """Return how long until a moment, or since."""
    return _relative(at_ms, now_ms, duration_text)


def _relative(at_ms: int, now_ms: int, span: Callable[[int], str]) -> str:
    if at_ms > now_ms:
        return f"in {span(at_ms - now_ms)}"
    return "now" if at_ms == now_ms else f"{span(now_ms - at_ms)} ago"


_SIZE = re.compile(r"([0-9]{1,18})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_FACTORS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str, option: str, *, least: int = 0) -> int:
    """Return the bytes that ``text`` means (``4096``, ``256m``, ``4g``); InvalidError otherwise.

    Also when they are fewer than ``least``, a whole number of MiB, which the message gives.
    """
    size = find_size(text)
    if size is None:
        raise InvalidError(
            f"not a size; write bytes, or a number with k, m, g or t. {option}={text!r}",
            code="K104",
        )
    if size < least:
        raise InvalidError(
            f"too little to work with; give at least {least >> 20}m. {option}={text!r}", code="K104"
        )
    return size


def find_size(text: str) -> int | None:
    """Return the bytes that ``text`` means, with a unit or without; None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _FACTORS.get((match[2] or "").lower(), 1)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count: int) -> str:
    """Return ``count`` bytes with three digits and a unit; exact below 10 KiB."""
    if abs(count) < 10 << 10:
        return f"{count:,} B"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def format_count(count: int) -> str:
    """Return ``count`` with separators between thousands."""
    return f"{count:,}"


def format_counted(count: int, noun: str) -> str:
    """Return ``count`` and what is counted; one of it, or several."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return ``text`` with every character that is not visible written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def shown_bytes(data: bytes | None, limit: int = 60) -> str:
    """Return bytes for a table: quoted text when they are UTF-8, else hex; ``limit`` characters.

    None is ``null``, which is not the empty text.
    """
    if data is None:
        return "null"
    head = bytes(data[: limit * 4])
    try:
        text = head.decode() if len(head) == len(data) else head.decode(errors="ignore")
    except UnicodeDecodeError:
        shown = "0x" + head.hex()
    else:
        if len(head) < len(data) and len(text.encode()) < len(head) - 3:
            shown = "0x" + head.hex()
        else:
            shown = '"' + printable(text).replace('"', '\\"') + '"'
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


HIDDEN = "***"
SECRET_CHARS_MIN = 3
"""What is shorter is in every other word, and no secret."""
_HARMLESS = frozenset(
    {
        "application_name", "connect_timeout", "dbname", "host", "hostaddr", "keepalives", "mode",
        "port", "sslmode", "target_session_attrs", "timeout", "uri",
    }
)  # fmt: skip
_HARMLESS_OPTIONS = frozenset(
    {
        "account_name", "allow_http", "aws_bucket", "aws_default_region", "aws_endpoint",
        "aws_endpoint_url", "aws_region", "aws_virtual_hosted_style_request",
        "azure_container_name", "azure_endpoint", "azure_storage_account_name",
        "azure_storage_endpoint", "azure_storage_use_emulator", "azure_use_azure_cli", "base_url",
        "bucket", "bucket_name", "conditional_put", "container_name", "endpoint", "endpoint_url",
        "google_base_url", "google_bucket", "google_bucket_name", "region", "skip_signature",
        "storage_endpoint", "timeout", "unsigned_payload", "use_azure_cli", "use_emulator",
        "virtual_hosted_style_request",
    }
)  # fmt: skip
# USER@HOST/DATABASE is how messages say what to write, and no user's name. A user's name ends at a
# colon; his password at the last @, because a driver may read it so.
_USERINFO = re.compile(r"(?<=://)(?:[^/@:]*:.*|[^/@:]*)@", re.DOTALL)
_USERINFO_IN_TEXT = re.compile(r"(?<=://)(?!USER@HOST/DATABASE\b)(?:[^/@:\s]*:\S*|[^/@:\s]*)@")
_QUERY = re.compile(r"([?&;#])([^=&;#?\s]*)=([^&;#]*)", re.DOTALL)
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_PATH_VALUE = re.compile(r"(?<==)/[^=]*?(?= \w+=|$)")
_PATH_IN_TEXT = re.compile(r"(?<![\w:/.~-])/(?:[^\s/'\"=]+/)*[^\s/'\"=,;:]+")
_CONNINFO = re.compile(r"(?i)\b((?:ssl)?password|passwd|pwd)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'&;]+)")


def shown_url(url: str) -> str:
    """Return a URL, in one line, without what may be a secret.

    Also what is no URL may have been meant to be one: whatever stands before an @ is hidden, unless
    it is a path.
    """
    if url.startswith(("/", ".", "~")):
        return _in_one_line(url)
    if "://" in url:
        found = _USERINFO.sub(f"{HIDDEN}@", url)
    else:
        found = re.sub(r"\A.*@", f"{HIDDEN}@", url, flags=re.DOTALL)
    return _in_one_line(_QUERY.sub(_show_parameter, found))


def without_secrets(text: str, hidden: Iterable[str] = ()) -> str:
    """Return a message, of ours or of a library, without the secrets of the URLs in it.

    ``hidden`` are secrets that are known (:func:`secrets_of`): they go wherever they stand.
    """
    for secret in sorted(set(hidden), key=len, reverse=True):
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, HIDDEN)
    text = _USERINFO_IN_TEXT.sub(f"{HIDDEN}@", text)
    text = _URL_IN_TEXT.sub(lambda found: _QUERY.sub(_show_parameter, found[0]), text)
    return _CONNINFO.sub(rf"\1\2{HIDDEN}", text)


def without_folders(text: str, root: str) -> str:
    """Return a message that names files by their names, but for those in ``root``.

    For who may look at a place and at nothing else of the host. A URL is no file of the host's.
    """

    def shown(found: re.Match[str]) -> str:
        path = found[0]
        is_inside = bool(root) and (path + "/").startswith(root.rstrip("/") + "/")
        return path if is_inside else path.rstrip("/").rpartition("/")[2]

    return _PATH_IN_TEXT.sub(shown, _PATH_VALUE.sub(shown, text))


def secrets_of(url: str) -> tuple[str, ...]:
    """Return what of a URL :func:`shown_url` hides, as it stands there and decoded."""
    found: list[str] = []
    for match in _USERINFO.finditer(url):
        # Whose name it is, a driver says in its own words; that is no secret, the rest is.
        _, _, password = match[0][:-1].partition(":")
        found.append(password)
    for match in _QUERY.finditer(url):
        if not _is_harmless(match[2]):
            found.append(match[3])
    return tuple(part for text in found for part in {text, unquote(text), unquote_plus(text)})


def option_secrets(options: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the values of an object store's options that may be secrets."""
    return tuple(value for key, value in options if may_be_secret(key))


def may_be_secret(option: str) -> bool:
    """Say whether an object store's option of this name may have a secret as its value."""
    return option.lower() not in _HARMLESS_OPTIONS


def has_userinfo(url: str) -> bool:
    """Say whether somebody's name, or his password, stands in front of the host."""
    return _USERINFO.search(url) is not None


def _is_harmless(name: str) -> bool:
    return unquote_plus(name).lower() in _HARMLESS


def _show_parameter(found: re.Match[str]) -> str:
    value = found[3] if _is_harmless(found[2]) else HIDDEN
    return f"{found[1]}{found[2]}={value}"


def _in_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
