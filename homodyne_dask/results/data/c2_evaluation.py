"""c2 of a fit at all pairs of frames, computed chunk by chunk where it is asked for."""

from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
import xarray
from jaxtyping import Float
from numpy.typing import ArrayLike

from homodyne_dask.errors import OptionError, SelectionError, nearest, shown
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_view import FittedModel, view_of
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.store.scan import Scan


def fitted_c2(result: FitValues, scan: Scan | None) -> xarray.DataArray:
    """Return offset + contrast·f of a scan (bin, t1, t2), lazily; see `FitResult.model`."""
    view = view_of(result, scan)
    data, time = view.scan.dataset["c2"], view.scan.time[slice(*view.scan.frames)]
    contrast, offset = (result.scaling[name].values for name in ("contrast", "offset"))
    chunks = {"chunks": data.chunks, "dtype": np.float64, "name": f"fitted-c2-{uuid4().hex}"}
    c2 = dask.array.map_blocks(_block, view.model, time, contrast, offset, **chunks)
    about = {"long_name": "offset + contrast·f", "units": "1"}
    return xarray.DataArray(c2, data.coords, data.dims, "c2", about)


def c2_at(
    result: FitValues,
    times: tuple[ArrayLike, ArrayLike],
    label: int | None,
    scan: Scan | None,
    phi: Any,
    band: float | None,
) -> Any:
    """Return offset + contrast·f at times [s] that broadcast together; see `FitResult.eval`."""
    view = view_of(result, scan)
    scan, labels = view.scan, view.scan.label.tolist()
    if label is not None and label not in labels:
        raise SelectionError(
            f"no fitted bin has the label {shown(label)}; {nearest(label, labels)}"
        )
    t1, t2 = (_times(name, of, scan.time) for name, of in zip(("t1", "t2"), times, strict=True))
    try:
        t1, t2 = np.broadcast_arrays(t1, t2)
    except ValueError:
        raise OptionError(
            f"the times cannot be paired: t1 {t1.shape} and t2 {t2.shape}; give times whose shapes broadcast"
        ) from None
    every, chosen = (
        list(zip(some.label.tolist(), some.scan_number.tolist(), strict=True))
        for some in (scan, scan.select(phi=phi, label=label))
    )
    bins = np.array([every.index(bin) for bin in chosen])
    contrast, offset = (
        result.scaling[name].values[bins].reshape(-1, *[1] * t1.ndim)
        for name in ("contrast", "offset")
    )
    ends = np.minimum(t1, t2), np.maximum(t1, t2)
    curves = [offset + contrast * view.model.shape(bins, *ends)]
    if band is not None:
        half = contrast * _half_width(result, view.model.slopes(bins, *ends), band)
        curves += [curves[0] - half, curves[0] + half]
    if label is not None and len(bins) == 1:
        curves = [curve[0] for curve in curves]
    return curves[0] if band is None else tuple(curves)


def _half_width(
    result: FitValues, slopes: Float[np.ndarray, "bin p ..."], percent: float
) -> Float[np.ndarray, "bin ..."]:
    """Return that of the confidence interval of f; raises OptionError where no standard error is known."""
    table = result.parameters
    moved = ~(table["fixed"].values | table["at_bound"].values)
    covariance = np.nan if result.covariance is None else result.covariance.values
    known = np.where(moved[:, None] & moved, covariance, 0)
    if result.covariance is None or np.isnan(known).any():
        raise OptionError(
            "the fit lacks standard errors of some parameters, so there is no band: omit the argument band"
        )
    stderr = np.sqrt(np.einsum("bp...,pr,br...->b...", slopes, known, slopes))
    fewest = float(np.nanmin(table["dof"].values[moved], initial=np.inf))
    return half_width(percent, fewest) * stderr


def _times(name: str, value: ArrayLike, known: Float[np.ndarray, " t"]) -> Float[np.ndarray, "..."]:
    try:
        times = np.asarray(value, float)
    except (TypeError, ValueError):
        raise OptionError(f"{name} = {shown(value)}: give times in seconds") from None
    first, last = known[[0, -1]]
    outside = times[~((times >= first) & (times <= last))]
    if outside.size:
        raise OptionError(
            f"{name} = {outside[0]:g} s is outside the scan, {first:g} to {last:g} s: give times within it"
        )
    return times


def _block(
    model: FittedModel,
    time: Float[np.ndarray, " t"],
    contrast: Float[np.ndarray, " bin"],
    offset: Float[np.ndarray, " bin"],
    block_info: Any = None,
) -> Float[np.ndarray, "bin t1 t2"]:
    bins, rows, columns = (slice(*ends) for ends in block_info[None]["array-location"])
    t1, t2 = time[rows, None], time[None, columns]
    f = model.shape(np.arange(len(contrast))[bins], np.minimum(t1, t2), np.maximum(t1, t2))
    return offset[bins, None, None] + contrast[bins, None, None] * f
