"""The object stores there are, by URL: ``file://``, ``memory://``, ``s3://``, what obstore has.

The only home of obstore in this room. Retries with back-off are the library's own; what it gives up
on is an :class:`~keeplast.errors.UnavailableError`.

An object that was closed survives a power loss. Object stores promise it; in a directory the
library leaves a file to the system's cache, and it is put on stable storage here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import GCSStore, LocalStore, MemoryStore, from_url

from keeplast.errors import InvalidError, UnavailableError
from keeplast.model.text import has_userinfo, option_secrets, shown_url, without_secrets
from keeplast.tier.objects.object_store import (
    ObjectPlace,
    ObjectWriter,
    StoreAction,
    StoredObject,
    credential_sources,
    is_plain_http,
    names_credentials,
    right_of,
)

FILE = "file://"
MEMORY = "memory://"
PART_BYTES = 8 << 20
"""S3 takes parts of 5 MiB or more, 10,000 of an object: enough for the largest segment."""
PARTS_AT_ONCE = 4
DELETE_BATCH = 1000
NEW_DIGITS = 18
"""``<name>#<digits>`` is a file that is being written, to the library too, and not an object."""
DELETE_ATTEMPTS = 2
CREATE_ATTEMPTS = 4
PROBE_BYTES = 16
REASON_CHARS_MAX = 300
_PLAIN_KEY = re.compile(r"(?!\.)[A-Za-z0-9._-]+(?:/(?!\.)[A-Za-z0-9._-]+)*")
"""A key that is the path of its file and nothing else."""
_NO_BUCKET = re.compile(r"<Code>(?:NoSuchBucket|ContainerNotFound|ContainerBeingDeleted)</Code>")
_REFUSED = re.compile(r"status code: 40[13]\b|\(code: AccessDenied\)")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/?(?!/)")
_METADATA = ("169.254.169.254", 80)
"""Where the instance of a cloud gives credentials."""
_METADATA_SECONDS = 2.0
_NO_CREDENTIALS = re.compile(r"//(?:169\.254\.169\.254|metadata\.google\.internal)\b")
"""In an error of a library that has looked everywhere else before."""
_NO_ACCOUNT = "Account must be specified"
STORES_KEPT = 8
"""A worker process keeps connections to so many stores."""


