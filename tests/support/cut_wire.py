"""A wire to PostgreSQL that is cut at a COMMIT: before the server has it, or before it answers.

Between a client and a server on this machine; everything else passes. The client's next connection
goes through as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.waiting import SECONDS_MAX

COMMIT = b"COMMIT\x00"
BYTES_MAX = 1 << 16


class CutWire:
    """Listens on ``port``; passes on to ``server_port``."""

    def __init__(self, server_port: int) -> None:
        """Start to listen."""
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._commits_left = 0
        self._is_delivered = False
        self.cuts = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_commit(self, nth: int, *, is_delivered: bool) -> None:
        """Cut at the ``nth`` COMMIT from now on, after the server has done it or instead of it."""
        self._is_delivered = is_delivered
        self._commits_left = nth

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS_MAX)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=_pass, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while data := client.recv(BYTES_MAX):
                if COMMIT in data and self._commits_left:
                    self._commits_left -= 1
                    if not self._commits_left:
                        self.cuts += 1
                        _drop(client)
                        if self._is_delivered:
                            server.sendall(data)
                            # The server ends only once it has done what it was sent.
                            server.shutdown(socket.SHUT_WR)
                            while server.recv(BYTES_MAX):
                                pass
                        _drop(server)
                        return
                server.sendall(data)
            _drop(server)


def _pass(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(BYTES_MAX):
            client.sendall(data)
    _drop(client)


def _drop(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
