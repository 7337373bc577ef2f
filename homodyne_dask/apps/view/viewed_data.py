"""What a page shows: a store or a result, chosen from what is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, StoreError, require_type
from homodyne_dask.results.data.c2_means import Cut, ReadTile, cut_at_age, tile_reader
from homodyne_dask.results.data.fit_view import FitView, as_fitted, as_selected, fitted_scan
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SERIES, SUMMARY, data_of, fits_in, load_result
from homodyne_dask.store.files import AnyPath, absolute, any_path
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.scan import Cuts, Scan, open_dataset

Viewable = str | Path | UrlPath | Scan | FitResult
Source = Path | Scan | FitResult
"""An opened store, a result, or the path of a result, which is opened when it is chosen."""


@dataclass(frozen=True)
class Shown:
    scan: Scan
    fit: FitView | None = None

    @cached_property
    def read(self) -> ReadTile:
        return tile_reader(self.scan)

    @cached_property
    def cuts(self) -> Cuts:
        return self.scan.cuts()

    def at_age(self, bin: int, t1: float) -> Cut:
        """Return averages over the cells of all lags at one age [s]; none beyond the last frame."""
        frame = np.searchsorted(self.scan.time, t1)
        age = int(np.searchsorted(self.cuts.age_edges, frame, side="right")) - 1
        return cut_at_age(self.scan, self.cuts, bin, age)


def sources_of(
    viewables: Sequence[Viewable], exclude: Mapping[str, Any] | None = None
) -> list[Source]:
    """Return the stores, opened, and results among which a page lets choose; exclude: of stores."""
    sources: list[Source] = []
    for viewed in viewables:
        form = "a scan, a result, or the path of a store, of a fit or of a folder of fits"
        require_type("what to view", viewed, Viewable, form)
        if isinstance(viewed, Scan | FitResult):
            sources.append(viewed)
        else:
            sources += _sources_in(any_path("what to view", viewed))
    if not sources:
        raise OptionError("there is nothing to view: give a store or the folder of a fit")
    if any((exclude or {}).values()) and not any(isinstance(s, Scan) for s in sources):
        raise OptionError("a fit is shown with the pairs it used: leave out what is to be excluded")
    return [s.select(exclude=exclude) if isinstance(s, Scan) else s for s in sources]


def _sources_in(path: AnyPath) -> list[Source]:
    if not isinstance(path, UrlPath):
        if path.name.endswith(".json") or (path / SUMMARY).is_file():
            return [path]
        if fits := fits_in(path):
            return [path / fit for fit in fits]
        if (path / SERIES).is_file():
            raise OptionError(f"{path} contains a series without a finished fit")
    return [open_dataset(path)]


def name_of(source: Source) -> str:
    if isinstance(source, FitResult):
        return f"{source.config['model']} fitted to {source.provenance.inputs['store']}"
    path = any_path("what to view", source.path) if isinstance(source, Scan) else source
    return absolute(path).name


def open_shown(source: Source, sources: Sequence[Source] = ()) -> Shown:
    """Open a store or a result; a store in `given` whose fit this is has its data, wherever it lies now."""
    if isinstance(source, Scan):
        return Shown(source)
    result = source if isinstance(source, FitResult) else load_result(source)
    stores = {scan.digest: scan for scan in sources if isinstance(scan, Scan)}
    store = stores.get(result.provenance.inputs["store_sha256"])
    try:
        if store is not None:
            scan = as_selected(store, result)
        elif isinstance(source, FitResult):
            scan = fitted_scan(result)
        else:
            scan = data_of(result, source, "also view {}")
    except StoreError as e:
        raise StoreError(f"{e}; or give the current path of the store after the result") from e
    view = FitView(result, as_fitted(scan, result))
    return Shown(view.scan, view)
