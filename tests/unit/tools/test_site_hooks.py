"""Pages that are written for the repository hold on the site too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools import site_hooks

UNIT = "deploy/systemd/keeplast-run.service"


def rewritten(text: str, repository: str = "") -> tuple[str, list[str]]:
    copied: list[str] = []
    return site_hooks.rewrite_links(text, "how-to/page.md", repository, copied.append), copied


def test_a_file_of_the_repository_is_copied_into_the_site() -> None:
    text, copied = rewritten(f"see [the unit](../../{UNIT}).")
    assert (f"see [the unit](../files/{UNIT}).", [UNIT]) == (text, copied)


def test_a_page_or_a_directory_outside_of_docs_is_named() -> None:
    text, copied = rewritten("see [start](../../README.md#try) and [examples](../../examples).")
    assert [] == copied
    assert (
        "see start (`README.md` in the repository) and examples (`examples` in the repository)."
    ) == text


def test_where_the_repository_has_an_address_links_lead_there() -> None:
    text, copied = rewritten("[start](../../README.md#try)", "https://host.example/x/blob/main/")
    assert ("[start](https://host.example/x/blob/main/README.md#try)", []) == (text, copied)


@pytest.mark.parametrize(
    "link",
    [
        "[a](places.md)",
        "[a](../index.md#pages)",
        "[a](#here)",
        "[a](https://host.example/README.md)",
        "[a](../../gone.md)",
        "[a](../../../outside.md)",
        "```\n[a](../../README.md)\n```",
    ],
)
def test_every_other_link_stays_so_that_the_build_judges_it(link: str) -> None:
    assert (link, []) == rewritten(link)


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://host.example/x.js"></script>',
        "<img alt='' src='//host.example/x.png'>",
        '<link rel="stylesheet" href="https://host.example/x.css">',
        '<pre class="mermaid">graph</pre>',
    ],
)
def test_what_a_browser_would_ask_another_host_for_is_found(html: str) -> None:
    assert 1 == len(site_hooks.foreign_requests(f"<html>{html}</html>"))


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://host.example/">elsewhere</a>',
        '<script src="../assets/x.js"></script>',
        '<link rel="canonical" href="https://host.example/">',
    ],
)
def test_links_and_files_of_the_site_ask_no_other_host(html: str) -> None:
    assert [] == site_hooks.foreign_requests(html)


def test_pages_for_contributors_are_not_searched_and_names_are_documented() -> None:
    for name, is_excluded in (("contributing/a.md", True), ("how-to/a.md", False)):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        text = site_hooks.on_page_markdown(
            "<!-- api: keeplast.open -->", page=page, config={"extra": {}}, files=None
        )
        assert "::: keeplast.open" == text
        assert is_excluded == ("search" in page.meta)
