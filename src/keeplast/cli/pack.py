"""``keeplast pack``: the environment of executors as one archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json

EXTRAS_DEFAULT = ("spark", "s3")

Target = Annotated[
    Path,
    typer.Option(
        "--to",
        metavar="FILE",
        help="The archive to write; its name ends in .tar.gz.",
        show_default=False,
    ),
]
Extras = Annotated[
    tuple[str, ...],
    typer.Option(
        "--extra",
        metavar="NAME",
        help="An extra of keeplast to pack; repeatable, 'none' for none. Default: spark (Arrow, "
        "for the data source and export) and s3, where they are installed.",
        show_default=False,
    ),
]
Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Where executors have Python, in the minor version of this one; without it there, "
        "their PATH counts. Default: where this one is.",
        show_default=False,
    ),
]


@command(first=("to", "extras", "python"), example="keeplast pack --to keeplast.tar.gz")
def pack(
    to: Target,
    extras: Extras = (),
    python: Python = None,
    as_json: Json = False,
) -> Result:
    """Pack keeplast, what it needs and its compiled kernels for the executors of a cluster.

    Hosts then need Python and Java, and compile nothing. Spark hands the archive out: see what is
    printed, and docs/how-to/run-on-a-spark-cluster.md.
    """
    import sys

    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.model.text import format_bytes
    from keeplast.pipeline.pack import check_target, installed_extras, pack_environment

    check_target(to)
    if not extras:
        chosen = installed_extras(EXTRAS_DEFAULT)
    else:
        chosen = [each for each in extras if each != "none"]
    interpreter = Path(sys.executable).resolve() if python is None else python
    with ProgressEvents("packing") as events:
        done = pack_environment(to, events, extras=chosen, python=interpreter)
    if not as_json:
        print_result(
            f"{done.path}: {format_bytes(done.size_bytes)}, {len(done.packages)} packages "
            f"({format_bytes(done.unpacked_bytes)}) and {done.kernels} kernels for "
            f"{done.processor}, for Python {sys.version_info.major}.{sys.version_info.minor} at "
            f"{done.python}",
            "",
            "spark-submit --master spark://HOST:7077 \\",
            f"    --archives {done.path}#keeplast \\",
            "    --conf spark.pyspark.python=./keeplast/bin/python \\",
            f"    --conf spark.pyspark.driver.python={sys.executable} \\",
            f"    {entry_point()} clean DATA_DIR",
        )
    return DONE, done


def entry_point() -> Path:
    """Return the script that spark-submit starts."""
    import keeplast

    return Path(keeplast.__file__).with_name("__main__.py")
