"""Fits of every ring or window of age of a scan: small ones in parallel, others one after the other."""

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from homodyne_dask.errors import (
    ClusterError,
    HomodyneDaskError,
    OptionError,
    require_known,
    require_type,
    shown,
)
from homodyne_dask.fitting.events import Callback, Event, FitEnded
from homodyne_dask.fitting.fit import require_client
from homodyne_dask.fitting.observer import require_callbacks
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series.many_fits import Job, run_many
from homodyne_dask.fitting.series.subsets import (
    OVER,
    Subset,
    Values,
    Windows,
    axis_of,
    check_measured_once,
    places_of,
    subsets_of,
    subsets_of_scans,
)
from homodyne_dask.models import Model, scan_model
from homodyne_dask.request.options import takes_options
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.fit_rows import FitRow, fit_row, without_chance
from homodyne_dask.results.data.series import WORDS
from homodyne_dask.results.result_classes import FitSeries
from homodyne_dask.solver.array_shapes import Vector
from homodyne_dask.solver.scaling_modes import LINEAR
from homodyne_dask.store.scan import Scan, as_scan

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.assessment.speckle_noise import BinNoise

GROUPS = {"ring": "q", "angle": "angle", "label": "label", "scan": "scan"}
"""Groups of bins of which `per` gives each its own parameters, and what a series is over with them."""
LEAST_CORRELATION = 0.02
"""Of the errors of rings, below which they are independent."""
_FORM_OF_PER = "names of parameters by group, such as {'ring': 'D0'}"
_SCALING = {"ring": "rings", "angle": "angles", "label": "individual"}
"""The scaling mode in which each group has its own contrast."""


def subsets_of_stores(
    scans: Sequence[Scan],
    over: str | None,
    windows: Windows,
    variable: str | None = None,
    values: Values = None,
    together: bool = False,
) -> list[tuple[Subset, ...]]:
    """Return the subsets of each store, of several as of one where they are fitted together.

    over: None for whole scans at the values of a variable.
    """
    if variable is not None:
        return _subsets_at_values(scans, over, windows, variable, values)
    if together and len(scans) > 1 and over == "scan":
        subsets = subsets_of_scans(*scans)
        return [tuple(islice(subsets, len(set(scan.scan_number)))) for scan in scans]
    if values is not None:
        raise OptionError("scan_values require over_scans: also give the name of the variable")
    if len(scans) > 1:
        raise OptionError(
            f"over applies to a single store, but {len(scans)} are given: fit each separately, give "
            f"over_scans, too, or fit all of them as one fit with --together"
        )
    return [subsets_of(scan, str(over), windows) for scan in scans]


def _subsets_at_values(
    scans: Sequence[Scan], over: str | None, windows: Windows, variable: str, values: Values
) -> list[tuple[Subset, ...]]:
    check_measured_once(scans)
    apart = len(scans) == 1 and len(set(scans[0].scan_number)) > 1
    names = [Path(scan.path).name for scan in scans]
    wholes = [
        Subset(name, name.removesuffix(".zarr"), {}, scan)
        for name, scan in zip(names, scans, strict=True)
    ]
    wholes = list(subsets_of_scans(scans[0])) if apart else wholes
    if len({whole.folder for whole in wholes}) < len(wholes):
        raise OptionError("two of the stores have the same name: fit them under different names")
    subsets_of_each = []
    for whole, axes in zip(wholes, places_of(variable, wholes, values, apart), strict=True):
        subsets_of_whole: Sequence[Subset] = [
            Subset("", "", {"age": whole.scan.mean_age}, whole.scan)
        ]
        if over not in (None, "scan"):
            subsets_of_whole = subsets_of(whole.scan, over, windows)
        subsets = []
        for subset in subsets_of_whole:
            name = ", ".join(filter(None, (whole.name, subset.name)))
            folder = "_".join(filter(None, (whole.folder, subset.folder)))
            subsets.append(Subset(name, folder, axes | {**subset.axis_values}, subset.scan))
        subsets_of_each.append(tuple(subsets))
    return [sum(subsets_of_each, ())] if apart else subsets_of_each


def jobs_of(
    subsets: Sequence[Subset],
    whole: Scan,
    options: Mapping[str, Any],
    folder: Path,
    together: bool = False,
) -> list[Job]:
    """Return a job for each subset, with a folder of its own in `folder`; together: one fit has them all."""
    if not together:
        _check_scaling(str(options.get("scaling", "")), subsets, whole)
    jobs = []
    for subset in subsets:
        opened, path = (lambda scan=subset.scan: scan), folder / subset.folder
        options_of_subset = _options_of(subset, whole, options)
        axes = subset.axis_values
        job = Job(subset.name, opened, options_of_subset, path, axes)
        jobs.append(job._replace(with_noise="q" in axes and next(iter(axes)) in ("q", "age")))
    return jobs


