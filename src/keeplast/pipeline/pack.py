"""Packs the environment that runs us for executors: packages and compiled kernels in one archive.

An executor needs a Python of the same minor version and nothing else: ``bin/python`` of the archive
starts that one on the packages next to it. Spark hands the archive out by itself
(``spark.archives``). It holds what keeplast imports and no more: pyspark and py4j are left out,
because every executor has those of its own Spark. Kernels are machine code for the processor that
packs; another one compiles its own at the first task.

The rules: no links, which Hadoop refuses to unpack when they lead outside; and ``.tar.gz`` alone.
Hadoop goes by the ending of the name and leaves modes and times as they are with no other.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import shlex
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

from keeplast.columns import kernel
from keeplast.errors import InvalidError, RefusedError
from keeplast.kernel_cache import LOCK_ENDING, PARTIAL, SHIPPED, cache_folder

NAME = "keeplast"
LEFT_OUT = frozenset({"pyspark", "py4j"})
ENDINGS = (".tar.gz", ".tgz")
GZIP_LEVEL = 4
SITE = PurePosixPath(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
INTERPRETER = """\
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd) || exit
python={python}
command -v "$python" >/dev/null || python={name}
export PYTHONPATH="$here/{site}${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
exec "$python" "$@"
"""
"""Starts the host's Python, where it was said to be or on the path, with our packages first."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")


class PackNews(Protocol):
    """The listener to how far it is."""

    def planned(self, total_bytes: int) -> None:
        """Hear how many bytes there will be."""

    def progressed(self, read_bytes: int) -> None:
        """Hear that so many more are in."""


class Pack(Struct, frozen=True):
    """An archive: where it is, its size, the size of its content, and what is in it.

    ``python`` is the interpreter that every executor should have, ``processor`` the one that the
    ``kernels`` were compiled for. ``packages`` are names and versions.
    """

    path: Path
    size_bytes: int
    unpacked_bytes: int
    packages: tuple[tuple[str, str], ...]
    kernels: int
    processor: str
    python: Path

    def as_document(self) -> dict[str, object]:
        """Return the document that ``--json`` prints."""
        return {
            "path": self.path,
            "bytes": self.size_bytes,
            "unpacked_bytes": self.unpacked_bytes,
            "packages": dict(self.packages),
            "kernels": self.kernels,
            "processor": self.processor,
            "python": self.python,
        }


def check_target(target: Path) -> None:
    """Raise InvalidError for a name that Spark would not unpack, and without a place for it."""
    if not target.name.endswith(ENDINGS):
        raise InvalidError(
            f"Spark unpacks by the ending of the name; choose {', '.join(ENDINGS)}. --to={target}",
            code="K149",
        )
    if not target.absolute().parent.is_dir():
        raise InvalidError(
            f"there is no directory for the archive; make it, or name another. --to={target}",
            code="K111",
        )


def pack_environment(target: Path, news: PackNews, *, extras: Sequence[str], python: Path) -> Pack:
    """Write the archive ``target``, whole or not at all.

    ``extras`` are those of keeplast whose requirements go along. RefusedError where a package
    cannot be packed, InvalidError for an extra that there is not.
    """
    check_target(target)
    kernel.load()
    packages = find_packages(extras)
    entries = dict(sorted(_entries(packages)))
    sizes = {name: path.stat().st_size for name, path in entries.items()}
    news.planned(sum(sizes.values()))
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=GZIP_LEVEL) as archive:
            _add_interpreter(archive, python)
            for name, path in entries.items():
                archive.add(path, name, recursive=False, filter=_anonymous)
                news.progressed(sizes[name])
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Pack(
        path=target,
        size_bytes=target.stat().st_size,
        unpacked_bytes=sum(sizes.values()),
        packages=tuple((each.name, each.version) for each in packages),
        kernels=len(kernel.names()),
        processor=kernel.processor(),
        python=python,
    )


