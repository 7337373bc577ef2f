"""Tables of a result: made from columns."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray
from numpy.typing import ArrayLike

from homodyne_dask.results._xarray_internals import load_dask_arrays_late
from homodyne_dask.results.data.findings import Finding

_UNDETERMINED = (
    *("undetermined", "larger-error", "hidden-by-rounding", "longer-than-record", "constant-rate"),
)
"""Codes of findings about parameters that have no value."""
LIMITS = ("lower_limit", "upper_limit")
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
"""Of `FitResult.parameters`, beside its limits and optimum."""
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


def parameter_table(
    columns: Mapping[str, ArrayLike], findings: Iterable[Finding] = ()
) -> xarray.Dataset:
    """Return the Dataset over `param` from columns; None becomes NaN. attrs: the method of stderr, or ''.

    findings: a parameter that the data do not determine by these has no value and no error, but the limits
    that are known. Its `optimum`, the place of the lowest χ², is that of the model.
    """
    method = max(map(str, np.asarray(columns.get("method", []))), default="")
    none = np.full(len(np.asarray(columns["param"])), np.nan)
    more = {"optimum": columns["value"]} | dict.fromkeys(LIMITS, none)
    table = _column_table("param", "param", more | dict(columns)).assign_attrs(method=method)
    names, said = table["param"].values.tolist(), list(findings)
    limits = {name: of for one in said for name, of in one.numbers.get("limits", {}).items()}
    for name, ends in limits.items():
        for key, end in zip(LIMITS, ends, strict=False):
            table[key].values[names.index(name)] = np.nan if end is None else end
    lost = np.isin(names, [*undetermined_names(said), *limits])
    if any(one.code == "no-decay" for one in said):
        lost |= ~table["fixed"].values
    for key in ("value", "stderr", "stderr_naive"):
        table[key].values[lost] = np.nan
    return table


def undetermined_names(findings: Iterable[Finding]) -> set[str]:
    """Return the names of the parameters that the data do not determine."""
    said = list(findings)
    limited = (one.numbers["coefficients"] for one in said if one.code == "rate-limit-only")
    found = [*(one.about for one in said if one.code in _UNDETERMINED), *limited]
    return {name for names in found for name in names}


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
