"""What a fit found out about itself: each check is a function of the end of a fit, and yields findings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.assessment.aliasing import aliased_fringes
from homodyne_dask.assessment.constant_rates import constant_rates
from homodyne_dask.assessment.speckle_errors import FAR_FROM_CORRELATION
from homodyne_dask.assessment.spline_rate_errors import SHEAR, names_of_rates, rate_of_each
from homodyne_dask.assessment.which_covariance import deviations, used_of
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.models.spline_basis import unresolved_ends
from homodyne_dask.models.spline_models import LOG_DENSITY
from homodyne_dask.models.spline_rates import free_forms, power_law_model
from homodyne_dask.models.transport import Convention, TransportModel, shear_rate_at
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Finding, Findings, finding
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.results.data.known_truth import truth_mismatch
from homodyne_dask.results.data.misfit import LARGEST_P, Alternative, ModelCheck
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.convergence import MAX_SLOW_STEPS
from homodyne_dask.solver.covariance import SPECKLE, TABLE, clusters_in
from homodyne_dask.solver.identifiability import Doubt, determined_at
from homodyne_dask.solver.limits import IMPROBABLE, LEVEL_OF_MISFIT, MIN_CLUSTERS, MIN_FREEDOM
from homodyne_dask.store.rings import describe_rings, rings_of
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from homodyne_dask.assessment.assess import Assessment

MAX_REDCHI_OF_BIN = {"counts": 2.0, "constant": 2.0, "scatter": 10.0, "table": 2.0}
"""Reduced χ² of a bin above which a warning is given, by the source of σ. Pairs that see one speckle
pattern are up to 1.5 times as noisy as counts say; their scatter from neighbours is several times less."""
MIN_REDCHI_OF_BIN = {"counts": 0.5, "constant": 0.1, "scatter": 0.1}
"""That below which a warning is given, by the source of σ: no noise of photons is smaller than by counts."""
MAX_DEVIATION_FROM_PRIOR = 3.0
"""Standard deviations from the mean of a prior, above which a warning is given."""
MAX_P_OF_DRIFT, MIN_DRIFT = IMPROBABLE, 0.1
"""Probability below which, and share of contrast above which, its change with q or φ is said."""
MIN_SPREAD = 1e-3
"""Of ln q, and of the cosine of 2φ, below which q and φ are taken for one."""
LOWEST_OFFSET, HIGHEST_OFFSET = 0.5, 1.5
"""Offsets below and above which they are commented on; c2 without correlation is 1."""
HIGHEST_C2 = 2.0
"""c2 of a frame with itself, but for the noise of counting: above it the scale of c2 is another one."""
MAX_ERROR_OVER_PRIOR = 1.1
"""The error of a parameter over the standard deviation of its prior, above which a warning is given."""
LARGE_BOUND = 100.0
"""From this size on a bound is moved by a power of ten, below, as that of an exponent, it is doubled."""
MAX_REDCHI = {"counts": 2.0, "constant": 1.5, "scatter": 1.5, "table": 1.5, "tested": 3.0}
"""Reduced χ² above which it is named first: by the source of σ, and where means of residuals were tested."""
KNOWN_OFFSET, FLOAT64 = "--offset prior=1:0.01", "--precision float64"
EITHER_SIGN = "-0.1:0.1"
"""Bounds of a shear rate that reverses [1/s]."""
CONSTANT_MODELS = {
    "static": "brownian",
    "laminar_flow": "couette",
    "poiseuille_flow": "poiseuille",
}
"""The same with constant rates."""
_AGE_WINDOWS, _ALONG = "--over age --windows 4", 30


@dataclass(frozen=True)
class FitEnd:
    """The end of a fit, with all that is estimated there."""

    request: Request
    state: lm.State
    known: "Assessment"

    @cached_property
    def names(self) -> np.ndarray:
        """Of the parameters."""
        return np.array(self.request.search.names)

    @property
    def with_decay(self) -> Bool[np.ndarray, " bin"]:
        """The bins that show a decay."""
        return (self.state.reduced.count > 0) & ~self.state.reduced.undetermined

    @cached_property
    def stderr(self) -> Float[np.ndarray, " p"]:
        """Standard errors; NaN where they are unknown."""
        return deviations(self.known.errors.robust, len(self.names))

    @cached_property
    def slower_than_record(self) -> Bool[np.ndarray, " p"]:
        """Which positive parameters are at their lower default bounds, with all contrasts above 1."""
        search, seen = self.request.search, self.with_decay
        if not (seen.any() and (self.state.reduced.contrast[seen] > 1.0).all()):
            return np.zeros(len(self.names), bool)
        given = np.isin(_of_model(self.names), list(self.request.options.bounds or {}))
        return search.free & (search.lower > 0) & (self.state.theta <= search.lower) & ~given

    @property
    def age(self) -> float:
        """The mean age of the data [s]."""
        return float(np.mean(self.request.scan.time[self.request.scan.use][[0, -1]]))

    @cached_property
    def constant(self) -> dict[str, tuple[float, float, str]]:
        """The rates that are constant within their errors, with these at the mean age."""
        errors, noise = self.known.errors, self.known.noise
        found = [(errors.robust, errors.dof)]
        found += [] if noise is None or noise.objection else [(noise.covariance, noise.dof)]
        known = [(covariance, dof) for covariance, dof in found if covariance is not None]
        decay = self.known.decay
        return constant_rates(self.request, self.state, self.age, known) if decay else {}

    @cached_property
    def of_constant(self) -> Bool[np.ndarray, " p"]:
        """The parameters of those: nothing else is said of them."""
        return np.isin(self.names, [name for rate in self.constant for name in RATES[rate]])

    @property
    def redchi(self) -> float:
        """The reduced χ²."""
        return self.state.reduced.redchi(int(self.request.search.free.sum()))

    @property
    def simpler(self) -> str:
        """The option for a model with fewer parameters of diffusion, or ''."""
        model, free = self.request.problem.model, self.request.search.smoothness is not None
        return f"--model {model.simpler}" if model.simpler and not free else ""


class _EndOfAll(FitEnd):
    """The end of a fit of several scans: whether a rate is constant, each of them says."""

    @cached_property
    def constant(self) -> dict[str, tuple[float, float, str]]:
        return {}


def result_findings(request: Request, state: lm.State, known: "Assessment") -> Findings:
    """Return all that is to be known of a fit: the errors first, then what is undetermined."""
    end = FitEnd(request, state, known)
    return Findings(one for check in CHECKS for one in check(end))


def findings_of_parameters(request: Request, state: lm.State, known: "Assessment") -> Findings:
    """Return what is to be known of the parameters of scans that were fitted together.

    What scans show, each report has: of rates, bins, frames, and whether the model describes them.
    """
    end = _EndOfAll(request, state, known)
    return Findings(one for check in OF_PARAMETERS for one in check(end))


def findings_of_doubts(doubts: Iterable[Doubt], said: Iterable[Finding] = ()) -> Iterator[Finding]:
    """Yield the findings on what the data do not determine, but those about parameters of `said`."""
    about = [set(one.about) for one in said if one.code != "determined"]
    for code, names, numbers in doubts:
        if names and any(set(names) <= of for of in about):
            continue
        yield finding(code, names, FLOAT64 if code == "hidden-by-rounding" else "", **numbers)


def _misfit(end: FitEnd) -> Iterator[Finding]:
    """Yield what speaks against the model, all of severity error, or that it was not checked.

    The advice of the power of q is not repeated by that of the averages.
    """
    request, known = end.request, end.known
    if not known.decay:
        return
    check, power = known.check, known.power_of_q
    config, redchi, source = request.config, end.redchi, request.scan.attrs["sigma_source"]
    if power is not None and power.differs:
        numbers = {"power": [power.power, power.stderr], "p": power.p, "level": LARGEST_P}
        advice = f"{command_of(request)} --over q"
        yield finding("power-of-q", (), advice, **numbers, model=config["model"])
    if request.scan.is_table:
        yield finding("points-correlated")
    elif check is None and end.state.outcome is lm.Outcome.CONVERGED:
        yield finding("not-checked")
    if check is None or not check.misfit:
        if redchi > MAX_REDCHI.get(source if check is None else "tested", np.inf):
            yield finding(
                "chisqr-too-high", (), _compared(request), redchi=redchi, sigma_source=source
            )
        return
    level = {"p": check.p, "level": LEVEL_OF_MISFIT}
    for one in _of_check(end, check):
        yield replace(one, numbers={**one.numbers, **level})


def _of_check(end: FitEnd, check: ModelCheck) -> Iterator[Finding]:
    """Yield where the model deviates from the data, and what to try."""
    request, known, config = end.request, end.known, end.request.config
    found, power = check.alternative, known.power_of_q
    if check.deviating:
        keys = ("deviating", "tests", "threshold", "age", "lag", "where", "share", "largest")
        yield finding("model-misfit", **{key: getattr(check, key) for key in keys})
    if found is not None and found.name == "power_of_q" and power is not None and power.differs:
        return
    if found is not None and not check.deviating:
        yield finding("model-misfit-shape", share=found.share)
    chosen = list(config["bounds"] or {})
    yield from _other_flow(request, chosen)
    ended = names_of_rates(request, np.flatnonzero(known.at_bound & ~end.of_constant).tolist())
    bounded = [name for name in ended if name not in (*chosen, "gamma_dot")]
    if bounded:
        yield finding("default-bounds-reached", bounded, _compared(request))
    elif found is not None and config["scaling"] == "individual":
        yield _of_alternative(request, found)
    else:
        yield _of_deviations(request, check.depends_on)


def _other_flow(request: Request, chosen: list[str]) -> Iterator[Finding]:
    """Yield what may be wrong about the shear of a misfit by default: the convention, or the sign.

    chosen: names of which bounds were given.
    """
    if request.problem.convention is Convention.HOMODYNE:
        if request.problem.model.shear:
            command = command_of(request, convention=Convention.PHYSICAL)
            yield finding("other-convention", (), command)
    elif "gamma_dot" in request.problem.model.splines and "gamma_dot" not in chosen:
        command = f"{command_of(request)} --bounds gamma_dot={EITHER_SIGN}"
        yield finding("flow-may-reverse", ["gamma_dot"], command)


def command_of(request: Request, model: str = "", convention: Convention | None = None) -> str:
    """Return the command that fits this model, or another, to these data, without the other options."""
    gap, ties = request.config["gap_angstrom"], (request.config["tie"] or {}).items()
    words = f"homodyne-dask fit {_store(request)} --model {quote(model or request.config['model'])}"
    words += "".join(f' --tie "{name} = {expression}"' for name, expression in ties)
    if (convention or request.problem.convention) is Convention.HOMODYNE:
        words += " --convention homodyne"
    return words if gap is None else f'{words} --gap "{gap / 1e4:g} um"'


def _store(request: Request) -> str:
    """Return the store with the options of its selection, as a command has them."""
    return f"{Path(request.scan.path).name} {request.scan.selection_options}".strip()


def _compared(request: Request) -> str:
    """Return the option that compares models; '' where it is refused."""
    compared = request.options.weighting == PAIRS and request.problem.loss == "linear"
    return "--model auto" if compared else ""


def _free_rates(request: Request) -> str:
    """Return the command that fits rates without a formula, and age windows where there is none."""
    model = request.problem.model
    if free_forms(model):
        return f"{command_of(request)} --rates spline"
    if not isinstance(model, TransportModel) or model.splines:
        return f"{command_of(request)} {_AGE_WINDOWS}"
    return f"{command_of(request, power_law_model(model).name)} --rates spline"


def _of_deviations(request: Request, depends_on: str) -> Finding:
    """Return the advice by what the means of residuals depend on."""
    config, scan = request.config, request.scan
    further = {"q": "--over q", "bin": f"--phi -{_ALONG}:{_ALONG}"}
    if depends_on in ("age", "lag"):
        advice = _free_rates(request) if depends_on == "age" else _compared(request)
        return finding("misfit-pattern", (), advice, depends_on=depends_on)
    option = further[depends_on]
    if depends_on == "bin":
        if config["scaling"] != "individual":
            option = "--scaling individual"
        elif not (np.abs(scan.phi) <= _ALONG).any():
            option = "--label N"
        elif np.isfinite(scan.q).all() and request.problem.model.isotropic:
            return _motion(request)
    return finding("misfit-pattern", (), f"{command_of(request)} {option}", depends_on=depends_on)


def _motion(request: Request) -> Finding:
    command = f'homodyne-dask fit {_store(request)} --model laminar_flow --gap "200 um"'
    return finding("one-direction", (), command)


def _with_exponent(request: Request) -> str:
    """Return the option for a model with an exponent that also has the powers of q or age of this one."""
    search = request.search
    if not request.problem.model.isotropic:
        return ""
    if len(rings_of(request.scan.q)) > 1:
        return "--model stretched_q"
    ages = "alpha" in search.names and search.free[search.names.index("alpha")]
    return "--model stretched" + "_ageing" * bool(ages)


def _of_alternative(request: Request, found: Alternative) -> Finding:
    command, numbers = command_of(request), dict[str, Any](size=found.size)
    match found.name:
        case "stretching":
            return finding("other-exponent", (), _with_exponent(request), **numbers)
        case "power_of_q" | "lag":
            return _of_deviations(request, "q" if found.name == "power_of_q" else "lag")
        case "smoothness":
            (rate,) = found.place
            return finding("rate-too-smooth", [rate], f"--smoothness {rate}=...")
        case "shear":
            return _motion(request)
        case "rate":
            return finding("rate-changes", (), _free_rates(request))
        case "jump":
            (frame,) = found.place
            numbers["moment"] = request.scan.time[frame]
            return finding("rate-jumps", (), _free_rates(request), **numbers)
        case "contrast_drift":
            return finding("contrast-drift", (), f"{command} {_AGE_WINDOWS}", **numbers)
        case "baseline":
            return finding("baseline", **numbers)
        case "own_average":
            return finding("own-average", **numbers)
        case "bin":
            label, *scan = found.place
            option = "--over scan" if scan else f"--exclude-label {label}"
            about = " of scan ".join(map(str, found.place))
            numbers |= {"of_scan": bool(scan)}
            return finding("bin-differs", [about], f"{command} {option}", **numbers)
    first, last = found.place
    numbers |= {"frames": [first, last], "alone": first == last}
    return finding(
        "frames-differ", (), f"{command} --exclude-frames {first}:{int(last) + 1}", **numbers
    )


def _undetermined(end: FitEnd) -> Iterator[Finding]:
    """Yield what the data do not determine, which is everything where no decay is seen."""
    signal = end.known.signal
    if signal is not None and not signal.seen:
        shorter = "--min-lag 1" if end.request.options.min_lag > 1 else ""
        ratio = signal.contrast / signal.stderr
        rises = ratio < -signal.threshold
        yield finding("no-decay", advice=shorter, ratio=ratio, rises=rises, **signal._asdict())
        return
    constant, combinations = [*_constant(end)], [*_directions(end)]
    yield from constant
    yield from combinations or _larger_errors(end)
    yield from findings_of_doubts(end.known.errors.doubts, constant + combinations)


def _constant(end: FitEnd) -> Iterator[Finding]:
    """Yield which rates are constant within their errors, and the command that fits them so."""
    request, rates = end.request, end.constant
    if not rates:
        return
    held = [name for rate in rates for name in RATES[rate][1:]]
    all_of = len(rates) == 1 + bool(request.problem.model.shear) and not request.config["tie"]
    if all_of and (simple := CONSTANT_MODELS.get(request.config["model"])):
        command = command_of(request, simple)
    else:
        command = command_of(request) + "".join(f" --fixed {name}=0" for name in held)
    about = end.names[end.of_constant]
    yield finding("constant-rate", about, command, rates=rates, age=end.age, held=held)


def _directions(end: FitEnd) -> Iterator[Finding]:
    """Yield the undetermined combinations of parameters, and which others are determined."""
    search, state = end.request.search, end.state
    known, told = determined_at(search, state), {*end.names[end.of_constant].tolist()}
    finer = replace(state, reduced=state.reduced.rounded_as_float64)
    certain = determined_at(search, finer).undetermined if known.undetermined else []
    slow = state.slow_steps >= MAX_SLOW_STEPS
    code = "undetermined" if slow or end.known.errors.naive is None else "larger-error"
    undetermined = [names for names in known.undetermined if not told.issuperset(names)]
    for names in undetermined:
        if names in certain:
            yield finding(code, names, end.simpler)
        else:
            yield finding("hidden-by-rounding", names, FLOAT64)
    determined = [name for name in known.determined if name not in told]
    if undetermined and determined:
        yield finding("determined", determined)


def _larger_errors(end: FitEnd) -> Iterator[Finding]:
    """Yield the positive parameters with errors larger than they are, or too small for the record."""
    search = end.request.search
    wide = search.free & (search.lower > 0) & (end.stderr > np.abs(end.state.theta))
    wide &= ~end.of_constant
    if wide.any():
        yield finding("larger-error", end.names[wide], end.simpler)
    if end.slower_than_record.any():
        yield finding("longer-than-record", end.names[end.slower_than_record], KNOWN_OFFSET)


def _damaged_chunks(end: FitEnd) -> Iterator[Finding]:
    scan = end.request.scan
    if chunks := [chunk for chunk in scan.excluded if chunk.factor == 1]:
        pairs = sum(int(scan.manifest.pairs[chunk.bin, chunk.i, chunk.j]) for chunk in chunks)
        places = [f"({chunk.i}, {chunk.j}) of {scan.bin_words(chunk.bin)}" for chunk in chunks]
        numbers = {"chunks": len(chunks), "pairs": pairs, "datum": scan.datum}
        yield finding("damaged-chunks", places, **numbers)


def _chisqr_of_bins(end: FitEnd) -> Iterator[Finding]:
    """Yield the bins whose data and model differ by far more than σ, or by less than photons do."""
    scan, redchi = end.request.scan, end.known.redchi
    pairs, source = end.request.options.weighting == PAIRS, scan.attrs["sigma_source"]
    pairs &= scan.cells is None
    if (far := redchi > MAX_REDCHI_OF_BIN.get(source, np.inf)).any():
        datum = scan.datum if scan.is_table or pairs else "cells"
        highest = redchi[far].max()
        yield finding("chisqr-high-in-bins", _labels(scan, far), datum=datum, highest=highest)
    if pairs and (quiet := redchi < MIN_REDCHI_OF_BIN.get(source, 0.0)).any():
        lowest, counted = redchi[quiet].min(), source == "counts"
        yield finding("chisqr-low-in-bins", _labels(scan, quiet), lowest=lowest, counted=counted)


def _labels(scan: Scan, bins: Bool[np.ndarray, " bin"]) -> list[str]:
    """Return the labels of some bins, of a store of repeats with the scan."""
    of_scan = [f" of scan {n}" * ("scans" in scan.attrs) for n in scan.scan_number]
    return [f"{scan.label[b]}{of_scan[b]}" for b in np.flatnonzero(bins)]


def _same_at_all_q(end: FitEnd) -> Iterator[Finding]:
    """Yield that the data have several q, if f is the same at all of them."""
    request, theta = end.request, end.state.theta
    scan, model, rings = request.scan, request.problem.model, rings_of(request.scan.q)
    if len(rings) < 2 or not end.state.reduced.finite:
        return
    first, stop = scan.frames
    t2 = scan.time[first + 1 : stop]
    at = backend_of(model).point(request.problem, theta, scan.time)
    phi, t1 = np.full(2, scan.phi[0]), np.full_like(t2, scan.time[first])
    low, high = backend_of(model).f_at(at, scan.time, rings[[0, -1]], phi, t1, t2)
    if np.array_equal(low, high) and np.ptp(low) != 0:
        command = f"{command_of(request)} --over q"
        yield finding("same-at-all-q", (), command, model=model.name, rings=describe_rings(scan.q))


def _shear_sign(end: FitEnd) -> Iterator[Finding]:
    """Yield that no data show the sign of the shear rate, if it is negative in the middle or in part."""
    problem, scan = end.request.problem, end.request.scan
    times = scan.time[scan.use & (scan.time > 0)]
    rates = shear_rate_at(problem.model, end.state.theta, np.append(times, np.median(times)))
    if rates is None or problem.convention is Convention.HOMODYNE:
        return
    changes = bool(rates.min() < 0 < rates.max() and problem.model.splines)
    if rates[-1] < 0 or changes:
        free = "gamma_dot_t0" not in problem.model.names
        bounded = "" if changes else "gamma_dot" if free else "gamma_dot_t_offset"
        yield finding("shear-sign", rate=rates[-1], bounded=bounded)


def _at_bounds(end: FitEnd) -> Iterator[Finding]:
    """Yield rates of free form with coefficients at a bound, and parameters at one.

    Decays that are longer than the record are at a bound, too, but have a finding of their own.
    """
    search, theta = end.request.search, end.state.theta
    smoothness = search.smoothness
    for rate, at in ({} if smoothness is None else smoothness.places).items():
        if (bounded := end.known.at_bound[at]).any():
            numbers = {"splines": bounded.sum(), "total": at.stop - at.start}
            yield finding("rate-at-bound", [rate], bound=theta[at][bounded].min(), **numbers)
    ended = end.known.at_bound & ~end.slower_than_record & ~end.of_constant
    ended[list(rate_of_each(end.request))] = False
    if ended.any():
        names = end.names[ended].tolist()
        bounds = np.stack([theta, search.lower, search.upper], axis=1)[ended]
        each = map(_wider_bounds, _of_model(names), bounds.tolist(), search.log[ended])
        wider = " ".join(dict.fromkeys(each))
        unknown = end.names[ended & np.isnan(end.stderr) & np.isfinite(end.stderr).any()]
        at = dict(zip(names, bounds, strict=True))
        yield finding("at-bound", names, wider, bounds=at, conditional=unknown)


def _unresolved(end: FitEnd) -> Iterator[Finding]:
    """Yield the rates of free form that change too fast at an end of the record, or of which c2 shows the
    square alone.
    """
    smoothness, errors = end.request.search.smoothness, end.known.errors
    covariance = errors.naive if errors.robust is None else errors.robust
    if smoothness is None or covariance is None:
        return
    for rate, at in smoothness.places.items():
        form, held = end.request.problem.model.splines[rate], np.nan_to_num(covariance[at, at])
        if rate != LOG_DENSITY and (ages := unresolved_ends(form, end.state.theta[at], held)):
            yield finding("rate-unresolved", [rate], ages=ages)
    if (limited := end.known.limited).any():
        form, at = end.request.problem.model.splines[SHEAR], smoothness.places[SHEAR]
        centres = np.clip(form.centres, form.first, form.last)
        stretches = np.split(centres, np.flatnonzero(np.diff(limited[at])) + 1)
        ages = [(of[0], of[-1]) for of in stretches[not limited[at.start] :: 2]]
        yield finding("rate-limit-only", [SHEAR], ages=ages, coefficients=end.names[limited])


def _of_model(names: Iterable[str]) -> list[str]:
    """Return the names of parameters in the model: 'D0' of 'D0 of scan 3'."""
    return [name.partition(" of ")[0] for name in names]


def _wider_bounds(name: str, at: list[float], log: bool) -> str:
    """Return '--bounds D0=1:1e+14' for a parameter at a bound. at: its value, lower and upper bound.

    An offset at a negative one is fixed: further down, it only makes the rest of the rate larger.
    """
    value, low, high = at
    if value <= low < 0 and name in (parts[-1] for parts in RATES.values()):
        return f"--fixed {name}=0"
    upper = value >= high
    if log:
        further = high * 100 if upper else low / 100
    else:
        reach = max(abs(low), abs(high))
        more = (10 if reach >= LARGE_BOUND else 2) * reach
        further = more if upper else -more
    low, high = (low, further) if upper else (further, high)
    return f"--bounds {name}={low:g}:{high:g}"


def _limits(end: FitEnd) -> Iterator[Finding]:
    """Yield the parameters whose intervals have a bound in them: only their limits are known.

    It is the same beside a bound and at it: at which a fit ends is chance.
    """
    if end.known.errors.robust is None or not end.known.decay:
        return
    search, theta, rates = end.request.search, end.state.theta, rate_of_each(end.request)
    both, one = (half_width(percent, end.known.errors.dof) * end.stderr for percent in (95.0, 90.0))
    low = (theta - both <= search.lower) & ~np.isfinite(search.period)
    high = (theta + both >= search.upper) & ~np.isfinite(search.period)
    limits = {}
    for n in np.flatnonzero((low | high) & ~end.of_constant):
        if n not in rates:
            ends = [theta[n] - one[n], None] if high[n] else [None, theta[n] + one[n]]
            ends = [search.lower[n], search.upper[n]] if low[n] and high[n] else ends
            limits[search.names[n]] = [*ends, end.request.parameters[n].unit]
    if limits:
        yield finding("limits-only", limits, limits=limits)


def _withheld(end: FitEnd) -> Iterator[Finding]:
    """Yield the parameters that have no error because another one is at a bound."""
    withheld = end.known.errors.withheld & ~end.of_constant
    if withheld.any() and end.known.at_bound.any():
        names, bounded = end.names[withheld], end.names[end.known.at_bound]
        yield finding("no-error-beside-bound", names, end.simpler, bounded=bounded)


def _bins(end: FitEnd) -> Iterator[Finding]:
    """Yield bins without a decay and without pairs, and contrasts and offsets that no speckle has."""
    reduced, used, seen = end.state.reduced, end.state.reduced.count > 0, end.with_decay

    def some(
        code: str, bins: Bool[np.ndarray, " bin"], among: Bool[np.ndarray, " bin"], **more: float
    ) -> Iterator[Finding]:
        if bins.any():
            advice = KNOWN_OFFSET if code == "decay-outside-record" else ""
            count = {"bins": bins.sum(), "total": among.sum()}
            yield finding(code, _labels(end.request.scan, bins), advice, **count, **more)

    yield from some("bins-without-decay", reduced.undetermined, used)
    yield from some("bins-without-pairs", ~used, np.ones_like(used))
    for at, name in ((1, "contrast"), (0, "offset")):
        if number := int(reduced.at_bound[used, at].sum()):
            yield finding("scaling-at-bound", [name], bins=number, total=used.sum())
    with np.errstate(invalid="ignore"):
        high = seen & (reduced.offset > HIGHEST_OFFSET)
        high &= reduced.offset + reduced.contrast > HIGHEST_C2
        beyond = seen & ((reduced.contrast > 1.0) | (reduced.offset < LOWEST_OFFSET)) & ~high
    yield from some("offset-high", high, seen, limit=HIGHEST_OFFSET)
    yield from some("decay-outside-record", beyond, seen, limit=LOWEST_OFFSET)


def _few_bins(end: FitEnd) -> Iterator[Finding]:
    """Yield what Friedel pairs leave of bins, where standard errors need more than that.

    And why there are no standard errors with few bins, or what qualifies them.
    """
    independent, bins = len(np.unique(end.request.clusters)), len(end.request.clusters)
    if independent < min(bins, MIN_CLUSTERS):
        numbers = {"independent": independent, "bins": bins, "needed": MIN_CLUSTERS}
        yield finding("few-independent-bins", (), "--friedel off", **numbers)
    errors, speckle = end.known.errors, end.known.noise
    few = errors.of_few(end.request.search.names)
    enough = clusters_in(end.state.reduced, end.request.clusters) >= MIN_CLUSTERS
    of_all = not end.known.alone and errors.robust is not None  # from the bins of all scans
    by_clusters = (enough or of_all) and not few and errors.method != SPECKLE
    by_clusters |= errors.method == TABLE
    if errors.naive is None or not end.known.decay or by_clusters:
        return
    why = "few-cells" if speckle is None else speckle.objection
    if few and not end.known.alone:
        why = "together"
    if why is not None:
        limits = {"clusters": MIN_CLUSTERS, "freedom": MIN_FREEDOM}
        yield finding("no-standard-error", few, why=why, **limits)
    elif speckle is not None and speckle.distance >= FAR_FROM_CORRELATION:
        yield finding("not-a-correlation", percent=100 * speckle.distance)


def _priors(end: FitEnd) -> Iterator[Finding]:
    """Yield the parameters that end far from their priors, or are known less well than by them."""
    priors = end.request.search.priors
    if priors is None or not end.known.decay:
        return
    away = np.abs(priors.deviation(end.state.theta))
    with np.errstate(invalid="ignore"):
        far = away > MAX_DEVIATION_FROM_PRIOR
        wide = used_of(end.known.errors) > MAX_ERROR_OVER_PRIOR * priors.sd
    if far.any():
        yield finding("far-from-prior", end.names[far], deviations=away[far])
    if wide.any():
        yield finding("prior-outweighed", end.names[wide])


def _contrast(end: FitEnd) -> Iterator[Finding]:
    """Yield that contrast changes with q or φ; its errors are of independent bins."""
    clusters = end.request.clusters
    alike = np.sqrt([(clusters == one).sum() for one in clusters])  # of one speckle
    error = end.known.errors.scaling_robust[:, 1] * alike
    isotropic = end.request.problem.model.isotropic
    yield from contrast_changes(end.request.scan, end.state.reduced.contrast, error, isotropic)


def contrast_changes(
    scan: Scan,
    contrast: Float[np.ndarray, " bin"],
    error: Float[np.ndarray, " bin"],
    isotropic: bool,
) -> Iterator[Finding]:
    """Yield that contrast changes with q, or with φ, by more than its errors and much of itself.

    error: standard errors of contrast, NaN where they are unknown. isotropic: of the
    model; a change with φ is said of such models alone.
    """
    from scipy.special import chdtrc  # loads for a fifth of a second

    seen = np.isfinite(contrast) & np.isfinite(error) & (error > 0)
    turn = np.deg2rad(2 * scan.phi)
    of_q = np.log(scan.q / scan.q[0])  # NaN where one is unknown
    columns = {"q": [of_q, of_q**2]}
    columns |= {"φ": [np.cos(turn), np.sin(turn)]} if isotropic else {}
    for name, more in columns.items():
        X = np.stack([np.ones(len(contrast)), *more], axis=1)[seen]
        known = len(X) and np.isfinite(X).all()
        freedom = int(np.linalg.matrix_rank(X, tol=MIN_SPREAD)) - 1 if known else 0
        if freedom < 1:
            continue
        root = 1 / error[seen]
        fitted, *_ = np.linalg.lstsq(X * root[:, None], contrast[seen] * root, rcond=None)
        line, mean = X @ fitted, float(np.average(contrast[seen], weights=root**2))
        constant, curve = ((((contrast[seen] - at) * root) ** 2).sum() for at in (mean, line))
        level = {"p": chdtrc(freedom, max(constant - curve, 0.0)), "level": MAX_P_OF_DRIFT}
        if level["p"] < level["level"] and np.ptp(line) > MIN_DRIFT * abs(mean):
            ends = {"low": line.min(), "high": line.max()}
            yield finding("contrast-changes", [name], **ends, **level)


def _model_and_data(end: FitEnd) -> Iterator[Finding]:
    """Yield what the model cannot tell from these data, and what was asked for and cannot be had."""
    request, reduced, beat = end.request, end.state.reduced, end.request.problem.model.beat
    yield from aliased_fringes(request, end.state.theta)
    of_one = np.char.endswith(end.names, "_ref") | np.char.endswith(end.names, "_sample")
    if beat is not None and beat.exchange and request.search.free[of_one].all():
        yield finding("exchangeable", exchange=beat.exchange)
    if reduced.finite:
        errors = reduced.decrement_rounding(reduced.variance(int(request.search.free.sum())))
        if errors > lm.Options.decrement:
            precision = request.problem.precision
            yield finding("precision-limit", (), FLOAT64, precision=precision, errors=errors)
    parameters = enumerate(request.parameters)
    scaled = [n for n, p in parameters if p.q_power and p.constant is None]
    if scaled and np.isnan(request.scan.q).any():
        yield finding("q-unknown", names_of_rates(request, scaled))
    if missing := [name for name in request.options.profile if name not in end.known.profiles]:
        yield finding("no-profile", missing)
    truth, names = request.scan.attrs["truth"], request.search.names
    if other := truth_mismatch(truth, request.config, names):
        yield finding("simulated-otherwise", option=other[0], value=other[1])


CHECKS = (
    *(_misfit, _undetermined, _damaged_chunks, _chisqr_of_bins, _same_at_all_q, _shear_sign),
    *(_at_bounds, _unresolved, _limits, _withheld, _bins, _few_bins, _contrast, _priors),
    _model_and_data,
)
"""In the order of the findings: those of severity error first."""
OF_PARAMETERS = (_undetermined, _at_bounds, _limits, _withheld, _priors)
"""Those of the parameters of several scans that are fitted together."""
