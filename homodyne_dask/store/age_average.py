"""g2(lag) of each bin: c2 averaged over age, from the averages stored with the data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.scan import Cuts, Scan, as_scan

if TYPE_CHECKING:
    import xarray


def g2(data: Scan | str | Path) -> "xarray.Dataset":
    """Return g2 of every bin, c2 averaged over age: g2, stderr and pairs over (bin, lag).

    data: a scan, whose selected bins and frames are used, or the path of a store. Lags [s] are those of the
    stored averages: every frame up to 4 frames, then intervals that grow by a third to a half, each at the
    mean lag of its pairs. stderr is the scatter between intervals of age, divided by the square root of
    their number: NaN for one interval, and too small if neighbouring intervals see the same speckle. Raises
    OptionError for frames that are not evenly spaced in time, which have no common lags.

    >>> hd.g2("A0123_c2.zarr")["stderr"].dims
    ('bin', 'lag')
    """
    import xarray  # takes a second to import

    scan = as_scan(data)
    require_common_lags(scan)
    read = scan.cuts()
    columns = [_at_lag(read, lag) for lag in np.unique(read.lag)]
    names = ("lag", "g2", "stderr", "pairs")
    lag, mean, stderr, pairs = (
        np.stack([column[n] for column in columns], axis=-1) for n in range(len(names))
    )
    both = ("bin", "lag")
    coords = {name: ("bin", getattr(scan, name)) for name in ("label", "q", "phi")}
    coords |= {"scan": ("bin", scan.scan_number)} if "scans" in scan.attrs else {}
    return xarray.Dataset(
        {"g2": (both, mean), "stderr": (both, stderr), "pairs": (both, pairs.astype(int))},
        coords=coords | {"lag": ("lag", [float(f"{one:.12g}") for one in lag], {"units": "s"})},
        attrs={"store_sha256": scan.digest, "source_file": scan.attrs["source_file"]},
    )


def require_common_lags(scan: Scan) -> None:
    """Raise OptionError where frames are not even in time: ages then have no lags in common."""
    if is_uneven(scan.time):
        raise OptionError(
            f"the frames of {scan.path} are not evenly spaced in time, so ages have no lags in common: "
            f"fit c2 itself, or inspect it with `view`"
        )


def _at_lag(read: Cuts, lag: int) -> tuple[Float[np.ndarray, "*bin"], ...]:
    """Return the lag, and of each bin the mean over ages, its error and its pairs."""
    at = read.lag == lag
    count = np.where(np.isfinite(read.c2[:, at]), read.count[:, at], 0)
    value, total = np.where(count > 0, read.c2[:, at], 0.0), count.sum(axis=1)
    ages = (count > 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (count * value).sum(axis=1) / total
        squares = (count**2 * (value - mean[:, None]) ** 2).sum(axis=1) / total**2
        stderr = np.sqrt(np.where(ages > 1, squares * ages / (ages - 1), np.nan))
    used = count.sum(axis=0)
    return np.average((read.t2 - read.t1)[at], weights=np.maximum(used, 1)), mean, stderr, total


def average_over_age(
    read: Cuts, values: Sequence[Float[np.ndarray, "bin cell"]]
) -> tuple[Float[np.ndarray, " lag"], ...]:
    """Return the lags [s], and each of some values of all cells averaged over age and bins."""
    found = []
    for lag in np.unique(read.lag):
        at = read.lag == lag
        count = read.count[:, at]
        row = [float(np.average((read.t2 - read.t1)[at], weights=np.maximum(count.sum(0), 1)))]
        for of in values:
            some = np.isfinite(of[:, at]) & (count > 0)
            row.append(np.average(of[:, at][some], weights=count[some]) if some.any() else np.nan)
        found.append(row)
    return tuple(np.array(found).T)
