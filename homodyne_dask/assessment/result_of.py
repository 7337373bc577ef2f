"""The result of a fit, laid out from its last state and what is known of it: nothing is computed here."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from xarray import Dataset

from homodyne_dask.assessment.assessment import Assessment
from homodyne_dask.assessment.profile_likelihood import ProfilePoint
from homodyne_dask.assessment.which_covariance import deviations
from homodyne_dask.machine.running_code import OUR_CODE, code_digest, version_of
from homodyne_dask.models.parameters import Search
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import (
    Diagnosis,
    FitErrors,
    FitRun,
    FitStatistics,
    Provenance,
    covariance_table,
    parameter_table,
    scaling_table,
    table_of,
)
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import Theta, Which
from homodyne_dask.solver.covariance import Uncertainty
from homodyne_dask.solver.reduce import mean_weight

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "zarr", "dask", "distributed", "xarray")
"""They read the data and do the arithmetic."""


@cache
def _versions_of_packages() -> dict[str, str]:
    return {"Python": python_version()} | {name: version_of(name) for name in PACKAGES}


def result_of(
    request: Request,
    state: lm.State,
    assessment: Assessment,
    run: FitRun,
    minima: Sequence[dict[str, Any]] = (),
) -> FitResult:
    """Return the result of a fit that ended in `state`; minima: the competing ones."""
    scan, search, reduced, decay = request.scan, request.search, state.reduced, assessment.decay
    return FitResult(
        outcome=state.outcome if decay else lm.Outcome.NO_DECAY,
        parameters=table_of_parameters(
            search,
            state.theta,
            assessment.errors,
            assessment.at_bound,
            [parameter.unit for parameter in request.parameters],
            assessment.findings,
        ),
        scaling=_scaling(request, state, assessment),
        statistics=FitStatistics(
            chisqr=reduced.fit_chisqr,
            redchi=reduced.redchi(int(search.free.sum())),
            ndata=reduced.ndata,
            nbins=int((reduced.count > 0).sum()),
            mean_weight=mean_weight(reduced.gram) if reduced.gram.loss is not None else None,
        ),
        errors=_errors(request, state, assessment),
        diagnosis=_diagnosis(request, state, assessment, tuple(minima)),
        run=run,
        provenance=Provenance(
            config=request.config,
            inputs=_inputs(request),
            truth=scan.attributes.truth,
            version=version_of("homodyne-dask"),
            versions=_versions_of_packages() | {OUR_CODE: code_digest()},
            definition=request.problem.model,
        ),
    )


def table_of_parameters(
    search: Search,
    theta: Theta,
    errors: Uncertainty,
    at_bound: Which,
    units: Sequence[str],
    findings: Findings,
) -> Dataset:
    """Return `FitResult.parameters`; findings: on what the data do not determine."""
    stderr, naive = (
        deviations(covariance, len(theta)) for covariance in (errors.robust, errors.naive)
    )
    method = np.where(np.isfinite(stderr), errors.method, "")
    of_errors = {"stderr": stderr, "stderr_naive": naive, "dof": errors.dof, "method": method}
    flags = {"at_bound": at_bound, "fixed": ~search.free, "unit": units}
    return parameter_table({"value": theta, **of_errors, **flags, "param": search.names}, findings)


def _scaling(request: Request, state: lm.State, assessment: Assessment) -> Dataset:
    scan, reduced, left_out = request.scan, state.reduced, assessment.left_out
    unseen = (reduced.count > 0) & (not assessment.decay)
    columns: dict[str, Any] = {
        "label": scan.label,
        **({"scan": scan.scan_number} if scan.has_repeats else {}),
        "q": scan.q,
        "phi": scan.phi,
        "contrast": np.where(unseen, 0.0, reduced.contrast),
        "offset": reduced.offset,
        "redchi": assessment.redchi,
        "ndata": reduced.count,
        "left_out_chisqr": left_out.of_bin if left_out else np.full(len(scan.bins), np.nan),
        "undetermined": reduced.undetermined | unseen,
    }
    errors = {"": assessment.errors.scaling_robust, "_naive": assessment.errors.scaling_naive}
    for ending, deviation in errors.items():
        columns[f"contrast_stderr{ending}"] = deviation[:, 1]
        columns[f"offset_stderr{ending}"] = deviation[:, 0]
    return scaling_table(columns)


def _errors(request: Request, state: lm.State, assessment: Assessment) -> FitErrors:
    names, errors = list(request.search.names), assessment.errors
    freedom, noise = assessment.rate_freedom, assessment.noise
    of_noise = None
    if noise is not None:
        of_param = {
            "stderr": np.sqrt(np.diag(noise.covariance)),
            "dof": noise.dof,
            "weighted_ratio": np.full(len(names), np.nan)
            if assessment.gain is None
            else assessment.gain,
        }
        sizes = {"pixels": noise.pixels, "mean_counts": noise.mean_counts}
        known = [b in noise.bins and noise.bins[b].fit.determined for b in range(len(noise.pixels))]
        of_bin = {name: np.where(known, size, np.nan) for name, size in sizes.items()}
        of_bin |= {f"likeliest_{name}": size for name, size in sizes.items()}
        columns = {"bin": of_bin, "param": of_param, "": {"objection": noise.objection or ""}}
        of_noise = table_of(columns, param=names, label=("bin", request.scan.label))
    return FitErrors(
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        noise=of_noise,
        rate_dof=None if freedom is None else table_of({"age": freedom.of_rate}, age=freedom.age),
        profiles={
            name: _profile(points, names.index(name), state, errors, names)
            for name, points in assessment.profiles.items()
        },
    )


def _profile(
    points: list[ProfilePoint], place: int, state: lm.State, errors: Uncertainty, names: list[str]
) -> Dataset:
    assert errors.naive is not None  # there is no profile without it
    # χ² rises by the noise at one naive error
    variance = errors.naive[place, place] / (state.reduced.noise or 1.0)
    theta = np.array([point.theta for point in points])
    best = next(point for point in points if point.evaluations == 0)
    columns = _columns(points, ("chisqr", "evaluations", "converged")) | {
        "value": theta[:, place],
        "parabola": best.chisqr + (theta[:, place] - best.theta[place]) ** 2 / variance,
    }
    return table_of({"point": columns, "point param": {"theta": theta}}, param=names)


def _columns(rows: Sequence[Any], keys: Sequence[str]) -> dict[str, list[Any]]:
    return {key: [getattr(row, key) for row in rows] for key in keys}


def _diagnosis(
    request: Request, state: lm.State, assessment: Assessment, minima: tuple[dict[str, Any], ...]
) -> Diagnosis:
    scan, errors, names = request.scan, assessment.errors, list(request.search.names)
    influence = scalings = directions = left_out = None
    if (influences := assessment.influence) is not None:
        columns: dict[str, dict[str, Any]] = {"bin param": {"change": influences.of_bin}}
        coords: dict[str, Any] = {"label": ("bin", scan.label)}
        if len(influences.scans):
            columns["scan param"], coords["scan"] = (
                {"change_of_scan": influences.of_scan},
                influences.scans,
            )
        influence = table_of(columns, param=names, **coords)
        if influences.modes is not None:
            change = np.array([mode.change / influences.error for mode in influences.modes])
            of_modes = _columns(influences.modes, ("chisqr", "aic", "bic", "fitted"))
            columns = {"mode": of_modes, "mode param": {"change": change}}
            scalings = table_of(columns, mode=[mode.mode for mode in influences.modes], param=names)
    if assessment.decay:
        of_direction = {"eigenvalue": errors.eigenvalues}
        columns = {"direction": of_direction, "direction param": {"vector": errors.directions}}
        directions = table_of(columns, param=names)
        if (out := assessment.left_out) is not None:
            of_clusters = {key: getattr(out, key) for key in ("ndata", "chisqr", "left_out_chisqr")}
            columns = {"cluster": of_clusters, "": {"penalty": out.penalty, "linear": out.linear}}
            columns[""]["searched"] = _frequencies(request)
            left_out = table_of(columns, label=("cluster", scan.label[out.first]))
    return Diagnosis(
        findings=assessment.findings,
        check=assessment.check,
        power_of_q=assessment.power_of_q,
        influence=influence,
        scalings=scalings,
        identifiability=directions,
        left_out=left_out,
        smoothing=_smoothing(request, state, assessment),
        minima=minima,
    )


def _frequencies(request: Request) -> int:
    """Return how many independent frequencies, up to that of Nyquist, a search had to choose from."""
    beat, (first, stop) = request.problem.model.beat, request.scan.frames
    return 1 if beat is None else max((stop - first) // 2, 1)


def _smoothing(request: Request, state: lm.State, assessment: Assessment) -> Dataset | None:
    penalty, smoothness = state.reduced.penalty, request.search.smoothness
    if penalty is None or smoothness is None or assessment.bias is None:
        return None
    of_rate = {
        "strength": penalty.strengths.values,
        "exponent": penalty.strengths.exponents,
        "design_effect": penalty.strengths.scales,
        "effective": penalty.effective,
        "splines": [place.stop - place.start for place in smoothness.places.values()],
    }
    columns = {"rate": of_rate, "param": {"bias": assessment.bias}}
    return table_of(columns, rate=list(penalty.names), param=list(request.search.names))


def _inputs(request: Request) -> dict[str, Any]:
    scan = request.scan
    scans = {"scans": scan.scan_number.tolist(), "scan_names": scan.scan_names}
    keys = ("source_file", "source_sha256", "source_format", "frame_time", "sigma_source", "notes")
    first, stop = scan.frames
    cells: dict[str, int] = {}
    if scan.cells is not None:
        cells["cells"] = int((scan.cells.pairs_in((0, scan.n_frames), 1) > 0).sum())
    return {
        "store": Path(scan.path).name,
        "store_path": scan.path,
        "store_sha256": scan.digest,
        **{key: getattr(scan.attributes, key) for key in keys},
        "selection": scan.selection_options,
        "frames": [first, stop],
        "seconds": [float(scan.time[first]), float(scan.time[stop - 1])],
        "mean_age": scan.mean_age,
        "chunks_left_out": [list(chunk) for chunk in scan.excluded],
        "frames_masked": int((~scan.frame_mask[first:stop]).sum()),
        "frames_excluded": [list(frames) for frames in scan.excluded_frames],
        **cells,
        "bins": len(scan.bins),
        "independent_bins": len(np.unique(request.clusters)),
        "labels": scan.label.tolist(),
        **(scans if scan.has_repeats else {}),
    }
