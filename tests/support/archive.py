"""Packs a directory of many small files into one archive, and unpacks it again.

The same files always give the same archive: names are sorted, and owners, modes and times are
fixed. File times are therefore lost; what needs them keeps them elsewhere (``case.json``).

``python -m tests.support.archive DIRECTORY ARCHIVE`` packs.
"""

from __future__ import annotations

import functools
import lzma
import sys
import tarfile
from pathlib import Path

MODE = 0o644


def pack(directory: Path, archive: Path) -> None:
    """Write every file below ``directory`` to ``archive``, an xz-compressed tar file."""
    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(file.relative_to(directory).as_posix())
            entry.size = file.stat().st_size
            entry.mode = MODE
            with file.open("rb") as content:
                tar.addfile(entry, content)


def unpack(archive: Path, directory: Path) -> None:
    """Write the files that ``archive`` holds below ``directory``, which must exist.

    One by one: early releases of Python 3.11 do not know the filter that makes extractall safe.
    """
    root = directory.resolve()
    with tarfile.open(archive, mode="r:xz") as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            target = (root / entry.name).resolve()
            assert content is not None, entry.name
            assert target.is_relative_to(root), entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())


@functools.cache
def names(archive: Path) -> list[str]:
    """Return the top-level names in ``archive``, in order."""
    with tarfile.open(archive, mode="r:xz") as tar:
        return sorted({name.split("/", 1)[0] for name in tar.getnames()})


def read_all(archive: Path, file_name: str) -> dict[str, bytes]:
    """Return the file of this name of every top-level directory, by the directory's name."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive, mode="r:xz") as tar:
        for entry in tar:
            top, _, rest = entry.name.partition("/")
            if rest == file_name:
                content = tar.extractfile(entry)
                assert content is not None
                found[top] = content.read()
    return found


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
