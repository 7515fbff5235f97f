"""Changing ``keeplast.toml``: what stays, what is refused, and that nothing half-made is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from keeplast.config.layers import SettingSources, file_layer
from keeplast.config.settings_file import Edit, change_settings, edited_text
from keeplast.config.sources import FILE_NAME, read_settings
from keeplast.errors import ConflictError, InvalidError, RefusedError
from keeplast.log.files import Buffer, LocalFiles

COMMENTED = """\
# Who changes this: the storage team.
[cluster]
log.segment.bytes = 300 # small, for tests
"log.preallocate" = true
# the end of the cluster

# Orders are read by billing.
[topic.orders]
"cleanup.policy" = ["compact", "delete"]   # both
min.cleanable.dirty.ratio=0.5

[topic."a.b"]
"segment.ms" = 7
"""


def edit(text: str, changes: Mapping[str, str | None], topic: str | None = None) -> str:
    return edited_text(text, changes, topic=topic, path=FILE_NAME)[0]


def change(
    root: Path,
    changes: Mapping[str, str | None],
    topic: str | None = None,
    *,
    flags: tuple[str, ...] = (),
    topics_here: Sequence[str] = (),
) -> Edit:
    return change_settings(
        root,
        LocalFiles(),
        changes,
        topic=topic,
        topics_here=topics_here,
        sources=SettingSources(flags=flags, environment={}),
    )


def test_a_value_changes_in_its_place_and_keeps_its_comment() -> None:
    assert COMMENTED.replace("300 #", "400 #") == edit(COMMENTED, {"log.segment.bytes": "400"})
    expected = COMMENTED.replace("ratio=0.5", "ratio=0.25")
    assert expected == edit(COMMENTED, {"min.cleanable.dirty.ratio": "0.25"}, "orders")
    expected = COMMENTED.replace('["compact", "delete"]', '"compact"')
    assert expected == edit(COMMENTED, {"cleanup.policy": "compact"}, "orders")


def test_a_new_key_goes_after_the_last_of_its_table_and_not_into_the_next_ones_comment() -> None:
    expected = COMMENTED.replace(
        "# the end of the cluster\n", '# the end of the cluster\n"log.roll.ms" = 5\n'
    )
    assert expected == edit(COMMENTED, {"log.roll.ms": "5"})
    expected = COMMENTED.replace("ratio=0.5\n", 'ratio=0.5\n"segment.ms" = 5\n')
    assert expected == edit(COMMENTED, {"segment.ms": "5"}, "orders")
    assert COMMENTED + '"segment.bytes" = 14\n' == edit(COMMENTED, {"segment.bytes": "14"}, "a.b")


def test_a_new_table_goes_to_the_end() -> None:
    expected = COMMENTED + '\n[topic."c.d"]\n"segment.ms" = 5\npreallocate = true\n'
    changes = {"segment.ms": "5", "preallocate": "TRUE"}
    assert expected == edit(COMMENTED, changes, "c.d")
    assert '[cluster]\n"log.roll.ms" = 5\n' == edit("", {"log.roll.ms": "5"})


def test_the_other_name_of_a_setting_in_the_same_table_goes() -> None:
    text, removed = edited_text(
        '[cluster]\nlog.roll.hours = 3\n"segment.ms" = 4\n[topic.t]\n"segment.ms" = 9\n',
        {"log.roll.ms": "5"},
        topic=None,
        path=FILE_NAME,
    )
    assert {"log.roll.ms": ("log.roll.hours", "segment.ms")} == removed
    assert '[cluster]\n"log.roll.ms" = 5\n[topic.t]\n"segment.ms" = 9\n' == text


def test_removing_a_key_leaves_the_rest_and_removing_none_leaves_all() -> None:
    expected = COMMENTED.replace("log.segment.bytes = 300 # small, for tests\n", "")
    assert expected == edit(COMMENTED, {"log.segment.bytes": None})
    assert COMMENTED == edit(COMMENTED, {"segment.ms": None}, "orders")
    assert COMMENTED == edit(COMMENTED, {"segment.ms": None}, "nobody")


def test_values_are_written_with_their_type() -> None:
    changes = {
        "cleanup.policy": "delete,compact",
        "min.cleanable.dirty.ratio": "1e-1",
        "compaction.strategy": "HEADER",
        "compaction.strategy.header": "Ver",
        "max.compaction.lag.ms": "9223372036854775807",
    }
    text = edit("", changes, "t")
    assert (
        '[topic.t]\n"cleanup.policy" = ["delete", "compact"]\n"min.cleanable.dirty.ratio" = 0.1\n'
        '"compaction.strategy" = "header"\n"compaction.strategy.header" = "Ver"\n'
        '"max.compaction.lag.ms" = 9223372036854775807\n'
    ) == text


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"segmnt.ms": "5"}, "orders"),
        ({"segment.ms": "0"}, "orders"),
        ({"log.roll.ms": "5"}, "orders"),
        ({"log.cleaner.threads": "5"}, "orders"),
        ({"segment.ms": "five"}, None),
        ({"segment.ms": "5", "log.roll.hours": "1"}, None),
    ],
)
def test_a_change_that_cannot_be_used_is_refused(
    changes: dict[str, str | None], topic: str | None
) -> None:
    with pytest.raises(InvalidError):
        edit(COMMENTED, changes, topic)


def test_a_file_with_a_mistake_is_not_touched() -> None:
    with pytest.raises(InvalidError, match=r"log\.segmnt"):
        edit("[cluster]\nlog.segmnt.bytes = 3\n", {"log.roll.ms": "5"})


@pytest.mark.parametrize(
    "text",
    [
        'topic = {"t" = {"segment.ms" = 3}}\n',
        "[topic]\nt.segment.ms = 3\n",
        "[topic.t.segment]\nms = 3\n",
        "topic.t.segment.ms = 3\n",
    ],
)
def test_other_ways_to_write_a_file_are_edited_as_they_are(text: str) -> None:
    assert text.replace("3", "5") == edit(text, {"segment.ms": "5"}, "t")
    added = edit(text, {"segment.bytes": "99"}, "t")
    assert {"t": {"segment.ms": "3", "segment.bytes": "99"}} == file_layer(added, "f").topics


def test_a_file_that_cannot_be_edited_is_left_to_its_owner() -> None:
    with pytest.raises(InvalidError, match="by hand"):
        edit('topic = {"t" = {"segment.ms" = 3}}\n', {"segment.ms": "5"}, "u")


def test_a_lag_that_contradicts_the_other_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    change(tmp_path, {"max.compaction.lag.ms": "100"})
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(InvalidError, match=r"min\.compaction\.lag\.ms above"):
        change(tmp_path, {"min.compaction.lag.ms": "200"}, "t")
    assert before == (tmp_path / FILE_NAME).read_bytes()
    assert [FILE_NAME] == [path.name for path in tmp_path.iterdir()]
    change(tmp_path, {"min.compaction.lag.ms": "200", "max.compaction.lag.ms": "300"}, "t")


def test_a_clusters_value_must_suit_every_topic(tmp_path: Path) -> None:
    change(tmp_path, {"min.compaction.lag.ms": "200"}, "t")
    with pytest.raises(InvalidError, match="topic=t"):
        change(tmp_path, {"log.cleaner.max.compaction.lag.ms": "100"})
    change(tmp_path, {"compaction.strategy.header": "ver"}, "here")
    with pytest.raises(InvalidError, match="header"):
        change(tmp_path, {"log.cleaner.compaction.strategy": "header"}, topics_here=("here", "x"))


def test_lc06_a_change_that_a_validator_rejects_leaves_the_configuration(tmp_path: Path) -> None:
    change(tmp_path, {"log.cleaner.threads": "2"})
    for changes in (
        {"log.cleaner.threads": "200"},
        {"log.cleaner.threads": "0"},
        {"log.cleaner.dedupe.buffer.size": "1024"},
    ):
        with pytest.raises(InvalidError):
            change(tmp_path, changes)
    with pytest.raises(RefusedError):
        change(tmp_path, {"log.cleaner.io.buffer.load.factor": "1.5"})
    assert '[cluster]\n"log.cleaner.threads" = 2\n' == (tmp_path / FILE_NAME).read_text()


def test_a_changed_file_counts_when_the_settings_are_read_again(tmp_path: Path) -> None:
    def segment_ms() -> int:
        settings = read_settings(tmp_path, LocalFiles(), SettingSources(environment={}))
        return settings.topic_config("t").segment_ms

    assert 604_800_000 == segment_ms()
    change(tmp_path, {"log.roll.hours": "2"})
    assert 7_200_000 == segment_ms()
    change(tmp_path, {"segment.ms": "5"}, "t")
    assert 5 == segment_ms()
    change(tmp_path, {"segment.ms": None}, "t")
    assert 7_200_000 == segment_ms()
    (tmp_path / FILE_NAME).write_text("[cluster]\nlog.roll.hours = 0\n")
    with pytest.raises(InvalidError):
        segment_ms()


def test_what_a_user_should_know_is_said(tmp_path: Path) -> None:
    change(tmp_path, {"log.roll.hours": "2"})
    made = change(
        tmp_path,
        {"segment.ms": "5", "log.preallocate": "true"},
        flags=("log.roll.ms=9",),
    )
    removed, beaten, idle = made.warnings
    assert "key=log.roll.hours" in removed
    assert "--config says otherwise" in beaten
    assert "key=preallocate" not in idle
    assert "key=log.preallocate" in idle
    assert [9, True] == [each.after.value for each in made.changes]
    (hazard,) = change(tmp_path, {"compaction.strategy": "timestamp"}, "t").warnings
    assert "max.compaction.lag.ms" in hazard


def test_a_file_that_another_process_changes_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("[cluster]\n")

    class Meddling(LocalFiles):
        reads = 0

        def read_bytes(self, path: Path, limit: int) -> bytes:
            self.reads += 1
            if self.reads == 2:
                path.write_text("[cluster]\nlog.roll.ms = 8\n")
            return super().read_bytes(path, limit)

    with pytest.raises(ConflictError):
        change_settings(
            tmp_path,
            Meddling(),
            {"log.preallocate": "true"},
            topic=None,
            sources=SettingSources(environment={}),
        )
    assert "log.roll.ms = 8" in path.read_text()


def test_of_two_writers_of_a_file_at_once_neither_loses_the_text_of_the_other(
    tmp_path: Path,
) -> None:
    class Slow(LocalFiles):
        def write_durable(self, path: Path, data: Buffer) -> None:
            with pytest.raises(ConflictError, match="run again"):
                change_settings(tmp_path, LocalFiles(), {"segment.ms": "1000"}, topic="t")
            super().write_durable(path, data)

    change_settings(tmp_path, Slow(), {"delete.retention.ms": "7"}, topic="t")
    change_settings(tmp_path, LocalFiles(), {"segment.ms": "1000"}, topic="t")
    layer = file_layer((tmp_path / FILE_NAME).read_text(), FILE_NAME)
    assert {"delete.retention.ms": "7", "segment.ms": "1000"} == layer.topics["t"]


def test_a_named_file_may_be_a_link_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_text("")
    real.chmod(0o640)
    link.symlink_to(real)
    change_settings(
        tmp_path,
        LocalFiles(),
        {"segment.ms": "5"},
        topic="t",
        sources=SettingSources(config_file=link, environment={}),
    )
    assert '[topic.t]\n"segment.ms" = 5\n' == real.read_text()
    assert link.is_symlink()
    assert 0o640 == real.stat().st_mode & 0o777


def test_a_clusters_value_says_which_topics_keep_their_own(tmp_path: Path) -> None:
    change(tmp_path, {"retention.ms": "5"}, topic="own")
    edit = change(tmp_path, {"retention.ms": "7"}, topics_here=("own", "other"))
    assert (
        "topics keep a value of their own, which beats the cluster's; change it with --topic. "
        "key=retention.ms topics=own=5",
    ) == edit.warnings
    assert () == change(tmp_path, {"segment.ms": "7"}, topics_here=("own", "other")).warnings
    assert () == change(tmp_path, {"retention.ms": "8"}, topic="own").warnings


def test_only_the_first_of_many_topics_are_named(tmp_path: Path) -> None:
    topics = [f"t{number:02d}" for number in range(12)]
    for topic in topics:
        change(tmp_path, {"retention.ms": "5"}, topic=topic)
    (warning,) = change(tmp_path, {"retention.ms": "7"}, topics_here=topics).warnings
    assert warning.endswith("t09=5 and 2 more")
