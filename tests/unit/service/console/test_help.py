"""What a word, a code or a setting means is a page of the console; commands can be run."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.model.partition import LogRegion
from keeplast.service.catalogue import help_entries, help_name, read_entries
from keeplast.service.console.rendering import linked, marked
from keeplast.service.status import State
from keeplast.service.status_words import state_words
from tests.support.console_site import ACTOR, OPEN, FixedSource, Site

LOG = "/log/orders/0"


def test_no_link_to_help_is_dead_and_help_has_every_word(site: Site) -> None:
    pages = ("/", LOG, "/log/broken/0", "/work", "/help/clean", "/help/K806", "/keys", "/help")
    found = [re.findall(r'href="/help/([^"]*)"', site.get(path).text) for path in pages]
    links = {each for its in found for each in its}
    assert {"overdue", "dirty", "first-dirty", "min.cleanable.dirty.ratio", "k101"} <= links
    assert set(found[-1]) == links == set(help_entries())
    asked = ("overdue", "max.compaction.lag.ms", "k806", "Dirty%20ratio", "%3Cb%3E")
    codes = [site.get(f"/help/{each}").status_code for each in asked]
    assert [200, 200, 200, 200, 404] == codes


def test_every_page_can_resume_what_is_paused(source: FixedSource) -> None:
    source.wishes.is_paused = True
    site = Site(source, token=ACTOR)
    pages = ("/", "/time", "/work", "/help", "/help/clean", "/find", LOG)
    assert [] == [each for each in pages if 'action="/do/resume"' not in site.get(each).text]


def test_every_state_region_and_code_has_its_page(site: Site) -> None:
    words = [state_words(each) for each in State] + [each.words for each in LogRegion]
    assert set() == {help_name(each) for each in (*words, *read_entries())} - set(help_entries())
    # The page of a code is what keeplast help prints.
    text = re.sub(r"<[^>]+>", "", html.unescape(site.get("/help/K806").text))
    parts = [each.replace("`", "") for each in read_entries()["K806"].values()]
    assert parts == [each for each in parts if each in text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bad <b> [K214]", 'bad &lt;b&gt; [<a href="/help/k214">K214</a>]'),
        ("no such [K001]", "no such [K001]"),
        ("to end it: keeplast hold release 'a b' x",
         'to end it: <code class="command">keeplast hold release &#39;a b&#39; x</code>'),
        ("segment.ms.", '<a href="/help/segment.ms">segment.ms</a>.'),
        ("topic my.min.compaction.lag.ms of a.b", "topic my.min.compaction.lag.ms of a.b"),
        ("at 2026-05-31 22:00:00 UTC (in 5 d)", 'at 2026-05-31 22:00:00 UTC (<time '
         'datetime="2026-05-31T22:00:00Z" data-at="1780264800000">in 5 d</time>)'),
        ("2026-02-31 22:00:00 UTC (now)", "2026-02-31 22:00:00 UTC (now)"),
        ("2026-05-31 22:00:00 UTC (the third)", "2026-05-31 22:00:00 UTC (the third)"),
    ],
)  # fmt: skip
def test_a_sentence_leads_to_the_help_of_its_codes_and_settings(text: str, expected: str) -> None:
    assert expected == linked(text)
    assert "a <code>b&lt;</code> <strong>c</strong> <em>d</em>" == marked("a `b<` **c** *d*")


def commands(text: str) -> list[str]:
    return [
        html.unescape(each) for each in re.findall(r'<code class="command">([^<]*)</code>', text)
    ]


def test_commands_name_the_place_and_can_be_run(
    source: FixedSource, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    # As it was given: a name, an address, or a path with a blank.
    given = f"{root.name}/../{root.name}/"
    site = Site(source, replace(OPEN, place=given))
    found = [shlex.split(each) for each in commands(site.get(LOG).text)]
    assert ["status", "plan", "clean", "explain", "config"] == [each[1] for each in found]
    assert {("keeplast", given)} == {(each[0], each[2]) for each in found}
    assert [0] * 5 == [CliRunner().invoke(app, each[1:]).exit_code for each in found]
    quoted = commands(Site(source, replace(OPEN, place="a b'c")).get(LOG).text)
    assert all("a b'c" == shlex.split(each)[2] for each in quoted)
    # Without a name it is where the files are.
    assert all(str(root) == shlex.split(each)[2] for each in commands(Site(source).get(LOG).text))
