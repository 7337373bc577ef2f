"""`import homodyne_dask.xarray` gives datasets of xarray the accessor `xpcs`: plan, fit and view from there.

    import homodyne_dask.xarray
    ds = hd.open_dataset("A0123_c2.zarr").dataset
    result = ds.isel(bin=slice(0, 5)).sel(t1=slice(10, None), t2=slice(10, None)).xpcs.fit("static")

Nothing else of the package registers it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.store.scan import with_bins

if TYPE_CHECKING:
    from homodyne_dask.apps.view.view_server import View
    from homodyne_dask.sweep.plan import Plan

    Model = str | hd.TransportModel | hd.SeparableModel

CHOSEN = ("original-open_dataset-", "open_dataset-", "getitem-", "transpose-")
"""How Dask names the steps that read an array of a store and choose from it."""


class XpcsAccessor:
    """What can be done with a dataset of two-time correlations c2(bin, t1, t2): `ds.xpcs`."""

    def __init__(self, dataset: xarray.Dataset) -> None:
        self._dataset = dataset

    @property
    def scan(self) -> hd.Scan:
        """The bins and frames of this dataset as a selection of its store: what is fitted.

        Raises OptionError for a dataset that is not `scan.dataset`, or a choice of its bins and frames.
        """
        c2, where = _two_time(self._dataset), self._dataset.encoding.get("source")
        if where is None or "store_sha256" not in self._dataset.attrs or "label" not in c2.coords:
            raise OptionError(
                "this dataset does not come from a store: scan = ds.xpcs.ingest('c2.zarr') writes one, and "
                "scan.dataset is its data"
            )
        scan = hd.open_dataset(where)
        if scan.digest != self._dataset.attrs["store_sha256"]:
            raise OptionError(f"{where} has changed since this dataset was opened: open it again")
        frames = _frames(c2, scan)
        labels = np.atleast_1d(c2["label"].values).tolist()
        scans = np.atleast_1d(c2["scan"].values).tolist() if "scan" in c2.coords else None
        scan = with_bins(scan, labels, scans).select(frames=frames)
        _check_unchanged(self._dataset, c2, scan)
        return scan

    def plan(self, model: "Model", **options: Any) -> "Plan":
        """Return how these data would be fitted: `homodyne_dask.plan`, with its options and errors."""
        return hd.plan(self.scan, model, **options)

    def fit(self, model: "Model", **options: Any) -> "hd.FitResult":
        """Fit a model to these data: `homodyne_dask.fit`, with its options and errors."""
        return hd.fit(self.scan, model, **options)

    def view(self, port: int = 0) -> "View | None":
        """Show these data on a page: `homodyne_dask.view`."""
        return hd.view(self.scan, port=port)

    def ingest(self, store: str | Path, **options: Any) -> hd.Scan:
        """Write c2 with its coordinates into a new store, and return it opened.

        c2 (bin, t1, t2) or (t1, t2), with t1 and t2 [s], q [1/Å] and phi [degree], as coordinates; it is
        computed in memory. options: those of `homodyne_dask.ingest`, as q, phi and sigma, which go before
        coordinates. Raises OptionError for other datasets, and the errors of `homodyne_dask.ingest`.
        """
        c2 = _two_time(self._dataset)
        time = _times(c2)
        about = {
            name: np.atleast_1d(c2[name].values)
            for name in ("q", "phi")
            if name in c2.coords and name not in options
        }
        with TemporaryDirectory(prefix="homodyne-dask-") as folder:
            source = Path(folder) / "dataset.npz"
            np.savez(source, c2=np.ascontiguousarray(c2.values), time=time, **about)  # pyright: ignore[reportArgumentType]
            return hd.open_dataset(hd.ingest(source, store, **options).store)


def _two_time(dataset: xarray.Dataset) -> xarray.DataArray:
    """Return c2 in the order (bin, t1, t2), without what has no bin or frame."""
    held = ", ".join(map(str, dataset.data_vars)) or "nothing"
    if "c2" not in dataset.data_vars:
        raise OptionError(
            f"no two-time correlation: the dataset has no c2(bin, t1, t2), but {held}"
        )
    c2 = dataset["c2"]
    if set(c2.dims) not in ({"bin", "t1", "t2"}, {"t1", "t2"}):
        raise OptionError(
            f"no two-time correlation: c2 of this dataset has the dimensions "
            f"({', '.join(map(str, c2.dims))}), not (bin, t1, t2)"
        )
    return c2.transpose(..., "t1", "t2")


def _times(c2: xarray.DataArray) -> Float[np.ndarray, " t"]:
    """Return the frames [s] of c2; raises OptionError where t1 and t2 are not the same."""
    missing = [name for name in ("t1", "t2") if name not in c2.coords]
    if missing:
        raise OptionError(
            f"c2 has no coordinate {missing[0]}: assign the start times of the frames in seconds"
        )
    t1, t2 = (np.asarray(c2[name].values, float) for name in ("t1", "t2"))
    if not np.array_equal(t1, t2):
        raise OptionError("t1 and t2 of c2 are not the same frames: select the same frames in both")
    return t1


def _frames(c2: xarray.DataArray, scan: hd.Scan) -> tuple[int, int]:
    """Return the frames of c2 in a scan, the first and the one after the last."""
    time = _times(c2)
    first = int(np.searchsorted(scan.time, time[0])) if len(time) else 0
    frames = first, first + len(time)
    if not np.array_equal(scan.time[slice(*frames)], time):
        raise SelectionError(
            "t1 and t2 of c2 are not consecutive frames: choose a range of frames, or "
            "write them to a store with ds.xpcs.ingest"
        )
    return frames


def _check_unchanged(dataset: xarray.Dataset, c2: xarray.DataArray, scan: hd.Scan) -> None:
    """Raise OptionError where values are not those of the store, which is what would be fitted."""
    stored = scan.dataset["c2"]
    changed = [
        name
        for name in ("q", "phi")
        if name in c2.coords
        and not np.array_equal(np.atleast_1d(c2[name].values), stored[name].values, equal_nan=True)
    ]
    if c2.chunks is None:
        values = stored.values
        same = np.array_equal(c2.values.reshape(values.shape), values, equal_nan=True)
        changed += [] if same else ["c2"]
    else:
        lazy = (name for name in ("c2", "sigma_row", "frame_mask") if name in dataset)
        changed += [name for name in lazy if not _is_chosen(dataset[name])]
    if changed:
        raise OptionError(
            f"{changed[0]} of this dataset was changed, but its store, which would be fitted, was not: "
            f"scan = ds.xpcs.ingest('other.zarr') writes another"
        )


def _is_chosen(values: xarray.DataArray) -> bool:
    """Return whether values are read from a store and chosen, not computed."""
    return values.chunks is not None and all(
        str(step).startswith(CHOSEN) for step in values.data.dask.layers
    )


if getattr(getattr(xarray.Dataset, "xpcs", None), "__module__", None) == __name__:
    delattr(xarray.Dataset, "xpcs")  # this module is loaded anew; xarray warns of another package's
xarray.register_dataset_accessor("xpcs")(XpcsAccessor)
