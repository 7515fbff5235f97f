"""Builds the container image and tries it: ``make image``.

    python tools/image.py DIR --base NAME           with docker or podman, whichever works here
    python tools/image.py DIR --own-base --confined

``--own-base`` makes the base from this host's Debian packages with mmdebstrap, where no registry of
images can be reached. ``--confined`` is for podman on a host that is a sandbox itself: images are
kept in DIR, builds are isolated by chroot, containers have no network and no cgroups.

What is tried is what docs/how-to/run-in-a-container.md promises: the containers run as another user
than root, as process 1, on a read-only root file system, and compile no kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
from tools.release_check import (  # noqa: E402
    LOCK,
    ROOT,
    CheckError,
    copy_tree,
    expect,
    python_environment,
    run,
)

EXTRAS = "cluster,console"
CPUS = {"x86_64": "x86-64-v2"}
"""Of a machine the processor for which kernels are compiled; of others LLVM's generic one."""
BASE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"
OWN_BASE = "localhost/keeplast-base"
USER = 10001
READY_SECONDS_MAX = 60
LIMIT = "4096:4096"
DEBIAN_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


class Engine:
    """docker or podman, with what this host needs of options."""

    def __init__(self, scratch: Path, *, confined: bool) -> None:
        """Find one that works; CheckError when none does."""
        self._scratch = scratch
        self._confined = confined
        self.name = "podman" if confined or not self._works("docker") else "docker"
        works = self._works(self.name)
        expect(works, "no builder works here; install podman, or start docker's engine")

    def _works(self, name: str) -> bool:
        if shutil.which(name) is None:
            return False
        done = subprocess.run([name, "info"], capture_output=True, check=False)
        return done.returncode == 0

    def do(
        self, *arguments: str | Path, codes: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine."""
        command: list[str | Path] = [self.name]
        if self._confined:
            store = ["--root", self._scratch / "images", "--runroot", self._scratch / "running"]
            command += [*store, "--storage-driver", "overlay", "--runtime", "crun"]
            command += ["--cgroup-manager", "cgroupfs"]
            # A hierarchy of both versions is refused by the runtime; this one is seen by it alone.
            enter = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", enter, "sh", *command]
        return run([*command, *arguments], cwd=self._scratch, env=os.environ, codes=codes)

    def build(self, context: Path, tag: str, given: dict[str, str]) -> None:
        """Build the context's Containerfile."""
        arguments = [word for each in given.items() for word in ("--build-arg", "=".join(each))]
        # Docker's form, because the other one has no health check.
        own = ["--format", "docker"] if self.name == "podman" else []
        own += ["--isolation", "chroot"] if self._confined else []
        self.do(
            "build", *own, "--file", context / "Containerfile", "--tag", tag, *arguments, context
        )

    def run(
        self, image: str, *arguments: str, options: Sequence[str] = (), codes: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a container as the page has it: read-only, with a place for scratch files."""
        own = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "all"]
        if self._confined:
            own += ["--network", "none", "--cgroups", "disabled"]
            own += ["--ulimit", f"nofile={LIMIT}", "--ulimit", f"nproc={LIMIT}"]
        return self.do("run", *own, *options, image, *arguments, codes=codes)


def make_base(engine: Engine, scratch: Path) -> str:
    """Make a base of Debian's packages, from where this host has its own; return its name."""
    [sources, *_] = [path for path in DEBIAN_SOURCES if Path(path).is_file()]
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    left_out = [
        f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("man", "doc", "locale", "info")
    ]
    wanted = ["--variant=essential", "--include=python3-venv,ca-certificates,libstdc++6"]
    base = scratch / "base.tar"
    made = ["mmdebstrap", "--mode=root", "--quiet", *wanted, *left_out, codename, base, sources]
    run(made, cwd=scratch, env=os.environ)
    engine.do("import", "--quiet", base, OWN_BASE)
    base.unlink()
    return OWN_BASE


def make_context(scratch: Path) -> Path:
    """Lay out what the image is built from; return the directory."""
    context = scratch / "context"
    (context / "wheels").mkdir(parents=True)
    copy_tree(scratch / "tree")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", context / "wheels"]
    package = f"keeplast[{EXTRAS}] @ {(scratch / 'tree').as_uri()}"
    run([*pip, package], cwd=scratch, env=python_environment())
    for path in (LOCK, *(ROOT / "deploy" / "container").iterdir()):
        shutil.copy2(path, context)
    return context


def try_image(engine: Engine, image: str, scratch: Path) -> None:
    """Run what the page shows."""
    data = scratch / "data"
    shutil.copytree(ROOT / "src" / "keeplast" / "samples" / "broker-4.3.0", data)
    user = USER
    if os.geteuid() == 0:
        for path in (data, *data.rglob("*")):
            os.chown(path, user, user)
    else:
        user = os.geteuid()
    mounted = ["--rm", "--user", f"{user}:{user}", "--volume", f"{data}:/data"]

    def inside(*arguments: str, entry: str = "keeplast", codes: Sequence[int] = (0,)) -> str:
        options = [*mounted, "--no-healthcheck", "--entrypoint", entry]
        done = engine.run(image, *arguments, options=options, codes=codes)
        words = done.stdout + done.stderr
        expect("compiling" not in words, f"a kernel was compiled in the container:\n{words}")
        return words

    said = inside("--version")
    print(said.strip())
    looked = "import os; print(os.getpid(), os.geteuid()); open('/opt/keeplast/new', 'w')"
    refused = inside("-c", looked, entry="/opt/keeplast/bin/python", codes=(1,))
    expect(refused.startswith(f"1 {user}\n"), f"not process 1 of user {user}:\n{refused}")
    expect("Read-only file system" in refused, f"the root can be written:\n{refused}")
    expect("orders-0" in inside("status", "/data"), "status does not show the sample")
    cleaned = inside("clean", "/data", "--topic", "orders", "--despite", "dirty-ratio")
    expect("1 cleaned" in cleaned, cleaned)
    inside(entry="keeplast-healthy", codes=(1,))
    try_loop(engine, image, mounted)
    inside("plan", "/data", "--topic", "orders")


def try_loop(engine: Engine, image: str, mounted: Sequence[str]) -> None:
    """A loop becomes healthy, and SIGTERM ends it with 143."""
    name = f"keeplast-{uuid.uuid4().hex[:12]}"
    options = [*(each for each in mounted if each != "--rm"), "--detach", "--name", name]
    options += ["--no-healthcheck"] if engine.name == "podman" else []
    engine.run(image, "run", "/data", "--console", "127.0.0.1:9590", options=options)
    try:
        ends_at = time.monotonic() + READY_SECONDS_MAX
        while engine.do("exec", name, "keeplast-healthy", codes=(0, 1)).returncode:
            is_late = time.monotonic() > ends_at
            expect(not is_late, f"never healthy:\n{engine.do('logs', name).stderr}")
            time.sleep(0.5)
        engine.do("kill", "--signal", "TERM", name)
        code = engine.do("wait", name).stdout.strip()
        expect(code == "143", f"SIGTERM ended it with {code}:\n{engine.do('logs', name).stderr}")
    finally:
        engine.do("rm", "--force", name)


def check_facts(engine: Engine, image: str, version: str) -> None:
    """The image says who it runs as, what it is, and how its health is asked."""
    [found] = json.loads(engine.do("image", "inspect", image).stdout)
    config = found["Config"]
    expect(config["User"] == f"{USER}:{USER}", f"the image runs as {config['User']!r}")
    said = config["Labels"]["org.opencontainers.image.version"]
    expect(said == version, f"its label has version {said}, not {version}")
    health = config.get("Healthcheck") or found.get("HealthCheck") or found.get("Healthcheck")
    expect("keeplast-healthy" in str(health), f"its health check is {health}")
    print(f"{image}: {found['Size'] / 1e6:,.0f} MB with its base")


def main() -> int:
    """Build and try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", help=f"default: {BASE}, as wheels of this Python fit it")
    parser.add_argument("--own-base", action="store_true")
    parser.add_argument("--confined", action="store_true")
    given = parser.parse_args()
    scratch: Path = given.folder.resolve()
    started = time.monotonic()

    def done(what: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {what}", flush=True)

    try:
        scratch.mkdir(parents=True, exist_ok=True)
        for each in ("context", "tree", "data"):
            shutil.rmtree(scratch / each, ignore_errors=True)
        engine = Engine(scratch, confined=given.confined)
        base = make_base(engine, scratch) if given.own_base else given.base or BASE
        done(f"base {base}, builder {engine.name}")
        context = make_context(scratch)
        [wheel] = (context / "wheels").glob("keeplast-*.whl")
        version = wheel.name.split("-")[1]
        done(f"wheels of keeplast {version} with {EXTRAS}")
        tag = f"keeplast:{version}"
        arguments = {"BASE": base, "VERSION": version, "EXTRAS": EXTRAS}
        arguments["CPU"] = CPUS.get(platform.machine(), "generic")
        revision = run(["git", "rev-parse", "HEAD"], cwd=ROOT, env=os.environ).stdout.strip()
        engine.build(context, tag, arguments | {"REVISION": revision})
        done(f"image {tag}")
        check_facts(engine, tag, version)
        try_image(engine, tag, scratch)
        done("tried: status and clean on a read-only root, health, SIGTERM")
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
