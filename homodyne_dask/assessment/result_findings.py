"""What is to be said of a fit: each check is a function of the end of a fit, and yields findings."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc

from homodyne_dask.assessment.aliased_fringes import aliased_fringes
from homodyne_dask.assessment.assessment import AssessedFit, Assessment, names_in_model
from homodyne_dask.assessment.decay_test import offset_has_prior
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.flow_profile import has_profile, ratio_of_other
from homodyne_dask.assessment.frame_tests import scan_of_frames
from homodyne_dask.assessment.rate_errors_and_limits import SHEAR, names_of_rates, rate_of_each
from homodyne_dask.assessment.speckle_errors import (
    FAR_FROM_CORRELATION,
    OffsetDeviation,
    offset_deviation,
    weights_of_offsets,
)
from homodyne_dask.assessment.which_covariance import used_of
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.models import model_named
from homodyne_dask.models.derived_models import FROZEN_FRACTION
from homodyne_dask.models.rate_forms import LOG_DENSITY, RATES, unresolved_ends
from homodyne_dask.models.transport import Convention
from homodyne_dask.request.options import PAIRS
from homodyne_dask.results.data.findings import CATALOGUE, Finding, Findings, finding
from homodyne_dask.results.data.fit_result import LARGEST_P, Alternative, ModelCheck
from homodyne_dask.results.data.fitted_parameters import truth_mismatch
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.results.views.style import bin_name
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import PerBin, SomeBins
from homodyne_dask.solver.cluster_robust import (
    IMPROBABLE,
    LEVEL_OF_MISFIT,
    MIN_CLUSTERS,
    MIN_FREEDOM,
)
from homodyne_dask.solver.covariance import SPECKLE, Doubt, clusters_in, determined_at, error_used
from homodyne_dask.solver.levenberg_marquardt import MAX_SLOW_STEPS
from homodyne_dask.store.rings_and_clusters import describe_rings, rings_of
from homodyne_dask.store.scan import Scan

MAX_REDCHI = {"counts": 2.0, "constant": 1.5, "scatter": 1.5, "table": 1.5, "tested": 3.0}
MAX_REDCHI |= {"residuals": 100.0}
"""Reduced χ² above which it is named first: by the source of σ, and where means of residuals were tested.

