"""The command line as a process of its own: start-up, streams, signals."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keeplast.format.filename import CLEANER_CHECKPOINT
from tests.support.waiting import SECONDS_MAX

HEAVY = ("numba", "numpy", "pyspark", "pandas", "cramjam", "keeplast.run")
EXTRA = (
    "pydantic", "sqlalchemy", "alembic", "obstore", "confluent_kafka", "pyspark", "pyarrow",
    "starlette", "cryptography", "Crypto",
)  # fmt: skip
HELP_TO_LIBRARIES_MAX = 4.0
"""What ``--help`` may take, in terms of what it takes to import what makes and draws options."""


def start(*arguments: object, code: str | None = None) -> subprocess.Popen[str]:
    command = [sys.executable]
    command += ["-m", "keeplast"] if code is None else ["-c", code]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processor_seconds(*arguments: object, code: str | None = None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = start(*arguments, code=code)
    process.communicate(timeout=SECONDS_MAX)
    assert 0 == process.returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys, runpy; sys.argv = ['keeplast', '--help-all']\n"
        "try: runpy.run_module('keeplast', run_name='__main__')\n"
        f"finally: sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    out, err = start(code=code).communicate(timeout=SECONDS_MAX)
    assert "clean" in out
    assert "" == err
    libraries = "import typer.main, rich.table, rich.markdown, rich.panel"
    # Side by side, since on a machine that does other work a second is not always one.
    ratios = (processor_seconds("--help-all") / processor_seconds(code=libraries) for _ in range(5))
    assert any(each < HELP_TO_LIBRARIES_MAX for each in ratios)


def test_an_interrupt_while_modules_are_loaded_shows_no_trace() -> None:
    code = (
        "import os, sys, runpy, signal; sys.argv = ['keeplast', '--help']\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'keeplast.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('keeplast', run_name='__main__')"
    )
    process = start(code=code)
    assert ("", "") == process.communicate(timeout=SECONDS_MAX)
    assert -signal.SIGINT == process.returncode


@pytest.mark.parametrize("verb", ["status", "plan", "explain", "clean"])
def test_a_directory_needs_no_package_of_another_place(data_dir: Path, verb: str) -> None:
    """Nor one that converts plain values: a bare installation has none of them."""
    key = ["k"] if verb == "explain" else []
    arguments = ["keeplast", verb, str(data_dir), *key, "--topic", "t", "--json"]
    code = (
        f"import sys, runpy; sys.argv = {arguments!r}\n"
        "try: runpy.run_module('keeplast', run_name='__main__')\n"
        f"finally: sys.stderr.write(str([m for m in {EXTRA!r} if m in sys.modules]))"
    )
    out, err = start(code=code).communicate(timeout=SECONDS_MAX)
    assert 1 == json.loads(out)["version"]
    assert err.endswith("[]"), err


def test_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, keeplast; print([m for m in {HEAVY!r} if m in sys.modules])"
    out, _ = start(code=code).communicate(timeout=SECONDS_MAX)
    assert "[]\n" == out


def test_text_of_others_on_descriptor_1_does_not_reach_stdout(data_dir: Path) -> None:
    code = (
        "import os, sys\n"
        "from keeplast.cli import main\n"
        "from keeplast.cli.show import log as log_view\n"
        "view = log_view.view_partition\n"
        "def noisy(*a):\n"
        "    os.write(1, b'noise of a JVM\\n'); return view(*a)\n"
        "log_view.view_partition = noisy\n"
        f"sys.argv = ['keeplast', 'inspect', {str(data_dir / 't-0')!r}, '--json']\n"
        "main.main()"
    )
    out, err = start(code=code).communicate(timeout=SECONDS_MAX)
    assert "partition" == json.loads(out)["kind"]
    assert "noise of a JVM" in err


def test_a_reader_that_leaves_early_is_no_traceback(data_dir: Path) -> None:
    process = start("inspect", data_dir / "t-0", "--json")
    assert process.stdout is not None
    process.stdout.close()
    process.wait(SECONDS_MAX)
    assert process.stderr is not None
    assert "" == process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(
    ("streams", "code"), [(">&-", 0), ("<&- 2>&-", 0), ("2>/dev/full", 0), (">/dev/full", 5)]
)
def test_streams_that_take_nothing_keep_no_command_from_its_work(
    streams: str, code: int, data_dir: Path
) -> None:
    command = [
        sys.executable, "-m", "keeplast", "clean", str(data_dir), "--despite", "dirty-ratio",
        "--topic", "t", "--config", "cleanup.policy=compact",
    ]  # fmt: skip
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *command], timeout=SECONDS_MAX
    )
    assert code == ended.returncode
    assert (data_dir / CLEANER_CHECKPOINT).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_command_with_its_code(
    data_dir: Path, number: signal.Signals, code: int
) -> None:
    script = (
        "import sys, time\n"
        "from keeplast.cli import main\n"
        "from keeplast.cli.show import log as log_view\n"
        "def slow(*a):\n"
        "    sys.stderr.write('ready\\n'); sys.stderr.flush(); time.sleep(600)\n"
        "log_view.view_partition = slow\n"
        f"sys.argv = ['keeplast', 'inspect', {str(data_dir / 't-0')!r}, '--json']\n"
        "main.main()"
    )
    process = start(code=script)
    assert process.stderr is not None
    assert "ready\n" == process.stderr.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert code == process.returncode
    assert "Stopped" == json.loads(out)["error"]["class"]
