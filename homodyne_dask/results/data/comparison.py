"""A comparison of fits to the same data, by angles left out: rows, ranking and verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.document.blocks import Document
from homodyne_dask.document.plain_text import Reportable
from homodyne_dask.errors import OptionError, SelectionError, shown
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.results.data.plain_data import plain_values

VERSION = 1
FORMAT = "homodyne_dask comparison"


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


@dataclass(frozen=True, repr=False)
class Comparison(Reportable):
    """Comparison of fits of several models to the same data; `print(comparison)` shows table and verdict."""

    fits: tuple[ComparedFit, ...]
    """The best score first."""
    store: str
    """Name of the store."""
    bins: int
    """Independent bins with pairs."""
    noise: float
    """s², in units of σ²: the lowest reduced χ² of the fits, common to all."""

    def _document(self) -> Document:
        from homodyne_dask.results.views.fits_report import report_of_comparison

        return report_of_comparison(self)

    @property
    def chosen(self) -> str:
        """The name of the recommended fit."""
        return next(fit.name for fit in self.fits if fit.chosen)

    @property
    def table(self) -> xarray.Dataset:
        """Dataset over `fit` (its name) with the other fields of `ComparedFit`."""
        keys = ComparedFit._fields
        columns = {key: ("fit", [getattr(fit, key) for fit in self.fits]) for key in keys}
        _, names = columns.pop("name")
        attrs = {"store": self.store, "bins": self.bins, "noise": self.noise}
        return xarray.Dataset(columns, {"fit": names}, attrs)

    @property
    def sentence(self) -> str:
        """The verdict: which fit the data prefer, or which fits they do not distinguish."""
        best = next(fit for fit in self.fits if fit.best)
        scored = [fit for fit in self.fits if not fit.best and np.isfinite(fit.score)]
        worse = [fit for fit in scored if fit.told]
        wrong = [fit for fit in scored if not fit.told and fit.misfit and not best.misfit]
        equal = [fit for fit in scored if not fit.told and fit not in wrong]
        parts = [_not_told(best, equal) if equal else f"the data prefer {best.name}"]
        if worse:
            parts[0] += f"{';' if equal else ':'} {_worse(worse, best.misfit)}"
        parts += [
            f"{fit.name} does not describe the data ({'worse' if fit.worse_by >= 0 else 'better'} by "
            f"{value_and_error(abs(fit.worse_by), fit.stderr)})"
            for fit in wrong
        ]
        parts += [
            f"{fit.name} has no score: it has parameters that a single angle determines"
            for fit in self.fits
            if not np.isfinite(fit.score)
        ]
        parts += ["none of the models describes the data"] * best.misfit
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, as `to_json` writes it; unknown numbers are None."""
        head = {"format": FORMAT, "format_version": VERSION}
        return plain_values(head | vars(self) | {"chosen": self.chosen, "sentence": self.sentence})

    def to_json(self, path: str | Path) -> None:
        """Write the comparison as JSON with a checksum, atomically; `load_comparison` reads it."""
        from homodyne_dask.results.files.json_files import write_with_checksum

        write_with_checksum(self.to_dict(), path)


def _not_told(best: ComparedFit, equal: Sequence[ComparedFit]) -> str:
    """Return which fits the data do not distinguish from the best, and which of all these to take."""
    others = " or ".join(f"{fit.name} (difference {_difference(fit)})" for fit in equal)
    fewest = min(fit.parameters + fit.linear for fit in (best, *equal))
    simplest = [fit for fit in (best, *equal) if fit.parameters + fit.linear == fewest]
    chosen = next(fit.name for fit in (best, *equal) if fit.chosen)
    if len(simplest) > 1:
        take = f"{chosen}, the better of those with {fewest} parameters"
    else:
        take = f"the one with {'fewer' if len(equal) == 1 else 'the fewest'} parameters, {chosen}"
    return f"the data do not distinguish {best.name} from {others}: use {take}"


def _worse(fits: Sequence[ComparedFit], none_describes: bool) -> str:
    first, *more = [
        _difference(fit) + " (and does not describe the data)" * (fit.misfit and not none_describes)
        for fit in fits
    ]
    words = [f"{fits[0].name} predicts the left-out angles less well, by {first}"]
    return ", ".join(
        [*words, *(f"{fit.name} by {by}" for fit, by in zip(fits[1:], more, strict=True))]
    )


def _difference(fit: ComparedFit) -> str:
    return value_and_error(fit.worse_by, fit.stderr)


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
            f"a comparison of models by left-out bins needs {MIN_INDEPENDENT_BINS} independent bins, but the "
            f"selection has {groups}: choose a model"
        )


def ranked(results: Sequence[FitResult]) -> Ranking | None:
    """Return the order of fits to the same data, the simplest model first; None where no score is known."""
    tables = [fit.diagnosis.left_out for fit in results]
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


