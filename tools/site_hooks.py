"""Makes pages that are written for the repository right on the site too; MkDocs calls it.

What a page says in the repository must hold on the site: a link to a file outside of ``docs`` leads
to the repository where ``extra.repository`` in ``mkdocs.yml`` names one. Where it names none, the
file is copied into the site under ``files/``, and a page or a directory is named by its path.
``<!-- api: NAME -->`` becomes the documentation of a public name, made by mkdocstrings.

The rules that a reader must not break: a link to what is not there stays as it is, so that the
strict build finds it; and a page of the site loads nothing from another host, or is not built.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILES = "files"
BYTES_MAX = 1 << 20
"""No file is copied that is larger; it is named."""
LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])+)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
FOREIGN = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*\b(?:src|data)=["'](?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["'](?:https?:)?//[^>]*>"""
    r"""|class=["']mermaid["']""",
    re.IGNORECASE,
)
"""What a browser asks another host for; of diagrams in Mermaid, the program that draws them."""
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):(<code\b)")
API = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)


def outside_of_docs(page: str, target: str) -> tuple[str, str] | None:
    """Return the path in the repository, and the anchor, of a link that leaves ``docs``.

    None for every other link, and for one to what is not there.
    """
    name, _, anchor = target.partition("#")
    if "://" in target or not name or name.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), name))
    if path.startswith(("..", "docs/")) or not (ROOT / path).exists():
        return None
    return path, anchor


def rewrite_links(text: str, page: str, repository: str, copy: Callable[[str], None]) -> str:
    """Return a page whose links out of ``docs`` hold on the site.

    ``copy`` is called with the path of each file that the site needs; ``page`` is the page's path
    below ``docs``. Fenced code stays as it is.
    """

    def replaced(match: re.Match[str]) -> str:
        found = outside_of_docs(page, match["target"])
        if found is None:
            return match[0]
        path, anchor = found
        end = f"#{anchor}" if anchor else ""
        if repository:
            return f"{match['bang']}[{match['text']}]({repository.rstrip('/')}/{path}{end})"
        source = ROOT / path
        if source.is_file() and source.suffix != ".md" and source.stat().st_size <= BYTES_MAX:
            copy(path)
            up = posixpath.relpath(f"{FILES}/{path}", posixpath.dirname(page) or ".")
            return f"{match['bang']}[{match['text']}]({up})"
        return f"{match['text']} (`{path}` in the repository)"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replaced, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(replaced, text[last:])])


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page as the site has it. MkDocs calls this for each page before it is rendered."""

    def copy(path: str) -> None:
        from mkdocs.structure.files import File

        name = f"{FILES}/{path}"
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))

    name = page.file.src_uri
    if name.startswith("contributing/"):
        page.meta.setdefault("search", {})["exclude"] = True
    text = rewrite_links(markdown, name, config["extra"].get("repository", ""), copy)
    return API.sub(r"::: \1", text)


def foreign_requests(page: str) -> list[str]:
    """Return what of a built page another host would be asked for."""
    return FOREIGN.findall(page)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Return a built page without the roles of docstrings.

    PluginError where a reader's browser would ask another host.
    """
    from mkdocs.exceptions import PluginError

    found = foreign_requests(output)
    if found:
        raise PluginError(f"a page asks another host. page={page.file.src_uri} what={found[0]}")
    return ROLE.sub(r"\1", output)
