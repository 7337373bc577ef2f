"""README.md and the pages of docs/: their blocks, links and what they name; texts compared with files."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "README.md"
LISTED = [
    ROOT / "docs" / f"{name}.md"
    for name in re.findall(r"^- \[(\w+)\]\(\1\.md\): ", INDEX.read_text(), re.MULTILINE)
]
"""Pages that the index lists; that of an application goes when it is taken out, and the line may stay."""
ALL = [README, INDEX, *(page for page in LISTED if page.is_file())]
"""In the order in which they are read, and in which their blocks run."""
PROMISED = {
    name
    for row in re.findall(r"^\| (.*?) \|", (ROOT / "docs/stability.md").read_text(), re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", row)
}
"""Public names and commands that docs/stability.md lists, also of an application that was taken out."""


def blocks(language: str, *files: Path) -> list[str]:
    """Return the fenced blocks of a language in these files, or in all."""
    text = "\n".join(file.read_text() for file in files or ALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(*files: Path) -> list[str]:
    """Return the lines of `sh` and `text` blocks that begin with homodyne-dask, without that word."""
    text = "".join(blocks("(?:sh|text)", *files)).replace("\\\n", " ")
    return re.findall(r"^homodyne-dask (.*)", text, re.MULTILINE)


def links(file: Path) -> list[str]:
    """Return the files that a page links to, without those of the web."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text())
    return [link for link in targets if "://" not in link]


def broken_links(file: Path) -> list[str]:
    """Return the links of a page that lead to no file, and not to the page of an application."""
    there = {link: (file.parent / link).resolve() for link in links(file)}
    return [link for link, path in there.items() if not path.is_file() and path not in LISTED]


def code_spans(file: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def kept_in(path: Path, found: str) -> str:
    """Return the text of a file, replaced by the one found where HOMODYNE_DASK_ACCEPT=1 accepts changes."""
    if "HOMODYNE_DASK_ACCEPT" in os.environ:
        path.write_text(found)
    return path.read_text()
