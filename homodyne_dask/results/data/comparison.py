"""A comparison of fits to the same data, by bins left out or by CLIC: rows, ranking and verdict.

The score of a bin is its χ² at the parameters that the other bins determine, so that a model with parameters
that the data do not need scores worse (leave-one-out cross-validation, Stone 1974). Of models that describe
the data, if any does, the simplest is chosen whose score is not worse than the best by more than the standard
error of that difference over the bins (Breiman et al. 1984).

One or two independent bins cannot predict each other, and the scatter of fewer than eight says little. Where
speckle noise theory gives the variance of parameters, their score is -CLIC/2: χ² of parameters that the data
do not need falls by λ t², t of Student, where λ is their part of the penalty. That is a test of each fit
against each richer one, at a level that the richer ones share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float
from scipy.special import stdtrit

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.solver.cluster_robust import MIN_CLUSTERS
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.text import joined_with_and

_MANY = 1e9
"""Degrees of freedom of noise that is known."""
ROUNDING = 1e-11
"""Relative difference of χ², as of models of which one holds the other, up to which they are equal."""
NO_EVIDENCE = 0.02
"""The same in units of s²: fits end up to 1e-4 standard errors from the optimum."""


class ComparedFit(NamedTuple):
    """A row of the comparison. s² is `Comparison.noise`; an unknown number is NaN."""

    name: str
    model: str
    outcome: str
    """A fit that has not converged has no score."""
    at_bound: str
    """Parameters that ended at a bound: the score is that of the model with these fixed there."""
    parameters: int
    linear: float
    """Fitted contrasts and offsets; `parameters` are those of f."""
    chisqr: float
    redchi: float
    misfit: bool
    checked: bool
    """Whether a check could say that the model does not describe the data, a `misfit`."""
    score: float
    """Σ -χ²/(2s²) of the independent bins, each at the parameters that the others determine, the log
    predictive density up to a common constant; by CLIC -clic/2."""
    worse_by: float
    """The best score less this one; its `stderr` from the scatter over bins, or from penalties."""
    stderr: float
    penalty: float
    """tr(H⁻¹J)/s²: about the number of parameters that bins share, times the design effect."""
    clic: float
    """χ²/s² + 2·penalty, the composite likelihood information criterion; smaller is better."""
    aic_naive: float
    """χ²/s² + 2·(parameters + linear), the AIC of pairs that were independent; smaller is better."""
    told: bool
    """Whether the data distinguish it from the best; False for the best itself."""
    best: bool
    """Whether it has the best score of those that describe the data."""
    chosen: bool
    """The simplest that is not worse by more than the standard error."""


@dataclass(frozen=True, repr=False)
class ComparisonValues(HandedOut):
    """Fits to the same data compared, without the methods that show and write the comparison."""

    fits: tuple[ComparedFit, ...]
    """The best score first."""
    store: str
    bins: int
    """Independent bins with pairs."""
    noise: float
    """s², in units of σ²: the lowest reduced χ² of the fits, common to all."""
    by_left_out: bool
    """Whether bins left out decide, or CLIC, where they are too few."""
    results: Mapping[str, FitValues] = field(default_factory=dict, compare=False)
    """None in a comparison that was read from a file."""
    not_compared: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Built-in models that a choice among all left out, by name, and why."""

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
        worse = [fit for fit in self.fits if not fit.best]
        scored = [fit for fit in worse if np.isfinite(fit.score) and not fit.told]
        # a model that does not describe the data is no alternative to one that does
        equal = [fit for fit in scored if best.misfit or not fit.misfit]
        clauses = [_undecided(best, equal) if equal else f"the data prefer {best.name}"]
        clauses += [self._against(best, fit) for fit in worse if fit not in equal]
        return "; ".join([*clauses, *self._reservations(best)])

    @property
    def sentence_of_not_compared(self) -> str:
        """Which built-in models were left out of the choice, and why; '' of a comparison of given models."""
        names = dict[str, list[str]]()
        for name, reason in self.not_compared.items():
            names.setdefault(reason, []).append(name)
        reasons = [f"{joined_with_and(models)} ({reason})" for reason, models in names.items()]
        return f"not compared: {'; '.join(reasons)}" if reasons else ""

    def _against(self, best: ComparedFit, fit: ComparedFit) -> str:
        if not np.isfinite(fit.score):
            outcome = Outcome[fit.outcome]
            ended = outcome.value if outcome is not Outcome.CONVERGED else None
            return f"{fit.name} has no score: {ended or _NO_SCORE[self.by_left_out]}"
        verb = "predicts the left-out bins" if self.by_left_out else "scores"
        order = "worse" if fit.worse_by >= 0 else "better"
        misfit = " (and does not describe the data)" * (fit.misfit and not best.misfit)
        difference = value_and_error(abs(fit.worse_by), fit.stderr)
        return f"{fit.name} {verb} {order} by {difference}{misfit}"

    def _reservations(self, best: ComparedFit) -> Iterator[str]:
        for fit in self.fits:
            if fit.chosen and fit.at_bound:
                yield f"{fit.name} is scored with {fit.at_bound} fixed at a bound"
        if best.misfit:
            yield "none of the models describes the data"
        if any("frozen" in fit.model for fit in self.fits):
            yield "a frozen part is told from an offset only if c2 without correlation is 1"
        if names := joined_with_and([fit.name for fit in self.fits if not fit.checked]):
            yield f"whether {names} describes the data was not checked"


