"""A comparison of fits to the same data, by angles left out: rows, ranking and verdict.

The score of a bin is its χ² at the parameters that the other bins determine, so that a model with parameters
that the data do not need scores worse (leave-one-out cross-validation, Stone 1974). Models that do not
describe the data are left out, unless none does. Of the others the simplest is chosen whose score is not
worse than the best by more than the standard error of that difference over the bins (Breiman et al. 1984).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from homodyne_dask.solver.state import Outcome

VERSION = 1
FORMAT = "homodyne_dask comparison"


class ComparedFit(NamedTuple):
    """A row of the comparison. s² is `Comparison.noise`; an unknown number is NaN."""

    name: str
    model: str
    outcome: str
    """CONVERGED, or the name of another outcome: such a fit has no score."""
    at_bound: str
    """Parameters that ended at a bound: the score is that of the model with these values fixed there."""
    parameters: int
    """Of f, fitted."""
    linear: float
    """Number of contrasts and offsets fitted."""
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
    """Comparison of fits to the same data, of `hd.compare` and `hd.compare_models`.

    `print(comparison)` shows table and verdict.
    """

    fits: tuple[ComparedFit, ...]
    """The best score first."""
    store: str
    """Name of the store."""
    bins: int
    """Independent bins with pairs."""
    noise: float
    """s², in units of σ²: the lowest reduced χ² of the fits, common to all."""
    results: Mapping[str, FitResult] = field(default_factory=dict, compare=False)
    """The fits by name; none in a comparison that was read from a file."""

    def _document(self) -> Document:
        from homodyne_dask.results.views.fits_report import report_of_comparison

        return report_of_comparison(self)

    @property
    def chosen(self) -> str:
        """The name of the recommended fit."""
        return next(fit.name for fit in self.fits if fit.chosen)

    @property
    def adequate(self) -> bool:
        """Whether the chosen model describes the data; otherwise none of those compared does."""
        return not any(fit.misfit for fit in self.fits if fit.chosen)

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
        parts = [_undecided(best, equal) if equal else f"the data prefer {best.name}"]
        phrases = []
        for n, fit in enumerate(worse):
            misfit = " (and does not describe the data)" * (fit.misfit and not best.misfit)
            verb = (
                f"{fit.name} by" if n else f"predicting the left-out angles, {fit.name} is worse by"
            )
            phrases.append(f"{verb} {_difference(fit)}{misfit}")
        parts += [", ".join(phrases)] if phrases else []
        for fit in wrong:
            by = value_and_error(abs(fit.worse_by), fit.stderr)
            order = "worse" if fit.worse_by >= 0 else "better"
            parts.append(f"{fit.name} does not describe the data ({order} by {by})")
        for fit in self.fits:
            if not np.isfinite(fit.score):
                why = Outcome[fit.outcome].value
                if fit.outcome == Outcome.CONVERGED.name:
                    why = "single angles determine its parameters, or it has none"
                parts.append(f"{fit.name} has no score: {why}")
            if fit.chosen and fit.at_bound:
                parts.append(f"{fit.name} is scored with {fit.at_bound} fixed at a bound")
        parts += ["none of the models describes the data"] * best.misfit
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, as `to_json` writes it; unknown numbers are None."""
        values = vars(self) | {"chosen": self.chosen, "sentence": self.sentence}
        del values["results"]
        return plain_values({"format": FORMAT, "format_version": VERSION} | values)

    def to_json(self, path: str | Path) -> None:
        """Write the comparison as JSON with a checksum, atomically; `load_comparison` reads it."""
        from homodyne_dask.results.files.json_files import write_with_checksum

        write_with_checksum(self.to_dict(), path)


def _undecided(best: ComparedFit, equal: Sequence[ComparedFit]) -> str:
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


def _ranked(results: Sequence[FitResult]) -> Ranking:
    """Return the order of fits to the same data, the simplest first.

    Raises OptionError where no fit has a score, SelectionError where independent bins are too few.
    """
    tables = [fit.diagnosis.left_out for fit in results]
    columns = [None if of is None else of["left_out_chisqr"].values for of in tables]
    unknown = np.full(max(1 if of is None else len(of) for of in columns), np.nan)
    scores = np.array([unknown if of is None else of for of in columns])
    misfit = np.array([fit.misfit for fit in results])
    totals = scores.sum(1)
    known = np.isfinite(totals)
    if not known.any():
        raise OptionError(
            "none of the fits has a score for left-out angles: they did not converge, or single angles "
            "determine their parameters; fix such parameters, or see the report of one fit"
        )
    require_independent_bins(scores.shape[1])
    left = known & ~misfit
    left = left if left.any() else known
    lowest = int(np.argmin(np.where(left, totals, np.inf)))
    above = scores - scores[lowest]
    stderr = np.sqrt(above.shape[1]) * above.std(axis=1, ddof=1)
    chosen = next(n for n in np.flatnonzero(left) if above[n].sum() <= stderr[n])
    return Ranking(totals, above.sum(1), stderr, lowest, int(chosen))


