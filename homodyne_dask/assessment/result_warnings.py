"""Warnings of a result, and sentences on what the data do not determine."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.aliasing import aliased_fringes
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.spline_rate_errors import (
    names_of_rates,
    rate_of_each,
    rates_at_bounds,
)
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.models.transport import Convention, shear_rate_at
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.misfit import (
    WITHOUT_ANGLES,
    fit_command,
    selected_store,
    wider_bounds,
)
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.convergence import MAX_SLOW_STEPS
from homodyne_dask.solver.covariance import (
    SPECKLE,
    Uncertainty,
    clusters_in,
)
from homodyne_dask.solver.identifiability import determined_at, hidden_by_rounding
from homodyne_dask.solver.limits import IMPROBABLE, MIN_CLUSTERS, MIN_FREEDOM
from homodyne_dask.solver.normal_equations import deviation
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.rings import describe_rings, rings_of
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.blocks import excluded_sentence
from homodyne_dask.text import joined_with_and, with_unit

MAX_CHISQR_PER_PAIR = {"counts": 2.0, "constant": 2.0, "scatter": 10.0}
"""χ² per pair of a bin above which a warning is given, by the source of σ. Pairs that see one speckle
pattern are up to 1.5 times as noisy as counts say; their scatter from neighbours is several times less."""
MIN_CHISQR_PER_PAIR = 0.5
"""That below which a warning is given where σ is from counts: no noise of photons is smaller."""
MAX_DEVIATION_FROM_PRIOR = 3.0
"""Standard deviations from the mean of a prior, above which a warning is given."""
MAX_P_OF_DRIFT, MIN_DRIFT = IMPROBABLE, 0.1
"""Probability below which, and share of contrast above which, its change with q or φ is said."""
MIN_SPREAD = 1e-3
"""Of ln q, and of the cosine of 2φ, below which q and φ are taken for one."""
LOWEST_OFFSET, HIGHEST_OFFSET = 0.5, 2.0
"""Offsets below and above which they are commented on; c2 without correlation is 1."""
MAX_ERROR_OVER_PRIOR = 1.1
"""The error of a parameter over the standard deviation of its prior, above which a warning is given."""


def warnings_about(
    request: Request,
    state: lm.State,
    at_bound: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
    errors: Uncertainty,
    seen: bool,
    speckle: SpeckleErrors | None,
) -> tuple[str, ...]:
    """Return the warnings of a result, a sentence each.

    at_bound: parameters at a bound. clusters: which bins are the same speckle (Friedel pairs).
    errors: of the parameters. seen: whether a decay was seen. speckle: speckle noise, if known.
    """
    candidates = (
        excluded_sentence(request.scan),
        _far_off(request, state),
        _too_quiet(request, state),
        _same_at_all_q(request, state),
        _negative_shear(request, state),
        aliased_fringes(request, state.theta),
        _exchangeable(request),
        _of_precision(request, state.reduced),
    )
    sentences = list(filter(None, candidates))
    rate_of = rate_of_each(request)
    sentences += rates_at_bounds(request, state, at_bound)
    sentences += _ended_at_bounds(request, state, at_bound, errors, rate_of)
    sentences += _limits(request, state, errors, rate_of) if seen else []
    sentences += _withheld(request, at_bound, errors)
    sentences += _on_bins(state.reduced)
    sentences += _at_bounds(state.reduced) + _strange_scaling(state.reduced)
    sentences += _on_pairs(clusters)
    few, names = clusters_in(state.reduced, clusters), errors.of_few(request.search.names)
    if (
        errors.naive is not None
        and seen
        and (names or few < MIN_CLUSTERS or errors.method == SPECKLE)
    ):
        sentences += _on_speckle(speckle, names)
    return (*sentences, *_unknown_q(request))


def _ended_at_bounds(
    request: Request,
    state: lm.State,
    at_bound: Bool[np.ndarray, " p"],
    errors: Uncertainty,
    rate_of: Collection[int],
) -> list[str]:
    """Return a sentence on each parameter at a bound, but for spline rates and invisible decays."""
    robust = np.full(len(at_bound), np.nan) if errors.robust is None else np.diag(errors.robust)
    too_slow, sentences = _slower_than_the_record(request, state), []
    for n in np.flatnonzero(at_bound):
        if n in rate_of or too_slow[n]:
            continue
        low, high = float(request.search.lower[n]), float(request.search.upper[n])
        name = request.search.names[n]
        wider = wider_bounds(name, float(state.theta[n]), low, high, bool(request.search.log[n]))
        own = name in (request.options.bounds or {})
        if np.isfinite(robust[n]):
            with_it = "; its error allows for values beyond the bound"
        elif np.isfinite(robust).any():
            with_it = f"; the errors of the other parameters assume that {name} is fixed there"
        else:
            with_it = ""
        sentences.append(
            f"{name} is at its {'' if own else 'default '}bound {state.theta[n]:,g} (allowed {low:,g} to "
            f"{high:,g}): {wider}, or fix {name}{with_it}"
        )
    return sentences


def _withheld(request: Request, at_bound: Bool[np.ndarray, " p"], errors: Uncertainty) -> list[str]:
    """Return a sentence on the parameters that have no error because another one is at a bound."""
    if not (errors.withheld.any() and at_bound.any()):
        return []
    names = np.array(request.search.names)
    bounded, these = (joined_with_and(names[some].tolist()) for some in (at_bound, errors.withheld))
    has, simpler = "have" if errors.withheld.sum() > 1 else "has", _simpler(request)
    return [
        f"{these} {has} no standard error, because the correlation with {bounded}, which ended at a bound, "
        f"is above 0.7{simpler and f'; {simpler}'}"
    ]


def _on_bins(reduced: ReducedProblem) -> list[str]:
    """Return sentences on bins without a decay and without pairs."""
    used, flat, sentences = reduced.count > 0, int(reduced.undetermined.sum()), []
    if flat:
        shows, its = ("shows", "its") if flat == 1 else ("show", "their")
        sentences.append(
            f"{flat} of {int(used.sum())} bins {shows} no decay: {its} contrast is unknown"
        )
    if unused := int((~used).sum()):
        has = "has" if unused == 1 else "have"
        sentences.append(f"{unused} of {len(used)} bins {has} no known pairs")
    return sentences


def _unknown_q(request: Request) -> list[str]:
    """Return a sentence on parameters that are known only multiplied by q²."""
    scaled = names_of_rates(
        request, [n for n, p in enumerate(request.parameters) if p.q_power and p.constant is None]
    )
    if not (scaled and np.isnan(request.scan.q).any()):
        return []
    of = joined_with_and(scaled)
    if len(scaled) == 1:
        return [f"q is unknown: the value given for {of} is in 1/s and includes the factor q²"]
    return [f"q is unknown: the values given for {of} are in 1/s and include the factor q²"]


def _limits(
    request: Request, state: lm.State, errors: Uncertainty, rate_of: Collection[int]
) -> list[str]:
    """Return a sentence on the parameters whose intervals have a bound in them: only their limits are known.

    It is the same beside a bound and at it: at which a fit ends is chance. rate_of: coefficients of rates.
    """
    from homodyne_dask.results.data.intervals import half_width  # it loads SciPy

    if errors.robust is None:
        return []
    search, error = request.search, deviation(np.diag(errors.robust))
    both, one = (half_width(percent, errors.dof) * error for percent in (95.0, 90.0))
    low = (state.theta - both <= search.lower) & ~np.isfinite(search.period)
    high = (state.theta + both >= search.upper) & ~np.isfinite(search.period)
    known = []
    for n in np.flatnonzero(low | high):
        unit = request.parameters[n].unit
        if n in rate_of:
            continue
        if low[n] and high[n]:
            known.append(
                f"{search.names[n]} anywhere between {search.lower[n]:g} and {search.upper[n]:g}"
            )
        elif low[n]:
            known.append(with_unit(f"{search.names[n]} below {state.theta[n] + one[n]:.3g}", unit))
        else:
            known.append(with_unit(f"{search.names[n]} above {state.theta[n] - one[n]:.3g}", unit))
    if not known:
        return []
    return [
        f"bounds lie within the 95 % intervals, so only limits are known (95 %): {', '.join(known)}; "
        f"value ± error does not describe {'them' if len(known) > 1 else 'it'}"
    ]


def _on_pairs(clusters: Int[np.ndarray, " bin"]) -> list[str]:
    """Return what Friedel pairs leave of bins, where standard errors need more than that."""
    independent = len(np.unique(clusters))
    if independent == len(clusters) or independent >= MIN_CLUSTERS:
        return []
    return [
        f"only {independent} of {len(clusters)} bins are independent: bins of one q that are 180° apart see "
        f"the same speckle; {len(clusters)} sectors over 180° would all be independent, and with "
        f"{MIN_CLUSTERS} or more, errors can be computed from their scatter; if opposite bins see different "
        f"speckle, give `--friedel off`"
    ]


def _on_speckle(speckle: SpeckleErrors | None, few: list[str]) -> list[str]:
    """Return why there are no standard errors with few bins, or what qualifies them.

    few: parameters of which too few bins determine the error.
    """
    if speckle is not None and speckle.objection is None:
        return [] if speckle.note is None else [speckle.note]
    why, otherwise = (
        ("too few cells of age and lag lie inside the selected frames", "select more frames")
        if speckle is None
        else (speckle.objection, "fit c2 that was not smoothed, with a model that describes it")
    )
    none = f"there {'is' if few else 'are'} no standard error{f' of {joined_with_and(few)}' if few else 's'}"
    return [
        f"{none}. With fewer than {MIN_CLUSTERS} independent bins, or {MIN_FREEDOM:g} degrees of freedom, "
        f"they are computed from speckle noise, but here {why}. To get them, {otherwise}; or fit "
        f"{MIN_CLUSTERS} or more independent bins, for example of repeats in one store, which show the "
        "errors by their scatter. The naive errors in the report are too small for correlated speckle"
    ]


def warnings_about_priors(
    request: Request, state: lm.State, error: Float[np.ndarray, " p"]
) -> tuple[str, ...]:
    """Return a sentence for each parameter that ends far from its prior, or is known less well than by it.

    error: the errors of the parameters that are used.
    """
    priors = request.search.priors
    if priors is None:
        return ()
    sentences = []
    for p, value, away, own, mean, sd in zip(
        request.parameters, state.theta, np.abs(priors.deviation(state.theta)), error, priors.mean,
        priors.sd, strict=True,
    ):  # fmt: skip
        unit = with_unit("", p.unit)
        if away > MAX_DEVIATION_FROM_PRIOR:
            sentences.append(
                f"{p.name} ends at {value:.6g}, {away:.1f} standard deviations from its prior {mean:g} ± "
                f"{sd:g}{unit}: the prior, σ or the model is wrong"
            )
        if own > MAX_ERROR_OVER_PRIOR * sd:
            sentences.append(
                f"the error of {p.name}, {own:.3g}{unit}, exceeds the {sd:g}{unit} of its prior: χ² "
                f"counts correlated pairs as independent, so they outweigh the prior; `posterior` weights "
                f"both by their errors"
            )
    return tuple(sentences)


def undetermined_directions(
    request: Request, state: lm.State, errors_known: bool
) -> tuple[str, ...]:
    """Return a sentence for each undetermined combination of parameters; the last names the others.

    errors_known: whether the report gives errors of parameters.
    """
    found = determined_at(request.search, state)
    if not found.undetermined:
        return ()
    slow = state.slow_steps >= MAX_SLOW_STEPS
    finer = replace(state, reduced=state.reduced.rounded_as_float64)
    certain = determined_at(request.search, finer).undetermined
    simpler = _simpler(request)
    unknown = tuple(
        _undetermined(names, simpler, slow=slow, errors_known=errors_known)
        if names in certain
        else hidden_by_rounding(joined_with_and(names))
        for names in found.undetermined
    )
    if not found.determined:
        return unknown
    others = joined_with_and(found.determined)
    return (*unknown[:-1], f"{unknown[-1]}. The data do determine {others}")


def larger_errors(
    request: Request, state: lm.State, stderr: Float[np.ndarray, " p"]
) -> tuple[str, ...]:
    """Return a sentence on each positive parameter whose standard error is larger than its value.

    So, too, on those that are so small that the decay is longer than the record.
    """
    search, simpler = request.search, _simpler(request)
    wide = search.free & (search.lower > 0) & (stderr > np.abs(state.theta))
    slow = np.flatnonzero(_slower_than_the_record(request, state))
    return (
        *(_undetermined((search.names[n],), simpler) for n in np.flatnonzero(wide)),
        *(
            f"the data do not determine {search.names[n]}: the decay is longer than the record, which shows "
            f"only contrast times {search.names[n]}; treat the offset as known (`--offset-prior "
            f"1:0.01`), or measure for longer"
            for n in slow
        ),
    )


def _slower_than_the_record(request: Request, state: lm.State) -> Bool[np.ndarray, " p"]:
    """Return which positive parameters are at their lower default bounds, with all contrasts above 1."""
    search, reduced = request.search, state.reduced
    seen = (reduced.count > 0) & ~reduced.undetermined
    extrapolated = bool(seen.any() and (reduced.contrast[seen] > 1.0).all())
    given = np.array([name in (request.options.bounds or {}) for name in search.names])
    lowest = search.free & (search.lower > 0) & (state.theta <= search.lower) & ~given
    return lowest & extrapolated


def _simpler(request: Request) -> str:
    """Return what to type for a model with fewer parameters of diffusion, or ''."""
    name = request.problem.model.simpler
    return f"use a model with fewer parameters, such as `--model {name}`" if name else ""


def _undetermined(
    names: tuple[str, ...], simpler: str, *, slow: bool = False, errors_known: bool = True
) -> str:
    several = len(names) > 1
    if slow:
        along = "they compensate for each other" if several else "it changes"
        why = f"χ² hardly decreases along a valley in which {along}"
    elif errors_known:
        why = (
            "their errors are larger than their values"
            if several
            else "its error is larger than its value"
        )
    else:
        why = (
            "they compensate for each other, so their errors cannot be computed"
            if several
            else "χ² hardly depends on it, so its error cannot be computed"
        )
    fix = "fix one of them" if several else "fix it"
    return f"the data do not determine {joined_with_and(names)}: {why}; {fix}{simpler and f', or {simpler}'}"


def redchi_per_bin(request: Request, state: lm.State) -> Float[np.ndarray, " bin"]:
    """Return χ² of each bin divided by its pairs less its own two linear parameters."""
    reduced = state.reduced
    own = 2 if request.scaling.mode == "individual" else 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(reduced.count > own, reduced.chisqr_per_bin / (reduced.count - own), np.nan)


def _of_precision(request: Request, reduced: ReducedProblem) -> str | None:
    """Return a sentence if rounding leaves the optimum less well known than a converged fit says."""
    if not reduced.finite:
        return None
    known = reduced.decrement_rounding(reduced.variance(int(request.search.free.sum())))
    if known <= request.solver.decrement:
        return None
    return (
        f"with precision {request.problem.precision!r}, the optimum is known only to within "
        f"{known:.1g} standard errors"
    )


def _far_off(request: Request, state: lm.State) -> str | None:
    """Return a sentence if data and model of some bins differ by far more than σ."""
    redchi = redchi_per_bin(request, state)
    far = np.flatnonzero(redchi > MAX_CHISQR_PER_PAIR[request.scan.attrs["sigma_source"]])
    if not len(far):
        return None
    pairs = request.scan.cells is None and request.options.weighting == PAIRS
    datum = "pair" if pairs else "cell"
    return (
        f"χ² per {datum} is as high as {redchi[far].max():.3g} ({_labels(request.scan, far)}): some {datum}s "
        f"are outliers, σ is too small, or the model is wrong; maps.png shows where"
    )


def _too_quiet(request: Request, state: lm.State) -> str | None:
    """Return a sentence if c2 of some bins scatters by far less than their counts do."""
    pairs = request.scan.cells is None and request.options.weighting == PAIRS
    if request.scan.attrs["sigma_source"] != "counts" or not pairs:
        return None
    redchi = redchi_per_bin(request, state)
    quiet = np.flatnonzero(redchi < MIN_CHISQR_PER_PAIR)
    if not len(quiet):
        return None
    return (
        f"χ² per pair is as low as {redchi[quiet].min():.3g} ({_labels(request.scan, quiet)}): c2 scatters "
        "less than its counts imply; the number of counts or pixels in the file is too small, or c2 was "
        f"averaged over repeats or smoothed"
    )


def _labels(scan: Scan, bins: Int[np.ndarray, " some"]) -> str:
    """Return "in the bins labelled 1, 2 and 3 more"."""
    of_scan = [f" of scan {n}" * ("scans" in scan.attrs) for n in scan.scan_number]
    labels = [f"{scan.label[b]}{of_scan[b]}" for b in bins]
    more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
    return f"in the bins labelled {', '.join(labels[:6])}{more}"


def _same_at_all_q(request: Request, state: lm.State) -> str | None:
    """Return a sentence if the data have several q and f is the same at all of them."""
    scan, model = request.scan, request.problem.model
    rings = rings_of(scan.q)
    if len(rings) < 2 or not state.reduced.finite:
        return None
    first, stop = scan.frames
    t2 = scan.time[first + 1 : stop]
    at = backend_of(model).point(request.problem, state.theta, scan.time)
    phi = np.full(2, scan.phi[0])
    low, high = backend_of(model).f_at(
        at, scan.time, rings[[0, -1]], phi, np.full_like(t2, scan.time[first]), t2
    )
    if not np.array_equal(low, high) or np.ptp(low) == 0:
        return None
    store = {"store": Path(scan.path).name, "selection": scan.selection_options}
    command = fit_command(selected_store(store), request.config)
    return (
        f"{model.name} has the same f at all q, but the data have {describe_rings(scan.q)}: unless the rates "
        f"are the same at all q, fit each q separately with `{command} --over q`"
    )


def _exchangeable(request: Request) -> str | None:
    """Return a sentence if the two components of a model can be told apart by their names alone."""
    beat = request.problem.model.beat
    names, free = np.array(request.search.names), request.search.free
    of_one = np.char.endswith(names, "_ref") | np.char.endswith(names, "_sample")
    if beat is None or not beat.exchange or not free[of_one].all():
        return None
    return (
        f"reference and sample are exchangeable: c2 is unchanged by exchanging {beat.exchange}; which "
        f"of the two moves is not observable"
    )


def _negative_shear(request: Request, state: lm.State) -> str | None:
    """Return a sentence if the shear rate is negative in the middle or in part: no data show its sign."""
    problem, scan = request.problem, request.scan
    times = scan.time[scan.use & (scan.time > 0)]
    middle = np.median(times)
    rates = shear_rate_at(problem.model, state.theta, np.append(times, middle))
    if rates is None or problem.convention is Convention.HOMODYNE:
        return None
    if rates.min() < 0 < rates.max() and getattr(problem.model, "splines", {}):
        return (
            "the shear rate changes sign: c2 shows where, but not the overall "
            "sign; -gamma_dot(t) fits equally well"
        )
    if rates[-1] >= 0:
        return None
    free = "gamma_dot_t0" not in problem.model.names
    opposite = "-gamma_dot(t)" if free else "-gamma_dot_t0·t^beta - gamma_dot_t_offset"
    bounded = "gamma_dot" if free else "gamma_dot_t_offset"
    return (
        f"the shear rate is negative ({rates[-1]:.3g} 1/s in the middle of the record): its sign is not "
        f"observable, and the rate may equally well be {opposite}; a lower bound of 0 on {bounded} restricts "
        f"it to positive rates"
    )


def drifting_contrast(
    scan: Scan,
    contrast: Float[np.ndarray, " bin"],
    error: Float[np.ndarray, " bin"],
    model: str,
) -> tuple[str, ...]:
    """Return a sentence if contrast changes with q, or with φ, by more than its errors and much of itself.

    error: standard errors of contrast, NaN where they are unknown. model: its name; a change with φ is said
    of models whose f is the same at all φ: it may stand for motion in one direction.
    """
    from scipy.special import chdtrc  # loads for a fifth of a second

    seen = np.isfinite(contrast) & np.isfinite(error) & (error > 0)
    turn = np.deg2rad(2 * scan.phi)
    of_q = np.log(scan.q / scan.q[0])  # NaN where one is unknown
    columns = {"q": [of_q, of_q**2]}
    columns |= {"φ": [np.cos(turn), np.sin(turn)]} if model in WITHOUT_ANGLES else {}
    sentences = []
    for name, more in columns.items():
        X = np.stack([np.ones(len(contrast)), *more], axis=1)[seen]
        known = len(X) and np.isfinite(X).all()
        freedom = int(np.linalg.matrix_rank(X, tol=MIN_SPREAD)) - 1 if known else 0
        if freedom < 1:
            continue
        root = 1 / error[seen]
        found, *_ = np.linalg.lstsq(X * root[:, None], contrast[seen] * root, rcond=None)
        line, mean = X @ found, float(np.average(contrast[seen], weights=root**2))
        gain = float(
            (((contrast[seen] - mean) * root) ** 2).sum()
            - (((contrast[seen] - line) * root) ** 2).sum()
        )
        if chdtrc(freedom, max(gain, 0.0)) < MAX_P_OF_DRIFT and np.ptp(line) > MIN_DRIFT * abs(
            mean
        ):
            sentences.append(
                f"the contrast changes with {name} by more than its errors (a smooth curve through the "
                f"contrasts varies between {line.min():.3g} and {line.max():.3g}): the contrast compensates "
                f"for a decay that the model lacks, or the contrast of the setup is not constant"
            )
    return tuple(sentences)


def _strange_scaling(reduced: ReducedProblem) -> list[str]:
    """Return sentences on contrasts and offsets that no speckle has."""
    seen = (reduced.count > 0) & ~reduced.undetermined
    with np.errstate(invalid="ignore"):
        scaled = int((reduced.offset[seen] > HIGHEST_OFFSET).sum())
        low = int((reduced.offset[seen] < LOWEST_OFFSET).sum())
        high = int(((reduced.contrast > 1.0) & (reduced.offset <= HIGHEST_OFFSET))[seen].sum())
    of = f"{int(seen.sum())} bins"
    why = "much of the decay is longer than the record or shorter than a frame, and the value is extrapolated"
    sentences = []
    if scaled:
        sentences.append(
            f"the offset is above {HIGHEST_OFFSET:g} in {scaled} of {of}, but c2 without correlation is 1: "
            f"c2 is in another unit, such as per cent, or not normalised; the contrast is also in that unit"
        )
    if low:
        sentences.append(
            f"the offset is below {LOWEST_OFFSET:g} in {low} of {of}, but c2 without correlation is 1: "
            f"{why}; `--offset-prior 1:0.01` treats the offset as known"
        )
    if high:
        sentences.append(
            f"the contrast is above 1 in {high} of {of}, but the contrast of fully coherent light is 1: {why}"
        )
    return sentences


def _at_bounds(reduced: ReducedProblem) -> list[str]:
    """Return sentences on contrasts and offsets at a bound."""
    used = reduced.count > 0
    numbers = [
        (name, int(reduced.at_bound[used, at].sum()))
        for at, name in ((1, "contrast"), (0, "offset"))
    ]
    return [
        f"the {name} is at its bound in {number} of {int(used.sum())} bins: it has no error there, and the "
        f"errors of the other parameters assume that it is fixed there"
        for name, number in numbers
        if number
    ]
