"""The result of a fit from its last state."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from xarray import Dataset

from homodyne_dask.assessment.decay_test import without_decay
from homodyne_dask.assessment.estimate_errors import (
    ErrorEstimates,
    deviations,
    uncertainty_at,
    used_of,
)
from homodyne_dask.assessment.fitted_cells import FittedCells, fitted_cells
from homodyne_dask.assessment.misfit_test import examine_model
from homodyne_dask.assessment.result_findings import FitEnd, redchi_per_bin, result_findings
from homodyne_dask.assessment.speckle_errors import SpeckleErrors
from homodyne_dask.assessment.spline_rate_errors import rate_freedom, smoothing_of
from homodyne_dask.kernels.gram import RobustGram
from homodyne_dask.models.parameters import Search
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_result import (
    Diagnosis,
    FitErrors,
    FitResult,
    FitRun,
    FitStatistics,
)
from homodyne_dask.results.data.provenance import Provenance
from homodyne_dask.results.data.result_tables import (
    covariance_table,
    directions_table,
    influence_table,
    left_out_table,
    noise_table,
    parameter_table,
    profile_table,
    scaling_table,
    scalings_table,
)
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import Uncertainty
from homodyne_dask.solver.influence import leave_one_out, left_out_chisqr, left_out_clusters
from homodyne_dask.solver.information_criteria import compare_scalings
from homodyne_dask.solver.reduce import mean_weight
from homodyne_dask.store.processes import OUR_CODE, code_digest

NO_ESTIMATES = ErrorEstimates()
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "zarr", "dask", "distributed", "xarray")
"""They read the data and do the arithmetic."""


@cache
def _versions_of_packages() -> dict[str, str]:
    return {"Python": python_version()} | {name: version(name) for name in PACKAGES}


def assemble_result(
    request: Request,
    state: lm.State,
    history: list[dict[str, Any]],
    timings: dict[str, float],
    compilations: dict[str, int],
    more: ErrorEstimates = NO_ESTIMATES,
    minima: Sequence[dict[str, Any]] = (),
) -> FitResult:
    """Return the result of a fit that ended in `state`; more: estimates from passes after the last step.

    Where no decay is seen (`more.signal`) no parameter and no contrast is measured: they are unknown.
    """
    scan, search, reduced = request.scan, request.search, state.reduced
    moved = search.free_inside_bounds(state.theta)
    seen = more.signal is None or more.signal.seen
    at_bound = search.free & ~moved & seen
    clusters = request.clusters
    alone = more.of_global_fit is None  # sums of one scan tell of its own optimum only
    singular = state.outcome is lm.Outcome.SINGULAR
    converged = state.outcome is lm.Outcome.CONVERGED
    left_out = None
    if alone and converged and request.problem.loss == "linear" and moved.any():
        left_out = left_out_chisqr(reduced, moved, clusters)
    errors = more.of_global_fit or uncertainty_at(
        request, state, None if singular else more.speckle
    )
    error = used_of(errors)
    freedom = reduced.freedom(int(search.free.sum()))
    names = list(search.names)
    ended = singular or converged
    cells = (
        None if more.speckle is None or not ended else fitted_cells(request, state, more.speckle)
    )
    check, power = examine_model(request, state, more.speckle, cells) if ended else (None, None)
    known_noise = check is None or not check.misfit
    end = FitEnd(
        request, state, at_bound, errors, more.speckle, more.signal, more.profiles, check, power,
        more.hausman,
    )  # fmt: skip
    result = FitResult(
        outcome=state.outcome,
        parameters=table_of_parameters(
            search, state.theta, errors, at_bound, [p.unit for p in request.parameters]
        ),
        scaling=scaling_table(
            {
                "label": scan.label,
                **({"scan": scan.scan_number} if "scans" in scan.attrs else {}),
                "q": scan.q,
                "phi": scan.phi,
                "contrast": reduced.contrast,
                "offset": reduced.offset,
                "redchi": redchi_per_bin(request, state),
                "ndata": reduced.count,
                "left_out_chisqr": np.full(len(clusters), np.nan) if left_out is None else left_out,
                "undetermined": reduced.undetermined,
                "contrast_stderr": errors.scaling_robust[:, 1],
                "offset_stderr": errors.scaling_robust[:, 0],
                "contrast_stderr_naive": errors.scaling_naive[:, 1],
                "offset_stderr_naive": errors.scaling_naive[:, 0],
            }
        ),
        statistics=FitStatistics(
            chisqr=reduced.fit_chisqr,
            redchi=reduced.fit_chisqr / freedom,
            ndata=reduced.ndata,
            nbins=int((reduced.count > 0).sum()),
            mean_weight=mean_weight(reduced.gram) if isinstance(reduced.gram, RobustGram) else None,
        ),
        errors=FitErrors(
            covariance=covariance_table(errors.robust, names),
            covariance_naive=covariance_table(errors.naive, names),
            noise=None
            if more.speckle is None
            else noise_table(
                more.speckle,
                scan.label,
                names,
                _gain(request, state, more.speckle, cells if alone else None),
            ),
            rate_dof=None
            if errors.robust is None
            else rate_freedom(request, state, clusters if alone else None, errors),
            profiles={}
            if errors.naive is None
            else {
                # χ² rises by the noise at one naive error
                name: profile_table(
                    points, at, errors.naive[at, at] / (reduced.noise or 1.0), names
                )
                for name, points in more.profiles.items()
                for at in [names.index(name)]
            },
        ),
        diagnosis=Diagnosis(
            findings=result_findings(end),
            check=check,
            power_of_q=power,
            hausman=more.hausman,
            identifiability=directions_table(errors.eigenvalues, errors.directions, names),
            left_out=None
            if left_out is None
            else left_out_table(left_out_clusters(reduced, moved, clusters, left_out), scan.label),
            smoothing=smoothing_of(request, state),
            minima=tuple(minima),
            **(_sensitivity(request, state, moved, errors, error, known_noise) if alone else {}),
        ),
        run=FitRun(state.passes, tuple(history), compilations, timings),
        provenance=Provenance(
            config=request.config,
            inputs=_inputs(request),
            truth=scan.attrs["truth"],
            version=version("homodyne-dask"),
            versions=_versions_of_packages() | {OUR_CODE: code_digest()},
            definition=request.problem.model,
        ),
    )
    return result if seen else without_decay(result)


def table_of_parameters(
    search: Search,
    theta: Float[np.ndarray, " p"],
    errors: Uncertainty,
    at_bound: Bool[np.ndarray, " p"],
    units: Sequence[str],
) -> Dataset:
    """Return `FitResult.parameters`."""
    stderr, naive = (deviations(of, len(theta)) for of in (errors.robust, errors.naive))
    columns: dict[str, Any] = {"value": theta, "stderr": stderr, "stderr_naive": naive}
    columns["dof"] = errors.dof
    columns["method"] = [errors.method if np.isfinite(one) else "" for one in stderr]
    columns |= {"at_bound": at_bound, "fixed": ~search.free, "unit": units}
    return parameter_table(columns | {"param": search.names})


def _gain(
    request: Request, state: lm.State, speckle: SpeckleErrors, cells: FittedCells | None
) -> Float[np.ndarray, " p"]:
    """Return the errors with weighting speckle over those of a fit of pairs; NaN where none is known."""
    found = np.full(len(request.search.names), np.nan)
    pairs = request.options.weighting == PAIRS and request.problem.loss == "linear"
    converged = state.outcome is lm.Outcome.CONVERGED
    known = speckle.which.any() and speckle.objection is None
    if pairs and converged and known and cells is not None:
        found[speckle.which] = cells.gain
    return found


def _sensitivity(
    request: Request,
    state: lm.State,
    moved: Bool[np.ndarray, " p"],
    errors: Uncertainty,
    error: Float[np.ndarray, " p"],
    known_noise: bool,
) -> dict[str, Any]:
    """Return the tables of how the result depends on single bins and on the scaling mode.

    known_noise: False where residuals are the model's misfit, from which no design effect follows.
    """
    if not (moved.any() and state.reduced.finite):
        return {}
    names, scan = list(request.search.names), request.scan
    error = np.where(error > 0, error, np.nan)  # zero where the model interpolates the data
    change = leave_one_out(state.reduced, moved) / error
    by_data = moved & ~errors.withheld
    if request.search.priors is not None:  # the noise of the data is not all of their errors
        by_data &= ~np.isfinite(request.search.priors.mean)
    ratio = (error / deviations(errors.naive, len(names)))[by_data] ** 2
    effect = max(float(ratio.mean()), 1.0) if len(ratio) and np.isfinite(ratio).all() else 1.0
    influence = influence_table(change, names, scan.label)
    if len(np.unique(scan.scan_number)) > 1:
        numbers, of = np.unique(scan.scan_number, return_inverse=True)
        by_scan = leave_one_out(state.reduced, moved, of) / error
        influence = influence.assign(change_of_scan=(("scan", "param"), by_scan)).assign_coords(
            scan=numbers
        )
    tables = {"influence": influence}
    if request.problem.loss != "linear" or request.scaling.prior is not None:
        return tables  # another mode would change the weights, or has no such prior
    modes = compare_scalings(
        state.reduced, request.scaling, scan.phi, moved, effect if known_noise else None
    )
    return tables | {"scalings": scalings_table(modes, error, names)}


def _inputs(request: Request) -> dict[str, Any]:
    scan = request.scan
    scans = {"scans": scan.scan_number.tolist(), "scan_names": scan.scan_names}
    kept = ("source_file", "source_sha256", "source_format", "frame_time", "sigma_source", "notes")
    first, stop = scan.frames
    cells: dict[str, int] = {}
    if scan.cells is not None:
        cells["cells"] = int((scan.cells.pairs_in((0, scan.n_frames), 1) > 0).sum())
    return {
        "store": Path(scan.path).name,
        "store_path": scan.path,
        "store_sha256": scan.digest,
        **{key: scan.attrs[key] for key in kept},
        "selection": scan.selection_options,
        "frames": [first, stop],
        "seconds": [float(scan.time[first]), float(scan.time[stop - 1])],
        "chunks_left_out": [list(chunk) for chunk in scan.excluded],
        "frames_masked": int((~scan.frame_mask[first:stop]).sum()),
        "frames_excluded": [list(one) for one in scan.excluded_frames],
        **cells,
        "bins": len(scan.bins),
        "independent_bins": len(np.unique(request.clusters)),
        "labels": scan.label.tolist(),
        **(scans if "scans" in scan.attrs else {}),
    }
