"""What a page shows: stores and results, and the bins of them that belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from homodyne_dask.apps.view.data_window import Tiles
from homodyne_dask.apps.view.model_values import RateLine, Rates, ShownModel
from homodyne_dask.errors import (
    HomodyneDaskError,
    OptionError,
    SelectionError,
    StoreError,
    printable,
    require_type,
)
from homodyne_dask.results.data.block_means import as_fitted
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView, as_selected, fitted_scan
from homodyne_dask.results.files.folder import fits_in
from homodyne_dask.results.files.saved_results import SERIES, SUMMARY, data_of, load_result
from homodyne_dask.results.views.figures.style import bin_name
from homodyne_dask.store.files import any_path, is_file
from homodyne_dask.store.rings import NEAREST_ANGLE_TOLERANCE, NEAREST_Q_TOLERANCE
from homodyne_dask.store.scan import Cuts, Scan, open_dataset
from homodyne_dask.store.url_path import UrlPath

Viewable = str | Path | UrlPath | Scan | FitResult
MAX_SHOWN = 6
"""Most stores and results of one page."""
MAX_NAMED = 8
"""Most bins named one by one that have no counterpart."""


@dataclass(frozen=True)
class ShownScan:
    """A store, or a result with the data that were fitted."""

    name: str
    scan: Scan
    tiles: Tiles
    cuts: Cuts
    result: FitResult | None
    model: ShownModel | None
    """That of the result."""
    bins: Int[np.ndarray, " bin"]
    """The position of each bin of the page in this scan; -1 where it has none."""


def open_shown(what: Sequence[Viewable]) -> list[ShownScan]:
    """Open stores and results; the first one's bins are those of the page.

    A store whose result is given too is that result's data, wherever it lies now.
    Raises OptionError for more than `MAX_SHOWN` and for what is neither, StoreError and SourceError for
    what cannot be opened.
    """
    given = [(_opened(one), one) for one in what]
    if not 0 < len(given) <= MAX_SHOWN:
        raise OptionError(
            f"a page shows 1 to {MAX_SHOWN} stores and results, but {len(given)} were given"
        )
    scans = {one.digest: one for one, _ in given if isinstance(one, Scan)}
    fitted = {
        one.provenance.inputs["store_sha256"] for one, _ in given if isinstance(one, FitResult)
    } & scans.keys()
    found: list[ShownScan] = []
    tiles = Tiles()
    for one, source in given:
        if isinstance(one, FitResult):
            held = scans.get(one.provenance.inputs["store_sha256"])
            scan, result = _data_of(one, source, held), one
        elif one.digest not in fitted:
            scan, result = one, None
        else:
            continue
        model = None if result is None else ShownModel(FitView(result, scan))
        bins = matching_bins(found[0].scan if found else scan, scan)
        found.append(ShownScan(_name(source), scan, tiles, scan.cuts(), result, model, bins))
    return found


@dataclass(frozen=True)
class Viewed:
    """All that the pages of one server show."""

    shown: Sequence[ShownScan]
    rates: Sequence[dict[str, RateLine]]
    notes: tuple[str, ...]
    """What cannot be shown, and why."""

    @property
    def title(self) -> str:
        """The names of what is shown."""
        return ", ".join(printable(one.name) for one in self.shown)


def viewed(what: Sequence[Viewable]) -> Viewed:
    """Open stores and results; see `open_shown`."""
    shown = open_shown(what)
    rates: list[dict[str, RateLine]] = []
    notes: list[str] = []
    for one in shown:
        try:
            of = Rates({}, ()) if one.model is None else one.model.rates()
        except HomodyneDaskError as e:
            of = Rates({}, (str(e),))
        rates.append(of.lines)
        notes += [f"{one.name}: {note}" for note in (*of.notes, *unmatched(shown[0], one))]
    return Viewed(shown, rates, tuple(notes))


def excluding(what: Sequence[Viewable], exclude: Mapping[str, Any]) -> Sequence[Viewable]:
    """Return what to view, its stores without the bins and frames that are excluded (see `Scan.select`)."""
    if not exclude:
        return what
    opened = [(one, _opened(one)) for one in what]
    return [of.select(exclude=exclude) if isinstance(of, Scan) else one for one, of in opened]


def _name(what: Viewable) -> str:
    if isinstance(what, FitResult):
        return f"{what.config['model']} fitted to {what.provenance.inputs['store']}"
    return any_path("what to view", what.path if isinstance(what, Scan) else what).absolute().name


def _opened(what: Viewable) -> Scan | FitResult:
    form = "a scan, a result, or the path of a store or of the folder of a fit"
    require_type("what to view", what, Viewable, form)
    if isinstance(what, Scan | FitResult):
        return what
    path = any_path("what to view", what)
    if path.name.endswith(".json") or is_file(path / SUMMARY):
        return load_result(path)
    return open_dataset(path)


def choices_of(what: Sequence[Viewable]) -> dict[str, Sequence[Viewable]]:
    """Return what a page lets choose from, by name: each fit of a series, or all that is given at once.

    Raises OptionError for a series beside something else, and for one without a fit.
    """
    for one in what:
        if isinstance(one, Scan | FitResult):
            continue
        path = any_path("what to view", one)
        if path.name.endswith(".json") or is_file(path / SUMMARY):
            continue
        parts = fits_in(path)
        if not (parts or is_file(path / SERIES)):
            continue
        if len(what) > 1:
            raise OptionError(
                f"{path} contains several fits: give it as the only argument, or name up to {MAX_SHOWN} of "
                "its fits, such as " + " ".join(str(path / part) for part in parts[:2])
            )
        if not parts:
            raise OptionError(f"{path} contains a series without a finished fit")
        return {str(part): [path / part] for part in parts}
    return {"": what}


def _data_of(result: FitResult, source: Viewable, held: Scan | None) -> Scan:
    """Return what was fitted, of the store that is given or else from where it was.

    Of a result in a file that is opened only where it lies beside it, see `data_of`.
    """
    if held is None:
        try:
            if isinstance(source, FitResult | Scan):
                return as_fitted(fitted_scan(result), result)
            folder = any_path("what to view", source)
            return as_fitted(data_of(result, folder, "also view {}"), result)
        except StoreError as e:
            raise StoreError(f"{e}; or give the current path of the store after the result") from e
    return as_fitted(FitView(result, as_selected(held, result)).scan, result)


def matching_bins(first: Scan, scan: Scan) -> Int[np.ndarray, " bin"]:
    """Return the position in `scan` of each bin of `first`, -1 where there is none.

    In one store, or where q or φ is unknown, bins are told apart by their labels, else by q and φ; those of
    different scans of a store of repeats are different bins.
    """
    same = scan.label == first.label[:, None]
    known = np.isfinite(np.concatenate([scan.q, scan.phi, first.q, first.phi])).all()
    if known and scan.digest != first.digest:
        q, phi = first.q[:, None], first.phi[:, None]
        turned = np.abs((scan.phi - phi + 180) % 360 - 180)
        near: Bool[np.ndarray, "bin bin"] = np.abs(scan.q - q) <= NEAREST_Q_TOLERANCE * q
        near &= turned <= NEAREST_ANGLE_TOLERANCE
        away = np.where(near, np.abs(scan.q / q - 1) + turned, np.inf)
        same = near & (away == away.min(axis=1, keepdims=True))
    same &= scan.scan_number == first.scan_number[:, None]
    return np.where(same.any(1), same.argmax(1), -1)


def unmatched(first: ShownScan, one: ShownScan) -> list[str]:
    """Return which bins of a page a store or result lacks, and which of its bins the page does not have."""
    own = set(range(len(one.scan.bins))) - set(one.bins.tolist())
    found = []
    if lacking := [bin_name(first.scan, int(n)) for n in np.flatnonzero(one.bins < 0)]:
        found.append(f"has no bin at {_listed(lacking)}")
    if more := [bin_name(one.scan, n) for n in sorted(own)]:
        found.append(f"bins that are not shown because {first.name} lacks them: {_listed(more)}")
    return found


def _listed(names: list[str]) -> str:
    """Return names, of many the first ones and the number of the others."""
    others = len(names) - MAX_NAMED
    return "; ".join(names[:MAX_NAMED]) + (f" and {others} more" if others > 0 else "")


def linear_params(one: ShownScan, bin: int) -> tuple[float, float]:
    """Return contrast and offset of a bin of a result."""
    assert one.result is not None
    table = one.result.scaling
    return float(table["contrast"].values[bin]), float(table["offset"].values[bin])


def bin_of(one: ShownScan, at: int) -> int:
    """Return the position of a bin of the page; SelectionError where the scan has none."""
    bin = int(one.bins[at])
    if bin < 0:
        raise SelectionError("there is no bin at this q and φ")
    return bin


def nearest_bin(first: Scan, bin: int, scan: Scan) -> int:
    """Return the position in `scan` of a bin of `first`: the same one, else that of the nearest angle."""
    same = int(matching_bins(first, scan)[bin])
    turned = np.abs((scan.phi - first.phi[bin] + 180) % 360 - 180)
    if same >= 0 or not np.isfinite(turned).any():
        return max(same, 0)
    return int(np.nanargmin(turned))
