"""c2 of a fit at all pairs of frames, computed chunk by chunk where it is asked for."""

from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
import xarray
from jaxtyping import Float
from numpy.typing import ArrayLike

from homodyne_dask.errors import OptionError, SelectionError, nearest, shown
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView, fitted_scan
from homodyne_dask.results.data.fitted_model import FittedModel
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.store.scan import Scan


def fitted_c2(result: FitResult, scan: Scan | None) -> xarray.DataArray:
    """Return offset + contrast·f of a scan (bin, t1, t2), lazily, in the chunks of `scan.dataset`.

    Symmetric in t1 and t2; NaN in bins whose contrast or offset is unknown. scan: what was fitted, by default
    from where its store was. Raises SelectionError where its bins are not those of the result.
    """
    scan = fitted_scan(result) if scan is None else scan
    view, data = FitView(result, scan), scan.dataset["c2"]
    linear_params = result.scaling["contrast"].values, result.scaling["offset"].values
    c2 = dask.array.map_blocks(
        _block, view.model, scan.time[slice(*scan.frames)], *linear_params,
        chunks=data.chunks, dtype=np.float64, name=f"fitted-c2-{uuid4().hex}",
    )  # fmt: skip
    about = {"long_name": "offset + contrast·f", "units": "1"}
    return xarray.DataArray(c2, data.coords, data.dims, "c2", about)


def c2_at(
    result: FitResult, t1: ArrayLike, t2: ArrayLike, label: int | None, scan: Scan | None,
    *, phi: Any = None, band: float | None = None,
) -> Any:  # fmt: skip
    """Return offset + contrast·f at times [s] that broadcast together; see `FitResult.eval`."""
    scan = fitted_scan(result) if scan is None else scan
    view, labels = FitView(result, scan), scan.label.tolist()
    if label is not None and label not in labels:
        raise SelectionError(
            f"no fitted bin has the label {shown(label)}; {nearest(label, labels)}"
        )
    first, last = scan.time[0], scan.time[-1]
    times = [_times(name, value, first, last) for name, value in (("t1", t1), ("t2", t2))]
    try:
        one, other = np.broadcast_arrays(*times)
    except ValueError:
        shapes = " and ".join(
            f"{name} {of.shape}" for name, of in zip(("t1", "t2"), times, strict=True)
        )
        raise OptionError(
            f"the times cannot be paired: {shapes}; give times whose shapes broadcast"
        ) from None
    chosen = scan.select(phi=phi, label=label)
    all_bins, wanted = (
        list(zip(of.label.tolist(), of.scan_number.tolist(), strict=True)) for of in (scan, chosen)
    )
    bins = np.array([all_bins.index(one) for one in wanted])
    contrast, offset = (
        result.scaling[name].values[bins].reshape(-1, *[1] * one.ndim)
        for name in ("contrast", "offset")
    )
    ends = np.minimum(one, other), np.maximum(one, other)
    c2 = offset + contrast * view.model.shape(bins, *ends)
    found = [c2]
    if band is not None:
        half = contrast * _half_width(result, view.model.slopes(bins, *ends), band)
        found += [c2 - half, c2 + half]
    found = [of if label is None or len(bins) > 1 else of[0] for of in found]
    return found[0] if band is None else tuple(found)


def _half_width(
    result: FitResult, slopes: Float[np.ndarray, "bin p ..."], percent: float
) -> Float[np.ndarray, "bin ..."]:
    """Return that of the confidence interval of f; raises OptionError where no standard error is known."""
    table = result.parameters
    moved = ~(table["fixed"].values | table["at_bound"].values)
    known = (
        None
        if result.covariance is None
        else np.where(moved[:, None] & moved, result.covariance, 0)
    )
    if known is None or np.isnan(known).any():
        raise OptionError(
            "the fit lacks standard errors of some parameters, so there is no band: omit the argument band"
        )
    stderr = np.sqrt(np.einsum("bp...,pr,br...->b...", slopes, known, slopes))
    return (
        half_width(percent, float(np.nanmin(table["dof"].values[moved], initial=np.inf))) * stderr
    )


def _times(name: str, value: ArrayLike, first: float, last: float) -> Float[np.ndarray, "..."]:
    try:
        times = np.asarray(value, float)
    except (TypeError, ValueError):
        raise OptionError(f"{name} = {shown(value)}: give times in seconds") from None
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
    """Return one chunk."""
    bins, rows, columns = (slice(*ends) for ends in block_info[None]["array-location"])
    t1, t2 = time[rows, None], time[None, columns]
    f = model.shape(np.arange(len(contrast))[bins], np.minimum(t1, t2), np.maximum(t1, t2))
    return offset[bins, None, None] + contrast[bins, None, None] * f
