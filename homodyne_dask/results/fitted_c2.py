"""c2 of a fit at all pairs of frames, computed chunk by chunk where it is asked for."""

from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.results.figures.fit_view import FitView, fitted_scan
from homodyne_dask.results.figures.fitted_model import FittedModel
from homodyne_dask.results.fit_result import FitResult
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