class ObstoreObjects:
    """Objects below one URL."""

    def __init__(self, store: Any, url: str, options: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._url = url
        self._options = dict(options or {})
        self._root = Path(url.removeprefix(FILE)) if isinstance(store, LocalStore) else None
        self._synced: Path | None = None
        sources = credential_sources(url)
        self._no_credentials = f"no credentials were found in {sources}"
        self._asks_metadata = sources is not None and not names_credentials(url, self._options)

    @property
    def directory(self) -> Path | None:
        """Return the directory whose files the objects are, None where they are none."""
        return self._root

    def __repr__(self) -> str:
        """Return where the objects are; options may be secrets."""
        return f"ObstoreObjects({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as URL and options: another process opens the store itself, once."""
        if isinstance(self._store, MemoryStore):
            raise InvalidError(
                "objects in memory are seen by one process only; use --runner local, or another "
                f"store. url={self._url}",
                code="K308",
            )
        return open_once, (self._url, tuple(sorted(self._options.items())))

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Read the bytes ``[start, end)`` in one request; an empty range makes none."""
        if end <= start:
            return memoryview(b"")
        with self._translated(key, StoreAction.READ):
            return memoryview(obstore.get_range(self._store, key, start=start, end=end))

    def fill(self, key: str, start: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` where objects are files; False anywhere else, and for what is no such.

        The library has another thread read to memory that is fresh each time, which costs more than
        the reading. It alone says what an odd key means, and what is wrong.
        """
        if self._root is None or _PLAIN_KEY.fullmatch(key) is None:
            return False
        return _fill_from_file(self._root / key, start, buffer)

    def stat(self, key: str) -> StoredObject:
        """Ask for the object's metadata."""
        with self._translated(key, StoreAction.READ):
            return _describe(obstore.head(self._store, key))

    def has_version(self, key: str) -> bool:
        """Say whether an object has a version of its own: then deleting it only hides it.

        Google's store gives every object a generation, which says nothing.
        """
        if isinstance(self._store, GCSStore):
            return False
        with self._translated(key, StoreAction.READ):
            # S3 calls so what was written while versions were not kept.
            return obstore.head(self._store, key)["version"] not in (None, "", "null")

    def open_write(self, key: str) -> ObjectWriter:
        """Write in parts; nothing appears before the last one is confirmed."""
        if self._root is not None and _PLAIN_KEY.fullmatch(key) is not None:
            return _FileWriter(self, self._root, key)
        return _Writer(self, key)

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object by a request that never replaces one."""
        with self._translated(key, StoreAction.WRITE, writes=True):
            if not self._put_if(key, data, "create"):
                return False
            self._make_durable(key)
        return True

    def replace(self, key: str, data: bytes, expected: bytes) -> bool:
        """Replace an object that still is ``expected``; False, and nothing is written, else.

        By a condition on the very version that was read. A directory knows no such condition.
        """
        try:
            with self._translated(key, StoreAction.READ):
                found = obstore.get(self._store, key)
                if bytes(found.bytes()) != expected:
                    return False
                version = _version_of(found.meta)
            with self._translated(key, StoreAction.REPLACE):
                if self._put_if(key, data, version):
                    return True
            # After a lost answer the condition may have failed on what we wrote ourselves.
            with self._translated(key, StoreAction.READ):
                return bytes(obstore.get(self._store, key).bytes()) == data
        except FileNotFoundError:
            return False

    def is_conditional(self, key: str) -> bool:
        """Say whether the store heeds conditions; ``key`` is written, and removed, to find out.

        What an earlier call has left there is written over. False may come of a process that does
        the same with ``key`` at the time: then another key says what is so.
        """
        first, second, refused = (secrets.token_bytes(PROBE_BYTES) for _ in range(3))
        try:
            with self._translated(key, StoreAction.REPLACE, writes=True):
                # Equal contents have equal tags.
                old = obstore.put(self._store, key, first, mode="overwrite", use_multipart=False)
                obstore.put(self._store, key, second, mode="overwrite", use_multipart=False)
                conditions: tuple[Any, ...] = ("create", _version_of(old))
                is_written = any(self._put_if(key, refused, each) for each in conditions)
            with (
                self._translated(key, StoreAction.READ),
                contextlib.suppress(NotFoundError, FileNotFoundError),
            ):
                is_written |= bytes(obstore.get(self._store, key).bytes()) == refused
        except BaseException:
            # What was refused first is what is raised.
            with contextlib.suppress(UnavailableError):
                self.delete([key])
            raise
        self.delete([key])
        return not is_written

    def _put_if(self, key: str, data: bytes, condition: Any) -> bool:
        """Write an object on a condition; False where that does not hold."""
        try:
            obstore.put(self._store, key, data, mode=condition, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with ``prefix``, page by page."""
        with self._translated(prefix, StoreAction.LIST):
            for page in obstore.list(self._store, prefix=prefix):
                for entry in page:
                    yield _describe(entry)

    def children(self, prefix: str) -> tuple[tuple[StoredObject, ...], tuple[str, ...]]:
        """Return objects and names of folders one level below ``prefix``."""
        with self._translated(prefix, StoreAction.LIST):
            found = obstore.list_with_delimiter(self._store, prefix=prefix)
        folders = tuple(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])
        return tuple(_describe(entry) for entry in found["objects"]), folders

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, without its bytes passing here."""
        with self._translated(source, StoreAction.COPY):
            obstore.copy(self._store, source, target)
            self._make_durable(target)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete many in a request; where one of them was gone already, one after another."""
        waiting = list(keys)
        for at in range(0, len(waiting), DELETE_BATCH):
            batch = waiting[at : at + DELETE_BATCH]
            with self._translated(batch[0], StoreAction.DELETE):
                try:
                    self._delete_batch(batch)
                except (NotFoundError, FileNotFoundError):
                    for key in batch:
                        with contextlib.suppress(NotFoundError, FileNotFoundError):
                            obstore.delete(self._store, key)

    def _delete_batch(self, batch: Sequence[str]) -> None:
        """Delete many, and once more when the request or its answer was lost.

        The library repeats none of these that may have arrived; what is deleted twice is deleted.
        """
        for left in reversed(range(DELETE_ATTEMPTS)):
            try:
                obstore.delete(self._store, batch)
            except GenericError as error:
                if not left or _is_refusal(error):
                    raise
            else:
                return

    def _make_durable(self, key: str) -> None:
        """Put a new object of a directory on stable storage, and the way that leads to it."""
        if self._root is None:
            return
        path = self._root / key
        # Its remover had a reason, and a process that reads it back gets the error.
        with contextlib.suppress(FileNotFoundError):
            _sync(path)
            _sync(path.parent)
            if path.parent != self._synced:
                for folder in path.relative_to(self._root).parents[1:]:
                    _sync(self._root / folder)
                self._synced = path.parent

    @contextlib.contextmanager
    def _translated(self, key: str, action: StoreAction, *, writes: bool = False) -> Iterator[None]:
        """Raise the errors of the port; ``writes`` says that no object has to be there before."""
        if self._asks_metadata and not _has_metadata():
            raise UnavailableError(
                f"{self._no_credentials}. url={self._url} key={key}", code="K313"
            )
        try:
            yield
        except (BaseError, OSError) as error:
            is_missing = isinstance(error, NotFoundError | FileNotFoundError)
            # A bucket that is gone must not look like one whose objects are.
            if _NO_BUCKET.search(str(error)) is not None or (is_missing and writes):
                problem = "there is no such bucket or container; make it, or correct the URL"
            elif is_missing:
                raise FileNotFoundError(2, "no such object", f"{self._url}/{key}") from error
            elif _NO_CREDENTIALS.search(str(error)) is not None:
                raise UnavailableError(
                    f"{self._no_credentials}. url={self._url} key={key}", code="K313"
                ) from error
            elif _is_refusal(error):
                right = right_of(self._url.partition("://")[0], action)
                problem = (
                    f"the object store refuses to {action}: the principal needs {right}, or the "
                    "credentials are not its own"
                )
            else:
                problem = (
                    "the object store failed; see to bucket, credentials, endpoint and options"
                )
            raise UnavailableError(
                f"{problem}. url={self._url} key={key} "
                f"error={reason_of(error, option_secrets(self._options.items()))}",
                code="K301",
            ) from error


