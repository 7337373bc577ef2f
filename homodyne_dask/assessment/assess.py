"""What is known after the optimum: noise, the covariance that counts, checks, and what depends on what.

Each number is computed once. `result_of` lays them into tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.bin_tasks import BinExecutor
from homodyne_dask.assessment.cell_residuals import averaged_cells
from homodyne_dask.assessment.decay_test import Signal, signal_of
from homodyne_dask.assessment.fitted_cells import FittedCells, fitted_cells
from homodyne_dask.assessment.frame_blocks import frame_moments
from homodyne_dask.assessment.misfit_test import examine_model
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.result_findings import FitEnd, redchi_per_bin, result_findings
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, speckle_errors
from homodyne_dask.assessment.spline_rate_errors import (
    RateFreedom,
    fewest_freedom,
    rate_freedom,
    smoothing_bias,
)
from homodyne_dask.assessment.which_covariance import (
    Counted,
    Known,
    counted,
    deviations,
    used_of,
)
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.misfit import ModelCheck, PowerOfQ
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.covariance import SPECKLE, Uncertainty, uncertainty
from homodyne_dask.solver.hausman import HausmanTest
from homodyne_dask.solver.influence import (
    LeftOutClusters,
    leave_one_out,
    left_out_chisqr,
    left_out_clusters,
)
from homodyne_dask.solver.information_criteria import ScalingComparison, compare_scalings
from homodyne_dask.solver.normal_equations import parameters_with_errors
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta

DETERMINED = (lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.MAX_PASSES)
"""Outcomes with errors."""


class Weights(Protocol):
    """The weights of a fit weighted by its speckle noise."""

    def errors(self, state: lm.State, moved: Bool[np.ndarray, " p"]) -> SpeckleErrors | None:
        """Return noise and errors at the end of the fit; None where they are not known."""
        ...

    def hausman(
        self, state: lm.State, errors: SpeckleErrors, cells: FittedCells
    ) -> HausmanTest | None:
        """Return whether the weights lead to another estimate; None where it cannot be told."""
        ...


class Influence(NamedTuple):
    """How the result depends on single bins and scans, in units of the errors, and on the scaling mode."""

    error: Float[np.ndarray, " p"]
    """The unit (`error_used`)."""
    of_bin: Float[np.ndarray, "bin p"]
    """Change of each parameter without the bin."""
    scans: Int[np.ndarray, " scan"]
    """Numbers of the scans, where there are several; else empty."""
    of_scan: Float[np.ndarray, "scan p"]
    modes: list[ScalingComparison] | None
    """None where another scaling mode would change the weights, or has no such prior."""


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What is known of a fit after its last pass."""

    counted: Counted
    """Which covariance counts, and why."""
    noise: SpeckleErrors | None
    """Of each bin; None where too little is known of it, or no decay is seen."""
    gain: Float[np.ndarray, " p"]
    """Errors with weighting speckle over those of this fit; NaN where they are not known."""
    signal: Signal | None
    """The test for a decay; None where it is not made."""
    at_bound: Bool[np.ndarray, " p"]
    """Free parameters at a bound."""
    redchi: Float[np.ndarray, " bin"]
    """χ² of each bin per pair."""
    rate_freedom: RateFreedom | None
    """Degrees of freedom of the error of each rate."""
    bias: Float[np.ndarray, " p"] | None
    """What the smoothing of rates adds to a parameter; None where nothing is smoothed."""
    check: ModelCheck | None
    power_of_q: PowerOfQ | None
    hausman: HausmanTest | None
    influence: Influence | None
    left_out: Float[np.ndarray, " bin"] | None
    """χ² of each bin at the parameters of the others."""
    left_out_clusters: LeftOutClusters | None
    profiles: Mapping[str, list[ProfilePoint]]
    findings: Findings

    @property
    def decay(self) -> bool:
        """Whether a decay is seen: without one, no parameter and no contrast is measured."""
        return self.signal is None or self.signal.seen

    @property
    def errors(self) -> Uncertainty:
        """The errors that count."""
        return self.counted.errors


