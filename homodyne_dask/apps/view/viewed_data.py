"""What a page shows: a store or a result, chosen from what is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, StoreError, require_type
from homodyne_dask.results.data.c2_means import (
    Cut,
    ReadTile,
    Window,
    cut_at_age,
    cut_at_lag,
    tile_reader,
    times_of,
)
from homodyne_dask.results.data.fit_view import FitView, as_fitted, as_selected, fitted_scan
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SERIES, SUMMARY, data_of, fits_in, load_result
from homodyne_dask.store.files import absolute, any_path
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.scan import Cuts, Scan, open_dataset

Viewable = str | Path | UrlPath | Scan | FitResult
Source = Path | Scan | FitResult
"""An opened store, a result, or the path of a result, which is opened when it is chosen."""


@dataclass(frozen=True)
class Line:
    """One cut: x is the lag [s] at one age, or the age [s] at one lag."""

    averages: Cut
    """Averages over cells of age and lag, from the store."""
    x: Float[np.ndarray, " m"]
    c2: Float[np.ndarray, " m"]
    """The cells of the window."""


@dataclass(frozen=True)
class Shown:
    name: str
    scan: Scan
    fit: FitView | None = None

    @cached_property
    def read(self) -> ReadTile:
        return tile_reader(self.scan)

    @cached_property
    def cuts(self) -> Cuts:
        return self.scan.cuts()

    def along_lag(self, bin: int, window: Window, t1: float) -> Line:
        scan, rows, columns = self.scan, window.rows, window.columns
        frame = int(np.searchsorted(scan.time, t1))
        age = int(np.searchsorted(self.cuts.age_edges, frame, side="right")) - 1
        cut = cut_at_age(scan, self.cuts, bin, age)  # empty beyond the last frame
        column = frame // columns.side - columns.first
        if not 0 <= column < columns.number:
            return Line(cut, np.empty(0), np.empty(0))
        lag = times_of(scan, rows.middles) - times_of(scan, columns.middles)[column]
        known = (lag > 0) & np.isfinite(window.c2[:, column])
        return Line(cut, lag[known], window.c2[known, column])

    def along_age(self, bin: int, window: Window, lag: float) -> Line:
        time, rows, columns = self.scan.time, window.rows, window.columns
        cut = cut_at_lag(self.scan, self.cuts, bin, max(lag, float(np.diff(time).min())))
        t1 = times_of(self.scan, columns.middles)
        later = np.interp(t1 + lag, time, np.arange(len(time))) - columns.middles
        row = np.floor((columns.middles + np.maximum(np.rint(later), 1)) / rows.side) - rows.first
        there = np.flatnonzero((row >= 0) & (row < rows.number) & (t1 + lag <= time[-1]))
        c2 = window.c2[row[there].astype(int), there]
        known = np.isfinite(c2)
        return Line(cut, t1[there][known], c2[known])


def sources_of(what: Sequence[Viewable], exclude: Mapping[str, Any] | None = None) -> list[Source]:
    """Return the stores, opened, and results among which a page lets choose; exclude: of stores."""
    found: list[Source] = []
    for one in what:
        form = "a scan, a result, or the path of a store, of a fit or of a folder of fits"
        require_type("what to view", one, Viewable, form)
        if isinstance(one, Scan | FitResult):
            found.append(one)
            continue
        path = any_path("what to view", one)
        if isinstance(path, UrlPath):
            found.append(open_dataset(path))
        elif path.name.endswith(".json") or (path / SUMMARY).is_file():
            found.append(path)
        elif parts := fits_in(path):
            found += [path / part for part in parts]
        elif (path / SERIES).is_file():
            raise OptionError(f"{path} contains a series without a finished fit")
        else:
            found.append(open_dataset(path))
    if not found:
        raise OptionError("there is nothing to view: give a store or the folder of a fit")
    return [one.select(exclude=exclude) if isinstance(one, Scan) else one for one in found]


def name_of(source: Source) -> str:
    if isinstance(source, FitResult):
        return f"{source.config['model']} fitted to {source.provenance.inputs['store']}"
    path = any_path("what to view", source.path) if isinstance(source, Scan) else source
    return absolute(path).name


def open_shown(source: Source, given: Sequence[Source] = ()) -> Shown:
    """Open a store or a result; a store in `given` whose fit this is has its data, wherever it lies now."""
    name = name_of(source)
    if isinstance(source, Scan):
        return Shown(name, source)
    result = source if isinstance(source, FitResult) else load_result(source)
    stores = {one.digest: one for one in given if isinstance(one, Scan)}
    held = stores.get(result.provenance.inputs["store_sha256"])
    try:
        if held is not None:
            scan = as_selected(held, result)
        elif isinstance(source, FitResult):
            scan = fitted_scan(result)
        else:
            scan = data_of(result, source, "also view {}")
    except StoreError as e:
        raise StoreError(f"{e}; or give the current path of the store after the result") from e
    view = FitView(result, as_fitted(scan, result))
    return Shown(name, view.scan, view)
