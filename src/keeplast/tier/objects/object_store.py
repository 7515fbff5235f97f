"""What the tier needs of an object store: the port, option values, endpoints, rights.

An object is written once and is never overwritten. Its key holds a segment id that was never used
before. A late writer can waste space and nothing else. Keys:

    <topic>-<partition>/<topic id>/<segment id>/<base offset>.log      and its indexes next to it
    <topic>-<partition>/<topic id>/<segment id>/filter
    keeplast-store                                                     whose objects these are
    keeplast-marks/<number>                                            how far metadata has been

Nothing is read from a listing but what may be collected: the metadata store says what is live.

*Endpoints.* An option, the environment or the account says whether a store's server is named
without TLS. The library sends nothing over plain HTTP unless it is allowed to. The rule: **it may
where somebody has named such a server, of this store's own, and nowhere else**. What is meant for
another kind of store says nothing. The emulator of Azure is known to the library itself.

*Option values.* They are given by themselves, or by where they are. ``@FILE`` takes a value from a
file, without the newline at its end, ``env:NAME`` from the environment. What is given on the
command line stands in the list of processes. The rule: **a value may be a secret and is in no
error**.

*Rights.* They are what a principal must be allowed in an object store, by what is asked there.
Pure. The rule: **a right is named as its store names it, and never more than what was asked for
needs**. Answers to the actions of S3, the permissions of Google's store and the roles of Azure's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition

FILTER = "filter"
ID_CHARS = 32
STORE_NAME = "keeplast-store"
"""The object that names the one store whose objects lie here."""
STORE_PROBE = "keeplast-probe"
"""Written and removed when a store is made, to see whether both are allowed."""
MARKS = "keeplast-marks"
"""The folder of the objects that say how far metadata has been.

See :mod:`keeplast.tier.metadata.collection`.
"""


class StoredObject(Struct, frozen=True):
    """A key of the store, its size and when it was written, in milliseconds."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectWriter(Protocol):
    """An object while it is written; it appears when it is closed, whole, or not at all."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to what will be the object; no reader sees it yet."""

    def close(self) -> None:
        """Make the object appear, whole, or raise UnavailableError."""

    def abort(self) -> None:
        """Give up what was written; no object appears."""


class ObjectStore(Protocol):
    """Objects by key. UnavailableError when the store fails, FileNotFoundError for no object."""

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Return the bytes ``[start, end)``, less at the end of the object."""

    def stat(self, key: str) -> StoredObject:
        """Return size and time."""

    def open_write(self, key: str) -> ObjectWriter:
        """Start an object under a key that is not there."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with the path ``prefix``, in any order."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone already is no error."""


@runtime_checkable
class FillsBuffers(Protocol):
    """An object store that can put bytes where they are wanted, without memory between."""

    def fill(self, key: str, start: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` with the object's bytes from ``start`` on.

        False where it cannot, for whatever reason: then the buffer may hold anything, and the
        caller that asks for the range gets the error.
        """


@runtime_checkable
class OnDisk(Protocol):
    """An object store whose objects may be files, below ``directory``; None where they are none."""

    @property
    def directory(self) -> Path | None:
        """Return where the files are."""


def fill(objects: ObjectStore, key: str, start: int, buffer: memoryview) -> bool:
    """Have ``objects`` fill ``buffer`` if it can; False, and the range is to be asked for, else."""
    return isinstance(objects, FillsBuffers) and objects.fill(key, start, buffer)


class ObjectPlace(ObjectStore, Protocol):
    """An object store that can also write an object only where no other writer has.

    The store says who was first, whatever several hosts do at once.
    """

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object, whole; False, and nothing is written, when there is one already.

        After a lost answer False may speak of one's own: compare what is there.
        """


class ObjectTree(ObjectStore, Protocol):
    """Objects whose keys are taken for paths: what a data directory in an object store needs."""

    def children(self, prefix: str) -> tuple[tuple[StoredObject, ...], tuple[str, ...]]:
        """Return the objects directly below the path ``prefix``, and the names of its folders."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, over whatever is at ``target``."""


def partition_prefix(partition: TopicPartition, topic_id: str) -> str:
    """Return the path below which all objects of a partition lie; InvalidError for a name that no
    broker takes."""
    return f"{partition.checked()}/{topic_id}"


def object_key(
    partition: TopicPartition, topic_id: str, segment_id: str, base_offset: int, suffix: str
) -> str:
    """Return the key of one file of a segment; ``suffix`` is ``.log`` and the like, or FILTER."""
    name = suffix if suffix == FILTER else f"{base_offset:020d}{suffix}"
    return f"{partition_prefix(partition, topic_id)}/{segment_id}/{name}"


def segment_of_key(key: str) -> str | None:
    """Return the segment id in a key, None for a key that is none of ours."""
    parts = key.split("/")
    if len(parts) < 4 or len(parts[-2]) != ID_CHARS:
        return None
    return parts[-2]


