"""What an upload in parts leaves in an S3 store that refuses to complete it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from keeplast.errors import UnavailableError
from keeplast.tier.objects.stores import PART_BYTES, open_tree

BEGUN = (
    b"<InitiateMultipartUploadResult><UploadId>upload</UploadId></InitiateMultipartUploadResult>"
)
DENIED = b"<Error><Code>AccessDenied</Code></Error>"


class _Refusing(BaseHTTPRequestHandler):
    """Takes parts, and refuses to make an object of them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        begins = "uploads" in self.path
        self._answer(200 if begins else 403, BEGUN if begins else DENIED)

    def do_PUT(self) -> None:
        self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(204)

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = re.sub(r"=\d+", "=N", self.path)
        self.server.asked.append((self.command, path))  # type: ignore[attr-defined]
        self.send_response(code)
        self.send_header("ETag", '"part"')
        if code != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    made.asked = []  # type: ignore[attr-defined]
    thread = Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_an_upload_that_is_not_completed_is_taken_back_by_an_action_of_its_own(
    server: ThreadingHTTPServer,
) -> None:
    """The last request is what S3 asks s3:AbortMultipartUpload for."""
    objects = open_tree(
        "s3://bucket",
        {
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}", "region": "us-east-1",
            "access_key_id": "a", "secret_access_key": "b",
        },
    )  # fmt: skip
    writer = objects.open_write("log")
    writer.write(bytes(PART_BYTES))
    writer.write(bytes(PART_BYTES))
    with pytest.raises(UnavailableError, match="s3:PutObject"):
        writer.close()
    first, *parts, completing, last = server.asked  # type: ignore[attr-defined]
    assert ("POST", "/bucket/log?uploads") == (first[0], first[1].rstrip("="))
    assert 2 <= len(parts)
    assert {("PUT", "/bucket/log?partNumber=N&uploadId=upload")} == set(parts)
    assert ("POST", "/bucket/log?uploadId=upload") == completing
    assert ("DELETE", "/bucket/log?uploadId=upload") == last