def assess(
    request: Request,
    state: lm.State,
    passes: Sweep,
    weights: Weights | None = None,
    doing: Callable[[str], None] = lambda _: None,
) -> Assessment:
    """Return what is known after the last step of a fit.

    passes: over the data; a few may be made. weights: of a fit weighted by speckle. doing: called with words
    for what begins.
    """
    with one_blas_thread():
        noise = None
        if state.outcome in (*DETERMINED, lm.Outcome.SINGULAR):
            doing("speckle noise")
            noise = _noise(request, state, passes, weights, doing)
        signal = None
        if noise is None or not noise.sees_decay(state.reduced.contrast):
            free = int(request.search.free.sum())
            blocks = None if weights else cache(partial(frame_moments, passes, request, state))
            signal = signal_of(state, request.scaling, free, request.clusters, blocks)
        decay = signal is None or signal.seen
        noise = noise if decay else None
        rates = cache(partial(rate_freedom, request, state))
        choice = counted(
            Known(
                errors_by_bins(request, state),
                None if noise is None else noise.of_theta,
                decay=decay,
                valley=state.outcome is lm.Outcome.SINGULAR,
                weighted=weights is not None,
                others_enough=lambda: (of := rates()) is None or not of.few,
            )
        )
        freedom = None
        if choice.errors.robust is not None:
            by_noise = choice.errors.method == SPECKLE
            freedom = fewest_freedom(request, state, choice.errors.dof) if by_noise else rates()
        checked = _Checked(request, state, noise, choice, signal, freedom, weights)
        steps = _steps_of_profiles(checked)
        profiles = {
            name: profile(request, passes, state, name, step, doing=doing)
            for name, step in steps.items()
        }
        return _assessed(checked, profiles)


@one_blas_thread()
def assess_scan(
    request: Request, state: lm.State, noise: SpeckleErrors | None, of_global_fit: Uncertainty
) -> Assessment:
    """Return what is known of a scan that was fitted together with others.

    noise: of its bins. of_global_fit: the covariances of its parameters.
    """
    known = Known(errors_by_bins(request, state), noise and noise.of_theta, of_global_fit)
    choice, freedom = counted(known), None
    if choice.errors.robust is not None:
        freedom = fewest_freedom(request, state, choice.errors.dof)
    return _assessed(_Checked(request, state, noise, choice, None, freedom, None), {})


def errors_by_bins(request: Request, state: lm.State) -> Uncertainty:
    """Return the covariances at a state, for white noise and from the scatter between bins."""
    search = request.search
    moved = parameters_with_errors(search, state.theta, state.reduced)
    at_bound = search.free & ~search.free_inside_bounds(state.theta)
    return uncertainty(search.names, state.reduced, moved, request.clusters, at_bound)


def errors_of_pass(request: Request, state: lm.State) -> Float[np.ndarray, " p"]:
    """Return the standard errors after a pass, as they are without the noise of bins; NaN if unknown."""
    errors = counted(Known(errors_by_bins(request, state))).errors
    return deviations(errors.robust, len(state.theta))


def _noise(
    request: Request,
    state: lm.State,
    passes: Sweep,
    weights: Weights | None,
    doing: Callable[[str], None],
) -> SpeckleErrors | None:
    moved = parameters_with_errors(request.search, state.theta, state.reduced)
    if weights is not None:
        return weights.errors(state, moved)
    of_cells = request.scan.cells is not None
    means = passes.over(CELL_MEANS, AtTheta(state.theta)) if of_cells else None
    averaged = averaged_cells(passes, request)
    executor, clusters = BinExecutor(passes, doing), request.clusters
    return speckle_errors(request, state, moved, clusters, averaged, means, executor=executor)


class _Checked(NamedTuple):
    """What the checks of a fit need."""

    request: Request
    state: lm.State
    noise: SpeckleErrors | None
    counted: Counted
    signal: Signal | None
    freedom: RateFreedom | None
    weights: Weights | None

    @property
    def decay(self) -> bool:
        return self.signal is None or self.signal.seen

    @property
    def alone(self) -> bool:
        """Whether the sums are those of the optimum: those of one scan of several tell of its own only."""
        return self.counted.case != "global_fit"

    @property
    def converged(self) -> bool:
        return self.state.outcome is lm.Outcome.CONVERGED

    @property
    def linear(self) -> bool:
        return self.request.problem.loss == "linear"