In units of the scatter of neighbours, it was up to 63 for curves of photons, whose noise is alike there."""
HIGH_OF_NEIGHBOURS = 4.0
"""χ² of a table without errors above which it is said that the model was not checked."""
LEVEL_OF_TABLE = 0.005
"""Probability by chance of so large a χ² below which a model is said to be wrong."""
ALONG_FLOW = 30
MAX_REDCHI_OF_BIN = {"counts": 2.0, "constant": 2.0, "scatter": 10.0, "table": 2.0}
"""Reduced χ² of a bin above which a warning is given, by the source of σ. Pairs that see one speckle
pattern are up to 1.5 times as noisy as counts say; their scatter from neighbours is several times less."""
MIN_REDCHI_OF_BIN = {"counts": 0.5, "constant": 0.1, "scatter": 0.1}
"""That below which a warning is given, by the source of σ: no noise of photons is smaller than by counts."""
MAX_DEVIATION_FROM_PRIOR, MOST_NAMED = 3.0, 6
"""Standard deviations from the mean of a prior, above which a warning is given; most bins that it names."""
MAX_P_OF_DRIFT, MIN_DRIFT = IMPROBABLE, 0.1
"""Probability below which, and share of contrast above which, its change with q or φ is said."""
MIN_SPREAD = 1e-3
"""Spread of ln q, and of cos 2φ, below which all q, or all φ, count as one."""
LOWEST_OFFSET, HIGHEST_OFFSET = 0.5, 1.5
"""Offsets below and above which they are commented on; c2 without correlation is 1."""
LEAST_DEVIATION, LARGE_DEVIATION = 0.005, 0.05
"""Shares of contrast by which offsets differ from 1, above which that is said, and is a warning: other ways
to normalise move them by some percent."""
ERRORS_OF_TABLE = {"table": 1.0, "residuals": 3.0}
"""Errors of offsets of tables over those of independent points, by the source of σ: the errors that beamlines
give are the scatter of pixels, which is larger than that of the points of a curve."""
HIGHEST_OF_TABLE = 1.2
"""Contrast of a table, which is 1 of g1 and of (g2 - 1)/contrast, but for their noise."""
HIGHEST_C2 = 2.0
"""c2 of a frame with itself, but for the noise of counting: above it the scale of c2 is another one."""
MAX_ERROR_OVER_PRIOR = 1.1
"""The error of a parameter over the standard deviation of its prior, above which a warning is given."""
LARGE_BOUND = 100.0
"""From this size on a bound is moved by a power of ten, below, as that of an exponent, it is doubled."""
LEVEL_OF_PROFILE = 0.05
"""Probability below which the other profile of a flow is ruled out."""
PRIOR_OF_OFFSET = 0.005
"""Standard deviation, over the contrast, with which a frozen part is told from an offset: χ², which counts
pairs as independent, outvotes a wider one."""
SHAPES = {
    "stretching": "other-exponent",
    "contrast_drift": "contrast-drift",
    "baseline": "baseline",
    "own_average": "own-average",
    "beam": "beam-noise",
}
"""Alternatives of which the finding has the size alone."""
CONSTANT_MODELS = {"static": "brownian", "laminar_flow": "couette", "poiseuille_flow": "poiseuille"}
"""The same with constant rates."""


def result_findings(
    fit_end: FitEnd, assessment: Assessment, *, of_all_scans: bool = False
) -> Findings:
    """Return all that is to be known of a fit, errors first; of_all_scans: of parameters that scans share."""
    end = AssessedFit(fit_end.request, fit_end.state, assessment, of_all_scans)
    checks = OF_PARAMETERS if of_all_scans else CHECKS
    return Findings(row for check in checks for row in check(end))


def findings_of_doubts(doubts: Iterable[Doubt], said: Iterable[Finding] = ()) -> Iterator[Finding]:
    """Yield the findings on what the data do not determine, but those about parameters of `said`."""
    # "determined" names what is known: no doubt is about these
    about = [set(row.about) for row in said if row.code != "determined"]
    for code, names, numbers in doubts:
        if names and any(set(names) <= parameters for parameters in about):
            continue
        command = CATALOGUE[code].command if code == "hidden-by-rounding" else ""
        yield finding(code, names, command, **numbers)


def _advised(
    end: AssessedFit, code: str, about: Iterable[object] = (), /, **numbers: Any
) -> Finding:
    """Return a finding with the command that the catalogue has for it, of this fit."""
    command = CATALOGUE[code].command.format(fit=end)
    return finding(code, about, command.strip(), **numbers)


def _of_data(end: AssessedFit) -> Iterator[Finding]:
    for code, numbers in end.request.scan.attributes.doubts.items():
        yield Finding(code, numbers=numbers)


def misfit(end: AssessedFit) -> Iterator[Finding]:
    """Yield what speaks against the model, all of severity error, or that it was not checked."""
    request, assessment = end.request, end.assessment
    if not assessment.decay:
        return
    check, power = assessment.check, assessment.power_of_q
    if power is not None and power.differs:
        numbers = {"power": [power.power, power.stderr], "p": power.p, "level": LARGEST_P}
        yield _advised(end, "power-of-q", **numbers, model=request.problem.model.name)
    if request.scan.is_table:
        few = None if assessment.errors.robust is not None else MIN_CLUSTERS
        yield finding("points-correlated", few=few)
        redchi, source = end.reduced.redchi(end.free), request.scan.attributes.sigma_source
        if source == "residuals" and HIGH_OF_NEIGHBOURS < redchi <= MAX_REDCHI[source]:
            yield _advised(end, "table-not-checked", redchi=redchi)
    elif request.scan.smoothed:
        yield finding("not-checked")
        return  # of smoothed noise, χ² tells nothing of the model
    elif check is None and end.state.outcome is lm.Outcome.CONVERGED:
        yield finding("not-checked")
    if check is not None and check.misfit:
        level = {"p": check.p, "level": LEVEL_OF_MISFIT}
        for of_check in _of_check(end, check):
            yield replace(of_check, numbers={**of_check.numbers, **level})
    else:
        yield from _high_chisqr(end)


def _high_chisqr(end: AssessedFit) -> Iterator[Finding]:
    scan, redchi = end.request.scan, end.reduced.redchi(end.free)
    source = scan.attributes.sigma_source
    # means of residuals that were tested tell a misfit from noise that is larger than σ
    limit = MAX_REDCHI.get(source if end.assessment.check is None else "tested", np.inf)
    if redchi <= limit:
        return
    if not scan.is_table:
        yield _advised(end, "chisqr-too-high", redchi=redchi, sigma_source=source)
        return
    freedom = end.reduced.freedom(end.free)  # few points scatter by more than the limit by chance
    if chdtrc(freedom, freedom * redchi) < LEVEL_OF_TABLE:
        yield _advised(end, "table-misfit", redchi=redchi, sigma_source=source)


def _of_check(end: AssessedFit, check: ModelCheck) -> Iterator[Finding]:
    alternative, power = check.alternative, end.assessment.power_of_q
    if check.deviating:
        keys = ("deviating", "tests", "threshold", "age", "lag", "where", "share", "largest")
        yield finding("model-misfit", **{key: getattr(check, key) for key in keys})
    if alternative is not None:
        # the finding on the power of q has named it, and what to try
        if alternative.name == "power_of_q" and power is not None and power.differs:
            return
        if not check.deviating:
            yield finding("model-misfit-shape", share=alternative.share)
    yield from _other_flow(end)
    if (bounded := _at_default_bounds(end)) and not _flows(end):
        yield _advised(end, "default-bounds-reached", bounded)
    elif alternative is not None and end.request.options.scaling == "individual":
        yield _of_alternative(end, alternative)
    else:
        yield _of_pattern(end, check.depends_on)


def _flows(end: AssessedFit) -> bool:
    """Return whether the decays depend on φ, which those of the model do at no bounds."""
    check = end.assessment.check
    return check is not None and check.alternative is not None and check.alternative.name == "shear"


def _at_default_bounds(end: AssessedFit) -> list[str]:
    """Return the parameters and rates that a bound which no user gave keeps from the data."""
    movable = end.assessment.at_bound & ~end.held_offsets & ~end.at_natural_bound
    ended = np.flatnonzero(movable & ~end.of_constant)
    # the sign of a shear rate is another matter (`_other_flow`, `_shear_sign`)
    others = (*(end.request.options.bounds or {}), "gamma_dot")
    return [name for name in names_of_rates(end.request, ended.tolist()) if name not in others]


def _other_flow(end: AssessedFit) -> Iterator[Finding]:
    problem, bounds_of_user = end.request.problem, end.request.options.bounds or {}
    if problem.convention is Convention.HOMODYNE:
        if problem.model.needs_gap:
            yield _advised(end, "other-convention")
    elif "gamma_dot" in problem.model.splines and "gamma_dot" not in bounds_of_user:
        yield _advised(end, "flow-may-reverse", ["gamma_dot"])


def _of_pattern(end: AssessedFit, depends_on: str) -> Finding:
    scan, option = end.request.scan, "--over q"
    along = np.abs(scan.phi) <= ALONG_FLOW
    advice = {"age": lambda: end.free_rates, "lag": lambda: end.compared}.get(depends_on)
    if advice is None and depends_on == "bin":
        if end.request.options.scaling != "individual":
            option = "--scaling individual"
        elif not along.any() or along.all():
            option = "--over label" if len(set(scan.label.tolist())) > 1 else "--over scan"
        elif end.request.problem.model.isotropic and np.isfinite(scan.q + scan.phi).all():
            return _advised(end, "one-direction")
        else:
            option = f"--phi -{ALONG_FLOW}:{ALONG_FLOW}"
    command = end.command(option) if advice is None else advice()
    return finding("misfit-pattern", (), command, depends_on=depends_on)


def _of_alternative(end: AssessedFit, alternative: Alternative) -> Finding:
    scan, place, numbers = end.request.scan, alternative.place, {"size": alternative.size}
    if alternative.name in SHAPES:
        return _advised(end, SHAPES[alternative.name], **numbers)
    match alternative.name:
        case "power_of_q" | "lag":
            return _of_pattern(end, "q" if alternative.name == "power_of_q" else "lag")
        case "smoothness":
            strengths = dict[Any, float](end.request.options.smoothness or {})
            command = f"--smoothness {place[0]}={strengths[place[0]]:g}"
            return finding("rate-too-smooth", place, command)
        case "profile":
            model = end.request.problem.model
            other, ratio = model.with_other_profile.shear.value, ratio_of_other(model)
            return _advised(end, "other-profile", profile=other, ratio=ratio)
        case "first_lag":
            option = f"--min-lag {end.request.problem.min_lag + 1}"
            return finding("first-lag", (), end.command(option), **numbers)
        case "shear" if np.isfinite(scan.q + scan.phi).all():
            return _advised(end, "one-direction")
        case "shear":
            return _of_pattern(end, "bin")
        case "rate":
            return _advised(end, "rate-changes", formula=end.with_power_of_age)
        case "jump":
            return _advised(end, "rate-jumps", **numbers, moment=scan.time[place[0]])
        case "bin":
            label, *number = place
            several = bool(number) and len(set(scan.scan_number.tolist())) > 1
            option = "--over scan" if several else f"--exclude-label {label}"
            about = " of scan ".join(map(str, place))
            command = end.command(option)
            return finding("bin-differs", [about], command, **numbers, of_scan=several)
    return _of_frames(end, alternative.size, *map(int, place))


def _of_frames(end: AssessedFit, size: float, first: int, last: int) -> Finding:
    """Return that frames differ, of one scan of several with what leaves them out of this one alone."""
    scan, others = end.request.scan, not end.assessment.alone
    number, ratio = scan_of_frames(scan, first, last) if scan.has_repeats else (0, 1.0)
    if number and (of_scan := scan.select(scan=number)).bins != scan.bins:
        end, others = replace(end, request=replace(end.request, scan=of_scan)), True
        size *= ratio
    of_ingest = f"--exclude-frames {f'{number}:' * (number > 0)}{first}-{last}" if others else ""
    numbers = {"frames": [first, last], "alone": first == last, "scan": number, "ingest": of_ingest}
    option = f"--exclude-frames {first}:{last + 1}"
    return finding("frames-differ", (), end.command(option), size=size, **numbers)


def _undetermined(end: AssessedFit) -> Iterator[Finding]:
    signal = end.assessment.signal
    if signal is not None and not signal.seen:
        shorter = "--min-lag 1" if end.request.problem.min_lag > 1 else ""
        ratio = signal.contrast / signal.stderr
        rises = ratio < -signal.threshold
        yield finding("no-decay", advice=shorter, ratio=ratio, rises=rises, **signal._asdict())
        return
    said, combinations = [*_constant(end)], [*_directions(end)]
    said += [finding("inseparable", law) for law in end.inseparable]
    yield from said
    yield from combinations or _larger_errors(end)
    yield from findings_of_doubts(end.assessment.errors.doubts, said + combinations)


def _constant(end: AssessedFit) -> Iterator[Finding]:
    request, rates = end.request, end.constant
    if not rates:
        return
    held = [name for rate in rates for name in RATES[rate][1:]]
    every_rate = len(rates) == 1 + request.problem.model.needs_gap and not request.options.tie
    if every_rate and (simple := CONSTANT_MODELS.get(request.problem.model.name)):
        command = end.command(model=simple)
    else:
        command = end.command(" ".join(f"--fixed {name}=0" for name in held))
    about = end.names[end.of_constant]
    yield finding("constant-rate", about, command, rates=rates, age=end.age, held=held)


def _directions(end: AssessedFit) -> Iterator[Finding]:
    search, state = end.request.search, end.state
    of_data, told = determined_at(search, state), {*end.names[end.of_constant].tolist()}
    # what more digits of the same sums would tell is hidden, not unknown
    finer = replace(state, reduced=state.reduced.rounded_as_float64)
    certain = determined_at(search, finer).undetermined if of_data.undetermined else []
    slow = state.slow_steps >= MAX_SLOW_STEPS
    code = "undetermined" if slow or end.assessment.errors.naive is None else "larger-error"
    if (of_all := end.assessment.errors.determined_by_all) is not None:
        told |= {*end.names[of_all].tolist()}
    undetermined = [names for names in of_data.undetermined if not told.issuperset(names)]
    for names in undetermined:
        if names in certain:
            yield finding(code, names, end.simpler)
        else:
            yield _advised(end, "hidden-by-rounding", names)
    determined = [name for name in of_data.determined if name not in told]
    if undetermined and determined:
        yield finding("determined", determined)


def _larger_errors(end: AssessedFit) -> Iterator[Finding]:
    search, told = end.request.search, np.isin(end.names, [*chain(*end.inseparable)])
    wide = search.free & (search.lower > 0) & (end.stderr > np.abs(end.theta))
    wide &= ~(end.of_constant | told)
    if wide.any():
        yield finding("larger-error", end.names[wide], end.simpler)
    if end.slower_than_record.any():
        yield _advised(end, "longer-than-record", end.names[end.slower_than_record])


def _damaged_chunks(end: AssessedFit) -> Iterator[Finding]:
    scan = end.request.scan
    if chunks := [chunk for chunk in scan.excluded if chunk.factor == 1]:
        pairs = sum(int(scan.manifest.pairs[chunk.bin, chunk.i, chunk.j]) for chunk in chunks)
        places = [f"({chunk.i}, {chunk.j}) of {scan.bin_words(chunk.bin)}" for chunk in chunks]
        numbers = {"chunks": len(chunks), "pairs": pairs, "datum": scan.datum}
        yield finding("damaged-chunks", places, **numbers)


def _chisqr_of_bins(end: AssessedFit) -> Iterator[Finding]:
    scan, redchi = end.request.scan, end.assessment.redchi
    if scan.smoothed:
        return
    pairs, source = end.request.options.weighting == PAIRS, scan.attributes.sigma_source
    pairs &= scan.cells is None
    if (far := redchi > MAX_REDCHI_OF_BIN.get(source, np.inf)).any():
        datum = scan.datum if scan.is_table or pairs else "cells"
        highest = redchi[far].max()
        yield finding("chisqr-high-in-bins", _labels(scan, far), datum=datum, highest=highest)
    if pairs and (quiet := redchi < MIN_REDCHI_OF_BIN.get(source, 0.0)).any():
        lowest, counted = redchi[quiet].min(), source == "counts"
        yield finding("chisqr-low-in-bins", _labels(scan, quiet), lowest=lowest, counted=counted)


def _labels(scan: Scan, bins: SomeBins) -> list[str]:
    of_scan = [f" of scan {n}" * scan.has_repeats for n in scan.scan_number]
    return [f"{scan.label[b]}{of_scan[b]}" for b in np.flatnonzero(bins)]


def _same_at_all_q(end: AssessedFit) -> Iterator[Finding]:
    request, theta = end.request, end.theta
    scan, model, rings = request.scan, request.problem.model, rings_of(request.scan.q)
    if len(rings) < 2 or not end.reduced.finite:
        return
    first, stop = scan.frames
    t2 = scan.time[first + 1 : stop]
    point = backend_of(model).point(request.problem, theta, scan.time)
    phi, t1 = np.full(2, scan.phi[0]), np.full_like(t2, scan.time[first])
    low, high = backend_of(model).f_at(point, scan.time, rings[[0, -1]], phi, t1, t2)
    if np.array_equal(low, high) and np.ptp(low) != 0:
        yield _advised(end, "same-at-all-q", model=model.name, rings=describe_rings(scan.q))


def _shear_sign(end: AssessedFit) -> Iterator[Finding]:
    """Yield that no data show the sign of the shear rate, if it is negative in the middle or in part."""
    problem, scan = end.request.problem, end.request.scan
    times = scan.time[scan.use & (scan.time > 0)]
    rates = problem.model.shear_rate_at(end.theta, np.append(times, np.median(times)))
    if rates is None or problem.convention is Convention.HOMODYNE:
        return
    changes = bool(rates.min() < 0 < rates.max() and problem.model.splines)
    if rates[-1] < 0 or changes:
        free = "gamma_dot_t0" not in problem.model.names
        bounded = "" if changes else "gamma_dot" if free else "gamma_dot_t_offset"
        yield finding("shear-sign", rate=rates[-1], bounded=bounded)


def _profile(end: AssessedFit) -> Iterator[Finding]:
    """Yield that the data agree with the other profile, too, of a flow that they do not contradict."""
    problem, assessment = end.request.problem, end.assessment
    misfit = assessment.check is not None and assessment.check.misfit
    if misfit or not assessment.decay or not has_profile(problem):
        return
    rates = np.char.startswith(end.names.astype(str), SHEAR)
    if not np.isfinite(end.stderr[rates]).any():
        return
    if assessment.p_of_other_profile > LEVEL_OF_PROFILE:
        other, ratio = problem.model.with_other_profile, ratio_of_other(problem.model)
        p = assessment.p_of_other_profile
        yield finding("profile-unknown", [SHEAR], model=other.name, ratio=ratio, p=p)


def _at_bounds(end: AssessedFit) -> Iterator[Finding]:
    """Yield rates and parameters at bounds; decays longer than the record have a finding of their own."""
    search, theta = end.request.search, end.theta
    smoothness = search.smoothness
    for rate, place in ({} if smoothness is None else smoothness.places).items():
        if (bounded := end.assessment.at_bound[place]).any():
            numbers = {"splines": bounded.sum(), "total": place.stop - place.start}
            yield finding("rate-at-bound", [rate], bound=theta[place][bounded].min(), **numbers)
    ended = end.assessment.at_bound & ~end.slower_than_record & ~end.of_constant
    ended[list(rate_of_each(end.request))] = False
    if ended.any() and not _flows(end):
        names = end.names[ended].tolist()
        bounds = np.stack([theta, search.lower, search.upper], axis=1)[ended]
        shares = [p.bounds == (0, 1) and not p.unit for p in end.request.parameters]
        held, natural = (end.held_offsets | shares)[ended], end.at_natural_bound[ended]
        of_model = names_in_model(names)
        options = map(_wider_bounds, of_model, bounds.tolist(), search.log[ended], held | natural)
        # once each: parameters of several scans have one name in the model
        wider = " ".join(dict.fromkeys(options))
        unknown = end.names[ended & np.isnan(end.stderr) & np.isfinite(end.stderr).any()]
        by_name = dict(zip(names, bounds, strict=True))
        apart = {"natural": end.names[ended][natural], "movable": end.names[ended][~natural]}
        yield finding("at-bound", names, wider, bounds=by_name, conditional=unknown, **apart)


def _unresolved(end: AssessedFit) -> Iterator[Finding]:
    """Yield rates of free form that change too fast at an end, or of which c2 shows the square alone."""
    smoothness, errors = end.request.search.smoothness, end.assessment.errors
    covariance = errors.naive if errors.robust is None else errors.robust
    if smoothness is None or covariance is None:
        return
    for rate, place in smoothness.places.items():
        form, held = smoothness.forms[rate], np.nan_to_num(covariance[place, place])
        # a density of rates has no ages
        if rate != LOG_DENSITY and (ages := unresolved_ends(form, end.theta[place], held)):
            yield finding("rate-unresolved", [rate], ages=ages)
    if (limited := end.assessment.limited).any():
        form, place = smoothness.forms[SHEAR], smoothness.places[SHEAR]
        centres = np.clip(form.centres, form.first, form.last)
        stretches = np.split(centres, np.flatnonzero(np.diff(limited[place])) + 1)
        # every other stretch is limited: the first, if its first coefficient is
        limited_stretches = stretches[not limited[place.start] :: 2]
        ages = [(stretch[0], stretch[-1]) for stretch in limited_stretches]
        yield finding("rate-limit-only", [SHEAR], ages=ages, coefficients=end.names[limited])


def _wider_bounds(name: str, bounds: list[float], log: bool, held: bool = False) -> str:
    """Return '--bounds D0=1:1e+14' for a parameter (value, low, high) at a bound; a held one is fixed."""
    value, low, high = bounds
    if held:
        return f"--fixed {name}={max(value, 0):g}"
    upper = value >= high
    if log:
        further = high * 100 if upper else low / 100
    else:
        reach = max(abs(low), abs(high))
        reach *= 10 if reach >= LARGE_BOUND else 2
        further = reach if upper else 0 if low > 0 else -reach  # a variance is not negative
    low, high = (low, further) if upper else (further, high)
    return f"--bounds {name}={low:g}:{high:g}"


def _limits(end: AssessedFit) -> Iterator[Finding]:
    if end.assessment.errors.robust is None or not end.assessment.decay:
        return
    search, theta, rates = end.request.search, end.theta, rate_of_each(end.request)
    dof = end.assessment.errors.dof
    both, one_sided = (half_width(percent, dof) * end.stderr for percent in (95.0, 90.0))
    low = (theta - both <= search.lower) & ~np.isfinite(search.period)
    high = (theta + both >= search.upper) & ~np.isfinite(search.period)
    limits = {}
    told = end.of_constant | np.isin(end.names, [*chain(*end.inseparable)])
    for n in np.flatnonzero((low | high) & ~told):
        if n not in rates:
            ends = [theta[n] - one_sided[n], None] if high[n] else [None, theta[n] + one_sided[n]]
            ends = [search.lower[n], search.upper[n]] if low[n] and high[n] else ends
            limits[search.names[n]] = [*ends, end.request.parameters[n].unit]
    if limits:
        yield finding("limits-only", limits, limits=limits)


def _withheld(end: AssessedFit) -> Iterator[Finding]:
    withheld = end.assessment.errors.withheld & ~end.of_constant
    if withheld.any() and end.assessment.at_bound.any() and not _flows(end):
        names, bounded = end.names[withheld], end.names[end.assessment.at_bound]
        yield _advised(end, "no-error-beside-bound", names, bounded=bounded)


def _bins(end: AssessedFit) -> Iterator[Finding]:
    reduced, used, seen = end.reduced, end.reduced.count > 0, end.with_decay

    def some(code: str, bins: SomeBins, among: SomeBins, **limit: float) -> Iterator[Finding]:
        if bins.any():
            count = {"bins": bins.sum(), "total": among.sum()}
            yield _advised(end, code, _labels(end.request.scan, bins), **count, **limit)

    yield from some("bins-without-decay", reduced.undetermined, used)
    yield from some("bins-without-pairs", ~used, np.ones_like(used))
    for column, name in ((1, "contrast"), (0, "offset")):
        if number := int(reduced.at_bound[used, column].sum()):
            yield finding("scaling-at-bound", [name], bins=number, total=used.sum())
    highest = HIGHEST_OF_TABLE if end.request.scan.is_table else 1.0
    with np.errstate(invalid="ignore"):  # NaN of bins without pairs, which `seen` excludes
        high = seen & (reduced.offset > HIGHEST_OFFSET)
        high &= reduced.offset + reduced.contrast > HIGHEST_C2
        beyond = seen & ((reduced.contrast > highest) | (reduced.offset < LOWEST_OFFSET)) & ~high
    yield from some("offset-high", high, seen, limit=HIGHEST_OFFSET)
    yield from some("decay-outside-record", beyond, seen, limit=LOWEST_OFFSET)
    if not (high | beyond).any() and not end.slower_than_record.any():
        yield from _other_offsets(end)


def _other_offsets(end: AssessedFit) -> Iterator[Finding]:
    offset = _deviation_of_offsets(end)
    if offset is None or abs(offset.mean) < LEAST_DEVIATION or not offset.p < MAX_P_OF_DRIFT:
        return
    code = "offset-far-from-1" if abs(offset.mean) > LARGE_DEVIATION else "offset-not-1"
    # one digit: it is typed in a command
    near = float(f"{PRIOR_OF_OFFSET * np.mean(end.reduced.contrast[end.with_decay]):.0e}")
    advice = ""
    if offset.mean > 0 and (model := _with_frozen_part(end)):
        advice = end.command(f"--offset prior=1:{near:g}", model, Convention.PHYSICAL)
    numbers = {"size": offset.mean, "p": offset.p, "level": MAX_P_OF_DRIFT, "deviation": near}
    yield finding(code, ["offset"], advice, **numbers)


def _deviation_of_offsets(end: AssessedFit) -> OffsetDeviation | None:
    """Return how far offsets are from 1; None where it is unknown, or where a user or a file tells it."""
    scan, noise = end.request.scan, end.assessment.noise
    simulated = "offset" in (scan.attributes.truth or {})
    if simulated or offset_has_prior(end.request.scaling):
        return None
    return _offset_of_table(end) if scan.is_table else noise and noise.offset


def _with_frozen_part(end: AssessedFit) -> str:
    """Return the name of the model with a frozen part, which raises offsets, or ''."""
    name = end.request.problem.model.name
    if "frozen" in name or not np.isfinite(end.request.scan.q).all():
        return ""
    with suppress(OptionError):  # beats are no part of a sum, nor are rates without a formula
        model_named(f"frozen + {name}")
        return f"frozen + {name}"
    return ""


def _offset_of_table(end: AssessedFit) -> OffsetDeviation | None:
    """Return how far the offsets of tables are from 1, as if those of all curves had the same noise."""
    reduced, factor = end.reduced, ERRORS_OF_TABLE[end.request.scan.attributes.sigma_source]
    error = np.where(end.with_decay, factor * end.assessment.errors.scaling_naive[:, 0], np.nan)
    weights = weights_of_offsets(reduced, error)
    variance = float(np.nansum(np.abs(weights) * error)) ** 2
    return offset_deviation(reduced, weights, variance, np.inf)


def _few_bins(end: AssessedFit) -> Iterator[Finding]:
    independent, bins = len(np.unique(end.request.clusters)), len(end.request.clusters)
    if independent < min(bins, MIN_CLUSTERS):
        numbers = {"independent": independent, "bins": bins, "needed": MIN_CLUSTERS}
        yield _advised(end, "few-independent-bins", **numbers)
    # `points-correlated` says why errors of a table are absent
    with_errors = end.assessment.errors.naive is not None and end.assessment.decay
    if with_errors and not end.request.scan.is_table:
        yield from _errors_of_few_bins(end)


def _neighbours(end: AssessedFit) -> Iterator[Finding]:
    noise, check = end.assessment.noise, end.assessment.check
    misfit = check is not None and check.misfit  # which makes neighbours alike, too
    for share in () if noise is None or noise.objection or misfit else noise.shared.shares:
        yield finding("neighbours-share-speckle", **share._asdict())


def _errors_of_few_bins(end: AssessedFit) -> Iterator[Finding]:
    if _errors_by_clusters(end):
        return
    errors, speckle = end.assessment.errors, end.assessment.noise
    few = errors.of_few(end.request.search.names)
    why = "few-cells" if speckle is None else speckle.objection
    if few and not end.assessment.alone:
        why = "together"
    if why is not None:
        limits = {"clusters": MIN_CLUSTERS, "freedom": MIN_FREEDOM}
        yield finding("no-standard-error", few, why=why, **limits)
    elif speckle is not None and speckle.distance >= FAR_FROM_CORRELATION:
        yield finding("not-a-correlation", percent=100 * speckle.distance)


def _errors_by_clusters(end: AssessedFit) -> bool:
    """Return whether the scatter between independent bins gives the errors of all parameters."""
    errors = end.assessment.errors
    if errors.method == SPECKLE or errors.of_few(end.request.search.names):
        return False
    of_all_scans = not end.assessment.alone and errors.robust is not None
    return of_all_scans or clusters_in(end.reduced, end.request.clusters) >= MIN_CLUSTERS


def _priors(end: AssessedFit) -> Iterator[Finding]:
    if (prior := end.request.search.priors) is not None:
        away = np.abs(prior.deviation(end.theta))
        yield from _against_priors(end, end.names, away, used_of(end.assessment.errors) / prior.sd)


def _scaling_priors(end: AssessedFit) -> Iterator[Finding]:
    prior, errors = end.request.scaling.prior, end.assessment.errors
    if prior is None:
        return
    individual, root = end.request.scaling.mode == "individual", np.sqrt(prior.weight)
    away = np.abs(end.reduced.linear_params - prior.mean) * root
    ratio = error_used(errors.scaling_robust, errors.scaling_naive) * root
    ratio[:, 0] *= not end.request.scan.is_table  # whose prior of an offset is to hold
    bins = np.flatnonzero(end.with_decay)[: None if individual else 1]
    for column, name in ((1, "contrast"), (0, "offset")):
        places = [f" ({bin_name(end.request.scan, bin)})" * individual for bin in bins]
        names = np.array([f"{name}{place}" for place in places])
        yield from _against_priors(end, names, away[bins, column], ratio[bins, column])


def _against_priors(
    end: AssessedFit,
    names: np.ndarray,
    away: Float[np.ndarray, " name"],
    ratio: Float[np.ndarray, " name"],
) -> Iterator[Finding]:
    """Yield findings on values `away` standard deviations from priors, and errors of `ratio` times these."""
    if not end.assessment.decay:
        return
    most = np.sort(np.argsort(-away, kind="stable")[:MOST_NAMED])
    far = most[away[most] > MAX_DEVIATION_FROM_PRIOR]
    if len(far):
        yield finding("far-from-prior", names[far], deviations=away[far])
    if (wide := np.nan_to_num(ratio) > MAX_ERROR_OVER_PRIOR).any():
        yield finding("prior-outweighed", names[wide][:MOST_NAMED])


def _contrast(end: AssessedFit) -> Iterator[Finding]:
    clusters = end.request.clusters
    sharing = np.array([(clusters == cluster).sum() for cluster in clusters])  # of one speckle
    error = end.assessment.errors.scaling_robust[:, 1] * np.sqrt(sharing)
    model = end.request.problem.model
    for change in contrast_changes(end.request.scan, end.reduced.contrast, error, model.isotropic):
        if change.about == ("q",) and FROZEN_FRACTION in model.names:
            yield _advised(end, "contrast-of-gel", change.about, **change.numbers)
        else:
            yield change


def contrast_changes(
    scan: Scan, contrast: PerBin, error: PerBin, isotropic: bool
) -> Iterator[Finding]:
    """Yield that contrast changes with q, or with φ of isotropic models, beyond errors and much of itself."""
    seen = np.isfinite(contrast) & np.isfinite(error) & (error > 0)
    turn = np.deg2rad(2 * scan.phi)
    of_q = np.log(scan.q / scan.q[0])  # NaN where one is unknown
    columns = {"q": [of_q, of_q**2]}
    columns |= {"φ": [np.cos(turn), np.sin(turn)]} if isotropic else {}
    for name, trends in columns.items():
        X = np.stack([np.ones(len(contrast)), *trends], axis=1)[seen]
        finite = len(X) and np.isfinite(X).all()
        freedom = int(np.linalg.matrix_rank(X, tol=MIN_SPREAD)) - 1 if finite else 0
        if freedom < 1:
            continue
        root = 1 / error[seen]
        fitted, *_ = np.linalg.lstsq(X * root[:, None], contrast[seen] * root, rcond=None)
        line, mean = X @ fitted, float(np.average(contrast[seen], weights=root**2))
        constant, curve = ((((contrast[seen] - fit) * root) ** 2).sum() for fit in (mean, line))
        level = {"p": chdtrc(freedom, max(constant - curve, 0.0)), "level": MAX_P_OF_DRIFT}
        if level["p"] < level["level"] and np.ptp(line) > MIN_DRIFT * abs(mean):
            ends = {"low": line.min(), "high": line.max()}
            yield finding("contrast-changes", [name], **ends, **level)


def _model_and_data(end: AssessedFit) -> Iterator[Finding]:
    request = end.request
    yield from aliased_fringes(request, end.theta)
    yield from _exchangeable(end)
    yield from _limit_of_precision(end)
    parameters = enumerate(request.parameters)
    scaled = [n for n, p in parameters if p.q_power and p.constant is None]
    if scaled and np.isnan(request.scan.q).any():
        yield finding("q-unknown", names_of_rates(request, scaled))
    if missing := [name for name in request.options.profile if name not in end.assessment.profiles]:
        yield finding("no-profile", missing)
    truth, names = request.scan.attributes.truth, request.search.names
    if other := truth_mismatch(truth, request.config, names):
        yield finding("simulated-otherwise", option=other[0], value=other[1])


def _exchangeable(end: AssessedFit) -> Iterator[Finding]:
    """Yield that the two parts of a beat may change places: with a fixed parameter of one they may not."""
    beat, names = end.request.problem.model.beat, end.names
    of_parts = np.char.endswith(names, "_ref") | np.char.endswith(names, "_sample")
    if beat is not None and beat.exchange and end.request.search.free[of_parts].all():
        yield finding("exchangeable", exchange=beat.exchange)


def _limit_of_precision(end: AssessedFit) -> Iterator[Finding]:
    if not end.reduced.finite:
        return
    errors = end.reduced.decrement_rounding(end.reduced.variance(end.free))
    # rounding that moves the optimum by less than the solver's own tolerance is no matter
    if errors > lm.SolverOptions.decrement:
        precision = end.request.problem.precision
        yield _advised(end, "precision-limit", precision=precision, errors=errors)


CHECKS = (
    *(
        _of_data,
        misfit,
        _undetermined,
        _damaged_chunks,
        _chisqr_of_bins,
        _same_at_all_q,
        _shear_sign,
        _profile,
    ),
    *(_at_bounds, _unresolved, _limits, _withheld, _bins, _few_bins, _neighbours, _contrast),
    *(_priors, _scaling_priors),
    _model_and_data,
)
"""In the order of the findings: those of severity error first."""
OF_PARAMETERS = (_undetermined, _at_bounds, _limits, _withheld, _priors)
"""Those of the parameters of several scans that are fitted together."""
