"""Fetches the jars that a pom names, once, with Maven, into ``build/``."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"


class JarsError(Exception):
    """The jars are not there and cannot be fetched."""


def fetch_jars(pom: Path, name: str, *, remedy: str) -> Path:
    """Return ``build/<name>`` with the jars of ``pom``; ``remedy`` is what to do without Maven."""
    libs = BUILD / name
    if libs.is_dir():
        return libs
    if shutil.which("mvn") is None:
        raise JarsError(f"mvn is missing: install Maven (package maven), or {remedy}")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Fetched next to it and renamed, so that an interrupted download is not taken for a whole one.
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="kafka-fetch-") as scratch:
        fetched = Path(scratch) / "libs"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={fetched}"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise JarsError(
                f"maven could not fetch the jars of {pom.name}: {done.stdout}{done.stderr}"
            )
        try:
            fetched.rename(libs)
        except OSError:
            # Several brokers that start at once fetch for themselves; one was first.
            if not libs.is_dir():
                raise
    return libs
