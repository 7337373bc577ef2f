"""What is known after the optimum: noise, the covariance that counts, checks, and what depends on what.

Each number is computed once. `result_of` lays them into tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.assessment.assessment import Assessment, Influence
from homodyne_dask.assessment.cell_residuals import averaged_cells
from homodyne_dask.assessment.decay_test import Signal, frame_moments, signal_of
from homodyne_dask.assessment.fitted_cells import FittedCells, fitted_cells
from homodyne_dask.assessment.misfit_test import examine_model
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.rate_errors_and_limits import (
    RateFreedom,
    limited_coefficients,
    rate_freedom,
    smoothing_bias,
)
from homodyne_dask.assessment.result_findings import result_findings
from homodyne_dask.assessment.speckle_errors import BinExecutor, SpeckleErrors, speckle_errors
from homodyne_dask.assessment.which_covariance import Known, counted, deviations, used_of
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.array_shapes import Theta, Which
from homodyne_dask.solver.covariance import SPECKLE, Uncertainty, uncertainty
from homodyne_dask.solver.influence import compare_scalings, leave_one_out, left_out_clusters
from homodyne_dask.solver.normal_equations import parameters_with_errors
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta

if TYPE_CHECKING:
    from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting

DETERMINED = (lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES)


@one_blas_thread()
def assess(
    request: Request,
    state: lm.State,
    passes: Sweep,
    weights: "SpeckleWeighting | None" = None,
    doing: Callable[[str], None] = lambda _: None,
) -> Assessment:
    """Return what is known after the last step; a few passes may be made. weights: of a fit by speckle."""
    noise = signal = None
    table = request.scan.is_table
    if state.outcome in (*DETERMINED, lm.Outcome.SINGULAR) and not table:
        doing("speckle noise")
        noise = _noise(request, state, passes, weights, doing)
    if noise is None or not noise.sees_decay(state.reduced.contrast):
        signal = _signal(request, state, None if weights or table else passes)
    decay = signal is None or signal.seen
    noise = noise if decay else None
    rates = cache(partial(rate_freedom, request, state))
    known = Known(
        errors_by_bins(request, state),
        noise and noise.of_theta,
        decay=decay,
        valley=state.outcome is lm.Outcome.SINGULAR,
        others_enough=lambda: (freedom := rates()) is None or not freedom.few,
    )
    assessment = _with_errors(
        request, state, noise, known, signal,
        lambda errors: rate_freedom(request, state, errors.dof) if errors.method == SPECKLE else rates(),
    )  # fmt: skip
    gram, error, names = (weights or passes).gram, used_of(assessment.errors), request.search.names
    known_errors = request.search.free_inside_bounds(state.theta) & np.isfinite(error)
    steps = {name: float(error[names.index(name)]) for name in np.array(names)[known_errors]}
    profiles = {
        name: profile(request, gram, state, name, steps[name], doing=doing)
        for name in request.options.profile
        if decay and state.outcome in DETERMINED and name in steps
    }
    limited = limited_coefficients(request, state, assessment.errors, gram)
    assessment = replace(assessment, profiles=profiles, limited=limited)
    return _checked(request, state, assessment)


@one_blas_thread()
def assess_scan(
    request: Request,
    state: lm.State,
    noise: SpeckleErrors | None,
    of_global_fit: Uncertainty,
    profiles: Mapping[str, list[ProfilePoint]],
    signal: Signal | None,
) -> Assessment:
    """Return what is known of one of several scans; of_global_fit, profiles: of its parameters."""
    of_theta, decay = noise and noise.of_theta, signal is None or signal.seen
    known = Known(errors_by_bins(request, state), of_theta, of_global_fit, decay=decay)
    assessment = _with_errors(
        request,
        state,
        noise,
        known,
        signal,
        lambda errors: rate_freedom(request, state, errors.dof),
    )
    return _checked(request, state, replace(assessment, profiles=profiles))


def assess_parameters(
    request: Request, state: lm.State, known: Known, signal: Signal | None
) -> Assessment:
    assessment = _with_errors(request, state, None, known, signal)
    findings = result_findings(request, state, assessment, of_all_scans=True)
    return replace(assessment, findings=findings)


def errors_by_bins(request: Request, state: lm.State) -> Uncertainty:
    """Return the covariances at a state, for white noise and from the scatter between bins."""
    search = request.search
    moved = parameters_with_errors(search, state.theta, state.reduced)
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    errors = uncertainty(search.names, state.reduced, moved, request.clusters, at_bound)
    if not request.scan.is_table or errors.naive is None or state.reduced.noise is not None:
        return errors
    # of points whose errors are too small, or not in the table, the residuals are the noise
    variance = state.reduced.variance(int(search.free.sum()))
    if request.scan.attributes.sigma_source == "table":
        variance = max(variance, 1.0)
    scaling = np.sqrt(variance) * errors.scaling_naive
    return replace(errors, naive=variance * errors.naive, scaling_naive=scaling)


def errors_of_pass(request: Request, state: lm.State) -> Theta:
    """Return the standard errors after a pass, as they are without the noise of bins; NaN if unknown."""
    _, errors = counted(Known(errors_by_bins(request, state)))
    return deviations(errors.robust, len(state.theta))


def _noise(
    request: Request,
    state: lm.State,
    passes: Sweep,
    weights: "SpeckleWeighting | None",
    doing: Callable[[str], None],
) -> SpeckleErrors | None:
    moved = parameters_with_errors(request.search, state.theta, state.reduced)
    if weights is not None:
        return weights.errors(state, moved)
    of_cells = request.scan.cells is not None
    means = passes.over(CELL_MEANS, AtTheta(state.theta)) if of_cells else None
    averaged, executor = averaged_cells(passes, request), BinExecutor(passes, doing)
    return speckle_errors(request, state, moved, averaged, means, executor=executor)


def _signal(request: Request, state: lm.State, passes: Sweep | None) -> Signal | None:
    free, blocks = int(request.search.free.sum()), None
    if passes is not None:
        linear = None if state.reduced.linear_step is None else state.reduced.linear_params
        blocks = cache(partial(frame_moments, passes, request, state.theta, linear))
    return signal_of(state, request.scaling, free, request.clusters, blocks)


def _with_errors(
    request: Request,
    state: lm.State,
    noise: SpeckleErrors | None,
    known: Known,
    signal: Signal | None,
    rates: Callable[[Uncertainty], RateFreedom | None] = lambda _: None,
) -> Assessment:
    search, (case, errors) = request.search, counted(known)
    return Assessment(
        case=case,
        errors=errors,
        noise=noise,
        signal=signal,
        rate_freedom=None if errors.robust is None else rates(errors),
        at_bound=search.free & ~search.free_inside_bounds(state.theta) & known.decay,
        redchi=state.reduced.redchi_per_bin(int(search.free.sum())),
        limited=np.zeros(len(state.theta), bool),
    )


def _checked(request: Request, state: lm.State, assessment: Assessment) -> Assessment:
    noise, reduced, checks = assessment.noise, state.reduced, dict[str, Any]()
    moved, cells = request.search.free_inside_bounds(state.theta), None
    least_squares = request.problem.loss == "linear" and state.outcome is lm.Outcome.CONVERGED
    if noise is not None and state.outcome in (lm.Outcome.CONVERGED, lm.Outcome.SINGULAR):
        cells = fitted_cells(request, state, noise)
    check, power = examine_model(request, state, noise, cells)
    if assessment.alone and moved.any():
        if least_squares:
            checks["left_out"] = left_out_clusters(reduced, moved, request.clusters)
        if assessment.decay and reduced.finite:
            misfit = check is not None and check.misfit
            checks["influence"] = _influence(request, state, assessment.errors, moved, misfit)
    if least_squares and assessment.alone and request.options.weighting == PAIRS:
        checks["gain"] = _gain(noise, cells, len(state.theta))
    bias = smoothing_bias(request, state)
    assessment = replace(assessment, check=check, power_of_q=power, bias=bias, **checks)
    return replace(assessment, findings=result_findings(request, state, assessment))


def _gain(noise: SpeckleErrors | None, cells: FittedCells | None, p: int) -> Theta | None:
    if noise is None or noise.objection or cells is None:
        return None
    gain = np.full(p, np.nan)
    gain[noise.which] = np.sqrt(np.diag(cells.weighted) / np.diag(cells.of_pairs))
    return gain


def _influence(
    request: Request, state: lm.State, errors: Uncertainty, moved: Which, misfit: bool
) -> Influence:
    reduced, used = state.reduced, used_of(errors)
    error = np.where(used > 0, used, np.nan)  # zero where the model interpolates the data
    numbers, scan_of_bin = np.unique(request.scan.scan_number, return_inverse=True)
    of_scan, modes = np.empty((0, len(error))), None
    if len(numbers) > 1:
        of_scan = leave_one_out(reduced, moved, scan_of_bin) / error
    if request.problem.loss == "linear" and request.scaling.prior is None:
        effect, by_data = None, moved & ~errors.withheld
        if request.search.priors is not None:  # the noise of the data is not all of their errors
            by_data &= ~np.isfinite(request.search.priors.mean)
        if not misfit:  # the mean ratio of the variances to the naive ones; 1 where it is unknown
            ratio = (error / deviations(errors.naive, len(error)))[by_data] ** 2
            known = len(ratio) and np.isfinite(ratio).all()
            effect = max(float(ratio.mean()), 1.0) if known else 1.0
        modes = compare_scalings(reduced, request.scaling, request.scan.phi, moved, effect)
    of_bin = leave_one_out(reduced, moved) / error
    return Influence(error, of_bin, numbers[: len(of_scan)], of_scan, modes)