_SAME: dict[str, Callable[[FitResult], Any]] = {
    "data": lambda fit: (
        f"{fit.provenance.inputs['store']} (SHA-256 {fit.provenance.inputs['store_sha256'][:12]})"
    ),
    "bins": lambda fit: fit.provenance.inputs["labels"],
    "frames": lambda fit: fit.provenance.inputs["frames"],
    "excluded frames": lambda fit: fit.provenance.inputs.get("frames_excluded") or [],
    "excluded chunks": lambda fit: fit.provenance.inputs["chunks_left_out"],
    "min_lag": lambda fit: fit.config["min_lag"],
    "numbers of pairs": lambda fit: fit.scaling["ndata"].values.tolist(),
    "independent bins": lambda fit: len(_left_out_chisqr(fit)),
    "precision": lambda fit: fit.config["precision"],
    "contrast_prior": lambda fit: fit.config["contrast_prior"],
    "offset_prior": lambda fit: fit.config["offset_prior"],
}
"""What fits that are compared have in common, by its name."""


def compare_fits(fits: Mapping[str, FitResult]) -> Comparison:
    """Return the comparison of fits by name; raises OptionError and SelectionError as `hd.compare`."""
    for name, fit in fits.items():
        _check_score(name, fit)
    first, *others = fits
    for name in others:
        _check_same(first, fits[first], name, fits[name])
    bins = len(_left_out_chisqr(fits[first]))
    require_independent_bins(bins)
    totals = {name: _left_out_chisqr(fit).sum() for name, fit in fits.items()}
    names = sorted(
        fits,
        key=lambda name: (sum(_size(fits[name])), np.nan_to_num(totals[name], nan=np.inf), name),
    )
    order = ranked([fits[name] for name in names])
    if order is None:
        raise OptionError(
            f"none of the fits ({', '.join(names)}) has a score for left-out angles, because each has "
            f"parameters that a single angle determines: fix such parameters, or fit models without them"
        )
    noise = min(fit.redchi for fit in fits.values()) or 1.0  # 0 where a model interpolates the data
    # One standard error is enough against a fit with fewer parameters: where that is the truth, and the
    # other holds it as a special case, this happens in 1 to 7 of 100 cases. Two are asked for against others.
    size = np.array([sum(_size(fits[name])) for name in names])
    told = order.above > np.where(size < size[order.lowest], 1.0, 2.0) * order.stderr
    rows = [_row(name, fits[name], order, n, noise, bool(told[n])) for n, name in enumerate(names)]
    rows.sort(key=lambda row: (not row.best, -row.score if np.isfinite(row.score) else np.inf))
    return Comparison(tuple(rows), fits[first].provenance.inputs["store"], bins, noise)


def _row(
    name: str, fit: FitResult, order: Ranking, n: int, noise: float, told: bool
) -> ComparedFit:
    (parameters, linear), kept = _size(fit), fit.diagnosis.left_out
    assert kept is not None
    penalty = float(kept["penalty"]) / noise
    of_data = float(kept["chisqr"].sum()) / noise  # a prior of a parameter is no datum of all fits
    return ComparedFit(
        name=name,
        model=fit.config["model"],
        parameters=parameters,
        linear=linear,
        chisqr=fit.chisqr,
        redchi=fit.redchi,
        misfit=fit.misfit,
        score=float(-0.5 * order.totals[n] / noise),
        worse_by=float(0.5 * order.above[n] / noise),
        stderr=float(0.5 * order.stderr[n] / noise),
        penalty=penalty,
        clic=of_data + 2 * penalty,
        aic_naive=of_data + 2 * (parameters + linear),
        told=told,
        best=n == order.lowest,
        chosen=n == order.chosen,
    )


def _size(fit: FitResult) -> tuple[int, int]:
    """Return the numbers of parameters of f and of linear ones that were fitted."""
    assert fit.diagnosis.left_out is not None
    return int((~fit.parameters["fixed"].values).sum()), int(fit.diagnosis.left_out["linear"])


def _left_out_chisqr(fit: FitResult) -> np.ndarray:
    assert fit.diagnosis.left_out is not None
    return fit.diagnosis.left_out["left_out_chisqr"].values


def _check_score(name: str, fit: FitResult) -> None:
    """Raise OptionError for a fit that has no scores of bins left out."""
    if (loss := fit.config.get("loss", "linear")) != "linear":
        raise OptionError(
            f"{name} was fitted with the loss {loss}, which applies its own weights, but models are compared "
            f"by least squares: fit again with the loss linear"
        )
    if not fit.converged:
        raise OptionError(
            f"{name} is not at an optimum ({fit.outcome.value}): leave it out, or fit it again"
        )
    if fit.diagnosis.left_out is None:
        raise OptionError(
            f"{name} has no parameter that was fitted inside its bounds, so it cannot predict "
            f"left-out angles: leave it out, or widen the bounds"
        )


def _check_same(first: str, one: FitResult, second: str, two: FitResult) -> None:
    """Raise OptionError for fits whose χ² are of other data, weights or parts of a measurement."""
    for what, of in _SAME.items():
        values = of(one), of(two)
        if values[0] != values[1]:
            raise OptionError(
                f"{first} and {second} were fitted with different {what} ({shown(values[0])} "
                f"and {shown(values[1])}): fit both in the same way"
            )
    modes = one.config["scaling"], two.config["scaling"]
    if (modes[0] == "individual") != (modes[1] == "individual"):
        raise OptionError(
            f"{first} and {second} have the scalings {modes[0]} and {modes[1]}: contrast and offset of a "
            f"left-out angle are fitted to that angle with individual scaling, but predicted with the other; "
            f"fit both in the same way"
        )
