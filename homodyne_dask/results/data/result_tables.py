"""Tables of a result: made from columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray
from numpy.typing import ArrayLike

from homodyne_dask.results._xarray_internals import load_dask_arrays_late

_NUMBERS = ("redchi_per_bin", "ndata_per_bin", "left_out_chisqr", "chisqr", "redchi")
DATASET_UNITS = {"q": "1/angstrom", "phi": "degree"}
DATASET_UNITS |= dict.fromkeys(("contrast", "offset", *_NUMBERS), "1")
"""In UDUNITS notation; units of the parameters are the coordinate `unit`."""
PARAMETER_COLUMNS = [
    "value",
    "stderr",
    "stderr_naive",
    "dof",
    "method",
    "at_bound",
    "fixed",
    "unit",
]
"""Of `FitResult.parameters`."""
_DTYPES: dict[str, Any] = dict.fromkeys(("param", "unit", "method"), str)
_DTYPES |= dict.fromkeys(("at_bound", "fixed", "undetermined"), bool)
_DTYPES |= dict.fromkeys(("label", "scan", "ndata"), np.int64)
load_dask_arrays_late()


def table_of(columns: Mapping[str, Mapping[str, Any]], **coords: Any) -> xarray.Dataset:
    """Return a Dataset of columns by their dimensions: {"bin param": {"change": values}, "": scalars}."""
    return xarray.Dataset(
        {name: (dims.split(), of) for dims, own in columns.items() for name, of in own.items()},
        coords,
    )


def parameter_table(columns: Mapping[str, ArrayLike]) -> xarray.Dataset:
    """Return the Dataset over `param` from columns; None becomes NaN. attrs: the method of stderr, or ''."""
    method = max(map(str, np.asarray(columns.get("method", []))), default="")
    return _column_table("param", "param", columns).assign_attrs(method=method)


def scaling_table(columns: Mapping[str, ArrayLike]) -> xarray.Dataset:
    """Return the Dataset over `bin` from columns; `label` becomes a coordinate, None becomes NaN."""
    return _column_table("bin", "label", columns)


def _column_table(dim: str, index: str, columns: Mapping[str, ArrayLike]) -> xarray.Dataset:
    arrays = {key: (dim, np.array(of, _DTYPES.get(key, float))) for key, of in columns.items()}
    return xarray.Dataset(arrays).set_coords(index)


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


def covariances_in(read: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return both covariances from the plain values of a fit."""
    keys = ("covariance", "covariance_naive")
    return {key: covariance_table(read[key], names) for key in keys}


def correlation_of(covariance: xarray.DataArray | None) -> xarray.DataArray | None:
    """Return the correlation matrix of a covariance table; None for None."""
    if covariance is None:
        return None
    error = np.sqrt(np.diag(covariance.values))
    return covariance / np.outer(error, error)


def plain_rows(table: xarray.Dataset, dim: str) -> dict[str, dict[str, Any]]:
    """Return the values at each point of a dimension, by its name and theirs."""
    return {
        str(name): {str(key): table[key].values[n] for key in table.data_vars}
        for n, name in enumerate(table[dim].values)
    }
