"""Options of ``erase`` and of certificates, of directories and of stores; each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.key_files import KEYS_FILE_WORDS

KEYS = "The keys"

Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys", metavar="FILE", help=f"The keys: {KEYS_FILE_WORDS}.", rich_help_panel=KEYS
    ),
]
HashKey = Annotated[
    Path,
    typer.Option(
        "--hash-key",
        metavar="FILE",
        help="What keys are hashed with wherever they are named: 32 bytes or more, such as openssl "
        "rand -hex 32 writes. Keep it apart from what is hashed with it.",
        show_default=False,
        rich_help_panel=KEYS,
    ),
]
Requests = Annotated[
    Path | None,
    typer.Option(
        "--requests",
        metavar="FILE",
        help="Where requests are kept. Default: keeplast-erasures in a data directory, the "
        "metadata of a store, the decision log of a cluster; a backup takes them along.",
        rich_help_panel=KEYS,
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request",
        metavar="ID",
        help="The request. Default: the only one there is.",
        rich_help_panel=KEYS,
    ),
]
SignKey = Annotated[
    Path,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="The Ed25519 private key, in PEM: openssl genpkey -algorithm ed25519.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FILE", help="Where the certificate goes; a new file.", show_default=False
    ),
]
