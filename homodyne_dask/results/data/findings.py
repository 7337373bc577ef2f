"""All that a fit can find: of each code its severity, its sentence, what it means, and what to do.

The sentences in findings.txt are filled as by `str.format` with the numbers of a finding, `about` and
`advice`. {n:is|are} is the word for one or several, for a number below 0 or not, for true or false;
{x:change} calls one of `_WORDS`; [ or `{advice}`] is left out where there is no advice."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.errors import SourceError
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.text import joined_with_and, some_of, with_unit

if TYPE_CHECKING:
    from pandas import DataFrame


class Severity(StrEnum):
    """How much a finding weighs, the least first: values of errors are not to be used as they are."""

    INFO = "info"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Entry(NamedTuple):
    severity: Severity
    meaning: str
    remedy: str
    command: str
    """What to type, with attributes of the fit (`AssessedFit`) in braces; '' where it depends on more."""
    template: str


MISFIT = frozenset({"model-misfit", "model-misfit-shape", "power-of-q", "table-misfit"})
"""Codes that say that the model does not describe the data."""
OF_MISFIT = "no error allows for a misfit of the model"

_CHOICES: dict[str, dict[str, str]] = {
    "pattern": {
        "q": "differ from ring to ring",
        "bin": "differ between bins of one q",
        "age": "change with age",
        "lag": "are those of a decay of another shape at all ages",
    },
    "sigma": {
        "counts": "σ from counts is too small",
        "constant": "the given σ is too small",
        "table": "the errors of the table are too small",
        "residuals": "noise is common to neighbouring points",
        "scatter": "speckle is correlated over many pairs, which the scatter of neighbours does not show",
    },
    "objection": {
        "few-cells": "too few cells of age and lag lie inside the selected frames",
        "large": "the residuals are larger than the noise of one pixel",
        "deviating": "the model does not describe the data, or c2 was smoothed or denoised beforehand",
        "smoothed": "c2 was smoothed or denoised beforehand",
        "not-normal": "the residuals are not normal",
        "together": "those of parts that are fitted together follow from the scatter of bins alone",
    },
}
"""Words for values of a number."""


def _joined(value: Any, spec: str = "") -> str:
    items = value if isinstance(value, list | tuple) else [value]
    return joined_with_and(["unknown" if item is None else format(item, spec) for item in items])


def _change(share: float) -> str:
    size = abs(share)
    value, unit = (size, "times") if size >= 2 else (100 * size, "%")
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def _range(ends: list[float]) -> str:
    low, high = (f"{value:.4g}" for value in ends)
    return low if low == high else f"{low} to {high}"


def _bounds(values: dict[str, list[float | None]]) -> str:
    words = []
    for name, (value, low, high) in values.items():
        low_end = "-inf" if low is None else f"{low:,g}"
        high_end = "inf" if high is None else f"{high:,g}"
        words.append(f"{name} = {value:,g} (allowed {low_end} to {high_end})")
    return _joined(words)


def _limit(name: str, low: float | None, high: float | None, unit: str) -> str:
    if low is None:
        return with_unit(f"{name} below {high:.3g}", unit)
    if high is None:
        return with_unit(f"{name} above {low:.3g}", unit)
    return f"{name} anywhere between {low:g} and {high:g}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "some": partial(some_of, most=6),
    "change": _change,
    "share": lambda share: _change(share) + " of" * (abs(share) < 2),
    "range": _range,
    "ranges": lambda ranges: _joined([_range(ends) for ends in ranges]),
    "bounds": _bounds,
    "rates": lambda values: _joined(
        [with_unit(f"{name} = {value_and_error(*v[:2])}", v[2]) for name, v in values.items()]
    ),
    "limits": lambda values: ", ".join(_limit(name, *limits) for name, limits in values.items()),
    "error": lambda value: value_and_error(*value),
} | {name: words.__getitem__ for name, words in _CHOICES.items()}


def _is_first(value: Any) -> bool:
    """Return whether the first of two words fits: of one, of a number below 0, of what is true."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | tuple | dict):
        return len(value) == 1
    return value < 0 if isinstance(value, float) else value == 1


