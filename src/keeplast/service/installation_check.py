"""Whether this host has what keeplast needs: Python, kernels, Java, pyspark, the extras.

What only Spark needs, or only a store, is no problem while it is absent: the row says what does
without.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from keeplast.columns import kernel
from keeplast.errors import InvalidError, installing
from keeplast.kernel_cache import cache_folder, cache_warning, compiled_count
from keeplast.service.place_check import CheckState, PartCheck

JAVA_MIN = 17
JAVA_SECONDS_MAX = 20
EXTRAS = (
    ("s3", ("obstore",), "logs in object storage"),
    ("tier", ("sqlalchemy", "alembic", "obstore", "psycopg"), "stores"),
    ("cluster", ("confluent_kafka",), "live clusters"),
)


def check_installation(release: str, open_spark: Callable[[], object]) -> Iterator[PartCheck]:
    """Yield a row for each part; ``open_spark`` raises InvalidError where pyspark is no use."""
    yield PartCheck("keeplast", CheckState.OK, f"{release} on Python {platform.python_version()}")
    yield _kernels()
    yield find_java()
    yield _pyspark(open_spark)
    for extra, packages, use in EXTRAS:
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        words = f"{', '.join(missing)} missing, for {use}; {installing(extra)}"
        yield (
            PartCheck(f"extra {extra}", CheckState.ABSENT, words)
            if missing
            else PartCheck(f"extra {extra}", CheckState.OK, f"there, for {use}")
        )


def _kernels() -> PartCheck:
    warning = cache_warning()
    if warning is not None:
        return PartCheck("kernels", CheckState.ABSENT, warning)
    words = (
        f"{compiled_count()} of {len(kernel.names())} compiled, each when a command first needs "
        f"it; kept in {cache_folder()}"
    )
    return PartCheck("kernels", CheckState.OK, words)


def find_java() -> PartCheck:
    """Say which Java there is; only Spark needs one."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    without = "--runner local does without"
    if path is None:
        return PartCheck("Java", CheckState.ABSENT, f"none in {home or 'PATH'}; {without}")
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return PartCheck("Java", CheckState.ABSENT, f"{path} does not start ({error}); {without}")
    found = re.search(r'version "([0-9]+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < JAVA_MIN:
        told = found[1] if found else "an unknown version"
        return PartCheck("Java", CheckState.ABSENT, f"{told}, Spark needs {JAVA_MIN}; {without}")
    return PartCheck("Java", CheckState.OK, f"{found[1]} at {path}")


def _pyspark(open_spark: Callable[[], object]) -> PartCheck:
    try:
        open_spark()
        return PartCheck("pyspark", CheckState.OK, version("pyspark"))
    except (InvalidError, PackageNotFoundError) as error:
        return PartCheck("pyspark", CheckState.ABSENT, str(error))
