"""``plan --compare``: what another strategy would keep, for each chosen partition.

The proposed strategy is that of all sources together; the one in force is what remains when the
strategy's own keys are taken off the command line.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.cli.frame.command import (
    DONE,
    Result,
    error_document,
    error_exit_code,
    report_errors,
    report_exit_code,
)
from keeplast.cli.frame.options import MEMORY_DEFAULT, memory_size
from keeplast.cli.frame.round_options import CleanOptions
from keeplast.cli.show.output import fault_text, print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.verify import render_comparison
from keeplast.config.selection import select_partitions
from keeplast.config.sources import read_settings
from keeplast.errors import CompactionError, InvalidError
from keeplast.format.filename import LOG_START_CHECKPOINT
from keeplast.inspect.preview import READINGS, StrategyPreview, preview_strategy
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.report import CleanReport
from keeplast.survey.request import PartitionRequest

STRATEGY_KEYS = (
    "compaction.strategy",
    "compaction.strategy.header",
    "log.cleaner.compaction.strategy",
    "log.cleaner.compaction.strategy.header",
)


def compare_strategies(options: CleanOptions, *, first: int, as_json: bool) -> Result:
    """Return exit code and document; the tables are printed unless JSON was asked for."""
    found, place = options.where.open()
    if not isinstance(place, DirectoryLogs):
        raise place.refused("plan --compare")
    files = LocalFiles()
    selection = select_partitions(place.path, files, options.scope, place.sources)
    say(*selection.warnings, kind="warning")
    memory_bytes = memory_size(found.text("memory") or MEMORY_DEFAULT)
    # Today's strategy is what is in force without the one that is asked about.
    given = place.sources.flags
    flags = tuple(each for each in given if each.partition("=")[0].strip() not in STRATEGY_KEYS)
    sources = replace(place.sources, flags=flags)
    settings = read_settings(selection.directory.root, files, sources)
    today = {
        request: settings.topic_config(request.partition.topic) for request in selection.partitions
    }
    for request, topic in today.items():
        _check_differs(request, topic)
    refused = CleanReport(selection.decided)
    code = report_exit_code(refused)
    documents = [
        {"topic": each["topic"], "partition": each["partition"], "error": each.get("error")}
        for each in refused.to_json()["partitions"]
    ]
    say(*report_errors(refused), kind="error")
    with ProgressEvents("comparing") as events:
        for request in selection.partitions:
            partition = request.partition
            head: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
            try:
                preview = _preview(options, memory_bytes, request, today[request], first, events)
            except (CompactionError, OSError) as error:
                say(f"{partition}: {fault_text(error)}", kind="error")
                code = max(code, error_exit_code(error))
                documents.append({**head, "error": error_document(error)["error"]})
                continue
            documents.append({**head, "error": None, **preview_document(preview)})
            if not as_json:
                print_result(*render_comparison(preview))
    documents.sort(key=lambda each: (each["topic"], each["partition"]))
    return code or DONE, {**place.head, "partitions": documents}


def _check_differs(request: PartitionRequest, today: TopicConfig) -> None:
    then = request.topic
    if (today.strategy, today.strategy_header) == (then.strategy, then.strategy_header):
        raise InvalidError(
            f"nothing to compare: the strategy is in force already; name another one with "
            f"--config compaction.strategy=header or timestamp. topic={request.partition.topic} "
            f"compaction.strategy={today.strategy}",
            code="K131",
        )


def _preview(
    options: CleanOptions,
    memory_bytes: int,
    request: PartitionRequest,
    today: TopicConfig,
    first: int,
    events: ProgressEvents,
) -> StrategyPreview:
    files = LocalFiles()
    log_bytes = sum(path.stat().st_size for path in request.path.glob("*.log"))
    events.planned(READINGS * log_bytes)
    log_start = options.facts.log_start_offset
    if log_start is None:
        stored = read_checkpoint(files, request.path.parent, LOG_START_CHECKPOINT)
        log_start = stored.get(request.partition, 0)
    return preview_strategy(
        request.path,
        request.partition,
        files,
        today=today,
        then=request.topic,
        first=first,
        memory_bytes=memory_bytes,
        log_start=log_start,
        progressed=events.progressed,
    )


def preview_document(preview: StrategyPreview) -> dict[str, Any]:
    """Return one partition as the document shows it; keys are hexadecimal."""
    spread = preview.spread
    return {
        "today": preview.today.value,
        "today_source": preview.today_source,
        "then": preview.then.value,
        "header": preview.header,
        "records": preview.records,
        "keys": preview.keys,
        "keys_changed": preview.keys_changed,
        "keys_back": preview.keys_back,
        "keys_gone": preview.keys_gone,
        "changes": [
            {
                "key": change.key.hex(),
                **{
                    name: {
                        "offset": each.offset,
                        "timestamp": each.timestamp,
                        "version": each.version,
                        "tombstone": each.is_tombstone,
                    }
                    for name, each in (("today", change.today), ("then", change.then))
                },
            }
            for change in preview.changes
        ],
        "versions_missing": preview.versions_missing,
        "versions_malformed": preview.versions_malformed,
        "tombstones_unversioned": preview.tombstones_unversioned,
        "versions": {
            "count": spread.count,
            "least": spread.least,
            "usual": spread.usual,
            "greatest": spread.greatest,
        },
        "far_ahead": {
            "above": spread.limit,
            "count": spread.far_ahead_count,
            "first": [
                {"key": each.key.hex(), "offset": each.offset, "version": each.version}
                for each in preview.far_ahead
            ],
        },
    }