def _undecided(best: ComparedFit, equal: Sequence[ComparedFit]) -> str:
    differences = [(fit.name, value_and_error(fit.worse_by, fit.stderr)) for fit in equal]
    alternatives = " or ".join(f"{name} (difference {size})" for name, size in differences)
    sizes = [fit.parameters + fit.linear for fit in (best, *equal)]
    chosen = next(fit.name for fit in (best, *equal) if fit.chosen)
    if sizes.count(min(sizes)) > 1:
        take = f"{chosen}, the better of those with {min(sizes):.0f} parameters"
    else:
        take = f"the one with {'fewer' if len(equal) == 1 else 'the fewest'} parameters, {chosen}"
    return f"the data do not distinguish {best.name} from {alternatives}: use {take}"


MIN_INDEPENDENT_BINS = 3
"""Fewest independent bins whose scatter decides where noise theory gives no errors; else `MIN_CLUSTERS`."""
LEVEL_OF_CHOICE = 0.05
"""Of choosing by CLIC another fit than the simplest that holds the truth."""
_NO_SCORE = {
    True: "single bins determine its parameters, or it has none",
    False: "the variance of its parameters is unknown, or it has none",
}


def _penalty(fit: FitValues) -> float:
    """Return tr(H⁻¹J) in units of χ² from the covariances of the fit; NaN where they are unknown.

    A parameter at a bound was searched, too: without a variance it counts as the others do in the mean. Of a
    fit that does not describe the data, which has no covariance, and of one of few curves of a table, the
    least is returned: that of independent data.
    """
    wide, naive = fit.errors.covariance, fit.errors.covariance_naive
    free, inside = ~fit.parameters["fixed"].values, ~fit.parameters["at_bound"].values
    if wide is None or naive is None or not np.isfinite(np.diag(wide)[free & inside]).all():
        no_covariance = fit.misfit or "points-correlated" in fit.findings.codes
        return float(free.sum() * fit.redchi) if no_covariance else np.nan
    known = free & np.isfinite(np.diag(wide)) & np.isfinite(np.diag(naive))
    if not known.any():
        return np.nan
    inflation = np.linalg.solve(naive.values[known][:, known], wide.values[known][:, known])
    return float(np.trace(inflation) * free.sum() / known.sum())


class _Scored(NamedTuple):
    name: str
    fit: FitValues
    free: int
    """Fitted parameters of f."""
    linear: float
    """Fitted contrasts and offsets; infinite where no bin could be left out."""
    penalty: float
    chisqr: Float[np.ndarray, " cluster"]
    """χ² of each bin left out, or its share of CLIC; NaN if unknown."""
    searched: float
    """Independent frequencies that its search had to choose from."""

    @property
    def size(self) -> float:
        return self.free + self.linear

    @property
    def order(self) -> tuple[float, float, str]:
        """Puts the simplest fit first, those without a score last."""
        return self.size, float(np.nan_to_num(self.chisqr.sum(), nan=np.inf)), self.name

    @property
    def freedom(self) -> float:
        """Of the noise, by the parameter that has the least."""
        return float(np.nanmin([_MANY, *self.fit.parameters["dof"].values]))

    @property
    def checked(self) -> bool:
        return {"not-checked", "points-correlated"}.isdisjoint(self.fit.findings.codes)


def _scored(name: str, fit: FitValues, bins: int, by_left_out: bool) -> _Scored:
    free, table = int((~fit.parameters["fixed"].values).sum()), fit.diagnosis.left_out
    if table is None:
        return _Scored(name, fit, free, np.inf, _penalty(fit), np.full(bins, np.nan), 1.0)
    penalty, chisqr = float(table["penalty"]), table["left_out_chisqr"].values
    if not by_left_out:
        penalty = _penalty(fit)
        chisqr = table["chisqr"].values + 2 * penalty / bins
    searched = float(table.get("searched", 1.0))
    return _Scored(name, fit, free, float(table["linear"]), penalty, chisqr, searched)


