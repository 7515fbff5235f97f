"""Builds the package as setuptools does, with a man page for each command in the wheel.

The rule: the pages are made from the commands that go into the same wheel, never kept. So a build
needs what commands import to be declared; :data:`COMMANDS_NEED` names those projects, and their
bounds are those of the package. An editable build, which installs no data files, needs none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMMANDS_NEED = frozenset({"crc32c", "msgspec", "platformdirs", "rich", "typer"})
ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "man"
"""Where ``tool.setuptools.data-files`` finds them."""


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what declaring the commands needs, in the versions that the package asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *(each for each in project["dependencies"] if re.split(r"[<>=]", each)[0] in COMMANDS_NEED),
    ]


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Write the man pages, then the wheel."""
    shutil.rmtree(PAGES, ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, str(ROOT / "tools" / "make_man.py"), str(PAGES)]
    subprocess.run(command, env=environment, check=True)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
