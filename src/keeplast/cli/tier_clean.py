"""``keeplast tier clean``: one round for each chosen partition of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keeplast.cli.exit_codes import DONE, error_exit_code
from keeplast.cli.guard import JSON_VERSION, error_text
from keeplast.cli.output import print_result, say
from keeplast.cli.progress import ProgressEvents
from keeplast.cli.sizes import parse_size
from keeplast.cli.tables import note_lines, reasons_table, summary_table
from keeplast.engine.local_runner import LocalRunner
from keeplast.engine.open_store import GRACE_MS_DEFAULT, TieredStore
from keeplast.engine.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.engine.runner import Runner
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig


def clean_partitions(
    store: TieredStore,
    partitions: Sequence[TopicPartition],
    *,
    force: bool,
    memory: str,
    cores: int | None,
    grace_ms: int | None,
    takes_over: bool,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Do the rounds; a fault of one partition is in its report and stops no other."""
    memory_bytes = parse_size(memory, "--memory")
    code = DONE
    reports: list[PartitionReport] = []

    def runner_for(files: FileSystem) -> Runner:
        return LocalRunner(cores, files=files)

    with ProgressEvents("cleaning") as events:
        for each in partitions:
            try:
                report = store.clean(
                    each, runner_for, cleaner=CleanerConfig(), memory_bytes=memory_bytes,
                    progressed=events.progressed, force=force, takes_over=takes_over,
                    grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
                )  # fmt: skip
            except (CompactionError, OSError) as error:
                report = RoundReport(error=describe_error(error), failure=error)
                code = max(code, error_exit_code(error))
                say(f"{each}: {error_text(error)}", kind="error")
            events.finished(each, report)
            reports.append(PartitionReport(each.topic, each.partition, (report,)))
    done = CleanReport(tuple(reports))
    if not as_json:
        print_result(summary_table(done))
        notes = note_lines(done)
        if notes:
            print_result("", *notes)
        table = reasons_table(done)
        if table is not None:
            print_result("", table)
    return code, {**done.to_json(), "version": JSON_VERSION}
