"""``keeplast attach run``: compact and collect whatever attached partitions need it."""

from __future__ import annotations

from keeplast.cli.attach.run_options import AttachedRunOptions
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json


@command(
    first=("bootstrap_server", "store", "storage"),
    example="keeplast attach run --bootstrap-server localhost:9092 --store sqlite:///decisions.db"
    " --storage aiven:s3://bucket",
)
def run(options: AttachedRunOptions, as_json: Json = False) -> Result:
    """Compact and collect attached topics until SIGTERM or SIGINT, or --once until none is due.

    One partition after the other, as `clean` and `attach collect` do it. A topic that
    `place check` refuses is left alone and asked again later; the others go on. Several hosts may
    run it on one decision log. A second signal ends it at once, which harms nothing.
    """
    from keeplast.cli.attach.loop import look_after

    return look_after(options, as_json=as_json)
