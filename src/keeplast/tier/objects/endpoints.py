"""Whether the server of an object store is named without TLS: by option, environment, or account.

The library sends nothing over plain HTTP unless it is told that it may. The rule: **it may where
somebody has named such a server, of this store's own, and nowhere else**; what is meant for another
kind of store says nothing. The emulator of Azure is known to the library itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

PLAIN = "http://"
ACCOUNT_BYTES_MAX = 1 << 16
_PREFIXES = {
    "s3": "aws_", "s3a": "aws_", "gs": "google_", "az": "azure_", "azure": "azure_",
    "adl": "azure_", "abfs": "azure_", "abfss": "azure_",
}  # fmt: skip
_ENDPOINTS = {
    "aws_": ("endpoint", "endpoint_url"),
    "google_": ("base_url",),
    "azure_": ("endpoint", "storage_endpoint"),
}
_ACCOUNT_FILES = ("service_account", "service_account_path")
_ACCOUNT_KEY = "service_account_key"
_ACCOUNT_ENDPOINT = "gcs_base_url"
_GOOGLE = "google_"


def is_plain_http(url: str, options: Mapping[str, str]) -> bool:
    """Say whether the store at ``url`` was given a server without TLS."""
    prefix = _PREFIXES.get(url.partition("://")[0].lower(), "")
    if not prefix:
        return False
    found = _find(prefix, _ENDPOINTS[prefix], options)
    if found is None and prefix == _GOOGLE:
        found = _find_in_account(options)
    return found is not None and found.startswith(PLAIN)


def _find(prefix: str, names: tuple[str, ...], options: Mapping[str, str]) -> str | None:
    """Return the first setting of these ``names`` that there is; options come first."""
    given = {name.lower(): value for name, value in options.items()}
    for name in names:
        for each in (name, f"{prefix}{name}"):
            if each in given:
                return given[each]
    said = (os.environ.get(f"{prefix}{name}".upper()) for name in names)
    return next((each for each in said if each), None)


def _find_in_account(options: Mapping[str, str]) -> str | None:
    """Return the server that Google's service account names; the library says what is wrong."""
    text = _find(_GOOGLE, (_ACCOUNT_KEY,), options)
    try:
        if text is None:
            path = _find(_GOOGLE, _ACCOUNT_FILES, options)
            if path is None:
                return None
            with Path(path).open("rb") as file:
                text = file.read(ACCOUNT_BYTES_MAX).decode()
        account = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    found = account.get(_ACCOUNT_ENDPOINT) if isinstance(account, dict) else None
    return found if isinstance(found, str) else None