class _Writer:
    def __init__(self, objects: ObstoreObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._writer: Any = obstore.open_writer(
            objects._store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # The library sends it later, and from where it lies: callers use their memory again.
        with self._objects._translated(self._key, StoreAction.WRITE, writes=True):
            self._writer.write(bytes(data))

    def close(self) -> None:
        with self._objects._translated(self._key, StoreAction.WRITE, writes=True):
            self._writer.close()
            self._objects._make_durable(self._key)

    def abort(self) -> None:
        # What was sent and never completed is the store's to forget; no object has appeared.
        self._writer = None


class _FileWriter:
    """An object of a directory while it is written, in a file that the library does not list.

    It takes bytes from where they lie; the library would have them copied for its threads.
    """

    def __init__(self, objects: ObstoreObjects, root: Path, key: str) -> None:
        self._objects = objects
        self._key = key
        self._path = root / key
        self._new = self._path.with_name(f"{self._path.name}#{secrets.randbelow(10**NEW_DIGITS)}")
        self._file = -1
        with objects._translated(key, StoreAction.WRITE):
            self._file = _create(self._new)

    def __del__(self) -> None:
        """Give up what was never finished, as the library's writers do."""
        if self._file >= 0:
            self.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._objects._translated(self._key, StoreAction.WRITE):
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(self._file, view) :]

    def close(self) -> None:
        with self._objects._translated(self._key, StoreAction.WRITE):
            try:
                file, self._file = self._file, -1
                os.close(file)
                os.replace(self._new, self._path)
            except OSError:
                self.abort()
                raise
            self._objects._make_durable(self._key)

    def abort(self) -> None:
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            if file >= 0:
                os.close(file)
            os.unlink(self._new)


def _create(path: Path) -> int:
    """Open a new file; folders on its way are made, and made again if they go meanwhile."""
    for _ in range(CREATE_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _fill_from_file(path: Path, start: int, buffer: memoryview) -> bool:
    """Fill ``buffer`` from a file's byte ``start`` on; False when there is not enough of it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    filled = 0
    try:
        while filled < len(buffer):
            count = os.preadv(file, [buffer[filled:]], start + filled)
            if count == 0:
                return False
            filled += count
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_objects(url: str, options: dict[str, str] | None = None) -> ObjectPlace:
    """Return the store at ``url`` for objects that are written once; as :func:`open_tree`."""
    return open_tree(url, options)


def refused_actions(
    steps: Mapping[StoreAction, Callable[[], object]],
) -> dict[StoreAction, UnavailableError]:
    """Ask a store for each action, in this order, and return those that it refuses.

    UnavailableError when it fails otherwise. Nothing is read once something was refused: of an
    object that is not there S3 says "forbidden" to a principal that may not list.
    """
    refused: dict[StoreAction, UnavailableError] = {}
    for action, ask in steps.items():
        if action is StoreAction.READ and refused:
            continue
        try:
            ask()
        except UnavailableError as error:
            if not is_forbidden(error):
                raise
            refused[action] = error
    return refused


def is_forbidden(error: BaseException) -> bool:
    """Say whether a store failed because it refuses the caller, or does not know the caller."""
    return error.__cause__ is not None and _is_refusal(error.__cause__)


def _is_refusal(error: BaseException) -> bool:
    refusals = (PermissionDeniedError, UnauthenticatedError, PermissionError)
    if _NO_CREDENTIALS.search(str(error)) is not None:
        return False  # of the store nothing was asked yet
    # Of listings, streams, and what deletes many, the library reports in words alone.
    is_refused = isinstance(error, BaseError | OSError) and _REFUSED.search(str(error)) is not None
    return is_refused or isinstance(error, refusals)


def check_place(url: str) -> None:
    """InvalidError for the URL of a store with a secret in it: it is kept, shown and sent about."""
    if not _is_directory(url) and (has_userinfo(url) or "?" in url or "#" in url):
        raise InvalidError(
            "the URL of an object store is a bucket and a prefix; give credentials by the "
            "environment (AWS_ACCESS_KEY_ID and so on) or as --object-option KEY=@FILE. "
            f"url={shown_url(url)}",
            code="K119",
        )


def lasting_url(url: str) -> str:
    """Return ``url`` as any process of this host understands it: a path is made absolute.

    InvalidError for what names no place, or one that ends with the process.
    """
    if url.startswith(MEMORY):
        raise InvalidError(
            "objects in memory end with the process; give file://, s3://, gs:// or az://. "
            f"url={shown_url(url)}",
            code="K302",
        )
    check_place(url)
    if _ONE_SLASH.match(url):
        raise InvalidError(
            "not a URL and hardly the name of a directory; give s3://, gs://, az:// or file:///, "
            f"or ./ before a name. url={shown_url(url)}",
            code="K302",
        )
    path = url.removeprefix(FILE)
    if not path or (url.startswith(FILE) and not path.startswith("/")):
        raise InvalidError(
            "a directory for objects is a path, or file:// with an absolute one: file:///srv/objects"
            f". url={shown_url(url)}",
            code="K302",
        )
    return f"{FILE}{Path(path).absolute()}" if _is_directory(url) else url


def check_directory(url: str) -> None:
    """Raise UnavailableError when ``url`` is a directory of this host that is not there.

    It was made with the store: a volume that is not mounted must not be taken for an empty one.
    """
    if _is_directory(url) and not Path(url.removeprefix(FILE)).is_dir():
        raise UnavailableError(
            f"the directory of the objects is not there; is its volume mounted? url={url}",
            code="K304",
        )


def _is_directory(url: str) -> bool:
    return url.startswith(FILE) or "://" not in url


def open_tree(url: str, options: dict[str, str] | None = None) -> ObstoreObjects:
    """Return the store at ``url``; ``options`` are obstore's, as for credentials and endpoints.

    InvalidError when the URL is not understood. A local directory is made.
    """
    if url.startswith(MEMORY):
        return ObstoreObjects(MemoryStore(), url)
    if _is_directory(url):
        path = Path(url.removeprefix(FILE)).absolute()
        path.mkdir(parents=True, exist_ok=True)
        return ObstoreObjects(LocalStore(prefix=path, automatic_cleanup=True), f"{FILE}{path}")
    check_place(url)
    try:
        config: Any = dict(options or {})
        client: Any = {"allow_http": True} if is_plain_http(url, config) else {}
        return ObstoreObjects(from_url(url, config=config, client_options=client), url, config)
    except (BaseError, InvalidPathError, ValueError, TypeError) as error:
        if _NO_ACCOUNT in str(error):
            raise InvalidError(
                "Azure's stores need the name of the storage account; give the option "
                f"account_name, or set AZURE_STORAGE_ACCOUNT_NAME. url={shown_url(url)}",
                code="K303",
            ) from None
        raise InvalidError(
            "not an object store; give file://, s3://, gs:// or az:// with its options. "
            f"url={shown_url(url)} error={reason_of(error, option_secrets(config.items()))}",
            code="K302",
        ) from None
    except BaseException as error:
        # What the library's Rust does where an option is not the store's but its client's.
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidError(
            "an option is not one of this object store; leave it out. "
            f"url={shown_url(url)} options={','.join(sorted(config))} "
            f"error={reason_of(Exception(error), option_secrets(config.items()))}",
            code="K303",
        ) from None


@functools.cache
def _has_metadata() -> bool:
    """Say whether this host may be the instance of a cloud: the library would try for minutes."""
    try:
        socket.create_connection(_METADATA, _METADATA_SECONDS).close()
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=STORES_KEPT)
def open_once(url: str, options: tuple[tuple[str, str], ...]) -> ObstoreObjects:
    """Return this process's store of that URL: its connections serve task after task."""
    return open_tree(url, dict(options))


def reason_of(error: Exception, hidden: Iterable[str] = ()) -> str:
    """Return what a store said, in a line: its code and message, else the first line.

    ``hidden`` are secrets that do not stand in it.
    """
    text = without_secrets(str(error), hidden)
    found = [re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message")]
    # Azure's message goes on with the number of the request and the time.
    said = [each[1].strip().partition("\n")[0] for each in found if each is not None]
    if said:
        return ": ".join(said)
    return text.partition("\n")[0][:REASON_CHARS_MAX]


def _version_of(meta: Any) -> Any:
    """Return what a condition names a version by; a store that has no such thing has no conditions.

    An empty answer is a condition that no object fulfils.
    """
    named = {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}
    return named or {"e_tag": "none"}


def _describe(meta: Any) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