def _by_left_out(fits: Iterable[FitValues], bins: int) -> bool:
    """Return whether bins left out decide: many, or some where noise gives no errors of adequate fits."""
    alternatives = [fit for fit in fits if fit.diagnosis.left_out is not None and not fit.misfit]
    by_noise = [fit.errors.covariance is not None for fit in alternatives]
    return bins >= (MIN_CLUSTERS if by_noise and all(by_noise) else MIN_INDEPENDENT_BINS)


def _row(scored: _Scored, noise: float, verdict: Mapping[str, Any]) -> ComparedFit:
    fit, table, penalty = scored.fit, scored.fit.diagnosis.left_out, scored.penalty / noise
    # a prior of a parameter is no datum of all fits
    chisqr = np.nan if table is None else float(table["chisqr"].sum()) / noise
    at_bound = fit.parameters["param"].values[fit.parameters["at_bound"].values]
    row = {"at_bound": ", ".join(map(str, at_bound)), "penalty": penalty, **verdict}
    row |= {"clic": chisqr + 2 * penalty, "aic_naive": chisqr + 2 * scored.size}
    row |= {key: getattr(fit, key) for key in ("chisqr", "redchi", "misfit")}
    row |= {"parameters": scored.free, "linear": np.nan if table is None else scored.linear}
    outcome, checked = fit.outcome.name, scored.checked
    return ComparedFit(scored.name, fit.config["model"], outcome, checked=checked, **row)


def compared_fits(fits: Mapping[str, FitValues]) -> dict[str, Any]:
    """Return the fields of a comparison of fits by name; OptionError where they cannot be compared."""
    _require_comparable(fits)
    tables = [fit.diagnosis.left_out for fit in fits.values()]
    bins = max(1 if table is None else table.sizes["cluster"] for table in tables)
    by_left_out = _by_left_out(fits.values(), bins)
    scored_fits = [_scored(name, fit, bins, by_left_out) for name, fit in fits.items()]
    scored_fits.sort(key=lambda fit: fit.order)
    has_score = np.array([np.isfinite(scored.chisqr.sum()) for scored in scored_fits])
    if not has_score.any():
        raise OptionError(
            f"none of the fits has a score: they did not converge, or {_NO_SCORE[by_left_out]}: fix such "
            f"parameters, or see the report of one fit"
        )
    # 0 where a model interpolates the data
    noise = min(scored_fits[n].fit.redchi for n in np.flatnonzero(has_score)) or 1.0
    verdicts = _verdicts(scored_fits, has_score, noise, by_left_out)
    rows = [
        _row(scored, noise, verdict) for scored, verdict in zip(scored_fits, verdicts, strict=True)
    ]
    rows.sort(key=lambda row: (not row.best, -row.score if np.isfinite(row.score) else np.inf))
    store = scored_fits[0].fit.provenance.inputs["store"]
    values = {"store": store, "bins": bins, "noise": noise, "by_left_out": by_left_out}
    return {"fits": tuple(rows), **values, "results": fits}


def _verdicts(
    scored_fits: Sequence[_Scored], has_score: np.ndarray, noise: float, by_left_out: bool
) -> list[dict[str, Any]]:
    """Return score, distance from the best and choice of each fit, the simplest of which comes first."""
    chisqr = np.array([scored.chisqr for scored in scored_fits])
    eligible = _eligible(scored_fits, has_score)
    lowest, differences = _lowest(chisqr, eligible, NO_EVIDENCE * noise)
    sizes, totals = np.array([scored.size for scored in scored_fits]), chisqr.sum(1)
    above = differences.sum(1)
    if by_left_out:
        stderr = np.sqrt(chisqr.shape[1]) * differences.std(axis=1, ddof=1)
    else:
        stderr = _stderr_by_penalties(scored_fits, lowest, noise)
    # One standard error is enough against a fit with fewer parameters: where that is the truth, and the
    # other holds it as a special case, this happens in 1 to 7 of 100 cases. Two are asked for against others.
    enough = 1.0 if by_left_out else _enough(scored_fits, eligible, lowest)
    distinguished = above > np.where(sizes < sizes[lowest], enough, 2.0) * stderr
    # argmax: the first, which is the simplest
    chosen = int(np.argmax(eligible & (above <= enough * stderr)))
    return [
        {
            "score": float(-0.5 * totals[n] / noise),
            "worse_by": float(0.5 * above[n] / noise),
            "stderr": float(0.5 * stderr[n] / noise),
            "told": bool(distinguished[n]),
            "best": n == lowest,
            "chosen": n == chosen,
        }
        for n in range(len(scored_fits))
    ]