def _assessed(of: _Checked, profiles: Mapping[str, list[ProfilePoint]]) -> Assessment:
    request, state, noise, choice = of.request, of.state, of.noise, of.counted
    moved = request.search.free_inside_bounds(state.theta)
    at_bound = request.search.free & ~moved & of.decay
    ended, cells = of.converged or state.outcome is lm.Outcome.SINGULAR, None
    if noise is not None and ended:
        cells = fitted_cells(request, state, noise)
    check, power = examine_model(request, state, noise, cells)
    hausman = None
    if of.weights is not None and of.converged and noise is not None and cells is not None:
        hausman = of.weights.hausman(state, noise, cells)
    end = FitEnd(
        request, state, at_bound, choice.errors, noise, of.signal, profiles, check, power, hausman
    )
    left_out, of_clusters = None, None
    if of.alone and of.converged and of.linear and moved.any():
        left_out = left_out_chisqr(state.reduced, moved, request.clusters)
        of_clusters = left_out_clusters(state.reduced, moved, request.clusters, left_out)
    return Assessment(
        counted=choice,
        noise=noise,
        gain=_gain(of, cells),
        signal=of.signal,
        at_bound=at_bound,
        redchi=redchi_per_bin(request, state),
        rate_freedom=of.freedom,
        bias=smoothing_bias(request, state),
        check=check,
        power_of_q=power,
        hausman=hausman,
        influence=_influence(of, moved, known_noise=check is None or not check.misfit),
        left_out=left_out,
        left_out_clusters=of_clusters,
        profiles=MappingProxyType(profiles),
        findings=result_findings(end),
    )


def _steps_of_profiles(of: _Checked) -> dict[str, float]:
    """Return the steps of the profiles asked for: of parameters inside their bounds with known errors."""
    names = of.request.search.names
    error, inside = (
        used_of(of.counted.errors),
        of.request.search.free_inside_bounds(of.state.theta),
    )
    if not of.decay or of.state.outcome not in DETERMINED:
        return {}
    return {
        name: float(error[at])
        for name in of.request.options.profile
        if inside[at := names.index(name)] and np.isfinite(error[at])
    }


def _gain(of: _Checked, cells: FittedCells | None) -> Float[np.ndarray, " p"]:
    """Return the errors with weighting speckle over those of a fit of pairs; NaN where none is known."""
    gain, noise = np.full(len(of.request.search.names), np.nan), of.noise
    pairs = of.request.options.weighting == PAIRS and of.linear and of.alone and of.converged
    if pairs and noise is not None and cells is not None and not noise.objection:
        gain[noise.which] = cells.gain if noise.which.any() else np.nan
    return gain


def _influence(
    of: _Checked, moved: Bool[np.ndarray, " p"], *, known_noise: bool
) -> Influence | None:
    """Return what the result depends on; None where nothing moved, or the sums are not its own.

    known_noise: False where residuals are the model's misfit, from which no design effect follows.
    """
    request, reduced, errors = of.request, of.state.reduced, of.counted.errors
    if not (of.decay and of.alone and moved.any() and reduced.finite):
        return None
    used = used_of(errors)
    error = np.where(used > 0, used, np.nan)  # zero where the model interpolates the data
    numbers, scan_of_bin = np.unique(request.scan.scan_number, return_inverse=True)
    of_scan, modes = np.empty((0, len(error))), None
    if len(numbers) > 1:
        of_scan = leave_one_out(reduced, moved, scan_of_bin) / error
    if of.linear and request.scaling.prior is None:
        effect = _design_effect(request, moved, errors, error) if known_noise else None
        modes = compare_scalings(reduced, request.scaling, request.scan.phi, moved, effect)
    scans = numbers if len(numbers) > 1 else numbers[:0]
    return Influence(error, leave_one_out(reduced, moved) / error, scans, of_scan, modes)


def _design_effect(
    request: Request,
    moved: Bool[np.ndarray, " p"],
    errors: Uncertainty,
    error: Float[np.ndarray, " p"],
) -> float:
    """Return the mean ratio of the variances to the naive ones, at least 1; 1 where it is unknown."""
    by_data = moved & ~errors.withheld
    if request.search.priors is not None:  # the noise of the data is not all of their errors
        by_data &= ~np.isfinite(request.search.priors.mean)
    ratio = (error / deviations(errors.naive, len(error)))[by_data] ** 2
    return max(float(ratio.mean()), 1.0) if len(ratio) and np.isfinite(ratio).all() else 1.0
