"""A stand-in for Google's object store: its XML API, as far as keeplast's client asks for it.

It is ours and proves nothing of Google's servers. No emulator that there is takes a write of that
API: the client sends the XML API's ``PUT``, and what they know is the JSON API. The rule: **what
Google documents is done as documented**, conditions on the generation before all, so that what the
client sends and understands can be tried. ``heeds_conditions=False`` makes it a store that knows
no conditions.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from msgspec import Struct

PAGE = 1000
PART_BYTES_MIN = 5 << 20
TOKEN = "ya29.stand-in"
GENERATION_MATCH = "x-goog-if-generation-match"
COPY_SOURCE = "x-goog-copy-source"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)?\Z")
_PART = re.compile(r"<Part>(.*?)</Part>", re.DOTALL)
_NUMBER, _TAG = re.compile(r"<PartNumber>(\d+)<"), re.compile(r"<ETag>([^<]*)<")


class _Object(Struct, frozen=True):
    data: bytes
    generation: int
    modified: float

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(slots=True)
class GoogleStore:
    """Buckets and their objects, and uploads in parts that were not completed."""

    url: str = ""
    heeds_conditions: bool = True
    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """Return what names this server, and its token, to the client."""
        return {"base_url": self.url, "bearer_token": TOKEN}

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Have an object there, without a client."""
        self.buckets[bucket][key] = _Object(data, next(self.generations), time.time())


@contextlib.contextmanager
def own_google_store(bucket: str, *, heeds_conditions: bool = True) -> Iterator[GoogleStore]:
    """Serve an empty bucket on loopback."""
    store = GoogleStore(heeds_conditions=heeds_conditions, buckets={bucket: {}})

    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has given up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    store: GoogleStore
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        bucket, _, key = parts.path.removeprefix("/").partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise _Refused(401, "AuthenticationRequired", "Authentication required.")
            with self.store.lock:
                objects = self.store.buckets.get(bucket)
                if objects is None:
                    raise _Refused(404, "NoSuchBucket", "The specified bucket does not exist.")
                if not key:
                    self._answer(200, _list_page(bucket, objects, query))
                else:
                    self._serve_object(objects, unquote(key), query, body)
        except _Refused as error:
            text = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
            self._answer(error.status, text.encode())

    def _serve_object(
        self, objects: dict[str, _Object], key: str, query: Mapping[str, str], body: bytes
    ) -> None:
        if "uploads" in query:
            name = f"upload-{next(self.store.generations)}"
            self.store.uploads[name] = {}
            self._answer(200, _xml("InitiateMultipartUploadResult", UploadId=name))
        elif "uploadId" in query:
            self._serve_upload(objects, key, query, body)
        elif self.command == "PUT":
            source = self.headers.get(COPY_SOURCE)
            data = body if source is None else self._find(objects, _key_of(source)).data
            made = self._put(objects, key, data)
            answer = b"" if source is None else _xml("CopyObjectResult", ETag=made.tag)
            self._answer(200, answer, made)
        elif self.command == "DELETE":
            self._find(objects, key)
            del objects[key]
            self._answer(204, b"")
        else:
            self._send(self._find(objects, key))

    def _serve_upload(
        self, objects: dict[str, _Object], key: str, query: Mapping[str, str], body: bytes
    ) -> None:
        name = query["uploadId"]
        parts = self.store.uploads.get(name)
        if parts is None:
            raise _Refused(404, "NoSuchUpload", "The specified upload does not exist.")
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            self._answer(200, b"", _Object(body, 0, 0))
        elif self.command == "DELETE":
            del self.store.uploads[name]
            self._answer(204, b"")
        else:
            named = _PART.findall(body.decode().replace("&quot;", '"'))
            found = [parts[int(_NUMBER.findall(each)[0])] for each in named]
            tags = [_TAG.findall(each)[0] for each in named]
            if not found or [_Object(each, 0, 0).tag for each in found] != tags:
                raise _Refused(400, "InvalidPart", "A part is not what was uploaded.")
            if any(len(each) < PART_BYTES_MIN for each in found[:-1]):
                raise _Refused(400, "EntityTooSmall", "A part is too small.")
            made = self._put(objects, key, b"".join(found))
            del self.store.uploads[name]
            self._answer(200, _xml("CompleteMultipartUploadResult", ETag=made.tag), made)

    def _put(self, objects: dict[str, _Object], key: str, data: bytes) -> _Object:
        wanted = self.headers.get(GENERATION_MATCH)
        if wanted is not None and self.store.heeds_conditions:
            found = objects[key].generation if key in objects else 0
            if int(wanted) != found:
                raise _Refused(412, "PreconditionFailed", "A precondition did not hold.")
        objects[key] = _Object(data, next(self.store.generations), time.time())
        return objects[key]

    def _find(self, objects: dict[str, _Object], key: str) -> _Object:
        if key not in objects:
            raise _Refused(404, "NoSuchKey", "The specified key does not exist.")
        return objects[key]

    def _send(self, found: _Object) -> None:
        match = _RANGE.match(self.headers.get("Range") or "")
        if match is None:
            self._answer(200, found.data, found)
            return
        size = len(found.data)
        start, end = int(match[1]), min(int(match[2] or size), size - 1)
        if start >= size:
            raise _Refused(416, "InvalidRange", "The range cannot be satisfied.")
        fields = {"Content-Range": f"bytes {start}-{end}/{size}"}
        self._answer(206, found.data[start : end + 1], found, fields)

    def _answer(
        self, status: int, body: bytes, made: _Object | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        if made is not None:
            self.send_header("ETag", made.tag)
            self.send_header("x-goog-generation", str(made.generation))
            self.send_header("Last-Modified", formatdate(made.modified, usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _key_of(source: str) -> str:
    """Return the key in ``/bucket/key``."""
    return unquote(source.removeprefix("/").partition("/")[2])


def _list_page(bucket: str, objects: Mapping[str, _Object], query: Mapping[str, str]) -> bytes:
    """Return a page of keys and folders; the token of the next one is the last name of this."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token", "")
    names: dict[str, _Object | None] = {}
    for key in sorted(each for each in objects if each.startswith(prefix)):
        rest = key.removeprefix(prefix)
        is_folder = bool(delimiter) and delimiter in rest
        name = prefix + rest.partition(delimiter)[0] + delimiter if is_folder else key
        names[name] = None if is_folder else objects[key]
    left = [each for each in names if each > after]
    said = [f"<Name>{bucket}</Name><IsTruncated>{str(len(left) > PAGE).lower()}</IsTruncated>"]
    if len(left) > PAGE:
        said.append(f"<NextContinuationToken>{escape(left[PAGE - 1])}</NextContinuationToken>")
    for name in left[:PAGE]:
        found = names[name]
        if found is None:
            said.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            continue
        modified = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.modified))
        said.append(
            f"<Contents><Key>{escape(name)}</Key><Generation>{found.generation}</Generation>"
            f"<LastModified>{modified}.000Z</LastModified><ETag>{found.tag}</ETag>"
            f"<Size>{len(found.data)}</Size></Contents>"
        )
    return f"<ListBucketResult>{''.join(said)}</ListBucketResult>".encode()


def _xml(name: str, **values: str) -> bytes:
    inner = "".join(f"<{each}>{escape(value)}</{each}>" for each, value in values.items())
    return f"<{name}>{inner}</{name}>".encode()
