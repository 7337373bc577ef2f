"""From options to a checked request: data, model, search and scaling mode."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.kernels.backend import check_model, evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.machine.running_code import code_digest
from homodyne_dask.models import Model, TransportModel, convention_named, scan_model
from homodyne_dask.models.derived_models import check_untied, with_ties
from homodyne_dask.models.parameter_priors import given_priors
from homodyne_dask.models.parameters import GaussianPriors, Parameter, Search, search
from homodyne_dask.models.rate_forms import power_laws
from homodyne_dask.models.spline_rates import (
    RATE,
    by_coefficient,
    check_priors,
    check_profile,
    on_times,
    smoothness_of,
    with_free_rates,
)
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.models.units import gap_in_angstrom
from homodyne_dask.request.options import PAIRS, FitOptions
from homodyne_dask.request.request import Request, speckle_clusters
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of, scaling_prior
from homodyne_dask.store.rings_and_clusters import ring_numbers
from homodyne_dask.store.scan import Scan, as_scan, q_or_one
from homodyne_dask.sweep.plan import Device

_OF_TABLES = 1e-8
"""Distance from the optimum in standard errors that ends a fit of a table, whose passes are short."""
_UNKNOWN_Q_BOUND = 1e10
"""1/s: bounds of q²·D where q is unknown."""


def prepare(data: Scan | str | Path, model: Model | str, **values: Any) -> Request:
    code_digest()  # of the files that are loaded now
    options = FitOptions(**values)
    model = with_free_rates(scan_model(model).current(), options.rates)
    scan = as_scan(data)
    _check_options(options, scan)
    model = with_ties(on_times(model, scan.time[scan.use], options.knots), options.tie)
    for what in ("initial", "fixed", "bounds", "prior", "profile"):
        check_untied(model, what, getattr(options, what))
    for name in options.profile:
        check_profile(model, name)
    check_priors(model, options.prior)
    _check_scan(model, scan)
    convention = convention_named(options.convention)
    frame_spacing(scan.time, convention)
    width = _gap(options.gap, scan)
    needs_q = check_model(model, scan.n_frames, convention, options.precision)
    parameters = parameters_for_q(model, scan, needs_q)
    chosen = _search(model, parameters, options, scan)
    scaling = _scaling(options, scan)
    used = _resolved(options, chosen, scaling)
    more = {
        "model": model.name,
        "model_digest": model.digest,
        "periods": {p.name: p.period for p in parameters if p.period is not None},
        "gap_angstrom": width,
        "gap_from": "option gap"
        if scan.attributes.gap_angstrom is None
        else "stored with the data",
        "changed": options.changed(),
        "splines": {name: asdict(form) for name, form in model.splines.items()},
    }
    of_pairs = used.min_lag, used.precision, used.loss, float(used.loss_scale or 1.0)
    problem = Problem(model, convention, width if model.shear else None, *of_pairs)
    solver = lm.Options(max_passes=used.max_passes)
    if scan.is_table:
        _check_age(problem, chosen, float(q_or_one(scan)[0]), float(np.nan_to_num(scan.phi[0])))
        solver = replace(solver, decrement=_OF_TABLES)
    config = used.values() | more
    return Request(scan, problem, chosen, parameters, scaling, used, solver, config)


def _check_options(options: FitOptions, scan: Scan) -> None:
    linear = options.loss == "linear"
    if linear and options.loss_scale is not None:
        raise OptionError(
            f"loss_scale = {options.loss_scale!r} is given, but the loss is the sum of squares: choose "
            f"a loss, such as loss='huber'"
        )
    if not linear and options.precision != "float64":
        raise OptionError(
            f"precision {options.precision!r} is too coarse for the loss {options.loss!r}: its steps "
            f"are smaller than the rounding of the sums; use precision 'float64'"
        )
    if not linear and options.weighting != PAIRS:
        raise OptionError(
            f"weighting {options.weighting!r} minimizes squares, but the loss is {options.loss!r}: leave out "
            f"one of them"
        )
    if scan.is_table:
        _check_table(options)
    if int(scan.use.sum()) < 3:
        raise SelectionError(
            f"{int(scan.use.sum())} of {scan.n_frames} frames are in use, but a fit needs at least 3: "
            f"widen the selection"
        )
    if scan.cells is not None and options.precision != "float64":
        raise OptionError(
            f"c2 of {scan.path} is the mean over cells of age and lag, and fits to such "
            f"means run in float64 only: leave out precision"
        )


def _check_scan(model: Model, scan: Scan) -> None:
    unknown = int(np.isnan(scan.phi).sum())
    directed = model.beat is not None and bool(model.beat.direction)
    if unknown and (model.shear or directed):
        instead = ", or fit damped_cosine, which needs none" if directed else ""
        raise SelectionError(
            f"{model.name} needs φ, which is unknown for {unknown} of {len(scan.bins)} selected bins: "
            f"ingest with --phi, or select the other bins with label{instead}"
        )
    first = scan.time[scan.use][0]
    of_age = isinstance(model, TransportModel) or model.power_laws or RATE in model.splines
    if of_age and first < 0:
        raise SelectionError(
            f"the selected times begin at {first:g} s, but the rates of {model.name} are those of the time "
            f"since 0 s: select later times (--time 0:...), or ingest again with another --time-offset"
        )


def _search(
    model: Model, parameters: tuple[Parameter, ...], options: FitOptions, scan: Scan
) -> Search:
    laws = power_laws(model.names, model.power_laws, scan.time[scan.use])
    given = ((what, getattr(options, what)) for what in ("initial", "fixed", "bounds"))
    initial, fixed, bounds = (by_coefficient(model, *of_name) for of_name in given)
    chosen = search(parameters, initial, fixed, bounds, laws)
    priors = gaussian_priors(options.prior, chosen)
    clusters = speckle_clusters(scan, options.friedel)
    smoothness = smoothness_of(model, chosen, options.smoothness, clusters)
    for name in options.profile:
        if not chosen.free[chosen.names.index(name)]:
            raise OptionError(
                f"profile: {name} is fixed and has no profile: remove it from profile or from fixed"
            )
    return replace(chosen, priors=priors, smoothness=smoothness)


def _resolved(options: FitOptions, chosen: Search, scaling: Scaling) -> FitOptions:
    priors = chosen.priors
    values: dict[str, Any] = {
        "loss_scale": 1.0 if options.loss_scale is None else options.loss_scale,
        "prior": None if priors is None else priors.by_name(chosen.names),
    }
    if scaling.fixed_params is not None:
        values["contrast"] = scaling.fixed_params[:, 1].tolist()
        values["offset"] = (1 + scaling.fixed_params[:, 0]).tolist()
    return options.model_copy(update=values)


def computed_on(request: Request, device: Device) -> Request:
    note = {"name": device.name, "on": str(device.gpus or "CPU"), "why": device.why}
    return replace(request, config=request.config | {"computed_on": note})


def _gap(given: str | float | None, scan: Scan) -> float | None:
    stored = scan.attributes.gap_angstrom
    if given is None:
        return stored
    gap = gap_in_angstrom(given)
    if stored is not None and not np.isclose(gap, stored):
        raise OptionError(
            f"gap = {given!r}, but {scan.path} was ingested with a gap of {stored / 1e4:g} um: leave it out, "
            f"or ingest again with the right gap"
        )
    return gap


def require_gap(request: Request) -> None:
    """Raise OptionError where the model needs a gap that is not known; a plan does not need it."""
    if request.problem.model.shear and request.problem.gap is None:
        raise OptionError(
            f"{request.problem.model.name} needs the gap between the plates: give it, for example "
            "--gap '200 um'"
        )


def gaussian_priors(given: Mapping[str, Any] | None, search: Search) -> GaussianPriors | None:
    priors = given_priors(given, search)
    if not priors:
        return None
    mean, sd = np.full((2, len(search.names)), np.nan)
    for name, prior in priors.items():
        if prior.name != "normal":
            raise OptionError(
                f"prior of {name}: a fit takes only normal priors, as mean and standard deviation, but this "
                f"prior is {prior.name}: give it to posterior instead"
            )
        prior.require(("mean", "sd"), ("sd",))
        at = search.names.index(name)
        mean[at], sd[at] = prior.numbers
        if sd[at] < np.finfo(float).eps * abs(mean[at]):
            raise OptionError(
                f"prior of {name}: sd = {sd[at]:g} is below the rounding of {mean[at]:g}: to keep {name} at "
                f"this value, use fixed"
            )
    return GaussianPriors(mean, sd, search.period)


def _scaling(options: FitOptions, scan: Scan) -> Scaling:
    given: dict[str, Any] = {"contrast": options.contrast, "offset": options.offset}
    limits = {name: of if isinstance(of, dict) else {} for name, of in given.items()}
    prior = scaling_prior(**limits)
    values = {name: value for name, value in given.items() if not limits[name]}
    alike = scan.bin_of_scan
    if options.scaling == "rings":
        alike = ring_numbers(scan.q)
    elif options.scaling == "angles":
        alike = np.unique(scan.phi, return_inverse=True)[1]
    return scaling_of(options.scaling, scan.phi, **values, prior=prior, alike=alike)


def parameters_for_q(model: Model, scan: Scan, needs_q: bool) -> tuple[Parameter, ...]:
    """Return the model's parameters, in 1/s where q is unknown and only q² times them is determined."""
    unknown = np.isnan(scan.q)
    if not unknown.any():
        return model.parameters
    if not unknown.all():
        raise SelectionError(
            f"q is unknown for {int(unknown.sum())} of {len(unknown)} selected bins: "
            f"select only bins with q, or only bins without q"
        )
    if needs_q:
        raise OptionError(f"{model.name} needs q, which the store does not have: ingest with --q")
    parameters, most = [], _UNKNOWN_Q_BOUND
    for p in model.parameters:
        if p.q_power:
            low = 1 / most if p.bounds[0] > 0 else -most
            p = replace(p, unit="1/s", bounds=(0.0 if p.bounds[0] == 0 else low, most))
        parameters.append(p)
    return tuple(parameters)


