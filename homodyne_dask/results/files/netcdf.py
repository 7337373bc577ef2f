"""A fit as one netCDF file: all numbers, and the maps of the bins that its figures show."""

import io
from collections.abc import Mapping

import h5netcdf
import numpy as np
import xarray
from xarray.backends import H5NetCDFStore

from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.window_means import times_of
from homodyne_dask.results.files.summaries import dataset_of

NXXPCS = {
    "storage_mode": "one_array_q_first",
    "baseline_reference": 1,
    "time_origin_location": "upper_left",
    "populated_elements": "all",
}
"""Attributes of a two-time correlation in the NeXus definition NXxpcs: element [0, 0] is at the
first times, both halves are filled, and the baseline is 1."""
_MAPS = {
    "data": "measured c2, means over blocks of pairs",
    "model": "offset + contrast·f, means over the same blocks",
    "residual": "(data - model)/σ of the mean",
}


def result_netcdf(view: FitView) -> bytes:
    """Return `to_dataset()` of the result with the maps of the bins that the figures show, as netCDF-4.

    two_time_data, two_time_model, two_time_residual (map, t1, t2): means over blocks of pairs, NaN on
    the diagonal and where fewer than half of the pairs are known; map_label is the bin's label, t1 and t2
    [s] the centres of the blocks. The first two carry the attributes of NXxpcs.
    """
    result, scan, shown = view.result, view.scan, view.maps
    middle = times_of(scan, view.axis.middles + 0.5)  # a frame begins at its time
    bins = [one.bin for one in shown]
    stacked = {}
    for part, about in _MAPS.items():
        values = np.stack([getattr(one, part) for one in shown]).astype(np.float32)
        attributes = {"units": "1", "long_name": about} | (NXXPCS if part != "residual" else {})
        stacked[f"two_time_{part}"] = ("map", "t1", "t2"), values, attributes
    maps = xarray.Dataset(
        stacked,
        coords={
            "t1": ("t1", middle, {"units": "s"}),
            "t2": ("t2", middle, {"units": "s"}),
            "map_label": ("map", scan.label[bins]),
            "map_q": ("map", scan.q[bins], {"units": "1/angstrom"}),
            "map_phi": ("map", scan.phi[bins], {"units": "degree"}),
        },
    )
    whole = dataset_of(result).assign(maps).assign_attrs(pairs_per_block_side=view.axis.side)
    return netcdf(whole, {name: {"zlib": True, "complevel": 4} for name in stacked})


def netcdf(
    table: xarray.Dataset, encoding: Mapping[str, Mapping[str, object]] | None = None
) -> bytes:
    """Return a table as netCDF-4; encoding: by variable, as of `xarray.Dataset.to_netcdf`.

    It is made in memory: HDF5 crashes where it cannot write to a disk. `Dataset.to_netcdf` would ask Dask for
    a lock, which workers of watch do not have.
    """
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        table.dump_to_store(H5NetCDFStore(file), encoding=encoding)
    return content.getvalue()
