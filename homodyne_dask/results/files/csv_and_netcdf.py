"""Results as CSV and netCDF: tables, whose unknown cells are empty, and a fit with its maps."""

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import netCDF4
import numpy as np
import xarray
from xarray.backends import NetCDF4DataStore

from homodyne_dask.errors import in_line
from homodyne_dask.results.data.c2_means import times_of
from homodyne_dask.results.data.derived_quantities import ERRORS, derived_quantities
from homodyne_dask.results.data.fit_result import FitValues, plain_rows
from homodyne_dask.results.data.fit_rows import UNKNOWN_QUANTITY, FitRow
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.fitted_parameters import truth_of
from homodyne_dask.results.data.rate_curves import CURVES
from homodyne_dask.results.data.series import UNITS
from homodyne_dask.results.files.json_files import dataset_of

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""Letters with which a formula begins, those of full width in some spreadsheets."""


_NETCDF = Lock()
"""The library is not made for several threads."""


def parameters_csv(result: FitValues) -> str:
    truth, priors, rows = truth_of(result) or {}, result.config["prior"] or {}, []
    ends = plain_rows(result.ci(95.0), "param")
    for name, columns in plain_rows(result.parameters, "param").items():
        row = {"name": name, **columns, "truth": truth.get(name)}
        if priors:
            row["prior_mean"], row["prior_sd"] = priors.get(name, (None, None))
        rows.append(
            {**row, "low_95": ends[name]["low"], "high_95": ends[name]["high"], "formula": ""}
        )
    derived = derived_quantities(result).items()
    rows += [{"name": name} | quantity.to_dict() for name, quantity in derived]
    return rows_csv(rows)


def columns_csv(table: xarray.Dataset, first: str) -> str:
    """Return a row for each point of a table of one dimension; first: the coordinate in the first column."""
    names = [first, *map(str, table.data_vars)]
    return _csv([names, *zip(*(table[name].values for name in names), strict=True)])


def rates_csv(rates: xarray.Dataset) -> str:
    """Return a row for each time of `result.rates`, with the units of the time and of each curve."""
    units = {}
    for name in ("t", *(name for name in CURVES if name in rates)):
        unit = rates[name].attrs["units"].replace("angstrom", "Å").replace("^2", "²")
        units[f"{name}_unit"] = "t", [unit] * rates.sizes["t"]
    return columns_csv(rates.assign(units), "t")


def entries_csv(
    names: Sequence[str],
    entries: Sequence[FitRow],
    folder: Path,
    name_column: str,
    of_rings: Sequence[Mapping[str, float]] | None = None,
) -> str:
    rows = []
    for n, entry in enumerate(entries):
        row: dict[str, Any] = {name_column: entry.name, **entry.at, "outcome": entry.outcome}
        row |= {f"{key}_unit": UNITS[key] for key in entry.at if key in UNITS}
        row |= {key: getattr(entry, key) for key in ("redchi", "ndata", "passes")}
        for name in names:
            quantity = entry.quantities.get(name, UNKNOWN_QUANTITY)
            row[name] = quantity.value
            row |= {f"{name}_{key}": getattr(quantity, key) for key in (*ERRORS, "unit")}
        row |= {**(of_rings[n] if of_rings else {}), "method": entry.method}
        row["at_bound"] = " ".join(name for name, q in entry.quantities.items() if q.at_bound)
        row["folder"] = "" if entry.folder is None else os.path.relpath(entry.folder, folder)
        rows.append(row | {"message": entry.message})
    return rows_csv(rows)


def rows_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV with the keys of the first, which come first."""
    return _csv([list(rows[0]), *([row.get(key) for key in rows[0]] for row in rows)])


def _csv(lines: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, line) for line in lines)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a table holds it: an apostrophe before what spreadsheets would run as a formula."""
    value = value.item() if hasattr(value, "item") else value
    unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
    if isinstance(value, str):
        text = in_line(value)
        return f"'{text}" if text.lstrip()[:1] in FORMULA else text
    return "" if unknown else value


NXXPCS = {"storage_mode": "one_array_q_first", "baseline_reference": 1}
NXXPCS |= {"time_origin_location": "upper_left", "populated_elements": "all"}
"""Of a two-time correlation in NXxpcs: [0, 0] is at the first times, both halves are filled."""
_MAPS = {
    "data": "measured c2, means over blocks of pairs",
    "model": "offset + contrast·f, means over the same blocks",
    "residual": "(data - model)/σ of the mean",
}


def result_netcdf(view: FitView) -> bytes:
    """Return `to_dataset()` of the result with the maps of the bins that the figures show, as netCDF-4.

    two_time_data, two_time_model, two_time_residual (map, t1, t2): means over blocks of pairs, NaN on
    the diagonal and where fewer than half of the pairs are known; t1 and t2 [s]: the centres of the blocks.
    """
    scan, maps = view.scan, view.maps
    middle = times_of(scan, view.axis.middles + 0.5)  # a frame begins at its time
    bins, stacked = [bin_map.bin for bin_map in maps], {}
    for name, about in _MAPS.items():
        values = np.stack([getattr(bin_map, name) for bin_map in maps]).astype(np.float32)
        attributes = {"units": "1", "long_name": about} | (NXXPCS if name != "residual" else {})
        stacked[f"two_time_{name}"] = ("map", "t1", "t2"), values, attributes
    coords: dict[str, Any] = {side: (side, middle, {"units": "s"}) for side in ("t1", "t2")}
    coords["map_label"] = "map", scan.label[bins]
    coords["map_q"] = "map", scan.q[bins], {"units": "1/angstrom"}
    coords["map_phi"] = "map", scan.phi[bins], {"units": "degree"}
    dataset = dataset_of(view.result).assign(xarray.Dataset(stacked, coords))
    dataset = dataset.assign_attrs(pairs_per_block_side=view.axis.side)
    return netcdf(dataset, {name: {"zlib": True, "complevel": 1} for name in stacked})


def netcdf(
    table: xarray.Dataset, encoding: Mapping[str, Mapping[str, object]] | None = None
) -> bytes:
    """Return a table as netCDF-4, made in memory: HDF5 crashes where it cannot write to a disk.

    `Dataset.to_netcdf` would ask Dask for a lock, which workers of watch do not have.
    """
    with _NETCDF:
        file = netCDF4.Dataset("result.nc", "w", memory=1)
        table.dump_to_store(NetCDF4DataStore(file), encoding=encoding)
        return bytes(file.close())
