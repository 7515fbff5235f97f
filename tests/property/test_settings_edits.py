"""Settings files of any layout: an edit says what it should and nothing else, comments stay."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keeplast.config.layers import file_layer, file_problems
from keeplast.config.settings_file import edited_text
from keeplast.errors import InvalidError
from tests.support.turns import examples

KEYS = {
    "segment.ms": st.integers(1, 10**12).map(str),
    "segment.bytes": st.integers(14, 2**31 - 1).map(str),
    "min.cleanable.dirty.ratio": st.sampled_from(["0.5", "0.25", "1.0"]),
    "cleanup.policy": st.sampled_from(["compact", "compact,delete", ""]),
    "preallocate": st.sampled_from(["true", "false"]),
    "compaction.strategy.header": st.sampled_from(["ver", 'a"b', "ü", "#no comment"]),
}
TOPICS = ("orders", "a.b", "with space", "ü")
ENDS = st.sampled_from(["\n", "\r\n"])
settings_of_table = st.fixed_dictionaries({}, optional=KEYS)


def toml_value(key: str, text: str) -> str:
    if key in ("cleanup.policy", "compaction.strategy.header"):
        return '"' + text.replace('"', '\\"') + '"'
    return text


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str | None, dict[str, str]]]:
    """Return a document with comments and blank lines, and what it says by topic."""
    tables: dict[str | None, dict[str, str]] = {}
    lines: list[str] = []
    comments = iter(range(1000))
    for topic in draw(st.permutations([None, *TOPICS]).map(lambda names: names[:3])):
        table = draw(settings_of_table)
        tables[topic] = table
        lines.append("[cluster]" if topic is None else f'[topic."{topic}"]')
        for key, text in table.items():
            name = key if draw(st.booleans()) else f'"{key}"'
            tail = f"  # comment {next(comments)}" if draw(st.booleans()) else ""
            lines.append(f"{name} = {toml_value(key, text)}{tail}")
            if draw(st.booleans()):
                lines.append(f"# comment {next(comments)}")
        lines += draw(st.sampled_from([[], [""], ["", f"# comment {next(comments)}"]]))
    return draw(ENDS).join(lines) + draw(st.sampled_from(["", "\n", "\n\n"])), tables


@example(
    document=(
        '[topic."ü"]\nsegment.ms = 1\n"preallocate" = true\nsegment.bytes = 14\n',
        {"ü": {"segment.ms": "1", "preallocate": "true", "segment.bytes": "14"}},
    ),
    topic="ü",
    values={},
    gone={"segment.ms", "preallocate", "segment.bytes"},
).via("tomlkit lost its place in dotted keys that another parts")
@example(
    document=(
        '[cluster]\ncompaction.strategy.header = "v"',
        {None: {"compaction.strategy.header": "v"}},
    ),
    topic=None,
    values={"segment.bytes": "14"},
    gone=set(),
).via("the last line has no end, and its key has two dots")
@settings(max_examples=examples(150))
@given(
    document=documents(),
    topic=st.sampled_from([None, *TOPICS, "new"]),
    values=settings_of_table,
    gone=st.sets(st.sampled_from(sorted(KEYS))),
)
def test_an_edit_says_what_it_should_and_keeps_every_comment(
    document: tuple[str, dict[str | None, dict[str, str]]],
    topic: str | None,
    values: dict[str, str],
    gone: set[str],
) -> None:
    text, tables = document
    changes: dict[str, str | None] = {**dict.fromkeys(sorted(gone - values.keys())), **values}
    new, _ = edited_text(text, changes, topic=topic, path="f")
    table = {key: text for key, text in tables.get(topic, {}).items() if key not in gone} | values
    layer = file_layer(new, "f")
    found: dict[str | None, dict[str, str]] = {None: dict(layer.cluster)}
    found.update({name: dict(own) for name, own in layer.topics.items()})
    expected = {None: {}, **tables, **({topic: table} if table or topic in tables else {})}
    assert expected == found
    # A comment behind a value goes with it; the others and the tables stay, in their order.
    before, after = (
        [line for line in each.splitlines() if line.startswith(("[", "#"))] for each in (text, new)
    )
    assert before == after[: len(before)]
    assert new == edited_text(new, changes, topic=topic, path="f")[0]


@settings(max_examples=examples(200))
@given(st.one_of(st.text(), st.text(alphabet="[]\"'=.{}#\n tclusteropic1", max_size=60)))
def test_a_file_of_any_content_is_read_or_its_problems_are_reported(text: str) -> None:
    problems = file_problems(text, "f")
    assert all(isinstance(problem, InvalidError) for problem in problems)
    if not problems:
        file_layer(text, "f")
