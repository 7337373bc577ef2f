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
from homodyne_dask.assessment.profile_likelihood import ProfilePoint
from homodyne_dask.assessment.which_covariance import deviations
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
    parameter_table,
    scaling_table,
    table_of,
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
            mean_weight=mean_weight(reduced.gram) if reduced.gram.loss is not None else None,
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


def _errors(request: Request, state: lm.State, assessment: Assessment) -> FitErrors:
    names, errors, freedom = request.search.names, assessment.errors, assessment.rate_freedom
    return FitErrors(
        covariance=covariance_table(errors.robust, list(names)),
        covariance_naive=covariance_table(errors.naive, list(names)),
        noise=_noise(request, assessment),
        rate_dof=None if freedom is None else table_of({"age": freedom.of_rate}, age=freedom.age),
        profiles={
            name: _profile(points, names.index(name), state, errors, list(names))
            for name, points in assessment.profiles.items()
        },
    )


def _noise(request: Request, assessment: Assessment) -> Dataset | None:
    noise, gain, names = assessment.noise, assessment.gain, list(request.search.names)
    if noise is None:
        return None
    of_param = {
        "stderr": np.sqrt(np.diag(noise.covariance)),
        "dof": noise.dof,
        "weighted_ratio": np.full(len(names), np.nan) if gain is None else gain,
    }
    return table_of(
        {
            "bin": {"pixels": noise.pixels, "mean_counts": noise.mean_counts},
            "param": of_param,
            "": {"objection": noise.objection or ""},
        },
        param=names,
        label=("bin", request.scan.label),
    )


def _profile(
    points: list[ProfilePoint], at: int, state: lm.State, errors: Uncertainty, names: list[str]
) -> Dataset:
    """Return the points of a profile beside the parabola that χ² would be were the model linear."""
    assert errors.naive is not None  # there is no profile without it
    # χ² rises by the noise at one naive error
    variance = errors.naive[at, at] / (state.reduced.noise or 1.0)
    theta = np.array([point.theta for point in points])
    best = next(point for point in points if point.evaluations == 0)
    columns = {
        key: [getattr(point, key) for point in points]
        for key in ("chisqr", "evaluations", "converged")
    }
    columns |= {
        "value": theta[:, at],
        "parabola": best.chisqr + (theta[:, at] - best.theta[at]) ** 2 / variance,
    }
    return table_of({"point": columns, "point param": {"theta": theta}}, param=names)


def _diagnosis(
    request: Request, state: lm.State, assessment: Assessment, minima: tuple[dict[str, Any], ...]
) -> Diagnosis:
    names, errors, decay = list(request.search.names), assessment.errors, assessment.decay
    directions = table_of(
        {
            "direction": {"eigenvalue": errors.eigenvalues},
            "direction param": {"vector": errors.directions},
        },
        param=names,
    )
    return Diagnosis(
        findings=assessment.findings,
        check=assessment.check,
        power_of_q=assessment.power_of_q,
        hausman=assessment.hausman,
        influence=_influence(request, assessment),
        scalings=_scalings(request, assessment),
        identifiability=directions if decay else None,
        left_out=_left_out(request, assessment) if decay else None,
        smoothing=_smoothing(request, state, assessment),
        minima=minima,
    )


def _influence(request: Request, assessment: Assessment) -> Dataset | None:
    of = assessment.influence
    if of is None:
        return None
    columns: dict[str, dict[str, Any]] = {"bin param": {"change": of.of_bin}}
    coords: dict[str, Any] = {"label": ("bin", request.scan.label)}
    if len(of.scans):
        columns["scan param"], coords["scan"] = {"change_of_scan": of.of_scan}, of.scans
    return table_of(columns, param=list(request.search.names), **coords)


def _scalings(request: Request, assessment: Assessment) -> Dataset | None:
    of = assessment.influence
    if of is None or of.modes is None:
        return None
    keys = ("chisqr", "aic", "bic", "fitted")
    columns = {
        "mode": {key: [getattr(mode, key) for mode in of.modes] for key in keys},
        "mode param": {"change": np.array([mode.change / of.error for mode in of.modes])},
    }
    names = list(request.search.names)
    return table_of(columns, mode=[mode.mode for mode in of.modes], param=names)


def _left_out(request: Request, assessment: Assessment) -> Dataset | None:
    of = assessment.left_out
    if of is None:
        return None
    columns = {key: getattr(of, key) for key in ("ndata", "chisqr", "left_out_chisqr")}
    scalars = {"penalty": of.penalty, "linear": of.linear}
    return table_of(
        {"cluster": columns, "": scalars}, label=("cluster", request.scan.label[of.first])
    )


def _smoothing(request: Request, state: lm.State, assessment: Assessment) -> Dataset | None:
    penalty, smoothness = state.reduced.penalty, request.search.smoothness
    if penalty is None or smoothness is None or assessment.bias is None:
        return None
    columns = {
        "strength": penalty.strengths.values,
        "exponent": penalty.strengths.exponents,
        "design_effect": penalty.strengths.scales,
        "effective": penalty.effective,
        "splines": [at.stop - at.start for at in smoothness.places.values()],
    }
    return table_of(
        {"rate": columns, "param": {"bias": assessment.bias}},
        rate=list(penalty.names),
        param=list(request.search.names),
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
