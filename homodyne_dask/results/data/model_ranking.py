"""A comparison of fits to the same data, by angles left out: rows, verdict, text, files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import SelectionError, printable
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.result_tables import plain_values
from homodyne_dask.results.files.csv_tables import rows_csv
from homodyne_dask.results.files.json_files import (
    missing_values,
    read_with_checksum,
    write_with_checksum,
)
from homodyne_dask.results.views.numbers import value_and_error
from homodyne_dask.store.files import path_of, write_atomic
from homodyne_dask.text import abridged, aligned_columns, html_table, wrapped

VERSION = 1
FORMAT = "homodyne_dask comparison"
_HEAD = ["fit", "parameters", "χ²", "χ²/N", "score", "worse by", "ΔCLIC", "ΔAIC (naive)"]
_NOTES = (
    "score: log predictive density of the angles left out, larger is better; ± from its scatter over angles",
    "CLIC allows for correlated pairs; the naive AIC takes them for independent, and asks for too many "
    "parameters",
)


class ComparedFit(NamedTuple):
    """A row of the comparison. s² is `Comparison.noise`; an unknown number is NaN."""

    name: str
    model: str
    parameters: int
    """Of f, fitted."""
    linear: int
    """Contrasts and offsets fitted."""
    chisqr: float
    redchi: float
    misfit: bool
    """Whether the check of the model says that it does not describe the data."""
    score: float
    """Σ -χ²/(2s²) of the independent bins, each at the parameters that the others determine: the log
    predictive density up to a constant that is common to all fits; larger is better."""
    worse_by: float
    """The best score less this one."""
    stderr: float
    """Of that difference, from its scatter over independent bins."""
    penalty: float
    """tr(H⁻¹J)/s²: about the number of parameters that bins share, times the design effect."""
    clic: float
    """χ²/s² + 2·penalty, the composite likelihood information criterion; smaller is better."""
    aic_naive: float
    """χ²/s² + 2·(parameters + linear), the AIC of pairs that were independent; smaller is better."""
    told: bool
    """Whether the data tell it from the best; False for the best itself."""
    best: bool
    """Whether it has the best score of those that describe the data."""
    chosen: bool
    """Whether it is the one to take: the simplest that is not worse by more than the standard error."""


@dataclass(frozen=True)
class Comparison:
    """Fits of several models to the same data. `print(comparison)` is the table and the verdict."""

    fits: tuple[ComparedFit, ...]
    """The best score first."""
    store: str
    """Name of the store."""
    bins: int
    """Independent bins with pairs."""
    noise: float
    """s², in units of σ²: the lowest reduced χ² of the fits, common to all."""

    @property
    def chosen(self) -> str:
        """The name of the fit to take."""
        return next(fit.name for fit in self.fits if fit.chosen)

    @property
    def table(self) -> xarray.Dataset:
        """Over `fit`, its name: the other fields of `ComparedFit`."""
        columns = zip(*self.fits, strict=True)
        by_name = dict(zip(ComparedFit._fields, map(list, columns), strict=True))
        names = by_name.pop("name")
        attrs = {"store": self.store, "bins": self.bins, "noise": self.noise}
        return xarray.Dataset(
            {key: ("fit", values) for key, values in by_name.items()}, {"fit": names}, attrs
        )

    @property
    def sentence(self) -> str:
        """The verdict: which fit the data prefer, or which they do not tell apart."""
        best = next(fit for fit in self.fits if fit.best)
        scored = [fit for fit in self.fits if not fit.best and np.isfinite(fit.score)]
        worse = [fit for fit in scored if fit.told]
        wrong = [fit for fit in scored if not fit.told and fit.misfit and not best.misfit]
        equal = [fit for fit in scored if not fit.told and fit not in wrong]
        parts = [_not_told(best, equal) if equal else f"the data prefer {best.name}"]
        if worse:
            parts[0] += f"{';' if equal else ':'} {_worse(worse, best.misfit)}"
        parts += [f"{fit.name} does not describe the data{_by(fit)}" for fit in wrong]
        parts += [
            f"{fit.name} has no score: some angles alone determine its parameters"
            for fit in self.fits
            if not np.isfinite(fit.score)
        ]
        parts += ["none of them describes the data"] * best.misfit
        return "; ".join(parts)

    def __str__(self) -> str:
        """Return a line for each fit, and the verdict."""
        lines = [self._title, "", *aligned_columns([_HEAD, *self._cells()], left=1), ""]
        return printable(
            "\n".join([*lines, *wrapped("", (self.sentence,)), "", *wrapped("", _NOTES)])
        )

    def __repr__(self) -> str:
        """Return the first lines of the table."""
        return abridged(str(self))

    def _repr_html_(self) -> str:
        """Return the table and the verdict for Jupyter."""
        return html_table(self._title, [_HEAD, *self._cells()], (self.sentence, *_NOTES))

    @property
    def _title(self) -> str:
        return f"{len(self.fits)} fits to {self.store}, by {self.bins} independent bins left out"

    def _cells(self) -> list[list[str]]:
        clic, aic = (
            np.array([getattr(fit, key) for fit in self.fits]) for key in ("clic", "aic_naive")
        )
        clic, aic = clic - np.fmin.reduce(clic), aic - aic.min()
        return [
            [
                fit.name, f"{fit.parameters}+{fit.linear}", f"{fit.chisqr:.6g}", f"{fit.redchi:.4f}",
                _number(fit.score, ".6g"), "best" if fit.best else value_and_error(fit.worse_by, fit.stderr),
                _number(clic[n], ".4g"), _number(aic[n], ".4g"),
            ]
            for n, fit in enumerate(self.fits)
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, as `to_json` writes it; unknown numbers are None."""
        return plain_values(
            {
                "format": FORMAT,
                "format_version": VERSION,
                "store": self.store,
                "bins": self.bins,
                "noise": self.noise,
                "chosen": self.chosen,
                "sentence": self.sentence,
                "fits": [fit._asdict() for fit in self.fits],
            }
        )

    def to_json(self, path: str | Path) -> None:
        """Write the comparison as JSON with a checksum, atomically; `load_comparison` reads it."""
        write_with_checksum(path_of("path", path), self.to_dict())

    def to_csv(self, path: str | Path) -> None:
        """Write a row for each fit; unknown numbers are empty cells."""
        write_atomic(path_of("path", path), rows_csv([fit._asdict() for fit in self.fits]))


