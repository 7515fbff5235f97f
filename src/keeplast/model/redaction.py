"""URLs and messages as they may be shown: to people, in files, on pages. Pure.

What a reader must not break: this is the one place that decides what of a URL is shown. Nothing of
what stands before a host (the userinfo) is, and of a query only values that are known to be
harmless: which of the others is a password, a driver decides and not we.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, unquote_plus

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
# USER@HOST/DATABASE is how messages say what to write, and nobody's name.
# A user's name ends at a colon; his password at the last @, because a driver may read it so.
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
    """Return a message in which files are told by their names, but for those in ``root``.

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
