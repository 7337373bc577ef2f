"""Tables of a result: made from columns."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray
from numpy.typing import ArrayLike

from homodyne_dask.results._xarray_internals import load_dask_arrays_late

if TYPE_CHECKING:
    from homodyne_dask.assessment.assess import Influence
    from homodyne_dask.assessment.profile_likelihood import ProfilePoint
    from homodyne_dask.assessment.speckle_errors import SpeckleErrors
    from homodyne_dask.assessment.spline_rate_errors import RateFreedom
    from homodyne_dask.solver.influence import LeftOutClusters
    from homodyne_dask.solver.information_criteria import ScalingComparison
    from homodyne_dask.solver.reduced_problem import Penalty

DATASET_UNITS = {
    "q": "1/angstrom",
    "phi": "degree",
    "contrast": "1",
    "offset": "1",
    "redchi_per_bin": "1",
    "ndata_per_bin": "1",
    "left_out_chisqr": "1",
    "chisqr": "1",
    "redchi": "1",
}
"""In UDUNITS notation; units of the parameters are the coordinate `unit`."""
PARAMETER_COLUMNS = (
    "value", "stderr", "stderr_naive", "dof", "method", "at_bound", "fixed", "unit",
)  # fmt: skip
"""Of `FitResult.parameters`."""
load_dask_arrays_late()


def influence_table(of: "Influence", names: list[str], label: np.ndarray) -> xarray.Dataset:
    """Return (bin, param): change of a parameter when a bin is excluded, in standard errors.

    Where there are several scans, change_of_scan (scan, param), too.
    """
    columns = {"change": (("bin", "param"), of.of_bin)}
    coords = {"param": names, "label": ("bin", np.asarray(label))}
    if len(of.scans):
        columns["change_of_scan"] = (("scan", "param"), of.of_scan)
        coords["scan"] = of.scans
    return xarray.Dataset(columns, coords)


def rate_dof_table(freedom: "RateFreedom | None") -> xarray.Dataset | None:
    """Return over age [s] the degrees of freedom of the error of each rate; None for None."""
    if freedom is None:
        return None
    columns = {rate: ("age", of) for rate, of in freedom.of_rate.items()}
    return xarray.Dataset(columns, coords={"age": freedom.age})


def left_out_table(of: "LeftOutClusters", label: np.ndarray) -> xarray.Dataset:
    """Return over cluster: ndata, chisqr, left_out_chisqr, label of its first bin; and penalty, linear."""
    columns = {key: ("cluster", getattr(of, key)) for key in ("ndata", "chisqr", "left_out_chisqr")}
    return xarray.Dataset(
        columns | {"penalty": ((), of.penalty), "linear": ((), of.linear)},
        coords={"label": ("cluster", np.asarray(label)[of.first])},
    )


def noise_table(
    speckle: "SpeckleErrors", label: np.ndarray, names: list[str], gain: np.ndarray
) -> xarray.Dataset:
    """Return over bin: pixels, mean_counts; over param: stderr, dof of speckle; what speaks against them.

    gain: over param, errors with weighting speckle over those of the fit, as `weighted_ratio`.
    """
    return xarray.Dataset(
        {
            "pixels": ("bin", speckle.pixels),
            "mean_counts": ("bin", speckle.mean_counts),
            "stderr": ("param", np.sqrt(np.diag(speckle.covariance))),
            "dof": ("param", speckle.dof),
            "weighted_ratio": ("param", gain),
            "objection": ((), speckle.objection or ""),
        },
        coords={"param": names, "label": ("bin", np.asarray(label))},
    )


def smoothing_table(
    penalty: "Penalty", splines: list[int], bias: np.ndarray, names: list[str]
) -> xarray.Dataset:
    """Return over rate: strength λ, exponent, design effect, effective degrees of freedom, splines; over
    param: bias."""
    columns = {
        "strength": penalty.strengths.values,
        "exponent": penalty.strengths.exponents,
        "design_effect": penalty.strengths.scales,
        "effective": penalty.effective,
        "splines": splines,
    }
    return xarray.Dataset(
        {key: ("rate", values) for key, values in columns.items()} | {"bias": ("param", bias)},
        coords={"rate": list(penalty.names), "param": names},
    )


def scalings_table(
    modes: "list[ScalingComparison]", error: np.ndarray, names: list[str]
) -> xarray.Dataset:
    """Return over mode: chisqr, aic, bic, fitted, and change (mode, param) in standard errors."""
    columns = {
        key: ("mode", [getattr(mode, key) for mode in modes])
        for key in ("chisqr", "aic", "bic", "fitted")
    }
    change = np.array([mode.change / error for mode in modes])
    return xarray.Dataset(
        columns | {"change": (("mode", "param"), change)},
        coords={"mode": [mode.mode for mode in modes], "param": names},
    )


def directions_table(values: np.ndarray, vectors: np.ndarray, names: list[str]) -> xarray.Dataset:
    """Return over direction: eigenvalue, and vector (direction, param) in scaled parameters."""
    return xarray.Dataset(
        {"eigenvalue": ("direction", values), "vector": (("direction", "param"), vectors)},
        coords={"param": names},
    )


def profile_table(
    points: "list[ProfilePoint]", at: int, variance: float, names: list[str]
) -> xarray.Dataset:
    """Return over point: value, chisqr, parabola, evaluations, converged, and theta (point, param).

    variance: of the parameter for white noise; the parabola is what χ² would be were the model linear.
    """
    theta = np.array([point.theta for point in points])
    best = next(point for point in points if point.evaluations == 0)
    away = theta[:, at] - best.theta[at]
    return xarray.Dataset(
        {
            "value": ("point", theta[:, at]),
            "chisqr": ("point", [point.chisqr for point in points]),
            "parabola": ("point", best.chisqr + away**2 / variance),
            "evaluations": ("point", [point.evaluations for point in points]),
            "converged": ("point", [point.converged for point in points]),
            "theta": (("point", "param"), theta),
        },
        coords={"param": names},
    )


def parameter_table(columns: Mapping[str, Sequence[object] | np.ndarray]) -> xarray.Dataset:
    """Return the Dataset over `param` from columns; None becomes NaN. attrs: the method of stderr, or ''."""
    dtypes = {"at_bound": bool, "fixed": bool, "unit": str, "method": str}
    return xarray.Dataset(
        {
            key: ("param", np.array(values, dtypes.get(key, float)))
            for key, values in columns.items()
            if key != "param"
        },
        coords={"param": list(columns["param"])},
        attrs={"method": max(map(str, columns.get("method", [])), default="")},
    )


def scaling_table(columns: Mapping[str, Sequence[object] | np.ndarray]) -> xarray.Dataset:
    """Return the Dataset over `bin` from columns; `label` becomes a coordinate, None becomes NaN."""
    dtypes = {"label": np.int64, "scan": np.int64, "undetermined": bool, "ndata": np.int64}
    arrays = {key: ("bin", np.array(v, dtypes.get(key, float))) for key, v in columns.items()}
    return xarray.Dataset(
        {key: value for key, value in arrays.items() if key != "label"},
        coords={"label": arrays["label"]},
    )


def covariance_table(matrix: ArrayLike | None, names: list[str]) -> xarray.DataArray | None:
    """Return the matrix with parameter names on both sides, None becoming NaN; None for None."""
    if matrix is None:
        return None
    return xarray.DataArray(
        np.array(matrix, float),
        dims=("cov_i", "cov_j"),
        coords={"cov_i": names, "cov_j": names},
        name="covariance",
    )


def correlation_of(covariance: xarray.DataArray | None) -> xarray.DataArray | None:
    """Return the correlation matrix of a covariance table; None for None."""
    if covariance is None:
        return None
    error = np.sqrt(np.diag(covariance.values))
    return covariance / np.outer(error, error)


def plain_rows(table: xarray.Dataset, dim: str) -> dict[str, dict[str, np.generic]]:
    """Return the values at each point of a dimension, by its name and theirs."""
    return {
        str(name): {str(key): table[key].values[n] for key in table.data_vars}
        for n, name in enumerate(table[dim].values)
    }


def plain_columns(table: xarray.Dataset) -> dict[str, np.ndarray]:
    """Return the columns of a table over `bin` and its labels, as `scaling_table` takes them."""
    return {str(key): table[key].values for key in (*table.data_vars, "label")}
