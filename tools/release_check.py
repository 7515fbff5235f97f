"""Builds the release and tries it where no clone is: ``make release-check``.

    python tools/release_check.py DIR       DIR/dist has what was built; the rest is scratch

1. wheel and source distribution are built, the wheel from both, and compared member by member;
2. ``twine check --strict``; the source distribution is the tree as git has it;
3. the wheel has every file below ``src/keeplast`` and a man page for each command;
4. it is installed into a fresh environment, then one extra after another; after each, the modules
   that load are those whose packages are there, and the extra's own work is done from an empty
   directory: version, demo, completion in each shell that this host has, man pages, errors.

The rule: nothing of the clone is on a path here. Whatever fails ends it with what was seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
SECONDS_MAX = 900
"""Of one command, on a busy host; a whole run has a limit in ``.ci/run``."""
EXTRAS = ("s3", "tier", "cluster", "console", "spark")
"""In the order in which they are added to one environment."""
SDIST_MAKES = ("PKG-INFO", "setup.cfg", "src/keeplast.egg-info/")
"""What setuptools adds to a source distribution."""
OWN = frozenset({"keeplast"})

LOAD = """
import importlib, json, pkgutil, sys
import keeplast
lost = {}
for found in pkgutil.walk_packages(keeplast.__path__, "keeplast.", onerror=lambda name: None):
    if found.name == "keeplast.__main__" or ".migrations.env" in found.name:
        continue  # The process starts by the one; the other is alembic's to run.
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        lost[found.name] = error.name or str(error)
print(json.dumps({"file": keeplast.__file__, "lost": lost}))
"""
"""Imports every module; prints where the package is, and what each module that fails lacks."""


class CheckError(Exception):
    """The release is not as it must be."""


def expect(is_so: bool, problem: str) -> None:
    """Raise :class:`CheckError` unless it is so."""
    if not is_so:
        raise CheckError(problem)


def run(
    command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], codes: Sequence[int] = (0,)
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; CheckError when it ends otherwise."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
    )
    said = (
        f"{' '.join(map(str, command))}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
    expect(done.returncode in codes, said)
    return done


def python_environment() -> dict[str, str]:
    """Return this process's environment, without what leads into the clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONSTRAINT": str(LOCK)}


def make_environment(folder: Path, wanted: Sequence[str]) -> Path:
    """Make a fresh environment with ``wanted`` installed in the locked versions; return its bin."""
    run([sys.executable, "-m", "venv", folder], cwd=ROOT, env=python_environment())
    install(folder / "bin", wanted)
    return folder / "bin"