def installed_extras(extras: Sequence[str]) -> list[str]:
    """Return those of ``extras`` all of whose requirements are here."""
    found = []
    for extra in extras:
        try:
            find_packages([extra])
        except (InvalidError, RefusedError):
            continue
        found.append(extra)
    return found


def find_packages(extras: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """Return keeplast and what it needs with ``extras``, by name."""
    known = importlib.metadata.metadata(NAME).get_all("Provides-Extra") or []
    for extra in extras:
        if extra not in known:
            raise InvalidError(
                f"keeplast has no such extra; choose from {', '.join(known)}. --extra={extra}",
                code="K149",
            )
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(NAME, tuple(extras), False)]
    while waiting:
        name, wanted, is_conditional = waiting.pop()
        key = _canonical(name)
        if key in LEFT_OUT or (key, wanted) in seen:
            continue
        seen.add((key, wanted))
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if is_conditional:
                continue  # a condition on the platform that does not hold here
            raise RefusedError(
                f"a requirement is not installed; pip install it, or pack without its extra. "
                f"package={name}",
                code="K149",
            ) from None
        waiting += _requirements(found[key], wanted)
    return [found[key] for key in sorted(found)]


def _requirements(
    package: importlib.metadata.Distribution, extras: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield name and extras of each requirement, and whether it has a condition of another kind."""
    for line in package.requires or ():
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            raise RefusedError(
                f"a requirement is not understood. package={package.name} requirement={line!r}",
                code="K149",
            )
        name, its_extras, condition = match.groups()
        of = _EXTRA.search(condition or "")
        if of is not None and of[1] not in extras:
            continue
        rest = _EXTRA.sub("", condition or "").strip()
        yield (
            name,
            tuple(each.strip() for each in (its_extras or "").split(",") if each),
            bool(rest),
        )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(
    packages: Sequence[importlib.metadata.Distribution],
) -> Iterator[tuple[str, Path]]:
    """Yield every file by its name in the archive."""
    for package in packages:
        if _canonical(package.name) == NAME:
            yield from _own_entries(package)
        else:
            yield from _installed_entries(package)
    folder = cache_folder()
    for path in folder.iterdir():
        if PARTIAL not in path.name and path.suffix != LOCK_ENDING:
            yield str(SITE / NAME / SHIPPED / folder.name / path.name), path


def _own_entries(package: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield our own sources from where they run, however they were installed."""
    root = Path(__file__).parents[1]
    for path in root.rglob("*"):
        if path.is_file() and not {"__pycache__", SHIPPED} & set(path.relative_to(root).parts):
            yield str(SITE / NAME / path.relative_to(root).as_posix()), path
    for file in package.files or ():
        if file.parent.suffix == ".dist-info" and file.name in ("METADATA", "entry_points.txt"):
            yield str(SITE / file), Path(str(package.locate_file(file)))


def _installed_entries(package: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    if not package.files:
        raise RefusedError(
            f"which files it has is not known; install it with pip. package={package.name}",
            code="K149",
        )
    for file in package.files:
        if file.name.startswith("__editable__"):
            raise RefusedError(
                f"it is installed as editable, and its sources stay here; install it with pip "
                f"install. package={package.name}",
                code="K149",
            )
        # Scripts name this host's Python; tests of others are a tenth of everything.
        if ".." in file.parts or "tests" in file.parts or file.suffix == ".pth":
            continue
        path = Path(str(package.locate_file(file)))
        if path.is_file():
            yield str(SITE / file), path


def _add_interpreter(archive: tarfile.TarFile, python: Path) -> None:
    script = INTERPRETER.format(python=shlex.quote(str(python)), site=SITE, name=SITE.parts[1])
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(script.encode()), 0o755
    archive.addfile(entry, io.BytesIO(script.encode()))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the owner of a file here.

    Compiled bytecode is valid by whole seconds of its source.
    """
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = int(entry.mtime)
    return entry