class SharedByRings:
    """A callback of the fits of single rings, whose noise tells how much speckle they share; all of a window
    come before those of the next."""

    def __init__(self, whole: Request) -> None:
        self.whole, self.fits = whole, dict[int, str]()
        self.bins: dict[int, BinNoise] = {}
        self.ended, self.of_windows = 0, list[Vector]()

    def __call__(self, event: Event) -> None:
        if isinstance(event, FitEnded):
            self.ended += 1
            noises_of_store = {} if event.noise is None else event.noise()
            free = {b: n for b, n in noises_of_store.items() if n.columns.shape[1] > 2}
            noises = {self.whole.scan.bins.index(b): noise for b, noise in free.items()}
            if noises.keys() & self.bins.keys():
                self._end_window()
            self.bins |= noises
            self.fits |= dict.fromkeys(noises, event.fit)

    def _end_window(self) -> None:
        from homodyne_dask.assessment import shared_speckle as shared  # lazy: it loads JAX

        if len(self.bins) > 1:
            scan, clusters = self.whole.scan, self.whole.clusters
            likely = shared.likely_shares(scan, clusters, self.bins, self.fits)["rings"]
            of_errors = np.mean([shared.part_of_errors(noise) for noise in self.bins.values()])
            self.of_windows.append(of_errors * likely.sizes)
        self.bins.clear()

    def correlations(self) -> tuple[float, ...]:
        """Return those of the errors of fits 1, 2, ... rings apart, as a mean over windows."""
        self._end_window()
        mean = np.mean(self.of_windows, axis=0) if self.of_windows else np.zeros(0)
        return tuple(mean[: int((mean > LEAST_CORRELATION).cumprod().sum())].tolist())


def _check_scaling(scaling: str, subsets: Sequence[Subset], whole: Scan) -> None:
    if scaling in ("", "individual", "fixed"):
        return
    units = "scans" if scaling == "scans" else "bins"
    *subsets_have_several, whole_has_several = (
        len(set(scan.scan_number) if units == "scans" else scan.bins) > 1
        for scan in (*(subset.scan for subset in subsets), whole)
    )
    if whole_has_several and not any(subsets_have_several):
        raise OptionError(
            f"scaling {scaling!r} is for several {units}, but each fit has one: leave out scaling, or fit "
            f"all {units} at once, without over"
        )


