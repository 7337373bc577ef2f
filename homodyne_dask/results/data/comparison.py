"""A comparison of fits to the same data, by bins left out or by CLIC: rows, ranking and verdict.

The score of a bin is its χ² at the parameters that the other bins determine, so that a model with parameters
that the data do not need scores worse (leave-one-out cross-validation, Stone 1974). Models that do not
describe the data are left out, unless none does. Of the others the simplest is chosen whose score is not
worse than the best by more than the standard error of that difference over the bins (Breiman et al. 1984).

One or two independent bins cannot predict each other. Their score is -CLIC/2 with the variance that speckle
noise theory gives parameters: χ² of parameters that the data do not need falls by λ z², z standard normal,
where λ is their part of the penalty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.solver.state import Outcome
from homodyne_dask.text import joined_with_and

ROUNDING = 1e-11
"""Relative difference of χ², as of models of which one holds the other, up to which they are equal."""
NO_EVIDENCE = 0.02
"""The same in units of s²: fits end up to 1e-4 standard errors from the optimum."""


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
    checked: bool
    """Whether it was checked."""
    score: float
    """Σ -χ²/(2s²) of the independent bins, each at the parameters that the others determine: the log
    predictive density up to a constant that is common to all fits; larger is better. Of fewer than 3
    independent bins -clic/2."""
    worse_by: float
    """The best score less this one."""
    stderr: float
    """Of that difference, from its scatter over independent bins, or from the difference of penalties."""
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
class ComparisonValues(HandedOut):
    """Fits to the same data compared, without the methods that show and write the comparison."""

    fits: tuple[ComparedFit, ...]
    """The best score first."""
    store: str
    """Name of the store."""
    bins: int
    """Independent bins with pairs."""
    noise: float
    """s², in units of σ²: the lowest reduced χ² of the fits, common to all."""
    results: Mapping[str, FitValues] = field(default_factory=dict, compare=False)
    """The fits by name; none in a comparison that was read from a file."""

    @property
    def by_left_out(self) -> bool:
        """Whether bins left out decide, or CLIC, where they are too few."""
        return self.bins >= MIN_INDEPENDENT_BINS

    @property
    def chosen(self) -> str:
        """The name of the recommended fit."""
        return next(fit.name for fit in self.fits if fit.chosen)

    @property
    def adequate(self) -> bool:
        """Whether the chosen model describes the data, as a check found; otherwise none compared does."""
        return all(fit.checked and not fit.misfit for fit in self.fits if fit.chosen)

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
        others = [fit for fit in self.fits if not fit.best]
        equal = [
            fit
            for fit in others
            if np.isfinite(fit.score) and not fit.told and (best.misfit or not fit.misfit)
        ]
        parts = [_undecided(best, equal) if equal else f"the data prefer {best.name}"]
        for fit in others:
            if not np.isfinite(fit.score):
                why = Outcome[fit.outcome].value
                if fit.outcome == Outcome.CONVERGED.name:
                    why = _NO_SCORE[self.by_left_out]
                parts.append(f"{fit.name} has no score: {why}")
            elif fit not in equal:
                order = "worse" if fit.worse_by >= 0 else "better"
                by = value_and_error(abs(fit.worse_by), fit.stderr)
                wrong = " (and does not describe the data)" * (fit.misfit and not best.misfit)
                verb = "predicts the left-out bins" if self.by_left_out else "scores"
                parts.append(f"{fit.name} {verb} {order} by {by}{wrong}")
        (chosen,) = (fit for fit in self.fits if fit.chosen)
        if chosen.at_bound:
            parts.append(f"{chosen.name} is scored with {chosen.at_bound} fixed at a bound")
        parts += ["none of the models describes the data"] * best.misfit
        if any("frozen" in fit.model for fit in self.fits):
            parts.append("a frozen part is told from an offset only if c2 without correlation is 1")
        names = joined_with_and([fit.name for fit in self.fits if not fit.checked])
        parts += [f"whether {names} describes the data was not checked"] * bool(names)
        return "; ".join(parts)


def _undecided(best: ComparedFit, equal: Sequence[ComparedFit]) -> str:
    others = " or ".join(
        f"{fit.name} (difference {value_and_error(fit.worse_by, fit.stderr)})" for fit in equal
    )
    fewest = min(fit.parameters + fit.linear for fit in (best, *equal))
    simplest = [fit for fit in (best, *equal) if fit.parameters + fit.linear == fewest]
    chosen = next(fit.name for fit in (best, *equal) if fit.chosen)
    if len(simplest) > 1:
        take = f"{chosen}, the better of those with {fewest} parameters"
    else:
        take = f"the one with {'fewer' if len(equal) == 1 else 'the fewest'} parameters, {chosen}"
    return f"the data do not distinguish {best.name} from {others}: use {take}"


MIN_INDEPENDENT_BINS = 3
"""Least number of independent bins whose scores have a scatter that means something."""
_NO_SCORE = {
    True: "single bins determine its parameters, or it has none",
    False: "the variance of its parameters is unknown, or it has none",
}


def _penalty(fit: FitValues) -> float:
    """Return tr(H⁻¹J) in units of χ² from the covariances of the fit; NaN where they are unknown.

    Of a fit that does not describe the data, which has no covariance, and of one of few curves of a table,
    the least: that of independent data.
    """
    wide, naive = fit.errors.covariance, fit.errors.covariance_naive
    free = ~(fit.parameters["fixed"].values | fit.parameters["at_bound"].values)
    least = (
        free.sum() * fit.redchi
        if fit.misfit or "points-correlated" in fit.findings.codes
        else np.nan
    )
    if wide is None or naive is None or not np.isfinite(wide.values[free][:, free]).all():
        return float(least)
    return float(np.trace(np.linalg.solve(naive.values[free][:, free], wide.values[free][:, free])))


class _Scored(NamedTuple):
    """What counts for and against a fit."""

    name: str
    fit: FitValues
    free: int
    """Fitted parameters of f."""
    linear: float
    """Fitted contrasts and offsets; infinite where no bin could be left out."""
    penalty: float
    chisqr: Float[np.ndarray, " cluster"]
    """χ² of each bin left out, or its share of CLIC; NaN if unknown."""

    @property
    def size(self) -> float:
        """Number of fitted parameters of all kinds."""
        return self.free + self.linear

    @property
    def order(self) -> tuple[float, float, str]:
        """Puts the simplest fit first, those without a score last."""
        return self.size, float(np.nan_to_num(self.chisqr.sum(), nan=np.inf)), self.name


def _scored(name: str, fit: FitValues, bins: int) -> _Scored:
    free, table = int((~fit.parameters["fixed"].values).sum()), fit.diagnosis.left_out
    if table is None:
        return _Scored(name, fit, free, np.inf, _penalty(fit), np.full(bins, np.nan))
    linear, chisqr = float(table["linear"]), table["left_out_chisqr"].values
    if bins >= MIN_INDEPENDENT_BINS:
        return _Scored(name, fit, free, linear, float(table["penalty"]), chisqr)
    penalty = _penalty(fit)
    return _Scored(name, fit, free, linear, penalty, table["chisqr"].values + 2 * penalty / bins)


def _row(scored: _Scored, noise: float, **judged: Any) -> ComparedFit:
    fit, table = scored.fit, scored.fit.diagnosis.left_out
    # a prior of a parameter is no datum of all fits
    chisqr = np.nan if table is None else float(table["chisqr"].sum()) / noise
    at_bound = fit.parameters["param"].values[fit.parameters["at_bound"].values]
    return ComparedFit(
        name=scored.name,
        model=fit.config["model"],
        outcome=fit.outcome.name,
        at_bound=", ".join(map(str, at_bound)),
        parameters=scored.free,
        linear=np.nan if table is None else scored.linear,
        chisqr=fit.chisqr,
        redchi=fit.redchi,
        misfit=fit.misfit,
        penalty=scored.penalty / noise,
        clic=chisqr + 2 * (scored.penalty / noise),
        aic_naive=chisqr + 2 * scored.size,
        **judged,
    )


def compared_fits(fits: Mapping[str, FitValues]) -> dict[str, Any]:
    """Return the fields of the comparison of fits by name; raises OptionError as `hd.compare`."""
    _require_comparable(fits)
    tables = [fit.diagnosis.left_out for fit in fits.values()]
    bins = max(1 if table is None else table.sizes["cluster"] for table in tables)
    by_left_out = bins >= MIN_INDEPENDENT_BINS
    each = sorted((_scored(*fit, bins) for fit in fits.items()), key=lambda scored: scored.order)
    scores, sizes, penalties = (
        np.array([getattr(scored, key) for scored in each]) for key in ("chisqr", "size", "penalty")
    )
    totals, misfit = scores.sum(1), np.array([scored.fit.misfit for scored in each])
    known = np.isfinite(totals)
    if not known.any():
        raise OptionError(
            f"none of the fits has a score: they did not converge, or {_NO_SCORE[by_left_out]}: fix such "
            f"parameters, or see the report of one fit"
        )
    unsure = {"not-checked", "points-correlated"}
    checked = np.array([unsure.isdisjoint(scored.fit.findings.codes) for scored in each])
    left = next(some for some in (known & ~misfit & checked, known & ~misfit, known) if some.any())
    least = np.min(totals[left])
    # 0 where a model interpolates the data
    noise = min(each[n].fit.redchi for n in np.flatnonzero(known)) or 1.0
    equal = NO_EVIDENCE * noise
    lowest = int(np.flatnonzero(left & (totals <= least + max(ROUNDING * abs(least), equal)))[0])
    differences = scores - scores[lowest]
    differences[np.abs(differences) <= np.maximum(ROUNDING * np.abs(scores[lowest]), equal)] = 0.0
    above = differences.sum(1)
    if by_left_out:
        stderr = np.sqrt(bins) * differences.std(axis=1, ddof=1)
    else:
        apart, both = np.abs(penalties - penalties[lowest]), penalties + penalties[lowest]
        stderr = np.sqrt(2.0) * np.where(sizes != sizes[lowest], apart, both)
        stderr[lowest] = 0.0
    # One standard error is enough against a fit with fewer parameters: where that is the truth, and the
    # other holds it as a special case, this happens in 1 to 7 of 100 cases. Two are asked for against others.
    # By CLIC it would happen for λ z² above 3.4 λ, which is 6 of 100 for each richer model; 4.8 λ is 3.
    enough = 1.0 if by_left_out else 2.0
    told = above > np.where(sizes < sizes[lowest], enough, 2.0) * stderr
    chosen = next(n for n in np.flatnonzero(left) if above[n] <= enough * stderr[n])
    rows = [
        _row(
            scored,
            noise,
            checked=bool(checked[n]),
            score=float(-0.5 * totals[n] / noise),
            worse_by=float(0.5 * above[n] / noise),
            stderr=float(0.5 * stderr[n] / noise),
            told=bool(told[n]),
            best=n == lowest,
            chosen=bool(n == chosen),
        )
        for n, scored in enumerate(each)
    ]
    rows.sort(key=lambda row: (not row.best, -row.score if np.isfinite(row.score) else np.inf))
    store = each[0].fit.provenance.inputs["store"]
    return {"fits": tuple(rows), "store": store, "bins": bins, "noise": noise, "results": fits}


_SAME_INPUTS = {
    "bins": "labels",
    "frames": "frames",
    "excluded frames": "frames_excluded",
    "excluded chunks": "chunks_left_out",
    "independent bins": "independent_bins",
}


def _in_common(fit: FitValues) -> dict[str, Any]:
    inputs, config = fit.provenance.inputs, fit.config
    priors = {  # of contrast or offset, which count as measurements
        name: given.get("prior") if isinstance(given := config[name], dict) else None
        for name in ("contrast", "offset")
    }
    return {
        "data": f"{inputs['store']} (SHA-256 {inputs['store_sha256'][:12]})",
        **{name: inputs[key] for name, key in _SAME_INPUTS.items()},
        "numbers of pairs": fit.scaling["ndata"].values.tolist(),
        **{name: config[name] for name in ("min_lag", "precision")},
        **{f"prior of the {name}": prior for name, prior in priors.items()},
    }


def _require_comparable(fits: Mapping[str, FitValues]) -> None:
    """Raise OptionError for fits whose χ² are of other data, weights or parts of a measurement."""
    for name, fit in fits.items():
        if (loss := fit.config["loss"]) != "linear":
            raise OptionError(
                f"{name} was fitted with the loss {loss}, which applies its own weights, but models are "
                f"compared by least squares: fit again with the loss linear"
            )
    (first, one), *others = fits.items()
    same, mode = _in_common(one), one.config["scaling"]
    for name, fit in others:
        for what, value in _in_common(fit).items():
            if value != same[what]:
                raise OptionError(
                    f"{first} and {name} were fitted with different {what} ({shown(same[what])} "
                    f"and {shown(value)}): fit both in the same way"
                )
        other = fit.config["scaling"]
        if (mode == "individual") != (other == "individual"):
            raise OptionError(
                f"{first} and {name} have the scalings {mode} and {other}: contrast and offset of a "
                f"left-out bin are fitted to that bin with individual scaling, but predicted with the "
                f"other; fit both in the same way"
            )