_SCALES = 10.0 ** np.arange(-7, 5)
"""s: lags at which f is compared at two ages."""
_MAX_CHANGE = 1e-7
"""Of f from one age to another, above which it depends on age."""


def _check_table(options: FitOptions) -> None:
    refused = {
        "weighting": (options.weighting != PAIRS, "the noise of speckle"),
        "min_lag": (options.min_lag > 1, "frames: remove the first lines of the table instead"),
        "friedel": (options.friedel != "on", "the noise of speckle"),
        "rates": (options.rates is not None, "ages"),
    }
    for name, (given, needs) in refused.items():
        if given:
            raise OptionError(
                f"{name} = {getattr(options, name)} needs two-time data, and a table of g2 has only delays, "
                f"not {needs}; leave out {name}"
            )


def _check_age(problem: Problem, search: Search, q: float, phi: float) -> None:
    """Raise OptionError for a model whose f depends on age at some point within its bounds."""
    model, share = problem.model, np.random.default_rng(0).uniform(0.3, 0.7, len(search.names))
    low, high = (
        np.where(np.isfinite(of), of, n) for n, of in ((1, search.lower), (2, search.upper))
    )
    log = search.log & (low > 0)
    low, high = (np.where(log, np.log(np.where(log, of, 1)), of) for of in (low, high))
    theta = low + share * (high - low)
    theta = np.where(log, np.exp(np.where(log, theta, 0)), theta)
    theta = np.where(np.isfinite(search.start), search.start, theta)
    backend, steps, bins = evaluation_of(model), np.arange(1.0, 4), (np.array([q]), np.array([phi]))
    for scale in _SCALES:
        time = scale * steps
        at = backend.point(problem, theta, time)
        f = np.asarray(backend.f_at(at, time, *bins, time[:2, None], time[1:, None]))
        if not np.abs(np.ptp(f)) <= _MAX_CHANGE:
            raise OptionError(
                f"{model.name} depends on age, and a table of g2 is a mean over all ages: fix its exponents "
                f"at 0, fit a model of the lag alone, such as brownian or stretched, or fit two-time data"
            )
