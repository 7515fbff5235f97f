"""Measures what a command passes through: modules, files before the domain, rooms returned to.

    python tools/journeys.py clean                        the modules of one journey, one a line
    python tools/journeys.py explain-cluster --out FILE   what was measured, as JSON

Each journey is one command on a small sample, with a profile hook in every thread; the command runs
in this process, by threads. A module is *entered* when one of its functions is called. What Python
calls while it imports a module is no part of a journey, so that it does not matter what had been
imported, and neither is what the compiler of kernels calls, which depends on a cache. Kernels
themselves are compiled and have no Python frame: they are not seen.

The rule that a reader must not break: a sample has the same bytes each time, and a command that
does not end with 0 is no journey.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = f"{ROOT / 'src' / 'keeplast'}/"
DOMAIN = frozenset({"run/round.py", "survey/survey.py"})
"""Where the domain begins: a round, or what is found out of a log."""
SWAP = "log/swap.py"
COMPILER = "/numba/"
CARRIERS = ("Options", "Request")
"""How the classes of the values end that have options in them, from the command on."""
Arguments = Sequence[str]


class Journey:
    """What was entered while the hook was set."""

    def __init__(self, source: str = SOURCE) -> None:
        """Enter nothing yet; ``source`` is the package's directory, with a slash."""
        self.modules: dict[str, None] = {}
        self.files_to_domain: tuple[str, ...] | None = None
        self.rooms_of_options: list[str] = []
        self._source = source
        self._has_swapped = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Hear of a call, as ``sys.setprofile`` reports it."""
        if event != "call":
            return
        module = self._module(frame)
        if module is None or frame.f_code.co_name == "<module>":
            return
        if module not in self.modules:
            if self._is_made(frame):
                return
            self.modules[module] = None
        if module == SWAP:
            self._has_swapped = True
        if self.files_to_domain is None and module in DOMAIN:
            above = {each for each in self._above(frame) if each not in DOMAIN}
            self.files_to_domain = tuple(each for each in self.modules if each in above)
        if not self._has_swapped and _carries_options(frame):
            self.rooms_of_options.append(module.split("/")[0])

    def _module(self, frame: FrameType) -> str | None:
        name = frame.f_code.co_filename
        return name.removeprefix(self._source) if name.startswith(self._source) else None

    def _is_made(self, frame: FrameType) -> bool:
        """Say whether a module of the package is being imported by now, or a kernel compiled."""
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            if code.co_name == "<module>" and self._module(above) is not None:
                return True
            if COMPILER in code.co_filename:
                return True
            above = above.f_back
        return False

    def _above(self, frame: FrameType) -> Iterator[str]:
        above: FrameType | None = frame
        while above is not None:
            module = self._module(above)
            if module is not None:
                yield module
            above = above.f_back

    def document(self) -> dict[str, Any]:
        """Return what was measured."""
        return {
            "modules": sorted(self.modules),
            "files_to_domain": list(self.files_to_domain or ()),
            "rooms_returned_to": returns(self.rooms_of_options),
        }


def _carries_options(frame: FrameType) -> bool:
    """Say whether one of the arguments of a call has options of the command."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = frame.f_locals
    return any(type(values.get(name)).__name__.endswith(CARRIERS) for name in names)


def returns(rooms: Sequence[str]) -> int:
    """Return how often a room is entered that was left before."""
    seen: set[str] = set()
    found, here = 0, None
    for each in rooms:
        if each != here:
            found += each in seen
            seen.add(each)
            here = each
    return found


def run_command(arguments: Arguments, hook: Journey | None = None) -> str:
    """Run the command line in this process; RuntimeError unless it ends with 0."""
    from keeplast.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    before, code = sys.argv, 0
    sys.argv = ["keeplast", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if hook is not None:
                threading.setprofile(hook)
                sys.setprofile(hook)
            try:
                main()
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    finally:
        sys.argv = before
    if code:
        raise RuntimeError(f"keeplast {' '.join(arguments)} ended with {code}:\n{err.getvalue()}")
    return out.getvalue()


def write_sample(root: Path) -> Path:
    """Write a data directory with one partition that a round cleans."""
    from tests.support.small_log import write_log

    data = root / "data"
    data.mkdir()
    settings = '[topic."t"]\ncleanup.policy = "compact"\ndelete.retention.ms = 0\n'
    (data / "keeplast.toml").write_text(settings)
    write_log(
        data, "t-0",
        {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", None), (b"c", b"3")], 4: [(b"c", b"4")]},
    )  # fmt: skip
    return data


@contextmanager
def clean_sample(root: Path) -> Iterator[Arguments]:
    """A round of a data directory, by one thread."""
    yield ("clean", str(write_sample(root)), "--runner", "local", "--cores", "1")


@contextmanager
def explain_sample(root: Path) -> Iterator[Arguments]:
    """What becomes of a key in a data directory."""
    yield ("explain", str(write_sample(root)), "a", "--runner", "local")


@contextmanager
def explain_store_sample(root: Path) -> Iterator[Arguments]:
    """The same in a store, behind a round there."""
    data, url = write_sample(root), f"sqlite:///{root / 'meta.db'}"
    new = ("--new", "--objects", f"file://{root / 'objects'}")
    run_command(("copy", str(data), url, *new, "--topic", "t", "--partition", "0"))
    run_command(("clean", url, "--topic", "t", "--despite", "dirty-ratio"))
    yield ("explain", url, "a")


@contextmanager
def explain_cluster_sample(root: Path) -> Iterator[Arguments]:
    """The same in the remote tier of the model cluster that unit tests ask, behind a round."""
    import pytest

    from tests.support.attached_world import PARTITION
    from tests.support.commanded_world import commanded_world
    from tests.support.live_call import live_call

    with pytest.MonkeyPatch.context() as patch, commanded_world(root, patch) as world:
        decisions = f"sqlite:///{world.world.root / 'decisions.db'}"
        yield live_call(
            "127.0.0.1:1", "explain", "k3", "--topic", PARTITION.topic, "--storage", "local:/x",
            "--decisions", decisions,
        )  # fmt: skip


Sample = Callable[[Path], contextlib.AbstractContextManager[Arguments]]
JOURNEYS: dict[str, Sample] = {
    "clean": clean_sample,
    "explain": explain_sample,
    "explain-store": explain_store_sample,
    "explain-cluster": explain_cluster_sample,
}


def measure(name: str) -> dict[str, Any]:
    """Return what one journey passes; RuntimeError when its command fails."""
    with tempfile.TemporaryDirectory() as folder, JOURNEYS[name](Path(folder)) as arguments:
        hook = Journey()
        run_command(arguments, hook)
    return hook.document()


def main() -> int:
    """Measure the journey that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journey", choices=JOURNEYS)
    # A command takes what it prints to standard output for its own.
    parser.add_argument("--out", type=Path, help="write what was measured to this file, as JSON")
    given = parser.parse_args()
    found = measure(given.journey)
    if given.out is None:
        print("\n".join(found["modules"]), file=sys.stderr)
    else:
        given.out.write_text(json.dumps(found), "utf-8")
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    sys.exit(main())
