"""What the page of one log shows, as plain values: every segment, offsets, rounds, settings. Pure.

Texts are as they are; the template escapes them. What would need the log to be read is not here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.config.definition import DOUBLE_MAX, Definition, Value
from keeplast.config.definitions import BY_KEY, DEFINITIONS
from keeplast.config.precedence import Settings
from keeplast.config.setting_rows import origin_text, shown_value
from keeplast.inspect.status import ErasedBy
from keeplast.model.hold import in_force
from keeplast.model.partition import range_text
from keeplast.model.text import format_bytes, format_count, format_counted
from keeplast.service.attached_outlook import PartitionOutlook
from keeplast.service.attached_status import AttachedStatus, holes_words
from keeplast.service.console.pages import (
    Paged,
    Row,
    paged,
    queue_words,
    row_of,
    with_progress,
)
from keeplast.service.console.standing import holder_of, settings_of
from keeplast.service.console.strip import (
    SegmentPart,
    StripMark,
    StripPart,
    brokers_line,
    by_segment,
    hidden_parts,
    in_tier,
    marks_of,
    offsets_of,
    parts_of,
    twin_of,
)
from keeplast.service.console.view import ConsoleView
from keeplast.service.live import LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine
from keeplast.service.status import LastRound, PartitionStatus, State
from keeplast.service.status_words import (
    as_of_words,
    detail_lines,
    erased_sentence,
    hold_lines,
    moment_text,
    release_command,
)
from keeplast.store.status import TierStatus
from keeplast.survey.wording import reason_code, wait_words

SEGMENT_ROWS = 20
"""So many segments are in one page of the table: it fits on a screen with its strip."""
ROUNDS_MAX = 30
EXPIRED_ROUNDS = "log.cleaner.expired.rounds"
RATE_KEY = "log.cleaner.io.max.bytes.per.second"


class LogAnatomy(Struct, frozen=True):
    """All that is shown of one log.

    ``local`` is the second line of a tier's strip, which ``strip`` has the first of then;
    ``hidden`` and ``brokers`` are further lines of an attached partition's. Where ``segments`` are
    more than a page, ``near`` is the strip of that page. ``frame`` has its two ends in the strip of
    all, in thousandths.
    """

    row: Row
    lines: tuple[str, ...]
    segments: Paged[SegmentPart]
    near: tuple[StripPart, ...]
    frame: tuple[StripMark, ...]
    strip: tuple[StripPart, ...]
    local: tuple[StripPart, ...]
    hidden: tuple[StripPart, ...]
    hidden_twin: str
    brokers: tuple[StripPart, ...]
    marks: tuple[StripMark, ...]
    rounds: tuple[ReceiptLine, ...]
    rounds_left: int
    settings: tuple[SettingRow, ...]
    problems: tuple[str, ...]
    code: str | None
    commands: tuple[tuple[str, str], ...]


class SettingRow(Struct, frozen=True):
    """A setting that counts: its value, who said it, and what it trades."""

    key: str
    value: str
    origin: str
    about: str
    is_default: bool


def log_page(
    view: ConsoleView,
    entry: PartitionStatus,
    rounds: Sequence[ReceiptLine],
    now_ms: int,
    live: LiveProgress | None = None,
    page: int = 1,
    place: str = "",
) -> LogAnatomy:
    """Return the page of one log at ``now_ms``, with what ``live`` heard of its round.

    ``page`` is that of its segments, ``place`` how commands name what is shown.
    """
    turn = queue_words(view, live).get(entry.partition, "")
    row = with_progress(row_of(view, entry, now_ms, turn), live, now_ms)
    settings, problems = _settings(view, entry)
    outlook = entry.outlook
    served = parts_of(entry)
    every = tuple(
        replace(each, number=number) for number, each in enumerate((*served, *hidden_parts(entry)))
    )
    parts, hidden = every[: len(served)], every[len(served) :]
    segments = paged(every, page, SEGMENT_ROWS)
    near = segments.items if segments.pages > 1 else ()
    frame: tuple[StripMark, ...] = ()
    if near and near[0].number < len(served):
        last = min(near[-1].number, len(served) - 1)
        frame = marks_of(parts, [("first", near[0].start), ("end", parts[last].end)])
    has_local = entry.stored is not None and entry.stored.local_bytes is not None
    local = in_tier(parts, is_local=True) if has_local else ()
    lines = _lines(entry, now_ms, is_at_work=bool(row.badge))
    if entry.log is not None:
        lines.append(tombstone_words(view, entry, rounds, now_ms))
    # What a round would do is no question while one does it.
    newest = next((each.round for each in reversed(rounds) if each.round is not None), None)
    saves = "" if row.badge else saving_words(entry, newest)
    return LogAnatomy(
        row, (*([saves] if saves else ()), *lines), segments, by_segment(near), frame,
        in_tier(parts, is_local=False) if local else by_segment(parts), local,
        by_segment(hidden), twin_of(hidden) if hidden else "", brokers_line(entry.attached),
        marks_of(parts, offsets_of(entry)),
        tuple(reversed(rounds))[:ROUNDS_MAX], max(len(rounds) - ROUNDS_MAX, 0), settings,
        problems, reason_code(entry.decision) if outlook is None else outlook.code,
        commands_of(entry, place),
    )  # fmt: skip


def commands_of(entry: PartitionStatus, place: str) -> tuple[tuple[str, str], ...]:
    """Return what to type about a partition of ``place``, each with what it is for."""
    at, topic = shlex.quote(place), f"--topic {shlex.quote(entry.partition.topic)}"
    one, hold = f"{topic} --partition {entry.partition.partition}", holder_of(entry)
    return (
        *(() if hold is None else ((f"The end of the hold {hold.name}, which keeps rounds from it",
                                    release_command(hold, place)),)),
        ("All that is known of it", f"keeplast status {at} {one} --details"),
        ("What a round would do", f"keeplast plan {at} {one}"),
        ("A round, whatever its dirty ratio", f"keeplast clean {at} {one} --despite dirty-ratio"),
        ("What becomes of a key's records", f"keeplast explain {at} KEY {topic}"),
        ("Its settings, and who says them", f"keeplast config {at} {topic} --effective"),
    )  # fmt: skip


def _lines(entry: PartitionStatus, now_ms: int, *, is_at_work: bool) -> list[str]:
    """Return all that is known of a partition except its row, a line each.

    ``is_at_work`` says that a round is under way, or has ended since the look.
    """
    if entry.stored is not None:
        return _tier_lines(entry.stored, entry.erased_by, now_ms)
    if entry.attached is None:
        return detail_lines(entry, now_ms, names_options=False)
    coming = [] if entry.outlook is None else _outlook_lines(entry.outlook)
    has_rounds = entry.state in (State.ELIGIBLE, State.NOT_DUE, State.RETRYING)
    is_ours = is_at_work or (entry.attached.attached is None and has_rounds)
    return [*_attached_lines(entry.attached, now_ms, is_ours=is_ours), *coming]


def saving_words(entry: PartitionStatus, last: LastRound | None) -> str:
    """Say what a round would clean, and what it would free by the share of the last one.

    Empty where nothing is cleanable. keeplast plan reads the log for more than that.
    """
    found = entry.cleanable
    if found is None or not found.cleanable_bytes:
        return ""
    read, dirty = found.cleanable_bytes + found.clean_bytes, format_bytes(found.cleanable_bytes)
    words = f"a round reads {format_bytes(read)}, of them {dirty} dirty"
    if last is None or last.bytes_read <= 0:
        return f"{words}; no receipt says how much rounds of this log free"
    share = max(last.bytes_read - last.bytes_written, 0) / last.bytes_read
    # Tombstones of the dirty section may free more of the clean one than they take themselves.
    about = format_bytes(round(read * share))
    return f"{words}, and frees about {about}, if it does as the last one: {100 * share:.0f} %"


def tombstone_words(
    view: ConsoleView, entry: PartitionStatus, rounds: Sequence[ReceiptLine], now_ms: int
) -> str:
    """Say how many tombstones the last round of a directory's log left, and when they may go.

    By the receipts alone: each round gives one horizon to those that have none, and removes those
    whose horizon has passed.
    """
    counted = [each for each in rounds if each.tombstones is not None and each.has_ended]
    last = counted[-1] if counted else None
    if last is None or any(each.kind == "undo" for each in rounds[rounds.index(last) :]):
        return "tombstones: how many there are is not known; no receipt of the log as it is has it"
    left = f"tombstones: the last round left {format_count(last.tombstones or 0)}"
    left += f" below offset {last.end}"
    horizons = sorted(
        each.horizon_ms
        for each in counted
        if each.tombstones and each.horizon_ms is not None and each.horizon_ms > last.at_ms
    )
    if not last.tombstones or not horizons:
        return left
    dates = f"the oldest delete horizon is {moment_text(horizons[0], now_ms)}"
    if horizons[-1] > horizons[0]:
        dates += f", the newest {moment_text(horizons[-1], now_ms)}"
    settings = settings_of(view, entry)
    is_alone = (
        settings is not None
        and settings.effective(BY_KEY[EXPIRED_ROUNDS], entry.partition.topic).value
    )
    when = "a round of its own" if is_alone else "the next round for new data"
    return f"{left}; {dates}; what has passed it goes with {when} ({EXPIRED_ROUNDS})"


_OURS = "keeplast compacts it here; the next look shows what the decision log has of that"


def _attached_lines(entry: AttachedStatus, now_ms: int, *, is_ours: bool) -> list[str]:
    remote, attached = entry.remote, entry.attached
    lines = [
        f"topic id {remote.topic_id}; brokers have {range_text(remote.log.start, remote.log.end)}",
        f"served: {format_counted(remote.served.count, 'segment')}, "
        f"{format_bytes(remote.served.bytes)}, of them compacted "
        f"{format_counted(remote.compacted.count, 'segment')}, "
        f"{format_bytes(remote.compacted.bytes)}",
    ]
    if remote.remote_end is not None and remote.remote_end + 1 < remote.log.end:
        lines.append(
            f"brokers only: {range_text(remote.remote_end + 1, remote.log.end)}, which no "
            "compactor can reach"
        )
    for words, found in (
        ("hidden: whole, and not served", remote.hidden),
        ("being copied", remote.copying),
        ("being deleted", remote.deleting),
    ):
        if found.count:
            lines.append(f"{words}: {format_counted(found.count, 'segment')}, "
                         f"{format_bytes(found.bytes)}")  # fmt: skip
    lines += holes_words(entry)
    if attached is None:
        return [*lines, _OURS if is_ours else "no process compacts it, as far as is known here: no "
                "decision log that was asked attached it"]  # fmt: skip
    lines += hold_lines(in_force(attached.holds, now_ms), now_ms)
    lines += [] if entry.readers is None else [wait_words(entry.readers)]
    if not attached.epoch:
        return [
            *lines,
            _OURS if is_ours else "no process has compacted it yet, by this decision log",
        ]
    held = attached.held_since_ms
    lines.append(
        f"epoch {attached.epoch}; without an owner"
        if held is None or attached.holder is None
        else f"epoch {attached.epoch}; held by process {attached.holder.pid} on "
        f"{attached.holder.host} since {moment_text(held, now_ms)}"
    )
    if attached.paused_ms is not None:
        lines.append(
            f"paused since {moment_text(attached.paused_ms, now_ms)}: keeplast pause --resume"
        )
    if attached.detached_ms is not None:
        lines.append(f"detached since {moment_text(attached.detached_ms, now_ms)}")
    lines += [
        f"in grace: {format_counted(each.segments, 'replaced segment')}, "
        f"{format_bytes(each.size_bytes)}, "
        + (
            "decided and not published yet"
            if each.published_ms is None
            else f"replaced {moment_text(each.published_ms, now_ms)}; the grace counts from then"
        )
        for each in entry.waiting
    ]
    return lines


def _outlook_lines(outlook: PartitionOutlook) -> list[str]:
    """Return what comes next, in the words of ``keeplast status``."""
    earliest, tombstones = outlook.earliest_as_of, outlook.tombstones
    return [
        *([] if outlook.old is None else [f"old values: {outlook.old.why}"]),
        *([] if earliest is None else [as_of_words(earliest)]),
        *([] if tombstones is None else [f"tombstones and markers: {tombstones.words}"]),
    ]


def _tier_lines(status: TierStatus, erased: ErasedBy | None, now_ms: int) -> list[str]:
    lines = []
    if erased is not None:
        by = "" if erased.by_ms is None else "gone by "
        lines = [f"old values: {by}{erased_sentence(erased, now_ms, in_store=True)}"]
    lines += [
        f"owner: {status.owner or 'none'}, epoch {status.leader_epoch}",
        f"in object storage: {format_bytes(status.remote_bytes)}, "
        f"{len(status.segments)} segments, {range_text(status.log_start, status.remote_end)}",
    ]
    if status.local_bytes is not None:
        lines.append(
            f"on this host: {format_bytes(status.local_bytes)}, below offset {status.log_end}"
        )
    if status.orphans:
        lines.append(
            f"in grace: {format_counted(status.orphans, 'replaced segment')}, "
            f"{format_bytes(status.orphan_bytes)}"
            + (
                ""
                if status.collected_from_ms is None
                else "; the first is collected from "
                f"{moment_text(status.collected_from_ms, now_ms)} on"
            )
        )
    if status.vector:
        ends = ", ".join(f"epoch {epoch} to {offset}" for epoch, offset in status.vector.items())
        lines.append(f"clean by its leaders: {ends}")
    if status.is_drifted:
        lines.append("the cached size has drifted from the sum: run keeplast verify")
    if status.holder is not None:
        lines.append(f"held by process {status.holder.pid} on {status.holder.host}")
    lines += [] if status.readers is None else [wait_words(status.readers)]
    return lines + hold_lines(status.holds, now_ms)


def _settings(
    view: ConsoleView, entry: PartitionStatus
) -> tuple[tuple[SettingRow, ...], tuple[str, ...]]:
    settings, topic = settings_of(view, entry), entry.partition.topic
    if settings is None:
        return (), ()
    return setting_rows(settings, topic), tuple(settings.problems(topic))


def setting_rows(
    settings: Settings, topic: str, keys: Sequence[str] = ()
) -> tuple[SettingRow, ...]:
    """Return settings that have an effect, of these ``keys`` or all, as they count for a topic.

    Files are shown by their names: where a broker's files lie does not concern a viewer.
    """
    chosen = [BY_KEY[key] for key in keys] or [each for each in DEFINITIONS if each.has_effect]
    found = [(each, settings.effective(each, topic)) for each in chosen]
    return tuple(
        SettingRow(
            definition.key, _setting_text(definition, value.value),
            origin_text(definition, value, None), definition.about.replace("`", ""),
            value.is_default,
        )
        for definition, value in found
    )  # fmt: skip


def _setting_text(definition: Definition, value: Value | None) -> str:
    """Return a value with what it means; a rate, which is no whole number, too."""
    text = shown_value(definition, value)
    if definition.key == RATE_KEY and isinstance(value, float) and value < DOUBLE_MAX:
        return f"{text} ({format_bytes(int(value))}/s)"
    return text
