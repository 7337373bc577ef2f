"""The result of a fit, laid out from its last state and what is known of it: nothing is computed here."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from xarray import Dataset

from homodyne_dask.assessment.assess import Assessment
from homodyne_dask.assessment.which_covariance import deviations
from homodyne_dask.kernels.gram import RobustGram
from homodyne_dask.models.parameters import Search
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
    rate_dof_table,
    scaling_table,
    scalings_table,
    smoothing_table,
)
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import Uncertainty
from homodyne_dask.solver.reduce import mean_weight
from homodyne_dask.store.processes import OUR_CODE, code_digest

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "zarr", "dask", "distributed", "xarray")
"""They read the data and do the arithmetic."""


@cache
def _versions_of_packages() -> dict[str, str]:
    return {"Python": python_version()} | {name: version(name) for name in PACKAGES}


def result_of(
    request: Request,
    state: lm.State,
    assessment: Assessment,
    run: FitRun,
    minima: Sequence[dict[str, Any]] = (),
) -> FitResult:
    """Return the result of a fit that ended in `state`; minima: the competing ones.

    Where no decay is seen no parameter and no contrast is measured: they are unknown.
    """
    scan, search, reduced, decay = request.scan, request.search, state.reduced, assessment.decay
    return FitResult(
        outcome=state.outcome if decay else lm.Outcome.NO_DECAY,
        parameters=table_of_parameters(
            search,
            np.where(search.free & (not decay), np.nan, state.theta),
            assessment.errors,
            assessment.at_bound,
            [parameter.unit for parameter in request.parameters],
        ),
        scaling=_scaling(request, state, assessment),
        statistics=FitStatistics(
            chisqr=reduced.fit_chisqr,
            redchi=reduced.fit_chisqr / reduced.freedom(int(search.free.sum())),
            ndata=reduced.ndata,
            nbins=int((reduced.count > 0).sum()),
            mean_weight=mean_weight(reduced.gram) if isinstance(reduced.gram, RobustGram) else None,
        ),
        errors=_errors(request, state, assessment),
        diagnosis=_diagnosis(request, state, assessment, tuple(minima)),
        run=run,
        provenance=Provenance(
            config=request.config,
            inputs=_inputs(request),
            truth=scan.attrs["truth"],
            version=version("homodyne-dask"),
            versions=_versions_of_packages() | {OUR_CODE: code_digest()},
            definition=request.problem.model,
        ),
    )


def table_of_parameters(
    search: Search,
    theta: Float[np.ndarray, " p"],
    errors: Uncertainty,
    at_bound: Bool[np.ndarray, " p"],
    units: Sequence[str],
) -> Dataset:
    """Return `FitResult.parameters`."""
    stderr, naive = (deviations(of, len(theta)) for of in (errors.robust, errors.naive))
    method = [errors.method if np.isfinite(error) else "" for error in stderr]
    return parameter_table({
        "value": theta, "stderr": stderr, "stderr_naive": naive, "dof": errors.dof, "method": method,
        "at_bound": at_bound, "fixed": ~search.free, "unit": units, "param": search.names,
    })  # fmt: skip


def _scaling(request: Request, state: lm.State, known: Assessment) -> Dataset:
    scan, reduced, left_out = request.scan, state.reduced, known.left_out
    unseen = (reduced.count > 0) & (not known.decay)
    columns: dict[str, Any] = {
        "label": scan.label,
        **({"scan": scan.scan_number} if "scans" in scan.attrs else {}),
        "q": scan.q,
        "phi": scan.phi,
        "contrast": np.where(unseen, 0.0, reduced.contrast),
        "offset": reduced.offset,
        "redchi": known.redchi,
        "ndata": reduced.count,
        "left_out_chisqr": left_out.of_bin if left_out else np.full(len(scan.bins), np.nan),
        "undetermined": reduced.undetermined | unseen,
    }
    of_each = {"": known.errors.scaling_robust, "_naive": known.errors.scaling_naive}
    for ending, of in of_each.items():
        columns[f"contrast_stderr{ending}"] = of[:, 1]
        columns[f"offset_stderr{ending}"] = of[:, 0]
    return scaling_table(columns)


def _errors(request: Request, state: lm.State, known: Assessment) -> FitErrors:
    names, errors, noise = list(request.search.names), known.errors, known.noise
    profiles, gain = {}, np.full(len(names), np.nan) if known.gain is None else known.gain
    for name, points in known.profiles.items():
        at = names.index(name)
        assert errors.naive is not None  # there is no profile without it
        # χ² rises by the noise at one naive error
        variance = errors.naive[at, at] / (state.reduced.noise or 1.0)
        profiles[name] = profile_table(points, at, variance, names)
    return FitErrors(
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        noise=noise and noise_table(noise, request.scan.label, names, gain),
        rate_dof=rate_dof_table(known.rate_freedom),
        profiles=profiles,
    )


def _diagnosis(
    request: Request, state: lm.State, known: Assessment, minima: tuple[dict[str, Any], ...]
) -> Diagnosis:
    names, label, influence = list(request.search.names), request.scan.label, known.influence
    penalty, smoothness, smoothing = state.reduced.penalty, request.search.smoothness, None
    if penalty is not None and smoothness is not None and known.bias is not None:
        splines = [at.stop - at.start for at in smoothness.places.values()]
        smoothing = smoothing_table(penalty, splines, known.bias, names)
    directions = directions_table(known.errors.eigenvalues, known.errors.directions, names)
    modes = influence and influence.modes
    return Diagnosis(
        findings=known.findings,
        check=known.check,
        power_of_q=known.power_of_q,
        hausman=known.hausman,
        influence=influence and influence_table(influence, names, label),
        scalings=scalings_table(modes, influence.error, names) if influence and modes else None,
        identifiability=directions if known.decay else None,
        left_out=left_out_table(known.left_out, label) if known.decay and known.left_out else None,
        smoothing=smoothing,
        minima=minima,
    )


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
