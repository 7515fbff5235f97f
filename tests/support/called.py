"""The command line, called in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from keeplast.cli.main import app


def run(*arguments: object, code: int | None = None) -> Result:
    """Call a command; ``code`` is what it must end with, None for whatever it does."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert code in (None, result.exit_code), result.output
    return result


def copied(data: Path, root: Path, *more: object) -> str:
    """Copy a data directory's logs into a new store below ``root``; returns its URL."""
    url = f"sqlite:///{root / 'meta.db'}"
    run("copy", data, url, "--new", "--objects", f"file://{root / 'objects'}", *more, code=0)
    return url