def _enough(
    scored_fits: Sequence[_Scored], eligible: np.ndarray, lowest: int
) -> Float[np.ndarray, " fit"]:
    """Return by how many standard errors √2 λ CLIC may be above the lowest in `LEVEL_OF_CHOICE` of cases.

    χ² falls by λ t², CLIC by λ (t² - 2). Richer fits that might be the best have equal parts of the level,
    and the frequencies of a search share that of their fit (Bonferroni).
    """
    size, searched = np.array([(scored.size, scored.searched) for scored in scored_fits]).T
    richer = eligible & (size > size[:, None])
    tests = np.maximum(richer.sum(axis=1), 1.0) * searched[lowest]
    t = stdtrit(scored_fits[lowest].freedom, 1 - 0.5 * LEVEL_OF_CHOICE / tests)
    return (t**2 - 2) / np.sqrt(2)


def _stderr_by_penalties(
    scored_fits: Sequence[_Scored], lowest: int, noise: float
) -> Float[np.ndarray, " fit"]:
    penalty, size = np.array([(scored.penalty, scored.size) for scored in scored_fits]).T
    # Of models of other sizes one is taken to hold the other, so that only what it has beyond counts, and as
    # much at least as of independent pairs; of one size they may share nothing.
    further = np.abs(size - size[lowest])
    nested = np.maximum(np.abs(penalty - penalty[lowest]), noise * further)
    stderr = np.sqrt(2.0) * np.where(further > 0, nested, penalty + penalty[lowest])
    stderr[lowest] = 0.0
    return stderr


def _eligible(scored_fits: Sequence[_Scored], has_score: np.ndarray) -> np.ndarray:
    """Return which fits may be the best: of those with a score the adequate, if there are any."""
    adequate = has_score & ~np.array([scored.fit.misfit for scored in scored_fits])
    checked = adequate & np.array([scored.checked for scored in scored_fits])
    return next(fits for fits in (checked, adequate, has_score) if fits.any())


def _lowest(chisqr: np.ndarray, eligible: np.ndarray, no_evidence: float) -> tuple[int, np.ndarray]:
    """Return the simplest of the fits whose χ² is lowest, and χ² of each bin above that of this fit."""
    totals = chisqr.sum(1)
    minimum = np.min(totals[eligible])
    equal = totals <= minimum + max(ROUNDING * abs(minimum), no_evidence)
    lowest = int(np.flatnonzero(eligible & equal)[0])
    differences = chisqr - chisqr[lowest]
    rounding = np.maximum(ROUNDING * np.abs(chisqr[lowest]), no_evidence)
    differences[np.abs(differences) <= rounding] = 0.0
    return lowest, differences


_SAME_INPUTS = {
    "bins": "labels",
    "frames": "frames",
    "excluded frames": "frames_excluded",
    "excluded chunks": "chunks_left_out",
    "independent bins": "independent_bins",
}


def _in_common(fit: FitValues) -> dict[str, Any]:
    inputs, config, values = fit.provenance.inputs, fit.config, dict[str, Any]()
    values["data"] = f"{inputs['store']} (SHA-256 {inputs['store_sha256'][:12]})"
    values |= {name: inputs[key] for name, key in _SAME_INPUTS.items()}
    values["numbers of pairs"] = fit.scaling["ndata"].values.tolist()
    values |= {name: config[name] for name in ("min_lag", "precision")}
    for name in ("contrast", "offset"):  # their priors count as measurements
        option = config[name]
        values[f"prior of the {name}"] = option.get("prior") if isinstance(option, dict) else None
    return values


def _require_comparable(fits: Mapping[str, FitValues]) -> None:
    for name, fit in fits.items():
        if (loss := fit.config["loss"]) != "linear":
            raise OptionError(
                f"{name} was fitted with the loss {loss}, which applies its own weights, but models are "
                f"compared by least squares: fit again with the loss linear"
            )
    (first, first_fit), *further_fits = fits.items()
    expected, mode = _in_common(first_fit), first_fit.config["scaling"]
    for name, fit in further_fits:
        for setting, value in _in_common(fit).items():
            if value != expected[setting]:
                remedy = "fit both in the same way"
                if setting == "data":
                    remedy = (
                        "models are compared on the same data; hd.compare_results compares values"
                    )
                raise OptionError(
                    f"{first} and {name} were fitted with different {setting} ({shown(expected[setting])} "
                    f"and {shown(value)}): {remedy}"
                )
        scaling = fit.config["scaling"]
        if (mode == "individual") != (scaling == "individual"):
            raise OptionError(
                f"{first} and {name} have the scalings {mode} and {scaling}: contrast and offset of a "
                f"left-out bin are fitted to that bin with individual scaling, but predicted with the "
                f"other; fit both in the same way"
            )