def install(where: Path, wanted: Sequence[str]) -> None:
    """Install into the environment whose commands are in ``where``."""
    pip = [where / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    run([*pip, *wanted], cwd=where, env=python_environment())


def copy_tree(to: Path) -> set[str]:
    """Copy what git has of the clone, as it is in the working tree; return the names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    expect(len(names) > 100, f"git lists only {len(names)} files")
    for name in names:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return names


def build(scratch: Path, dist: Path) -> tuple[Path, Path]:
    """Build source distribution and wheel, the wheel twice; return both."""
    names = copy_tree(scratch / "tree")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tools = make_environment(scratch / "tools", wanted["optional-dependencies"]["release"])
    # In fresh environments of the builder's own, which prove what a build is said to need.
    builder = [tools / "python", "-m", "build", "--outdir"]
    env = python_environment()
    run([*builder, dist, scratch / "tree"], cwd=scratch, env=env)
    run([*builder, scratch / "direct", "--wheel", scratch / "tree"], cwd=scratch, env=env)
    [sdist], [wheel] = dist.glob("*.tar.gz"), dist.glob("*.whl")
    run([tools / "python", "-m", "twine", "check", "--strict", sdist, wheel], cwd=scratch, env=env)
    check_sdist(sdist, names)
    check_wheel(wheel, next((scratch / "direct").glob("*.whl")), names)
    return sdist, wheel


def check_sdist(sdist: Path, names: set[str]) -> None:
    """Compare the source distribution with the tree."""
    with tarfile.open(sdist) as opened:
        members = {each.name.partition("/")[2] for each in opened.getmembers() if not each.isdir()}
    members = {each for each in members if not each.startswith(SDIST_MAKES)}
    expect(members == names, f"missing in the source distribution: {sorted(names - members)}; "
           f"not in git: {sorted(members - names)}")  # fmt: skip


def check_wheel(wheel: Path, direct: Path, names: set[str]) -> None:
    """Compare the wheel with its twin from the tree, and with what the package has."""
    here, there = digests(wheel), digests(direct)
    differ = sorted(
        name for name in here.keys() | there.keys() if here.get(name) != there.get(name)
    )
    expect(not differ, f"the wheel from the source distribution differs from the tree's: {differ}")
    package = {name.removeprefix("src/") for name in names if name.startswith("src/keeplast/")}
    inside = {name for name in here if name.startswith("keeplast/")}
    expect(inside == package, f"missing in the wheel: {sorted(package - inside)}; "
           f"not in git: {sorted(inside - package)}")  # fmt: skip
    expect(any(name.endswith("/licenses/LICENSE") for name in here), "the wheel has no license")


def digests(wheel: Path) -> dict[str, str]:
    """Return the digest of each member; RECORD has those of the others, in any order."""
    with zipfile.ZipFile(wheel) as opened:
        return {
            name: hashlib.sha256(opened.read(name)).hexdigest()
            for name in opened.namelist()
            if not name.endswith("/RECORD")
        }


class Installed:
    """The environment that a user would have, and an empty directory where he works."""

    def __init__(self, scratch: Path, wheel: Path) -> None:
        """Make both; ``wheel`` is installed without extras."""
        self.wheel = wheel
        self.home = scratch / "home"
        self.home.mkdir()
        self.bin = make_environment(scratch / "installed", [str(wheel)])
        cache = os.environ.get("KEEPLAST_CACHE_DIR") or Path.home() / ".cache" / "keeplast"
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
            # Kernels that this host has compiled before, of the same sources only.
            "KEEPLAST_CACHE_DIR": str(cache),
            # A clone above this directory is not the user's.
            "GIT_CEILING_DIRECTORIES": str(scratch),
            **{name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ},
        }

    def keeplast(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command in the empty directory."""
        return run([self.bin / "keeplast", *arguments], cwd=self.home, env=self.env, codes=[code])

    def shell(self, name: str, script: str) -> str:
        """Return what a shell prints that is started as a user's."""
        flags = ["--norc"] if name == "bash" else []
        return run([name, *flags, "-c", script], cwd=self.home, env=self.env).stdout

    def sample(self, name: str) -> Path:
        """Return a copy of the packaged sample."""
        code = "import keeplast; print(keeplast.__path__[0])"
        found = run([self.bin / "python", "-c", code], cwd=self.home, env=self.env).stdout.strip()
        copied = self.home / name
        shutil.copytree(Path(found) / "samples" / "broker-4.3.0", copied)
        return copied

    def add(self, extra: str) -> None:
        """Install an extra as the install page has it, from the wheel's file."""
        install(self.bin, [f"{self.wheel}[{extra}]"])

    def check_loaded(self, extras: Sequence[str]) -> None:
        """Import every module; one may fail for a package of an extra that is not there alone."""
        done = run([self.bin / "python", "-c", LOAD], cwd=self.home, env=self.env)
        found = json.loads(done.stdout)
        expect(str(self.bin.parent) in found["file"], f"not the installed one: {found['file']}")
        lost: dict[str, str] = found["lost"]
        ours = {name: why for name, why in lost.items() if why.split(".")[0] in OWN}
        expect(not ours, f"modules that the wheel lacks: {ours}")
        if set(EXTRAS) <= set(extras):
            expect(not lost, f"with every extra these do not load: {lost}")
        else:
            expect(bool(lost), f"everything loads with {list(extras)} alone")


def check_bare(user: Installed, version: str) -> None:
    """What works without extras, and how each extra is asked for."""
    said = user.keeplast("--version").stdout.strip()
    expect(said == f"keeplast {version}", f"--version prints {said!r}, not {version}")
    shown = user.keeplast("demo")
    expect("equal: all 58 keys" in shown.stdout, f"the demo prints:\n{shown.stdout}")
    expect("demo --git" in shown.stderr, f"the demo does not name --git:\n{shown.stderr}")
    data = str(user.sample("bare"))
    user.keeplast("plan", data)
    for extra, *command in (
        ("s3", "status", "s3://bucket/data"),
        ("tier", "status", "sqlite:///store.db"),
        ("cluster", "status", "kafka://127.0.0.1:9"),
        ("console", "run", data, "--console", "0"),
        ("spark", "plan", data, "--runner", "spark"),
        ("spark", "export", data, "--to", "out"),
    ):
        refused = user.keeplast(*command, code=2).stderr
        named = f"'keeplast[{extra}]'" in refused and f"'FILE.whl[{extra}]'" in refused
        expect(named, f"{' '.join(command)} does not say how to get {extra}:\n{refused}")


def check_s3(user: Installed) -> None:
    """Object storage: nothing answers at this address, and every package is there."""
    keys = ("aws_endpoint=https://127.0.0.1:9", "aws_access_key_id=a", "aws_secret_access_key=b")
    given = [word for key in keys for word in ("--object-option", key)]
    refused = user.keeplast("status", "s3://bucket/data", *given, code=5)
    expect("pip install" not in refused.stderr, refused.stderr)


def check_tier(user: Installed) -> None:
    """A store of the sample is made, cleaned and verified."""
    data, store = str(user.sample("tiered")), "sqlite:///store.db"
    objects = (user.home / "objects").as_uri()
    user.keeplast("copy", data, store, "--new", "--objects", objects, "--topic", "orders")
    user.keeplast("clean", store, "--topic", "orders", "--despite", "dirty-ratio")
    user.keeplast("verify", store)


def check_cluster(user: Installed) -> None:
    """A live cluster: no broker answers at this address, and every package is there."""
    refused = user.keeplast("place", "check", "kafka://127.0.0.1:9", code=1)
    expect("pip install 'keeplast[cluster]'" not in refused.stdout + refused.stderr, refused.stdout)


def check_console(user: Installed) -> None:
    """A loop with a console serves its style sheet and ends."""
    data = str(user.sample("shown"))
    done = user.keeplast("run", data, "--once", "--console", "127.0.0.1:0")
    expect("console at http://127.0.0.1:" in done.stderr, done.stderr)


def check_spark(user: Installed) -> None:
    """The demo on Spark, without its log lines, and Parquet."""
    shown = user.keeplast("demo", "--runner", "spark")
    expect("equal: all 58 keys" in shown.stdout, shown.stdout)
    noise = [line for line in shown.stderr.splitlines() if re.search(r"\b(INFO|WARN)\b", line)]
    expect(not noise, f"Spark's own log lines are shown: {noise[:3]}")
    user.keeplast("export", str(user.sample("read")), "--to", "parquet", "--runner", "local")
    expect(any((user.home / "parquet").rglob("*.parquet")), "export wrote no Parquet")


CHECKS = {
    "s3": check_s3,
    "tier": check_tier,
    "cluster": check_cluster,
    "console": check_console,
    "spark": check_spark,
}


def check_man(user: Installed) -> None:
    """Every command has a page, where ``man`` looks when the environment is on the PATH."""
    folder = user.bin.parent / "share" / "man" / "man1"
    pages = {path.name for path in folder.glob("*.1")}
    code = "from keeplast.cli.main import HOMES; print(*HOMES)"
    names = run([user.bin / "python", "-c", code], cwd=user.home, env=user.env).stdout.split()
    lacking = [
        name for name in names
        if not any(page.startswith(f"keeplast-{name}") for page in pages)
    ]  # fmt: skip
    expect("keeplast.1" in pages and not lacking, f"no man page: {lacking}, found {sorted(pages)}")
    for page in pages:
        expect((folder / page).read_text("utf-8").startswith((".TH", '.\\"')), f"no page: {page}")
    if shutil.which("man") is None:
        print("man: not on this host; files looked at only")
        return
    for name in ("keeplast", "keeplast-clean"):
        shown = run(["man", "--warnings", "-P", "cat", name], cwd=user.home, env=user.env)
        expect("SYNOPSIS" in shown.stdout, f"man {name} shows:\n{shown.stdout[:400]}")
        expect(not shown.stderr, f"man {name} warns: {shown.stderr[:400]}")


SHELLS = {
    "bash": "source ~/.bash_completions/keeplast.sh; COMP_WORDS=(keeplast {word}); COMP_CWORD=1; "
    '_keeplast_completion keeplast; echo "${{COMPREPLY[@]}}"',
    "zsh": "fpath+=~/.zfunc; autoload -Uz compinit; compinit -u; autoload +X _keeplast; "
    "_describe() {{ shift; print -rl -- $*; eval print -rl -- '${{'$1'[@]}}' }}; "
    "_arguments() {{ print -rl -- $* }}; words=(keeplast {word}); CURRENT=2; _keeplast; "
    "_keeplast_completion",
    "fish": "complete -C 'keeplast {word}'",
}
"""Of each shell what completes the first word with the script that was installed."""


def check_completion(user: Installed) -> None:
    """Completion is shown, installed and answers, in each shell that this host has."""
    for name, script in SHELLS.items():
        if shutil.which(name) is None:
            print(f"completion: {name} is not on this host, not tried")
            continue
        shown = user.shell(name, "keeplast --show-completion; true")
        expect("_KEEPLAST_COMPLETE" in shown, f"--show-completion in {name} prints:\n{shown}")
        said = user.shell(name, "keeplast --install-completion; true")
        expect(f"{name} completion installed" in said, f"--install-completion prints:\n{said}")
        found = user.shell(name, script.format(word="pla"))
        expect({"plan", "place"} <= set(re.findall(r"\w+", found)), f"{name} completes:\n{found}")


def main(arguments: Sequence[str]) -> int:
    """Do all of it below the directory that is named."""
    [folder] = arguments
    scratch = Path(folder).resolve()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    started = time.monotonic()

    def done(what: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {what}", flush=True)

    try:
        _, wheel = build(scratch, scratch / "dist")
        done(f"built, compared and judged: {wheel.name} and its source distribution")
        user = Installed(scratch, wheel)
        check_bare(user, wheel.name.split("-")[1])
        check_man(user)
        check_completion(user)
        user.check_loaded([])
        done("installed without extras: version, demo, errors, man pages, completion")
        for number, extra in enumerate(EXTRAS, start=1):
            user.add(extra)
            user.check_loaded(EXTRAS[:number])
            CHECKS[extra](user)
            done(f"extra {extra}")
        user.add("all")
        run([user.bin / "python", "-m", "pip", "check"], cwd=user.home, env=user.env)
        done("extra all: nothing is left to install, and no version disagrees")
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
