"""Fits of every ring or window of age of a scan: small ones in parallel, others one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.cluster.local import require_client
from homodyne_dask.errors import (
    ClusterError,
    HomodyneDaskError,
    OptionError,
    SelectionError,
    require_known,
    require_type,
    shown,
)
from homodyne_dask.fitting.callbacks import require_callbacks
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.prepare import prepare, require_gap
from homodyne_dask.fitting.series.fit_job import Job
from homodyne_dask.fitting.series.variable_of_scans import Values, places_of
from homodyne_dask.models import Model, scan_model
from homodyne_dask.request.options import takes_options
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.store.rings import ring_numbers, rings_of
from homodyne_dask.store.scan import Scan, as_scan

if TYPE_CHECKING:
    from distributed import Client

OVER = ("q", "phi", "age", "scan")
Windows = int | Sequence[tuple[float, float]] | None
_MIN_FRAMES = 3


class Part(NamedTuple):
    """One ring, window of age or scan of a store."""

    name: str
    """For people: 'q = 0.0054 1/Å', '0 to 30 s'."""
    folder: str
    """Name of the folder of its result."""
    at: Mapping[str, Any]
    """Place in the series: q [1/Å] and age, or age, from and to [s]; age: mean time of its frames. The first
    is the axis."""
    scan: Scan

    def members(self, whole: Scan) -> tuple[int, ...]:
        """Return the positions of its bins in the whole selection."""
        return tuple(map(whole.bins.index, self.scan.bins))


def parts_of(scan: Scan, over: str, windows: Windows = None) -> tuple[Part, ...]:
    """Return the rings (over='q'), angles ('phi'), age windows ('age') or scans of repeats ('scan').

    windows, for age only: the number of windows of equal length in frames, or a list of (from, to) in
    s. Raises OptionError for options that exclude each other, SelectionError where q or φ is unknown or a
    window has fewer than 3 frames.
    """
    require_known(over, OVER, f"over {shown(over)} is unknown")
    if over != "age":
        if windows is not None:
            raise OptionError(
                f"windows = {shown(windows)} applies only to over 'age': leave out windows"
            )
        return tuple({"q": _rings, "phi": _angles, "scan": _scans}[over](scan))
    if windows is None:
        raise OptionError(
            "over 'age' needs windows: give their number, or the start and end of each in seconds"
        )
    return tuple(_windows(scan, windows))


def parts_of_stores(
    scans: Sequence[Scan],
    over: str | None,
    windows: Windows,
    variable: str | None = None,
    values: Values = None,
) -> list[tuple[Part, ...]]:
    """Return the parts of each store; with a variable at their values of it, and first of each scan.

    values: of the variable (`places_of`). over: None for whole scans, where there is a variable. Raises as
    `parts_of`, and OptionError for several stores without a variable and for values that are unknown.
    """
    if variable is None:
        if values is not None:
            raise OptionError("scan_values require over_scans: also give the name of the variable")
        if len(scans) > 1:
            raise OptionError(
                f"over applies to a single store, but {len(scans)} are given: fit each separately, or give "
                f"over_scans, too"
            )
        return [parts_of(scan, str(over), windows) for scan in scans]
    apart = len(scans) == 1 and len(set(scans[0].scan_number)) > 1
    named = [(Path(scan.path).name, scan) for scan in scans]
    wholes = [Part(name, name.removesuffix(".zarr"), {}, scan) for name, scan in named]
    wholes = list(_scans(scans[0])) if apart else wholes
    if len({whole.folder for whole in wholes}) < len(wholes):
        raise OptionError("two of the stores have the same name: fit them under different names")
    found = []
    for whole, at in zip(wholes, places_of(variable, wholes, values, apart), strict=True):
        inner: Sequence[Part] = [Part("", "", {"age": whole.scan.mean_age}, whole.scan)]
        if over not in (None, "scan"):
            inner = parts_of(whole.scan, over, windows)
        found.append(
            tuple(
                Part(
                    ", ".join(filter(None, (whole.name, one.name))),
                    "_".join(filter(None, (whole.folder, one.folder))),
                    at | {**one.at},
                    one.scan,
                )
                for one in inner
            )
        )
    return [sum(found, ())] if apart else found


def _require_known(scan: Scan, symbol: str, values: np.ndarray, by: str = "") -> None:
    unknown = int(np.isnan(values).sum())
    if unknown:
        raise SelectionError(
            f"{symbol} is unknown for {unknown} of {len(scan.bins)} selected bins: select only bins with a "
            f"known {symbol}{by}"
        )


def _part(
    scan: Scan, name: str, folder: str, at: dict[str, float], which: Bool[np.ndarray, " bin"]
) -> Part:
    """Return the part of some bins."""
    bins = tuple(scan.bins[b] for b in np.flatnonzero(which))
    return Part(name, folder, at, replace(scan, bins=bins))


def _rings(scan: Scan) -> Iterator[Part]:
    _require_known(scan, "q", scan.q)
    numbers = ring_numbers(scan.q)
    for ring, q in enumerate(rings_of(scan.q).tolist()):
        at = {"q": q, "age": scan.mean_age}
        yield _part(scan, f"q = {q:.6g} 1/Å", f"q_{q:.6g}", at, numbers == ring)


def _angles(scan: Scan) -> Iterator[Part]:
    """Yield the bins of each ring at each angle, those that repeat each other together."""
    _require_known(scan, "φ", scan.phi, ", by phi or label")
    rings, several = ring_numbers(scan.q), len(rings_of(scan.q)) > 1
    for ring, phi in sorted(set(zip(rings.tolist(), scan.phi.tolist(), strict=True))):
        which = (rings == ring) & (scan.phi == phi)
        name, folder, at = f"φ = {phi:.6g}°", f"phi_{phi:.6g}", {"phi": phi, "age": scan.mean_age}
        if several:
            q = float(scan.q[which][0])
            name, folder, at = f"q = {q:.6g} 1/Å, {name}", f"q_{q:.6g}_{folder}", at | {"q": q}
        yield _part(scan, name, folder, at, which)


def _scans(scan: Scan) -> Iterator[Part]:
    numbers = np.unique(scan.scan_number).tolist()
    if len(numbers) < 2:
        raise SelectionError(
            f"{scan.path} has only one selected scan, but over 'scan' and per_scan need several: ingest the "
            f"files of all scans into one store"
        )
    for number in numbers:
        name, at = f"scan {number}: {scan.scan_names[number - 1]}", {"scan": float(number)}
        at |= {"age": scan.mean_age}
        yield _part(scan, name, f"scan_{number:03d}", at, scan.scan_number == number)


def _windows(scan: Scan, windows: Windows) -> Iterator[Part]:
    first, stop = scan.frames
    if isinstance(windows, int | np.integer) and not isinstance(windows, bool):
        most = (stop - first) // _MIN_FRAMES
        if not 1 <= windows <= most:
            raise OptionError(
                f"{windows} windows of at least {_MIN_FRAMES} frames each do not fit into the {stop - first} "
                f"selected frames: give a number from 1 to {most}"
            )
        edges = np.linspace(first, stop, windows + 1).round().astype(int)
        chosen = [scan.select(frames=(a, b)) for a, b in pairwise(edges)]
    else:
        form = "their number, or a list of (start, end) in seconds"
        require_type("windows", windows, list | tuple | np.ndarray, form)
        times: Any = windows
        chosen = [scan.select(time=window) for window in times]
    if not chosen:
        raise OptionError("windows is an empty list: give the start and end of each in seconds")
    for number, part in enumerate(chosen, 1):
        begin, end = (float(part.time[n]) for n in (part.frames[0], part.frames[1] - 1))
        name, at = f"{begin:.6g} to {end:.6g} s", {"age": part.mean_age, "from": begin, "to": end}
        yield Part(name, f"window_{number:02d}", at, part)


def jobs_of(
    parts: Sequence[Part], whole: Scan, options: Mapping[str, Any], folder: Path
) -> list[Job]:
    """Return the fits of the parts: contrasts and offsets given per bin are those of its bins.

    folder: that in which each has its own. Raises OptionError for contrasts that would be shared by one bin.
    """
    _require_shared(str(options.get("scaling", "")), [part.scan for part in parts], whole)
    jobs = []
    for part in parts:
        own = dict(options)
        for name in ("contrast", "offset"):
            given = own.get(name)
            if isinstance(given, Sequence) and len(given) == len(whole.bins) > 1:
                own[name] = [given[b] for b in part.members(whole)]
        jobs.append(Job(part.name, lambda scan=part.scan: scan, own, folder / part.folder, part.at))
    return jobs


def _require_shared(scaling: str, parts: Sequence[Scan], whole: Scan) -> None:
    """Raise OptionError where bins or scans of the whole share their scaling, but no part has two of them."""
    if scaling in ("", "individual", "fixed"):
        return
    what = "scans" if scaling == "scans" else "bins"
    several = [
        len(set(of.scan_number) if what == "scans" else of.bins) > 1 for of in (*parts, whole)
    ]
    if several[-1] and not any(several[:-1]):
        raise OptionError(
            f"scaling {scaling!r} is for several {what}, but each fit has one: leave out scaling, or fit all "
            f"{what} at once, without over"
        )


@takes_options()
def fit_each(
    data: "Scan | str | Path | Sequence[Scan | str | Path]",
    model: Model | str,
    *,
    over: str | None = None,
    over_scans: str | None = None,
    scan_values: "Mapping[str, float | str] | str | Path | None" = None,
    windows: Windows = None,
    per_scan: str | Sequence[str] = (),
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> FitSeries:
    """Fit a model separately to each ring (over='q'), angle ('phi'), window of age ('age') or scan ('scan').

    over: 'q', 'phi', 'age' or 'scan' (of a store of repeats).
    over_scans: a variable such as 'temperature' as the axis: fits each of several stores in `data`, or each
        scan of one, and with over its parts; 'scan' is the number.
    scan_values: of that variable, by names of scans, numbers or text with a unit ('25 C'), or the path of a
        table of them; by default those that ingest found.
    windows: for 'age', the number of windows of equal length in frames, or a list of (start, end) in s.
        Times keep their origin, and a window includes the pairs with both frames in it.
    per_scan: for 'scan', names of parameters that differ between scans while the others are shared: one
        global fit of all scans, whose parameters and covariance are `global_fit` of the series.
    client: a Dask client; by default workers are started once for all small parts, if these are many.
    callbacks: functions, each called with every event of the fits (`hd.events`); for a small part (below),
        with all its events after its fit has ended.
    {options}

    A part that cannot be fitted is a row with its error message; the others continue. Parts of fewer than
    four million pairs are fitted in parallel, each by one thread of the workers; larger ones are fitted one
    after the other, as by `fit`. Every result is identical to that of `fit`.

    Raises a HomodyneDaskError for invalid options.

    >>> hd.fit_each("A0123_c2.zarr", "brownian", over="age", windows=2).converged
    True
    """
    scans = [
        as_scan(one)
        for one in (data if isinstance(data, Sequence) and not isinstance(data, str) else [data])
    ]
    model = scan_model(model)
    require_client(client)
    require_callbacks(callbacks)
    parts = parts_of_stores(scans, over, windows, over_scans, scan_values)
    wholes = [prepare(scan, model, **options) for scan in scans]
    for whole in wholes:
        require_gap(whole)
    if per_scan:
        return _fitted_together(wholes[0], parts[0], over, over_scans, per_scan, client, callbacks)
    from homodyne_dask.fitting.series.run_many import run_many  # it loads Dask's client

    each = zip(parts, scans, strict=True)
    jobs = [job for own, scan in each for job in jobs_of(own, scan, options, Path())]
    jobs, rows = [job._replace(written=False) for job in jobs], []
    with closing(run_many(jobs, model, client, lambda *_: nullcontext(callbacks))) as outputs:
        for job, output in zip(jobs, outputs, strict=True):
            error = output.error
            if isinstance(error, ClusterError) or not isinstance(error, HomodyneDaskError | None):
                raise error
            for event in output.events:
                for callback in callbacks:
                    callback(event)
            rows.append(fit_row(job.name, None, output.result, str(error or ""), job.at))
    return FitSeries(over_scans or str(over), tuple(rows))


def _fitted_together(
    whole: Request,
    parts: Sequence[Part],
    over: str | None,
    over_scans: str | None,
    per_scan: str | Sequence[str],
    client: "Client | None",
    callbacks: Sequence[Callback],
) -> FitSeries:
    """Return the series of a global fit of all scans."""
    from homodyne_dask.fitting.series.scans_together import fit_together

    if over != "scan" and not (over is None and over_scans):
        raise OptionError(
            f"per_scan needs over 'scan', but over is {over!r}: leave one of them out"
        )
    chosen = (per_scan,) if isinstance(per_scan, str) else tuple(per_scan)
    together, results = fit_together(whole, chosen, client, callbacks)
    rows = [
        fit_row(part.name, None, result, at=part.at)
        for part, result in zip(parts, results, strict=True)
    ]
    return FitSeries(over_scans or "scan", tuple(rows), together)