def topic_ids_of(keys: Iterable[str]) -> dict[str, str]:
    """Return under which topic id the objects of each segment lie.

    Not always the partition's own: of a topic that was given up, and whose name is taken again,
    what is not collected yet stays where it was.
    """
    return {
        segment_id: key.split("/")[-3]
        for key in keys
        if (segment_id := segment_of_key(key)) is not None
    }


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


CREDENTIALS = {
    "aws_": "the options access_key_id and secret_access_key, AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, "
    "and the instance's metadata; profiles in ~/.aws are not read (aws configure "
    "export-credentials --format env prints them as variables)",
    "google_": "the option service_account, GOOGLE_APPLICATION_CREDENTIALS, "
    "GOOGLE_SERVICE_ACCOUNT, gcloud's application default credentials, and the instance's metadata",
    "azure_": "the options account_key and sas_token, AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID "
    "with AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE, and the instance's metadata; the "
    "option use_azure_cli=true asks az",
}
"""Where the library looks for credentials of each kind of store, in words."""
_CREDENTIAL = re.compile(
    "key|secret|token|sas|service_account|credential|client|authority|skip_signature|emulator|"
    "azure_cli|msi|identity|metadata",
    re.IGNORECASE,
)
_GOOGLE_DEFAULT = Path(".config/gcloud/application_default_credentials.json")


def credential_sources(url: str) -> str | None:
    """Return in words where credentials for the store at ``url`` are looked for, None for files."""
    return CREDENTIALS.get(_PREFIXES.get(url.partition("://")[0].lower(), ""))


def names_credentials(url: str, options: Mapping[str, str]) -> bool:
    """Say whether an option, the environment or a file has what may be credentials for ``url``.

    Without any the library asks the instance's metadata, again and again where nothing answers.
    """
    prefix = _PREFIXES.get(url.partition("://")[0].lower(), "")
    said = [name for name in os.environ if name.lower().startswith(prefix) and os.environ[name]]
    if any(map(_CREDENTIAL.search, (*options, *said))):
        return True
    return prefix == _GOOGLE and (Path.home() / _GOOGLE_DEFAULT).exists()


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


FROM_FILE, FROM_ENVIRONMENT = "@", "env:"
OPTION_BYTES_MAX = 1 << 16


def is_reference(text: str) -> bool:
    """Say whether ``text`` names where the value is, and is not the value."""
    return text.startswith((FROM_FILE, FROM_ENVIRONMENT))


def read_option(name: str, text: str) -> str:
    """Return the value that ``text`` gives or names; ``name`` stands in the InvalidError."""
    if text.startswith(FROM_FILE):
        return _read_value(name, Path(text.removeprefix(FROM_FILE)).expanduser())
    if text.startswith(FROM_ENVIRONMENT):
        variable = text.removeprefix(FROM_ENVIRONMENT)
        if not os.environ.get(variable):
            raise InvalidError(
                "the variable of an object store's option is not set; export it. "
                f"{name} variable={variable}",
                code="K303",
            )
        return os.environ[variable]
    return text


def _read_value(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(OPTION_BYTES_MAX + 1)
        value = data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidError(
            "the file of an object store's option cannot be read; name another one. "
            f"{name} path={path} error={str(reason).lower()}",
            code="K303",
        ) from None
    if len(data) > OPTION_BYTES_MAX or not value or not value.isprintable():
        raise InvalidError(
            f"the file of an object store's option is one line of at most {OPTION_BYTES_MAX} "
            f"bytes. {name} path={path}",
            code="K303",
        )
    return value


class StoreAction(StrEnum):
    """What is asked of a store; the value stands in messages."""

    READ = "read"
    LIST = "list"
    WRITE = "write"
    REPLACE = "replace"
    COPY = "copy"
    DELETE = "delete"


_READER = "the role Storage Blob Data Reader"
_CONTRIBUTOR = "the role Storage Blob Data Contributor"
_RIGHTS = {
    "s3": {
        StoreAction.READ: "s3:GetObject",
        StoreAction.LIST: "s3:ListBucket",
        StoreAction.WRITE: "s3:PutObject",
        StoreAction.REPLACE: "s3:PutObject",
        StoreAction.COPY: "s3:GetObject and s3:PutObject",
        StoreAction.DELETE: "s3:DeleteObject",
    },
    # To write over an object there takes the right to delete it.
    "gs": {
        StoreAction.READ: "storage.objects.get",
        StoreAction.LIST: "storage.objects.list",
        StoreAction.WRITE: "storage.objects.create",
        StoreAction.REPLACE: "storage.objects.create and storage.objects.delete",
        StoreAction.COPY: (
            "storage.objects.get, storage.objects.create and storage.objects.delete"
        ),
        StoreAction.DELETE: "storage.objects.delete",
    },
    "az": {
        each: _READER if each in (StoreAction.READ, StoreAction.LIST) else _CONTRIBUTOR
        for each in StoreAction
    },
}


def right_of(scheme: str, action: StoreAction) -> str:
    """Return what a principal needs for ``action``; any other scheme than a store's is files."""
    rights = _RIGHTS.get(scheme)
    if rights is None:
        return f"to {action} files and folders, as the user that they belong to or in its group"
    return rights[action]
