"""A stand-in for S3 that refuses actions, as a bucket's policy does: in memory, on loopback.

It answers what obstore sends for small objects, with conditions, and says ``AccessDenied`` in each
of the two ways of S3: as a status, and, of many keys that are deleted at once, of each key.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"
MODIFIED = "Sun, 01 Nov 2026 00:00:00 GMT"
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
XML_KEY = re.compile(r"<Key>([^<]+)</Key>")


@dataclass(slots=True)
class RefusingS3:
    """The objects of one bucket by key, and the actions that are ``denied`` now."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    heeds_conditions: bool = True
    asked: list[str] = field(default_factory=list)
    """Actions, in the order in which they were asked for."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Return what a store is opened by."""
        return f"s3://{BUCKET}"

    @property
    def options(self) -> dict[str, str]:
        """Return its options."""
        return {
            "endpoint": self.endpoint, "access_key_id": "a", "secret_access_key": "b",
            "region": "us-east-1",
        }  # fmt: skip

    def allows(self, action: str) -> bool:
        """Note that an action is asked for, and say whether it is allowed."""
        self.asked.append(action)
        return action not in self.denied


@contextmanager
def refusing_s3() -> Iterator[RefusingS3]:
    """Serve an empty bucket."""
    made = RefusingS3()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    made.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'


def _handler(s3: RefusingS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

        @property
        def query(self) -> dict[str, list[str]]:
            return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_PUT(self) -> None:
            data = self.body()
            with s3.lock:
                if not s3.allows("s3:PutObject"):
                    return self.answer(403, DENIED.encode())
                old = s3.objects.get(self.key)
                match = self.headers.get("If-Match")
                is_new = self.headers.get("If-None-Match") == "*"
                if s3.heeds_conditions and (
                    (is_new and old is not None)
                    or (match is not None and (old is None or _tag(old) != match))
                ):
                    return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                s3.objects[self.key] = data
            self.answer(200, ETag=_tag(data))

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with s3.lock:
                if "list-type" in self.query:
                    return self.list()
                if not s3.allows("s3:GetObject"):
                    return self.answer(403, DENIED.encode())
                data = s3.objects.get(self.key)
            if data is None:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            part, status, more = data, 200, {}
            asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if asked:
                part, status = data[int(asked[1]) : int(asked[2]) + 1], 206
                last = int(asked[1]) + len(part) - 1
                more = {"Content_Range": f"bytes {asked[1]}-{last}/{len(data)}"}
            size = str(len(part))
            self.answer(
                status, part, ETag=_tag(data), Last_Modified=MODIFIED, Content_Length=size, **more
            )

        def list(self) -> None:
            if not s3.allows("s3:ListBucket"):
                return self.answer(403, DENIED.encode())
            prefix = self.query.get("prefix", [""])[0]
            rows = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
                f"<ETag>{_tag(data).strip(chr(34))}</ETag><Size>{len(data)}</Size></Contents>"
                for key, data in sorted(s3.objects.items())
                if key.startswith(prefix)
            )
            self.answer(
                200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
                .encode(),
            )  # fmt: skip

        def do_DELETE(self) -> None:
            with s3.lock:
                if not s3.allows("s3:DeleteObject"):
                    return self.answer(403, DENIED.encode())
                s3.objects.pop(self.key, None)
            self.answer(204)

        def do_POST(self) -> None:
            keys = XML_KEY.findall(self.body().decode())
            with s3.lock:
                allowed = s3.allows("s3:DeleteObject")
                for key in keys if allowed else ():
                    s3.objects.pop(key, None)
            rows = "".join(
                f"<Deleted><Key>{key}</Key></Deleted>" if allowed else
                f"<Error><Key>{key}</Key><Code>AccessDenied</Code>"
                "<Message>Access Denied</Message></Error>"
                for key in keys
            )  # fmt: skip
            self.answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())

    return Handler
