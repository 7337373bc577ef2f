"""Check a built site without a network: every link leads somewhere, every figure has words, all is local.

python -m tests.site.pages build/docs/html
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LINKS = {
    "a": "href",
    "img": "src",
    "script": "src",
    "link": "href",
    "source": "src",
    "iframe": "src",
}
FEWEST_WORDS = 3
"""Of the text alternative of a figure."""


class Link(NamedTuple):
    """One reference of a page to another place."""

    tag: str
    target: str


class Page(HTMLParser):
    """The anchors, links and figures of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[Link] = []
        self.without_words: list[str] = []
        """Figures whose text alternative says nothing."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to, and what it is called."""
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if target := given.get(LINKS.get(tag, "")):
            self.links.append(Link(tag, target))
        if tag == "img" and len((given.get("alt") or "").split()) < FEWEST_WORDS:
            self.without_words.append(given.get("src") or "?")


def mistakes(folder: Path) -> Iterator[str]:
    """Yield a sentence for each mistake in the pages of a folder."""
    files = (file for file in folder.rglob("*.html") if "_static" not in file.parts)
    pages = {file.resolve(): Page(file.read_text()) for file in files}
    if not pages:
        yield f"{folder} has no pages"
    for file, page in pages.items():
        name = file.relative_to(folder.resolve())
        yield from (
            f"{name}: the figure {src} has no text alternative" for src in page.without_words
        )
        for link in page.links:
            if why := _wrong(link, file, pages):
                yield f"{name}: {link.target} {why}"


def _wrong(link: Link, file: Path, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link; None if nothing is."""
    parts = urlsplit(link.target)
    if parts.scheme or parts.netloc:
        local = link.tag == "a" or parts.scheme == "data"
        return None if local else "is loaded from elsewhere"
    path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if path.is_dir():
        path = path / "index.html"
    if not path.is_file():
        return "leads nowhere"
    if path in pages and unquote(parts.fragment) not in pages[path].anchors:
        return "has no such anchor"
    return None


def main(folder: str) -> int:
    """Print the mistakes of a site; return 1 if there are any."""
    found = list(mistakes(Path(folder)))
    print("\n".join(found) or f"{folder}: links, anchors and figures are right")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
