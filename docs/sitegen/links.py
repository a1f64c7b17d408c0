"""Checks the built site: ``python -m docs.sitegen.links build/site``.

Every link to a page, a file or a heading of the site must have a target, and no page may load anything from elsewhere,
so that the site works without a network.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes whose target the browser loads with the page, by tag.
_LOADED = {
    ("audio", "src"), ("iframe", "src"), ("img", "src"), ("script", "src"), ("source", "src"), ("video", "src"),
}  # fmt: skip
_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_STYLE_REFERENCE = ("url(http", "url('http", 'url("http', "url(//", "@import")


@dataclass
class Page:
    """The references and anchors of a page."""

    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name not in values:
                continue
            relations = set(values.get("rel", "").split())
            is_loaded = (tag, name) in _LOADED or (tag == "link" and relations & _LOADED_RELATIONS)
            (self.page.loaded if is_loaded else self.page.links).add(values[name])


def read_page(text: str) -> Page:
    """Return the references and anchors of an HTML page.

    Examples
    --------
    >>> page = read_page('<h1 id="top"></h1><a href="other.html#end"></a><img src="plot.svg">')
    >>> page.anchors, page.links, page.loaded
    ({'top'}, {'other.html#end'}, {'plot.svg'})
    """
    reader = _Reader()
    reader.feed(text)
    return reader.page


def site_problems(site: Path) -> list[str]:
    """List the problems of a site, one sentence each."""
    pages = {path: read_page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = [problem for path, page in pages.items() for problem in _page_problems(site, path, page, pages)]
    problems += [
        f"{path.relative_to(site)}: expected a style sheet without external references"
        for path in sorted(site.rglob("*.css"))
        if any(reference in path.read_text("utf-8").replace(" ", "") for reference in _STYLE_REFERENCE)
    ]
    return problems


def _page_problems(site: Path, path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    problems = []
    name = path.relative_to(site)
    for link in sorted(page.links | page.loaded):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if link in page.loaded and parts.scheme != "data":
                problems.append(f"{name}: expected every file to be part of the site, got {link}")
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            problems.append(f"{name}: expected a file for the link, got {link}")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            problems.append(f"{name}: expected an anchor for the link, got {link}")
    return problems


def main() -> int:
    """Check the site named on the command line; the exit status."""
    site = Path(sys.argv[1]).resolve()
    problems = site_problems(site)
    print("\n".join(problems), file=sys.stderr if problems else sys.stdout)
    print(f"{len(list(site.rglob('*.html')))} pages checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
