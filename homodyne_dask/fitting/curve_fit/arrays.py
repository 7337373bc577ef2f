"""Arrays as scipy's curve_fit takes them, as a dataset of points."""

from os import PathLike
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import OptionError, shown

_OF_SCIPY = ("check_finite", "method", "jac", "full_output", "nan_policy", "maxfev", "max_nfev")
_POINT = "point"


def are_arrays(*data: Any) -> bool:
    """Return whether arguments begin with xdata and ydata, and not with a dataset or a path."""
    first, second = (*data, None, None)[:2]
    if isinstance(first, xarray.DataArray):
        names = [second] if isinstance(second, str) else list(second or ())
        return not all(isinstance(name, str) for name in names)
    return not isinstance(first, xarray.Dataset | str | PathLike)


def refuse_options_of_scipy(options: dict[str, Any]) -> None:
    """Raise OptionError for options that scipy's curve_fit has and this one has not."""
    for name in _OF_SCIPY:
        if name in options:
            raise OptionError(
                f"{name} is an option of scipy's curve_fit and has no use here: leave it out"
            )


def points_from_arrays(xdata: Any, ydata: Any) -> tuple[xarray.Dataset, list[str]]:
    """Return x and y as a dataset of points, and the names of its coordinates.

    ydata: of M values. xdata: of M values, or of k rows of M values as an array or a list of k arrays: the
    coordinates are then x0, x1, ...; arrays of several dimensions are raveled. Raises OptionError for
    other shapes, and for what is no number.
    """
    x, y = _numbers("xdata", xdata), _numbers("ydata", ydata)
    several = x.shape != y.shape and x.ndim > 1
    rows = x.reshape(len(x), -1) if several else x.reshape(1, -1)
    if rows.shape[1] != y.size or not y.size:
        raise OptionError(
            f"xdata of shape {x.shape} does not fit ydata of shape {y.shape}: give M values of both, or "
            f"k rows of M values of xdata"
        )
    names = [f"x{n}" for n in range(len(rows))] if several else ["x"]
    columns = {name: (_POINT, row) for name, row in zip(names, rows, strict=True)}
    return xarray.Dataset(columns | {"y": (_POINT, y.ravel())}), names


def sigma_of_points(sigma: Any, points: int) -> float | np.ndarray | None:
    """Return one standard deviation, or one for each point; raises OptionError for anything else."""
    if sigma is None:
        return None
    values = _numbers("sigma", sigma)
    if values.ndim == 2 and values.shape == (points, points) and points > 1:
        raise OptionError(
            f"sigma of shape {values.shape} is a covariance matrix, and errors of points are independent "
            f"here: give one standard deviation for each point"
        )
    if values.size not in (1, points):
        raise OptionError(
            f"sigma has {values.size} values for {points} points: give one, or {points}"
        )
    return float(values.item()) if values.size == 1 else values.ravel()


def _numbers(name: str, given: Any) -> Float[np.ndarray, "..."]:
    try:
        values = np.asarray(given)
        if values.dtype.kind not in "fiub":
            raise TypeError
        return values.astype(float)
    except (TypeError, ValueError):
        raise OptionError(
            f"{name} = {shown(given)} are not numbers: give an array, or an xarray dataset instead of arrays"
        ) from None