class _Template(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            return format_spec.split("|")[not _is_first(value)]
        if format_spec in _WORDS and value is not None:
            return _WORDS[format_spec](value)
        return _joined(value, format_spec)


_ENTRY = re.compile(r"(\S+) (\S+) means: (.*?) do: (.*?)(?: try: (.*?))? says: (.*)")


def _read_catalogue() -> dict[str, Entry]:
    entries = {}
    for block in Path(__file__).with_name("findings.txt").read_text("utf-8").split("\n\n"):
        entry = _ENTRY.fullmatch(" ".join(block.split()))
        assert entry is not None, block
        code, severity, *words = entry.groups("")
        entries[code] = Entry(Severity(severity), *words)
    return entries


CATALOGUE = _read_catalogue()


def sentence_of(code: str, about: Sequence[str], numbers: Mapping[str, Any], advice: str) -> str:
    values = {**numbers, "about": about, "advice": advice}

    def optional(group: re.Match[str]) -> str:
        names = (name for _, name, _, _ in Formatter().parse(group[1]) if name)
        return group[1] if all(values.get(name) for name in names) else ""

    template = re.sub(r"\[(.*?)\]", optional, CATALOGUE[code].template)
    return _Template().vformat(template, (), values)


@dataclass(frozen=True)
class Finding(HandedOut):
    """One thing to know about a fit; `str(finding)` is its sentence."""

    code: str
    """A key of `CATALOGUE`, which does not change with the words: at-bound, model-misfit, ..."""
    about: tuple[str, ...] = ()
    """Names of parameters, labels of bins, rates; none for what is about the whole fit."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    """The option or command to type: --bounds D0=1:1e+14; '' for none."""

    @property
    def severity(self) -> Severity:
        """How much it weighs; of severity error is what the verdict says."""
        return CATALOGUE[self.code].severity

    @property
    def sentence(self) -> str:
        return sentence_of(self.code, self.about, self.numbers, self.advice)

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values, with its severity."""
        about = {"about": list(self.about), "numbers": self.numbers, "advice": self.advice}
        return {"code": self.code, "severity": self.severity.value} | about


def finding(code: str, about: Iterable[object] = (), advice: str = "", **numbers: Any) -> Finding:
    """Return a finding of plain values, as JSON takes them: numbers that are not finite are None."""
    from homodyne_dask.results.data.dataclass_json import plain_values  # lazy: it loads xarray

    return Finding(code, tuple(map(str, about)), plain_values(numbers), advice)


class Findings(tuple[Finding, ...]):
    """The findings of a fit, as a tuple: what the verdict says first."""

    @classmethod
    def from_plain(cls, rows: Iterable[Mapping[str, Any]]) -> "Findings":
        """Return the findings of these `Finding.to_dict()`; raises SourceError for unknown codes."""
        for row in rows:
            if row["code"] not in CATALOGUE:
                raise SourceError(
                    f"{row['code']!r} is no finding that this version knows: read the result with the "
                    f"version of homodyne-dask that wrote it, or a later one"
                )
        return cls(
            Finding(row["code"], tuple(row["about"]), row["numbers"], row["advice"]) for row in rows
        )

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(finding.code for finding in self)

    def of(self, *codes: str) -> "Findings":
        """Return those with one of the codes."""
        return Findings(finding for finding in self if finding.code in codes)

    def at_least(self, severity: Severity | str) -> "Findings":
        """Return those of this severity or a higher one: info, note, warning or error."""
        order = list(Severity)
        lowest = order.index(Severity(severity))
        return Findings(finding for finding in self if order.index(finding.severity) >= lowest)

    def to_dataframe(self) -> "DataFrame":
        """Return a pandas DataFrame, one row each: code, severity, about, sentence, advice, numbers."""
        import pandas as pd  # loads for half a second

        columns = ["code", "severity", "about", "sentence", "advice", "numbers"]
        rows = [finding.to_dict() | {"sentence": str(finding)} for finding in self]
        return pd.DataFrame(rows, columns=columns)
