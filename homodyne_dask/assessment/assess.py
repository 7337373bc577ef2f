"""What is known after the optimum, in stages: noise, the covariance that counts, profiles, checks.

Each number is computed once. `result_of` lays them into tables.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.assessment.assessment import Assessment, Influence
from homodyne_dask.assessment.cell_residuals import averaged_cells
from homodyne_dask.assessment.decay_test import Signal, frame_moments, signal_of
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.fitted_cells import FittedCells, fitted_cells
from homodyne_dask.assessment.misfit_test import examine_model
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.rate_errors_and_limits import (
    limited_coefficients,
    rate_freedom,
    smoothing_bias,
)
from homodyne_dask.assessment.result_findings import result_findings
from homodyne_dask.assessment.speckle_errors import BinExecutor, SpeckleErrors, speckle_errors
from homodyne_dask.assessment.which_covariance import Candidates, counted, deviations, used_of
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.array_shapes import Theta
from homodyne_dask.solver.covariance import SPECKLE, Uncertainty, no_uncertainty, uncertainty
from homodyne_dask.solver.influence import (
    LeftOutClusters,
    compare_scalings,
    leave_one_out,
    left_out_clusters,
)
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta

if TYPE_CHECKING:
    from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting

DETERMINED = (lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES)


def assess(
    request: Request,
    state: lm.State,
    passes: Sweep,
    weights: "SpeckleWeighting | None" = None,
    doing: Callable[[str], None] = lambda _: None,
) -> Assessment:
    """Return what is known after the last step; a few passes may be made. weights: of a fit by speckle."""
    end, gram = FitEnd(request, state), (weights or passes).gram

    def made_by_passes(assessment: Assessment) -> dict[str, Any]:
        return {
            "profiles": _profiles(end, assessment, gram, doing),
            "limited": limited_coefficients(request, state, assessment.errors, gram),
        }

    # one thread also here: the noise of bins is many products of small matrices
    with one_blas_thread():
        noise, signal = _noise_and_signal(end, passes, weights, doing)
        return assess_end(end, noise, signal, made_by_passes)


@one_blas_thread()
def assess_end(
    end: FitEnd,
    noise: SpeckleErrors | None,
    signal: Signal | None,
    made_by_passes: Callable[[Assessment], dict[str, Any]],
    of_global_fit: Uncertainty | None = None,
) -> Assessment:
    """Return what is known at the end of a fit, of a scan alone or of one of several.

    made_by_passes: what needs passes over the data, once the errors are known. of_global_fit: the errors of
    the scan's parameters by the fit of all.
    """
    rates = cache(partial(rate_freedom, end))
    candidates = Candidates(
        errors_by_bins(end),
        noise and noise.of_theta,
        of_global_fit,
        decay=signal is None or signal.seen,
        valley=end.state.outcome is lm.Outcome.SINGULAR,
        others_enough=lambda: (freedom := rates()) is None or not freedom.few,
    )
    assessment = _with_errors(end, noise, candidates, signal)
    errors = assessment.errors
    if errors.robust is not None:
        # clusters of one scan of several say nothing of errors that all scans determine
        by_parameters = errors.method == SPECKLE or of_global_fit is not None
        freedom = rate_freedom(end, errors.dof) if by_parameters else rates()
        assessment = replace(assessment, rate_freedom=freedom)
    return _checked(end, replace(assessment, **made_by_passes(assessment)))


def assess_parameters(end: FitEnd, candidates: Candidates, signal: Signal | None) -> Assessment:
    """Return what is known of the parameters of several scans that were fitted together."""
    assessment = _with_errors(end, None, candidates, signal)
    return replace(assessment, findings=result_findings(end, assessment, of_all_scans=True))


def errors_by_bins(end: FitEnd) -> Uncertainty:
    """Return the covariances at a state, for white noise and from the scatter between bins."""
    request, reduced = end.request, end.reduced
    if not (end.moved.any() and reduced.finite):
        return no_uncertainty(len(end.theta), len(reduced.count))
    errors = uncertainty(request.search.names, end.equations, request.clusters, end.at_bound)
    if not request.scan.is_table or errors.naive is None or reduced.noise is not None:
        return errors
    # where errors of points are too small, or not in the table, the residuals are the noise
    variance = reduced.variance(end.free)
    if request.scan.attributes.sigma_source == "table":
        variance = max(variance, 1.0)
    scaling = np.sqrt(variance) * errors.scaling_naive
    return replace(errors, naive=variance * errors.naive, scaling_naive=scaling)


def errors_of_pass(request: Request, state: lm.State) -> Theta:
    """Return the standard errors after a pass, as they are without the noise of bins; NaN if unknown."""
    _, errors = counted(Candidates(errors_by_bins(FitEnd(request, state))))
    return deviations(errors.robust, len(state.theta))


def _noise_and_signal(
    end: FitEnd, passes: Sweep, weights: "SpeckleWeighting | None", doing: Callable[[str], None]
) -> tuple[SpeckleErrors | None, Signal | None]:
    """Return the noise, and the test for a decay, which is made where the noise does not show one.

    Without a decay, noise is not returned: residuals of a constant tell nothing of speckle.
    """
    noise, table = None, end.request.scan.is_table
    if end.state.outcome in (*DETERMINED, lm.Outcome.SINGULAR) and not table:
        doing("speckle noise")
        noise = _noise(end, passes, weights, doing)
    if noise is not None and noise.sees_decay(end.reduced.contrast):
        return noise, None
    # the blocks of frames of the test are sums over pairs, which neither a table has nor a fit of averages
    signal = _signal(end, None if weights or table else passes)
    return (noise if signal is None or signal.seen else None), signal


def _noise(
    end: FitEnd, passes: Sweep, weights: "SpeckleWeighting | None", doing: Callable[[str], None]
) -> SpeckleErrors | None:
    if weights is not None:
        return weights.errors(end)
    of_cells = end.request.scan.cells is not None
    means = passes.over(CELL_MEANS, AtTheta(end.theta)) if of_cells else None
    averaged, executor = averaged_cells(passes, end.request), BinExecutor(passes, doing)
    return speckle_errors(end, end.equations, averaged, means, executor=executor)


def _signal(end: FitEnd, passes: Sweep | None) -> Signal | None:
    request, reduced, blocks = end.request, end.reduced, None
    if passes is not None:
        linear = None if reduced.linear_step is None else reduced.linear_params
        blocks = cache(partial(frame_moments, passes, request, end.theta, linear))
    return signal_of(end.state, request.scaling, end.free, request.clusters, blocks)


def _with_errors(
    end: FitEnd, noise: SpeckleErrors | None, candidates: Candidates, signal: Signal | None
) -> Assessment:
    case, errors = counted(candidates)
    return Assessment(
        case=case,
        errors=errors,
        noise=noise,
        signal=signal,
        at_bound=end.at_bound & candidates.decay,
        redchi=end.reduced.redchi_per_bin(end.free),
        limited=np.zeros(len(end.theta), bool),
    )


def _profiles(
    end: FitEnd, assessment: Assessment, gram: Callable[..., Gram], doing: Callable[[str], None]
) -> dict[str, list[ProfilePoint]]:
    """Return the profiles that were asked for, of parameters inside their bounds whose errors are known."""
    request, state, error = end.request, end.state, used_of(assessment.errors)
    if not assessment.decay or state.outcome not in DETERMINED:
        return {}
    place = {name: n for n, name in enumerate(request.search.names)}
    return {
        name: profile(request, gram, state, name, float(error[n]), doing=doing)
        for name in request.options.profile
        if end.inside[n := place[name]] and np.isfinite(error[n])
    }


def _checked(end: FitEnd, assessment: Assessment) -> Assessment:
    noise, outcome, cells = assessment.noise, end.state.outcome, None
    ended = outcome in (lm.Outcome.CONVERGED, lm.Outcome.SINGULAR)
    if noise is not None and not noise.smoothed and ended:
        cells = fitted_cells(end, noise)
    examined = examine_model(end, noise, cells)
    misfit = examined.check is not None and examined.check.misfit
    assessment = replace(
        assessment,
        **examined._asdict(),
        bias=smoothing_bias(end),
        left_out=_left_out(end, assessment),
        influence=_influence(end, assessment, misfit),
        gain=_gain(end, assessment, cells),
    )
    return replace(assessment, findings=result_findings(end, assessment))


def _least_squares(end: FitEnd) -> bool:
    return end.request.problem.loss == "linear" and end.state.outcome is lm.Outcome.CONVERGED


def _left_out(end: FitEnd, assessment: Assessment) -> LeftOutClusters | None:
    if not (_least_squares(end) and assessment.alone and end.inside.any()):
        return None
    return left_out_clusters(end.equations_inside, end.request.clusters)


def _gain(end: FitEnd, assessment: Assessment, cells: FittedCells | None) -> Theta | None:
    """Return the errors with weighting by speckle over those of this fit, where both follow from noise."""
    noise, by_pairs = assessment.noise, end.request.options.weighting == PAIRS
    if not (_least_squares(end) and assessment.alone and by_pairs):
        return None
    if noise is None or noise.objection or cells is None:
        return None
    gain = np.full(len(end.theta), np.nan)
    gain[noise.joint.which] = np.sqrt(np.diag(cells.of_weighted) / np.diag(cells.of_pairs))
    return gain


def _influence(end: FitEnd, assessment: Assessment, misfit: bool) -> Influence | None:
    """Return how the result depends on bins, scans and the scaling mode; misfit: whether it was found."""
    if not (assessment.alone and assessment.decay and end.inside.any() and end.reduced.finite):
        return None
    request, errors, joint = end.request, assessment.errors, end.equations_inside
    used = used_of(errors)
    error = np.where(used > 0, used, np.nan)  # zero where the model interpolates the data
    numbers, scan_of_bin = np.unique(request.scan.scan_number, return_inverse=True)
    of_scan, modes = np.empty((0, len(error))), None
    if len(numbers) > 1:
        of_scan = leave_one_out(joint, scan_of_bin) / error
    if request.problem.loss == "linear" and request.scaling.prior is None:
        effect = None if misfit else _design_effect(end, errors, error)
        modes = compare_scalings(end.reduced, request.scaling, request.scan.phi, end.inside, effect)
    return Influence(error, leave_one_out(joint) / error, numbers[: len(of_scan)], of_scan, modes)


def _design_effect(end: FitEnd, errors: Uncertainty, error: Theta) -> float:
    """Return the mean ratio of the variances to the naive ones, at least 1; 1 where it is unknown."""
    by_data = end.inside & ~errors.withheld
    if end.request.search.priors is not None:  # the noise of the data is not all of their errors
        by_data &= ~np.isfinite(end.request.search.priors.mean)
    ratio = (error / deviations(errors.naive, len(error)))[by_data] ** 2
    finite = len(ratio) and np.isfinite(ratio).all()
    return max(float(ratio.mean()), 1.0) if finite else 1.0