_SAME_INPUTS = {
    "bins": "labels",
    "frames": "frames",
    "excluded frames": "frames_excluded",
    "excluded chunks": "chunks_left_out",
    "independent bins": "independent_bins",
}


def _in_common(fit: FitResult) -> dict[str, Any]:
    """Return what fits that are compared have in common, by its name."""
    inputs = fit.provenance.inputs
    return {
        "data": f"{inputs['store']} (SHA-256 {inputs['store_sha256'][:12]})",
        **{name: inputs[key] for name, key in _SAME_INPUTS.items()},
        "numbers of pairs": fit.scaling["ndata"].values.tolist(),
        **{name: fit.config[name] for name in ("min_lag", "precision")},
        **{f"prior of the {name}": _prior_of(fit.config[name]) for name in ("contrast", "offset")},
    }


def _prior_of(given: Any) -> Any:
    """Return the prior of contrast or offset, which counts as a measurement."""
    return given.get("prior") if isinstance(given, dict) else None


def compare_fits(fits: Mapping[str, FitResult]) -> Comparison:
    """Return the comparison of fits by name; raises OptionError and SelectionError as `hd.compare`."""
    first, *others = fits
    for name, fit in fits.items():
        if (loss := fit.config["loss"]) != "linear":
            raise OptionError(
                f"{name} was fitted with the loss {loss}, which applies its own weights, but models are "
                f"compared by least squares: fit again with the loss linear"
            )
    for name in others:
        _check_same(first, fits[first], name, fits[name])
    names = sorted(fits, key=lambda name: (*_size_and_score(fits[name]), name))
    order = _ranked([fits[name] for name in names])
    scored = [fits[name].redchi for name, of in zip(names, order.totals, strict=True) if of == of]
    noise = min(scored) or 1.0  # 0 where a model interpolates the data
    # One standard error is enough against a fit with fewer parameters: where that is the truth, and the
    # other holds it as a special case, this happens in 1 to 7 of 100 cases. Two are asked for against others.
    size = np.array([_size_and_score(fits[name])[0] for name in names])
    told = order.above > np.where(size < size[order.lowest], 1.0, 2.0) * order.stderr
    rows = [_row(name, fits[name], order, n, noise, bool(told[n])) for n, name in enumerate(names)]
    rows.sort(key=lambda row: (not row.best, -row.score if np.isfinite(row.score) else np.inf))
    simplest = fits[names[0]]
    assert simplest.diagnosis.left_out is not None  # fits without a score are the last ones
    bins = simplest.diagnosis.left_out.sizes["cluster"]
    return Comparison(tuple(rows), simplest.provenance.inputs["store"], bins, noise, fits)


def _row(
    name: str, fit: FitResult, order: Ranking, n: int, noise: float, told: bool
) -> ComparedFit:
    table, kept = fit.parameters, fit.diagnosis.left_out
    parameters = int((~table["fixed"].values).sum())
    linear = penalty = of_data = np.nan
    if kept is not None:
        linear, penalty = float(kept["linear"]), float(kept["penalty"]) / noise
        of_data = (
            float(kept["chisqr"].sum()) / noise
        )  # a prior of a parameter is no datum of all fits
    return ComparedFit(
        name=name,
        model=fit.config["model"],
        outcome=fit.outcome.name,
        at_bound=", ".join(map(str, table["param"].values[table["at_bound"].values])),
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


def _size_and_score(fit: FitResult) -> tuple[float, float]:
    """Return how many numbers were fitted, and χ² of the bins left out; infinite where there is no score."""
    of = fit.diagnosis.left_out
    if of is None:
        return np.inf, np.inf
    score = np.nan_to_num(of["left_out_chisqr"].values.sum(), nan=np.inf)
    return float((~fit.parameters["fixed"].values).sum() + of["linear"]), float(score)


def _check_same(first: str, one: FitResult, second: str, two: FitResult) -> None:
    """Raise OptionError for fits whose χ² are of other data, weights or parts of a measurement."""
    others = _in_common(two)
    for what, value in _in_common(one).items():
        if value != others[what]:
            raise OptionError(
                f"{first} and {second} were fitted with different {what} ({shown(value)} "
                f"and {shown(others[what])}): fit both in the same way"
            )
    modes = one.config["scaling"], two.config["scaling"]
    if (modes[0] == "individual") != (modes[1] == "individual"):
        raise OptionError(
            f"{first} and {second} have the scalings {modes[0]} and {modes[1]}: contrast and offset of a "
            f"left-out angle are fitted to that angle with individual scaling, but predicted with the other; "
            f"fit both in the same way"
        )
