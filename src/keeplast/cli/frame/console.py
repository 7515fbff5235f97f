"""The options of the console, and what a command that shows one wires together.

Imports nothing of the web framework before a console is asked for: without the extra every other
command works.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cli.frame.command import check_packages
from keeplast.cli.frame.options import LOOPBACK
from keeplast.config.place_properties import WITH, PlaceKind
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.clock import Clock
    from keeplast.config.places import FoundPlace
    from keeplast.service.console.searches import SearchLimits
    from keeplast.service.console.server import Certificate, ConsoleServer
    from keeplast.service.console.view import ViewSource
    from keeplast.service.place_loop import PlaceView

PANEL = "Console"
PORT_DEFAULT = 9590
OPTION = "--console"


def console_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``HOST`` or ``PORT``; InvalidError for anything else.

    Without a host it is the loopback, without a port :data:`PORT_DEFAULT`.
    """
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host and not text.isdigit() and ":" not in text:
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if (port and not is_number) or int(port or 0) > 65535 or any(c.isspace() for c in host):
        raise InvalidError(
            f"no address to listen on; write HOST:PORT, HOST or PORT. --console={text!r}",
            code="K701",
        )
    return host or LOOPBACK, int(port) if port else PORT_DEFAULT


class EntranceOptions(Struct, frozen=True, kw_only=True):
    """Who is let into a console."""

    console_token_file: Annotated[
        Path | None,
        typer.Option(
            "--console-token-file",
            metavar="FILE",
            help="Lines 'viewer TOKEN' and 'actor TOKEN' in a file that only its owner may open. "
            "Default: a random token, printed as a link.",
            rich_help_panel=PANEL,
        ),
    ] = None
    console_certificate: Annotated[
        Path | None,
        typer.Option(
            "--console-certificate",
            metavar="FILE",
            help="Speak TLS with this chain of certificates, PEM.",
            rich_help_panel=PANEL,
        ),
    ] = None
    console_key: Annotated[
        Path | None,
        typer.Option(
            "--console-key",
            metavar="FILE",
            help="The key of the certificate, PEM.",
            rich_help_panel=PANEL,
        ),
    ] = None
    behind_proxy: Annotated[
        tuple[str, ...],
        typer.Option(
            "--behind-proxy",
            metavar="ADDRESS",
            help="A proxy that speaks TLS and alone may connect; its X-Forwarded-Host and -Proto "
            "count. Repeatable.",
            rich_help_panel=PANEL,
        ),
    ] = ()
    console_names: Annotated[
        tuple[str, ...],
        typer.Option(
            "--console-name",
            metavar="HOST",
            help="A further name for the console in browsers; repeatable. Default: its address "
            "and this host's name.",
            rich_help_panel=PANEL,
        ),
    ] = ()
    metrics_open: Annotated[
        bool,
        typer.Option(
            "--metrics-open",
            help="Let /metrics and /healthz be read without a token, off the loopback too.",
            rich_help_panel=PANEL,
        ),
    ] = False


SEARCH_PROPERTIES = ("no-values", "closed-topics", "search-seconds", "search-bytes")
"""Properties of a place that say what a page may find of its keys."""


def search_limits(found: FoundPlace) -> SearchLimits:
    """Return what a page may find of keys, and what finding them may take.

    InvalidError for more time than a page has, and for no bytes.
    """
    from keeplast.service.console.searches import (
        BYTES_DEFAULT,
        SECONDS_DEFAULT,
        SECONDS_MAX,
        SearchLimits,
    )

    seconds, size = found.count("search-seconds"), found.size("search-bytes")
    if seconds is not None and seconds > SECONDS_MAX:
        raise InvalidError(
            f"give {SECONDS_MAX} seconds at most. --search-seconds={seconds}", code="K104"
        )
    if size == 0:
        raise InvalidError("give 1 byte at least. --search-bytes=0", code="K104")
    return SearchLimits(
        SECONDS_DEFAULT if seconds is None else seconds,
        BYTES_DEFAULT if size is None else size,
        not found.flag("no-values"),
        found.texts("closed-topics"),
    )


