"""Values of an object store's options, as people give them: by themselves, or by where they are.

``@FILE`` takes a value from a file, without the newline at its end, ``env:NAME`` from the
environment: what is given on the command line stands in the list of processes. The rule: **a value
may be a secret and is in no error**.
"""

from __future__ import annotations

import os
from pathlib import Path

from keeplast.errors import InvalidError

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
                f"{name} variable={variable}"
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
            f"{name} path={path} error={str(reason).lower()}"
        ) from None
    if len(data) > OPTION_BYTES_MAX or not value or not value.isprintable():
        raise InvalidError(
            f"the file of an object store's option is one line of at most {OPTION_BYTES_MAX} "
            f"bytes. {name} path={path}"
        )
    return value