def _options_of(subset: Subset, whole: Scan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the fixed values of its own bins, where they are given for each bin."""
    of_subset = dict(options)
    for name in ("contrast", "offset"):
        values = options.get(name)
        if isinstance(values, Sequence) and len(values) == len(whole.bins) > 1:
            of_subset[name] = [values[b] for b in subset.members(whole)]
    return of_subset


@takes_options()
def fit_each(
    data: "Scan | str | Path | Sequence[Scan | str | Path]",
    model: Model | str,
    *,
    over: str | None = None,
    over_scans: str | None = None,
    scan_values: "Mapping[str, float | str] | str | Path | None" = None,
    windows: Windows = None,
    per: Mapping[str, str | Sequence[str]] | None = None,
    per_scan: str | Sequence[str] = (),
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> FitSeries:
    """Fit a model separately to each ring (over='q'), angle ('phi'), window of age ('age') or scan ('scan').

    over: 'q', 'phi' (each angle of each ring), 'angle' (of all rings), 'label', 'age' or 'scan' (of a store
        of repeats).
    over_scans: a variable such as 'temperature' as the axis: fits each of several stores in `data`, or each
        scan of one, and with over its parts; 'scan' is the number. Also the path of a number in HDF5 files
        that ingest kept, '/entry/sample/humidity'.
    scan_values: of that variable, by names of scans, numbers or text with a unit ('25 C'), or the path of a
        table of them; by default those that ingest found.
    windows: for 'age', and with 'q' for each ring in each window, the number of windows of equal length in
        frames, or a list of (start, end) in s. Times keep their origin, and a window includes the pairs with
        both frames in it.
    per: parameters that differ between groups of bins while the others are shared, as {'ring': 'D0'}: one
        global fit, whose parameters and covariance are `global_fit` of the series. Groups are 'ring',
        'angle' (of all rings), 'label' or 'scan'; each may have its own contrast (and offset), too.
    per_scan: short for per={'scan': per_scan}.
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
    several = isinstance(data, Sequence) and not isinstance(data, str)
    scans = [as_scan(store) for store in cast(Sequence[Any], data if several else [data])]
    model = scan_model(model)
    require_client(client)
    require_callbacks(callbacks)
    per_group, over, options = grouping_of(per, per_scan, over, options)
    _check_axis(over, over_scans, per_group)
    axis = axis_of(over_scans, over, windows)
    together = bool(per_group)
    subsets = subsets_of_stores(scans, over, windows, over_scans, scan_values, together=together)
    if together:
        return fit_subsets_together(
            scans, model, subsets, per_group, axis, client, callbacks, options
        )
    requests = [prepare(scan, model, **options) for scan in scans]
    for request in requests:
        request.require_given()
    jobs, shared = [], SharedByRings(requests[0])
    for subsets_of_scan, scan in zip(subsets, scans, strict=True):
        jobs += jobs_of(subsets_of_scan, scan, options, Path())
    of_rings = [shared] if over == "q" and over_scans is None else []
    rows = _rows_of(jobs, model, client, [*callbacks, *of_rings])
    correlations = shared.correlations() if of_rings else ()
    return FitSeries(axis, tuple(rows), correlations=correlations)


def _check_axis(over: str | None, over_scans: str | None, per_group: Sequence[str]) -> None:
    if over is None and over_scans is None:
        raise OptionError(
            f"over is missing: give one of {', '.join(OVER)}, or parameters with per; contrasts alone that "
            f"differ are a fit with scaling 'rings' or 'angles'"
        )
    if per_group and over_scans and over != "scan":
        raise OptionError(
            f"per with over {over!r} is not available with over_scans: leave out one of them"
        )


def _rows_of(
    jobs: list[Job], model: Model, client: "Client | None", callbacks: Sequence[Callback]
) -> list[FitRow]:
    jobs, rows = [job._replace(written=False) for job in jobs], []
    with closing(run_many(jobs, model, client, lambda *_: nullcontext(callbacks))) as outputs:
        for job, output in zip(jobs, outputs, strict=True):
            error = output.error
            if isinstance(error, ClusterError) or not isinstance(error, HomodyneDaskError | None):
                raise error
            for event, callback in product(output.events, callbacks):
                callback(event)
            rows.append(fit_row(job.name, None, output.result, str(error or ""), job.axis_values))
    return without_chance(rows, len(jobs))


@takes_options()
def fit_scans(
    data: Sequence[Scan | str | Path],
    model: Model | str,
    *,
    per_scan: str | Sequence[str] = (),
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> FitSeries:
    scans, model = [as_scan(store) for store in data], scan_model(model)
    require_client(client)
    require_callbacks(callbacks)
    names, _, options = grouping_of(None, per_scan, "scan", options)
    subsets = subsets_of_stores(scans, "scan", None, together=True)
    return fit_subsets_together(scans, model, subsets, names, "scan", client, callbacks, options)


def fit_subsets_together(
    scans: Sequence[Scan],
    model: Model,
    subsets: Sequence[Sequence[Subset]],
    per_group: Sequence[str],
    axis: str,
    client: "Client | None",
    callbacks: Sequence[Callback],
    options: Mapping[str, Any],
) -> FitSeries:
    from homodyne_dask.fitting.series.scans_together import fit_together  # lazy: it loads JAX

    stores = [prepare(scan, model, **options) for scan in scans]
    for store in stores:
        store.require_given()
    all_subsets = [subset for of_store in subsets for subset in of_store]
    noun = WORDS.get(axis, "scans")
    together, results = fit_together(stores, all_subsets, tuple(per_group), client, callbacks, noun)
    rows = [
        fit_row(subset.name, None, result, at=subset.axis_values)
        for subset, result in zip(all_subsets, results, strict=True)
    ]
    return FitSeries(axis, tuple(without_chance(rows, len(rows))), together)


def grouping_of(
    per: Mapping[str, str | Sequence[str]] | None,
    per_scan: str | Sequence[str],
    over: str | None,
    options: Mapping[str, Any],
) -> tuple[tuple[str, ...], str | None, dict[str, Any]]:
    """Return the parameters that differ by group, over what the series is, and options with the scaling."""
    require_type("per", per, Mapping | None, _FORM_OF_PER)
    requested = [*(per or {}).items(), *([("scan", per_scan)] if per_scan else [])]
    nonlinear, linear = _parameters_by_group(requested)
    for groups in (nonlinear, linear):
        if len(groups) > 1:
            raise OptionError(
                f"per: parameters differ by {' and '.join(sorted(groups))}, but a fit has one kind of group "
                f"for them: choose one"
            )
    options = dict(options)
    for group in linear:
        mode, scaling = _SCALING.get(group), options.get("scaling", "individual")
        if mode is None or scaling not in ("individual", mode):
            raise OptionError(
                f"per {group!r}: contrast and offset cannot differ by {group}"
                f"{f' with scaling {scaling!r}' if mode else ''}: leave one out, or use another scaling"
            )
        options["scaling"] = mode
    for group in nonlinear:
        if over not in (None, GROUPS[group]):
            raise OptionError(
                f"per {group!r} needs over {GROUPS[group]!r}, but over is {over!r}: leave one of them out"
            )
        over = GROUPS[group]
    return next(iter(nonlinear.values()), ()), over, options


def _parameters_by_group(
    requested: Sequence[tuple[str, str | Sequence[str]]],
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return the physical parameters that differ by each group, and the groups of contrast or offset."""
    nonlinear, linear = dict[str, tuple[str, ...]](), set[str]()
    for group, names in requested:
        if group in ("window", "age"):
            raise OptionError(
                "per 'window' is not available, as one fit has one selection of frames: fit each window "
                "separately, with over 'age'"
            )
        require_known(group, GROUPS, f"per: unknown group {shown(group)}")
        require_type(f"per {group!r}", names, str | Sequence, _FORM_OF_PER)
        names = (names,) if isinstance(names, str) else tuple(names)
        if {*names} & {*LINEAR}:
            linear.add(group)
        if physical := tuple(name for name in names if name not in LINEAR):
            nonlinear[group] = (*nonlinear.get(group, ()), *physical)
    return nonlinear, linear