def load_comparison(path: str | Path) -> Comparison:
    """Read a comparison written by `to_json`; path: the file. Raises SourceError if it is not such a file.

    >>> fits = [hd.fit("A0123_c2.zarr", name) for name in ("brownian", "power_law")]
    >>> hd.compare(fits).to_json("models.json")
    >>> hd.load_comparison("models.json").chosen
    'power_law'
    """
    where = path_of("path", path)
    read = read_with_checksum(where, FORMAT, VERSION, "give a file that Comparison.to_json wrote")
    with missing_values(where):
        fits = tuple(_fit_of(fit) for fit in read["fits"])
        return Comparison(fits, read["store"], read["bins"], read["noise"])


def _fit_of(read: dict[str, Any]) -> ComparedFit:
    """Return a row from its fields as read from JSON, where an unknown number is None."""
    known: dict[str, Any] = {k: np.nan if value is None else value for k, value in read.items()}
    return ComparedFit(**known)


def _not_told(best: ComparedFit, equal: Sequence[ComparedFit]) -> str:
    """Return which fits the data do not tell from the best, and which of all these to take."""
    others = " or ".join(f"{fit.name} (difference {_difference(fit)})" for fit in equal)
    fewest = min(fit.parameters + fit.linear for fit in (best, *equal))
    simplest = [fit for fit in (best, *equal) if fit.parameters + fit.linear == fewest]
    chosen = next(fit.name for fit in (best, *equal) if fit.chosen)
    if len(simplest) > 1:
        take = f"{chosen}, the better of those with {fewest} parameters"
    else:
        take = f"the one with {'fewer' if len(equal) == 1 else 'the fewest'} parameters, {chosen}"
    return f"the data do not tell {best.name} from {others}: take {take}"


def _worse(fits: Sequence[ComparedFit], none_describes: bool) -> str:
    first, *more = [
        _difference(fit) + " (and does not describe the data)" * (fit.misfit and not none_describes)
        for fit in fits
    ]
    words = [f"{fits[0].name} predicts angles left out worse by {first}"]
    return ", ".join(
        [*words, *(f"{fit.name} by {by}" for fit, by in zip(fits[1:], more, strict=True))]
    )


def _difference(fit: ComparedFit) -> str:
    return value_and_error(fit.worse_by, fit.stderr)


def _by(fit: ComparedFit) -> str:
    """Return by how much a fit that does not describe the data is worse, or better."""
    word = "worse" if fit.worse_by >= 0 else "better"
    return f" ({word} by {value_and_error(abs(fit.worse_by), fit.stderr)})"


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "-"


MIN_INDEPENDENT_BINS = 3
"""Least number of independent bins whose scores have a scatter that means something."""


class Ranking(NamedTuple):
    """The models by their scores, each the sum of χ² of the bins left out; NaN where it is not known."""

    totals: Float[np.ndarray, " model"]
    above: Float[np.ndarray, " model"]
    """Score less the lowest of the models that describe the data."""
    stderr: Float[np.ndarray, " model"]
    """Of that difference."""
    lowest: int
    """The model with the lowest score of those that describe the data, or of all if none does."""
    chosen: int
    """The simplest of these whose score is not above the lowest by more than the standard error."""


def require_independent_bins(groups: int) -> None:
    """Raise SelectionError where independent bins are too few for a comparison."""
    if groups < MIN_INDEPENDENT_BINS:
        raise SelectionError(
            f"models are compared by bins left out, which takes {MIN_INDEPENDENT_BINS} independent ones, and "
            f"the selection has {groups}: choose a model"
        )


def ranked(results: Sequence[FitResult]) -> Ranking | None:
    """Return the order of fits to the same data, the simplest model first; None where no score is known."""
    tables = [fit.left_out for fit in results]
    columns = [None if of is None else of["left_out_chisqr"].values for of in tables]
    unknown = np.full(max(1 if of is None else len(of) for of in columns), np.nan)
    scores = np.array([unknown if of is None else of for of in columns])
    misfit = np.array([fit.misfit for fit in results])
    totals = scores.sum(1)
    known = np.isfinite(totals)
    if not known.any():
        return None
    left = known & ~misfit
    left = left if left.any() else known
    lowest = int(np.argmin(np.where(left, totals, np.inf)))
    above = scores - scores[lowest]
    stderr = np.sqrt(above.shape[1]) * above.std(axis=1, ddof=1)
    chosen = next(n for n in np.flatnonzero(left) if above[n].sum() <= stderr[n])
    return Ranking(totals, above.sum(1), stderr, lowest, int(chosen))
