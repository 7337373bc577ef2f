"""What a fit found out about itself, as data: a code, what it is about, numbers, and what to type.

`finding_catalogue` has the sentence of each code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from homodyne_dask.errors import SourceError
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.finding_catalogue import CATALOGUE, Severity, sentence_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Finding(HandedOut):
    """One thing to know about a fit; `str(finding)` is its sentence."""

    code: str
    """A key of `CATALOGUE`, which does not change with the words: at-bound, model-misfit, ..."""
    about: tuple[str, ...] = ()
    """Names of parameters, labels of bins, rates; none for what is about the whole fit."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Plain values by the names that the template of the code uses."""
    advice: str = ""
    """The option or command to type: --bounds D0=1:1e+14; '' for none."""

    @property
    def severity(self) -> Severity:
        """How much it weighs; of severity error is what the verdict says."""
        return CATALOGUE[self.code].severity

    @property
    def sentence(self) -> str:
        """The finding in words."""
        return sentence_of(self.code, self.about, self.numbers, self.advice)

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values, with its severity."""
        about = {"about": list(self.about), "numbers": self.numbers, "advice": self.advice}
        return {"code": self.code, "severity": self.severity.value} | about


def finding(code: str, about: Iterable[object] = (), advice: str = "", **numbers: Any) -> Finding:
    """Return a finding of plain values, as JSON takes them: numbers that are not finite are None."""
    from homodyne_dask.results.data.dataclass_json import plain_values  # loads xarray

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
        """The codes of all."""
        return tuple(one.code for one in self)

    def of(self, *codes: str) -> "Findings":
        """Return those with one of the codes."""
        return Findings(one for one in self if one.code in codes)

    def at_least(self, severity: Severity | str) -> "Findings":
        """Return those of this severity or a higher one: info, note, warning or error."""
        order = list(Severity)
        least = order.index(Severity(severity))
        return Findings(one for one in self if order.index(one.severity) >= least)

    def to_dataframe(self) -> "DataFrame":
        """Return a pandas DataFrame, one row each: code, severity, about, sentence, advice, numbers."""
        import pandas as pd  # loads for half a second

        columns = ["code", "severity", "about", "sentence", "advice", "numbers"]
        rows = [one.to_dict() | {"sentence": str(one)} for one in self]
        return pd.DataFrame(rows, columns=columns)
