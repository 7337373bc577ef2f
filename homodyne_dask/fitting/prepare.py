"""From data to model to problem: the checked request of a fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.kernels.backend import check_model, evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.machine.running_code import code_digest
from homodyne_dask.models import Model, convention_named, scan_model
from homodyne_dask.models.derived_models import with_ties
from homodyne_dask.models.exposure import ExposureModel, exposure
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.request.options import FitOptions
from homodyne_dask.request.request import Request, gap_of, speckle_clusters
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of, scaling_prior
from homodyne_dask.store.rings_and_clusters import ring_numbers
from homodyne_dask.store.scan import Scan, as_scan


def prepare(data: Scan | str | Path, model: Model | str, **values: Any) -> Request:
    code_digest()  # of the files that are loaded now: the fit may end long after they have changed
    options = FitOptions(**values)
    free = scan_model(model).current().with_rates(options.rates)
    scan = as_scan(data)
    options.check(scan.is_table)
    _check_scan(scan, options.precision)
    if scan.attributes.exposures and not isinstance(free, ExposureModel):
        free = exposure(free)
    elif isinstance(free, ExposureModel) and not scan.attributes.exposures:
        raise OptionError(
            f"{free.name} is for tables of contrast against exposure, which {scan.path} is not: fit "
            f"{free.within.name}"
        )
    time = scan.time[scan.use]
    model = with_ties(free.over(time, options.knots), options.tie)
    model.check_data(scan.phi, time)
    convention = convention_named(options.convention)
    frame_spacing(scan.time, convention)
    gap = gap_of(options, scan)
    needs_q = check_model(model, scan.n_frames, convention, options.precision)
    parameters = model.parameters_for(scan.q, needs_q)
    clusters = speckle_clusters(scan, options.friedel)
    search = model.search(options, parameters, time, clusters)
    scaling = _scaling(options, scan)
    options = _as_used(options, search, scaling)
    problem = Problem(
        model, convention, gap if model.needs_gap else None, options.min_lag, options.precision,
        options.loss, float(options.loss_scale or 1.0),
    )  # fmt: skip
    if scan.is_table:
        _check_age(problem, search, float(scan.q_or_one[0]), float(np.nan_to_num(scan.phi[0])))
    raw = None if options.noise_of is None else raw_scan(options.noise_of, scan)
    return Request(scan, problem, search, parameters, scaling, options, raw=raw)


def raw_scan(noise_of: str, scan: Scan) -> Scan:
    """Return the bins and frames of a scan in the store that has their noise."""
    raw = as_scan(noise_of)
    names = ("label", "q", "phi")
    ours, theirs = (
        {name: data.all_bins[name] for name in names} | {"times": data.time} for data in (scan, raw)
    )
    for what, values in ours.items():
        others = theirs[what]
        if values.shape != others.shape or not np.allclose(values, others, equal_nan=True):
            raise SelectionError(
                f"noise_of = {raw.path} has {len(raw.all_bins['q'])} bins of {raw.n_frames} frames, and "
                f"{scan.path} has {len(scan.all_bins['q'])} of {scan.n_frames}, with other {what}: both must "
                "have the same bins and frames; ingest them alike"
            )
    if raw.digest == scan.digest:
        raise SelectionError(f"noise_of = {raw.path} is what is fitted: leave it out")
    return replace(raw, bins=scan.bins, frames=scan.frames, excluded_frames=scan.excluded_frames)


def _check_scan(scan: Scan, precision: str) -> None:
    if int(scan.use.sum()) < 3:
        raise SelectionError(
            f"{int(scan.use.sum())} of {scan.n_frames} frames are in use, but a fit needs at least 3: "
            f"widen the selection"
        )
    if scan.cells is not None and precision != "float64":
        raise OptionError(
            f"c2 of {scan.path} is the mean over cells of age and lag, and fits to such "
            f"means run in float64 only: leave out precision"
        )


def _as_used(options: FitOptions, search: Search, scaling: Scaling) -> FitOptions:
    priors = search.priors
    values: dict[str, Any] = {
        "loss_scale": 1.0 if options.loss_scale is None else options.loss_scale,
        "prior": None if priors is None else priors.by_name(search.names),
    }
    if scaling.fixed_params is not None:
        values["contrast"] = scaling.fixed_params[:, 1].tolist()
        values["offset"] = (1 + scaling.fixed_params[:, 0]).tolist()
    return options.model_copy(update=values)


def _scaling(options: FitOptions, scan: Scan) -> Scaling:
    by_name: dict[str, Any] = {"contrast": options.contrast, "offset": options.offset}
    limits = {name: value if isinstance(value, dict) else {} for name, value in by_name.items()}
    values = {name: value for name, value in by_name.items() if not limits[name]}
    alike = scan.bin_of_scan
    if options.scaling == "rings":
        alike = ring_numbers(scan.q)
    elif options.scaling == "angles":
        alike = np.unique(scan.phi, return_inverse=True)[1]
    prior = scaling_prior(**limits)
    return scaling_of(options.scaling, scan.phi, **values, prior=prior, alike=alike)


_SCALES = 10.0 ** np.arange(-7, 5)
"""s: lags at which f is compared at two ages."""
_MAX_CHANGE = 1e-7
"""Of f from one age to another, above which it depends on age."""


def _check_age(problem: Problem, search: Search, q: float, phi: float) -> None:
    """Raise OptionError for a model whose f depends on age at some point within its bounds."""
    share = np.random.default_rng(0).uniform(0.3, 0.7, len(search.names))
    lower = np.where(np.isfinite(search.lower), search.lower, 1)
    upper = np.where(np.isfinite(search.upper), search.upper, 2)
    theta = search.between(share, lower, upper)
    theta = np.where(np.isfinite(search.start), search.start, theta)
    evaluation, bins = evaluation_of(problem.model), (np.array([q]), np.array([phi]))
    for scale in _SCALES:
        time = scale * np.arange(1.0, 4)
        point = evaluation.point(problem, theta, time)
        f = np.asarray(evaluation.f_at(point, time, *bins, time[:2, None], time[1:, None]))
        if not np.abs(np.ptp(f)) <= _MAX_CHANGE:
            raise OptionError(
                f"{problem.model.name} depends on age, and a table of g2 is a mean over all ages: fix its "
                f"exponents at 0, fit a model of the lag alone, such as brownian or stretched, or fit "
                f"two-time data"
            )
