"""A converted configuration, with remarks on every key of the file it came from."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homodyne_dask.cli.configuration import FitConfig
from homodyne_dask.store.files import AnyPath


@dataclass(frozen=True)
class Translation:
    """A configuration of homodyne or xpcsjax, converted; `print` it for all remarks."""

    source: Path
    config: FitConfig
    """Its paths are relative to the working folder, as in homodyne."""
    ingest: str
    """The command that writes the store."""
    remarks: tuple[str, ...]
    """On keys that are converted but differ in some way."""
    ignored: dict[str, str]
    """Key → why it is not converted."""
    unknown: dict[str, str]
    """Key of neither program → the most similar one."""

    def yaml(self, folder: str | Path = ".") -> str:
        """Return the text of a file in `folder` for `homodyne-dask fit`."""
        lines = [f"# from {self.source.name}; the store is written by", f"#   {self.ingest}", ""]
        content = self.config.model_dump(mode="json", exclude_unset=True)
        paths = [_relative(path, Path(folder)) for path in self.config.data]
        content["data"] = paths[0] if len(paths) == 1 else paths
        lines += [f"{key}: {json.dumps(value)}" for key, value in content.items()]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        """Return all remarks."""
        return self.text(every=True)

    def text(self, *, every: bool) -> str:
        """Return the remarks that matter first; every: those on known keys that have no effect, too."""
        ignored = list(_ignored_lines(self.ignored))
        hidden = (
            f"{len(self.ignored)} known keys have no counterpart and no effect: --all lists them"
        )
        return "\n".join(
            [
                f"{self.source}, converted to a configuration of model {self.config.model}.",
                f"first: {self.ingest}",
                *_paragraph("unknown keys, ignored:", _unknown_lines(self.unknown)),
                *_paragraph("converted, with a difference:", self.remarks),
                *(_paragraph("known keys, not converted:", ignored) if every else []),
                *([f"\n{hidden}"] if ignored and not every else []),
            ]
        )


def _relative(path: AnyPath, folder: Path) -> str:
    return str(path) if path.is_absolute() else os.path.relpath(str(path), folder)


def _paragraph(title: str, lines: Any) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"\n{title}"
    for line in lines:
        yield textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ")


def _unknown_lines(unknown: Mapping[str, str]) -> Iterator[str]:
    return (f"{key}: {similar}" for key, similar in unknown.items())


def _ignored_lines(ignored: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason, with the keys by section."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for key, why in ignored.items():
        section, _, name = key.rpartition(".")
        by_reason.setdefault(why, {}).setdefault(section, []).append(name)
    for why, sections in by_reason.items():
        places = (f"{name or 'top'}: {', '.join(keys)}" for name, keys in sections.items())
        yield f"{why} - {'; '.join(places)}"