class ConsoleOptions(Struct, frozen=True, kw_only=True):
    """Whether a loop shows itself in a browser, to whom, and whether it takes orders."""

    console: Annotated[
        str | None,
        typer.Option(
            "--console",
            metavar="[HOST:PORT]",
            help="Show the logs and the work in a browser; HOST or PORT alone is enough, port 0 "
            f"takes a free one. Without a value: {LOOPBACK}:{PORT_DEFAULT}.",
            rich_help_panel=PANEL,
        ),
    ] = None
    entrance: EntranceOptions
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let who has the actor's token clean now, retry, pause and resume from a page.",
            rich_help_panel=PANEL,
        ),
    ] = False

    def check(self, found: FoundPlace) -> tuple[str, int] | None:
        """Return where to listen, None without a console; InvalidError for what makes no sense."""
        if self.console is not None:
            check_packages("console")
            search_limits(found)
            if (
                self.allow_actions
                and found.kind is not PlaceKind.DIRECTORY
                and found.path("receipt") is None
            ):
                raise InvalidError(
                    "what is asked for from a page is written to the receipts, and there are none; "
                    "give --receipt FILE too. --allow-actions",
                    code="K102",
                )
            return console_address(self.console)
        given = [
            name
            for name, value in (
                ("--console-token-file", self.entrance.console_token_file),
                ("--console-certificate", self.entrance.console_certificate),
                ("--console-key", self.entrance.console_key),
                ("--behind-proxy", self.entrance.behind_proxy),
                ("--console-name", self.entrance.console_names),
                ("--metrics-open", self.entrance.metrics_open),
                ("--allow-actions", self.allow_actions),
            )
            if value
        ]
        # What a place's table has is for whenever there is one.
        given += [
            f"--{name}"
            for name in SEARCH_PROPERTIES
            if name in found.given and found.given[name].source == WITH
        ]
        if given:
            raise InvalidError(
                f"there is no console; add --console. given={', '.join(given)}", code="K102"
            )
        return None


@contextlib.contextmanager
def console_served(
    source: ViewSource,
    view: PlaceView,
    address: tuple[str, int],
    options: EntranceOptions,
    clock: Clock,
    *,
    limits: SearchLimits,
    place: str,
    allows_actions: bool = False,
) -> Iterator[ConsoleServer]:
    """Serve a console of ``source`` while it lasts; InvalidError when an option cannot be used.

    ``view`` reads the logs of the place when a page asks, within ``limits``. ``place`` is how
    commands name it.
    """
    from keeplast.log.files import LocalFiles
    from keeplast.service.console.addresses import find_address
    from keeplast.service.console.gate import Entrance, random_tokens, read_tokens
    from keeplast.service.console.searches import KeySearches
    from keeplast.service.console.server import ConsoleServer

    host, port = address
    certificate = _certificate(options)
    for each in options.behind_proxy:
        if find_address(each) is None:
            raise InvalidError(
                "a proxy is known by its address. Write the one that it connects from, no name "
                f"and no network. --behind-proxy={each}",
                code="K705",
            )
    entrance = Entrance(
        host,
        port,
        (socket.gethostname(), *options.console_names),
        options.behind_proxy,
        is_secure=certificate is not None,
        metrics_open=options.metrics_open,
        allows_actions=allows_actions,
        place=place,
    )
    file = options.console_token_file
    tokens = (
        random_tokens(has_actor=allows_actions)
        if file is None
        else read_tokens(file, needs_actor=allows_actions)
    )
    searches = None if view.find is None else KeySearches(view.find, clock, limits, view.scan)
    with ConsoleServer(
        source, entrance, tokens, clock, LocalFiles(), certificate, searches
    ) as server:
        yield server


def _certificate(options: EntranceOptions) -> Certificate | None:
    from keeplast.service.console.server import Certificate

    chain, key = options.console_certificate, options.console_key
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise InvalidError(
            "a certificate and its key belong together; give both. "
            f"--console-certificate={chain} --console-key={key}",
            code="K102",
        )
    found = Certificate(chain, key)
    found.check()
    return found


def say_console(server: ConsoleServer, options: EntranceOptions) -> None:
    """Say where the console is; a random token is shown in a link, to a person and no log file."""
    import sys

    from keeplast.cli.show.output import say

    say(f"console at {server.address}")
    token = server.printed_token
    if options.console_token_file is None and token is not None:
        # Not by say(), which a log file hears too.
        sys.stderr.write(f"to log in: {server.link(token)}\n")
        sys.stderr.flush()
