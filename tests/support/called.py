"""The command line, called in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from keeplast.cli.main import app


def run(*arguments: object, code: int | None = None) -> Result:
    """Call a command; ``code`` is what it must end with, None for whatever it does."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert code in (None, result.exit_code), result.output
    return result
