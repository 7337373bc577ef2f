"""Tables of a result: made from columns, and to plain values and back."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

if TYPE_CHECKING:
    from homodyne_dask.fitting.errors.profile import ProfilePoint
    from homodyne_dask.solver.influence import Compared


def influence_table(change: np.ndarray, names: list[str], label: np.ndarray) -> xarray.Dataset:
    """Return (bin, param): how many standard errors a parameter moves when a bin is left out."""
    return xarray.Dataset(
        {"change": (("bin", "param"), change)},
        coords={"param": names, "label": ("bin", np.asarray(label))},
    )


def scalings_table(modes: "list[Compared]", error: np.ndarray, names: list[str]) -> xarray.Dataset:
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
    """Return over point: value, chisqr, parabola, passes, converged, and theta (point, param).

    variance: of the parameter for white noise; the parabola is what χ² would be were the model linear.
    """
    theta = np.array([point.theta for point in points])
    best = next(point for point in points if point.passes == 0)
    away = theta[:, at] - best.theta[at]
    return xarray.Dataset(
        {
            "value": ("point", theta[:, at]),
            "chisqr": ("point", [point.chisqr for point in points]),
            "parabola": ("point", best.chisqr + away**2 / variance),
            "passes": ("point", [point.passes for point in points]),
            "converged": ("point", [point.converged for point in points]),
            "theta": (("point", "param"), theta),
        },
        coords={"param": names},
    )


def plain_table(table: xarray.Dataset | None) -> dict[str, Any] | None:
    """Return a table as plain values."""
    if table is None:
        return None
    both = ((table.coords, "coords"), (table.data_vars, "columns"))
    return {
        what: {str(k): {"dims": list(v.dims), "values": v.values} for k, v in of.items()}
        for of, what in both
    }


def table_of(read: dict[str, Any] | None) -> xarray.Dataset | None:
    """Return the table of plain values; None becomes NaN."""
    if read is None:
        return None
    coords, columns = (
        {key: (part["dims"], _array(part["values"])) for key, part in read[what].items()}
        for what in ("coords", "columns")
    )
    return xarray.Dataset(columns, coords)


def _array(values: Any) -> np.ndarray:
    found = np.array(values)
    return found.astype(float) if found.dtype == object else found
