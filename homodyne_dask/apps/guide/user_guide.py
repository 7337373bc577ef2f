"""The user guide: the Markdown pages of docs/, which `homodyne-dask explain` prints.

import homodyne_dask as hd

print(hd.guide.index())           # the pages, with a line each
print(hd.guide.page("errors"))
print(hd.guide.search("exclude frames"))
"""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from textwrap import indent

from homodyne_dask.errors import OptionError, require_known, require_type, shown
from homodyne_dask.text import aligned_columns


def _folder() -> Traversable:
    """Return where the pages are: in the installed package, or beside it in a checkout."""
    package = files("homodyne_dask")
    installed = package / "docs"
    return installed if installed.is_dir() else package / ".." / "docs"


def _text(name: str) -> str:
    return (_folder() / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")


def pages_in(folder: Traversable) -> dict[str, str]:
    """Return what each page is about that README.md lists and that is there: applications can be left out."""
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(\w+)\]\(\1\.md\): (.*)$", index, re.MULTILINE)
    return {name: line for name, line in listed if (folder / f"{name}.md").is_file()}


PAGES = pages_in(_folder())
"""Name of each page and what it is about, in the order in which they are read."""


def page(name: str) -> str:
    """Return a page of the guide as Markdown; raises OptionError for an unknown name."""
    require_type("page", name, str, f"a name, such as {next(iter(PAGES))!r}")
    require_known(name, PAGES, f"the guide has no page {name!r} (--search finds words)")
    return _text(name)


def index() -> str:
    """Return the names of the pages, with a line each."""
    return "\n".join(aligned_columns([*PAGES.items()], left=2))


def search(words: str) -> str:
    """Return the paragraphs, rows and headings with all of these words, in any case, by page."""
    require_type("words", words, str, "words, such as 'exclude frames'")
    words_to_find = words.casefold().split()
    pages = []
    for name in PAGES:
        texts = re.split(r"\n{2,}|\n(?=[-|] ?)", _text(name))
        hits = [text for text in texts if all(word in text.casefold() for word in words_to_find)]
        pages += ["\n".join([name, *(indent(text.strip(), "  ") for text in hits)])] if hits else []
    if not words_to_find or not pages:
        raise OptionError(
            f"no paragraph of the guide has {shown(words)}: search for fewer words, or for a part of one"
        )
    return "\n\n".join(pages)
