"""A translated configuration, and what is said of every key of the file it came from."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homodyne_dask.cli.config import FitConfig


@dataclass(frozen=True)
class Translation:
    """A configuration of homodyne or xpcsjax as one of ours. `print` it for all that was noticed."""

    source: Path
    config: FitConfig
    """Paths are as theirs: relative to the working folder."""
    ingest: str
    """The command that makes the store."""
    remarks: tuple[str, ...]
    """What was carried over and is not quite the same."""
    ignored: dict[str, str]
    """Key → why it is not carried over."""
    unknown: dict[str, str]
    """Key that neither program knows → what may have been meant."""

    def yaml(self, folder: str | Path = ".") -> str:
        """Return the text of a file in `folder` for `homodyne-dask fit`."""
        lines = [f"# from {self.source.name}; the store is made by", f"#   {self.ingest}", ""]
        held = self.config.model_dump(mode="json", exclude_unset=True)
        there = [_relative(path, Path(folder)) for path in self.config.data]
        held["data"] = there[0] if len(there) == 1 else there
        lines += [f"{key}: {json.dumps(value)}" for key, value in held.items()]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        """Return what became of the file's keys."""
        return "\n".join(
            [
                f"{self.source}, read as a configuration of {self.config.model}.",
                *_paragraph("unknown, and not carried over:", _unknown_lines(self.unknown)),
                *_paragraph("carried over:", self.remarks),
                *_paragraph("not carried over:", _ignored_lines(self.ignored)),
                f"first: {self.ingest}",
            ]
        )


def _relative(path: Path, folder: Path) -> str:
    return str(path) if path.is_absolute() else os.path.relpath(path, folder)


def _paragraph(title: str, lines: Any) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"\n{title}"
    for line in lines:
        yield textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ")


def _unknown_lines(unknown: Mapping[str, str]) -> Iterator[str]:
    return (f"{key}: {meant}" for key, meant in unknown.items())


def _ignored_lines(ignored: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each reason, with the keys by section."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for key, why in ignored.items():
        section, _, name = key.rpartition(".")
        by_reason.setdefault(why, {}).setdefault(section, []).append(name)
    for why, sections in by_reason.items():
        places = (f"{name or 'top'}: {', '.join(keys)}" for name, keys in sections.items())
        yield f"{why} - {'; '.join(places)}"
