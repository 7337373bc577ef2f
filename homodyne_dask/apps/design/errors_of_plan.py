"""The errors that a planned scan will give, from speckle and counting noise alone; no data are simulated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval, cell_points
from homodyne_dask.assessment.speckle_blocks import BinFrames, FittedPoint
from homodyne_dask.assessment.speckle_covariance import regular
from homodyne_dask.assessment.speckle_noise import SMALLEST_CONTRAST, BinData, noise_of_model
from homodyne_dask.document.blocks import Document, Printed, Section, Sentences, Table
from homodyne_dask.errors import OptionError, require_count, require_known, require_type, shown
from homodyne_dask.fitting.predict import numbers_of, over_bins, required_gap, vector_of
from homodyne_dask.fitting.speckle_weighting import grid_of_weights
from homodyne_dask.kernels.backend import check_model, evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models import Model, convention_named, scan_model
from homodyne_dask.models.rate_forms import rate_stderr
from homodyne_dask.read_only import HandedOut
from homodyne_dask.request.options import PAIRS, SPECKLE_WEIGHTS
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fit_view import as_selected, fitted_scan
from homodyne_dask.results.data.numbers_and_intervals import format_error, value_and_error
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.covariance import expanded, without
from homodyne_dask.solver.normal_matrix import SINGULAR_OF_MEANS, eigensystem, pseudoinverse
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from homodyne_dask.store.scan import Scan
from homodyne_dask.store.schema import RANGES
from homodyne_dask.text import counted, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTINGS = (PAIRS, SPECKLE_WEIGHTS)
CORRELATED = 0.95
"""Correlation of two parameters, from which on it is printed."""


@dataclass(frozen=True, repr=False)
class Design(HandedOut, Printed):
    """Expected errors of a planned scan, by weighting; `print(design)` shows them.

    dataset: `value` and `stderr` over (weighting, varied quantity, parameter), `correlation`, and
    `rate` and `rate_stderr` over (rate, age). Numbers that the scan does not determine are NaN.
    """

    dataset: xarray.Dataset

    @property
    def varied(self) -> str | None:
        """The varied quantity; None for a single scan."""
        return self.dataset.attrs.get("varied")

    def plot(self, ax: "Axes | None" = None) -> Any:
        """Plot the relative error of each parameter against the varied quantity."""
        from homodyne_dask.apps.design.design_figure import page_of_design  # lazy: loads matplotlib

        return page_of_design(self.dataset).figure(ax)

    def to_dict(self) -> dict[str, Any]:
        """Return the scan, the varied quantity, and a row of errors for each value and weighting."""
        rows, data = [], self.dataset
        for weighting, errors in zip(data["weighting"].values, data["stderr"].values, strict=True):
            for value, errors_of_value in zip(data["varied"].values, errors, strict=True):
                varied = {self.varied: value} if self.varied else {}
                stderr = dict(zip(data["parameter"].values, errors_of_value, strict=True))
                rows.append({"weighting": weighting, **varied, "stderr": stderr})
        return plain_values({"scan": data.attrs["scan"], "varied": self.varied, "errors": rows})

    def _document(self) -> Document:
        data, quantities = self.dataset, list(self._quantities())
        weightings = [f"--weighting {name}" for name in data["weighting"].values]
        if self.varied is None:
            rows = [["", *weightings]]
            for name, value, unit, errors in quantities:
                texts = (with_unit(value_and_error(value, error), unit) for error in errors[:, 0])
                lost = np.isnan(errors[:, 0])
                rows.append([name, *np.where(lost, "-", list(texts)).tolist()])
            tables = [Table("", rows)]
        else:
            tables = []
            for w, weighting in enumerate(weightings):
                rows = [[self.varied, *(name for name, *_ in quantities)]]
                for n, value in enumerate(data["varied"].values):
                    texts = (format_error(errors[w, n]) for *_, errors in quantities)
                    rows.append([f"{value:.4g}", *texts])
                tables.append(Table(f"standard errors with {weighting}", rows, 0))
        scan, notes = Sentences([data.attrs["scan"]]), Sentences(self._notes())
        return Document("", [Section("Scan", [scan, *tables, notes])])

    def _quantities(self) -> Iterator[tuple[str, float, str, Float[np.ndarray, "weighting point"]]]:
        """Yield name, value, unit and errors of each parameter, and of each rate at each age."""
        data = self.dataset
        for n, name in enumerate(data["parameter"].values):
            unit = str(data["unit"].values[n]) if data["unit"].values[n] != "1" else ""
            yield str(name), data["value"].values[n], unit, data["stderr"].values[..., n]
        for n, rate in enumerate(data["rate"].values):
            for k, age in enumerate(data["age"].values):
                errors = data["rate_stderr"].values[..., n, k]
                yield f"{rate} at {age:g} s", data["rate_value"].values[n, k], "", errors

    def _notes(self) -> list[str]:
        data, notes, where = self.dataset, [], " everywhere"
        names = data["parameter"].values
        if self.varied is None:
            correlation, where = np.tril(data["correlation"].values[0, 0], -1), ""
            pairs = np.argwhere(np.abs(correlation) >= CORRELATED).tolist()
            strong = [f"{names[b]} and {names[a]} {correlation[a, b]:+.3f}" for a, b in pairs]
            notes += [f"strongly correlated: {', '.join(strong)}"] if strong else []
        if (lost := np.isnan(data["stderr"].values).any(axis=(0, 1))).any():
            notes.append(
                f"not determined{where}: {', '.join(map(str, names[lost]))}; fix some of them, or choose "
                f"other angles, lags or counts"
            )
        return notes


@dataclass(frozen=True)
class PlannedScan:
    problem: Problem
    theta: Float[np.ndarray, " p"]
    free: Bool[np.ndarray, " p"]
    frames: int
    dt: float
    """[s]"""
    q: Float[np.ndarray, " bin"]
    """1/Å; NaN where the model does not use it."""
    phi: Float[np.ndarray, " bin"]
    """[degree]"""
    contrast: Float[np.ndarray, " bin"]
    counts: Float[np.ndarray, " bin"]
    """Of a pixel in a frame."""
    pixels: Float[np.ndarray, " bin"]
    """Independent ones."""

    @property
    def time(self) -> Float[np.ndarray, " t"]:
        return self.dt * np.arange(self.frames)


class _Scores(NamedTuple):
    """What a bin adds to the normal equations of the scaled parameters, its data weighted by 1."""

    normal: Float[np.ndarray, "m m"]
    variance: Float[np.ndarray, "m m"]
    """Of the scores, of one pixel."""
    intensity: Float[np.ndarray, "m m"]
    """The part of it that bins of the same speckle share."""
    weight: float
    """Of its pairs, 1/σ² with σ from counts as `ingest` computes it; of weighted averages the pixels."""


@one_blas_thread()
def expected_errors(scan: PlannedScan, ages: Float[np.ndarray, " age"]) -> xarray.Dataset:
    """Return the errors of the free parameters and of rates at ages [s], as in `Design`, of one point."""
    model, free = scan.problem.model, scan.free
    point = evaluation_of(model).point(scan.problem, scan.theta, scan.time)
    size = np.where(scan.theta == 0, 1.0, np.abs(scan.theta))[free]
    fitted = FittedPoint(point, scan.time, free, size)
    averaged = _cells(scan.frames, scan.problem.min_lag)
    bins = [_scores_of_bin(scan, b, averaged, fitted) for b in range(len(scan.q))]
    small = np.array([_covariance(scan, scores) for scores in zip(*bins, strict=True)])
    small *= np.outer(size, size)
    stderr = np.sqrt(np.einsum("wpp->wp", small))
    with np.errstate(invalid="ignore"):
        correlation = small / (stderr[:, :, None] * stderr[:, None, :])
    rates, rate_value, rate_error = _rates(
        fitted, [expanded(errors, free) for errors in small], ages
    )
    parameters = [p for p, is_free in zip(model.parameters, free, strict=True) if is_free]
    axes, names = ("weighting", "point"), [p.name for p in parameters]
    return xarray.Dataset(
        {
            "value": ("parameter", scan.theta[free]),
            "unit": ("parameter", [p.unit for p in parameters]),
            "stderr": ((*axes, "parameter"), stderr[:, None]),
            "correlation": ((*axes, "parameter", "other"), correlation[:, None]),
            "rate_value": (("rate", "age"), rate_value),
            "rate_stderr": ((*axes, "rate", "age"), rate_error[:, None]),
        },
        coords={
            "weighting": list(WEIGHTINGS),
            "parameter": names,
            "other": names,
            "rate": np.array(rates, dtype=str),
            "age": ("age", ages, {"units": "s"}),
        },
    )


def _covariance(scan: PlannedScan, bins: Sequence[_Scores]) -> Float[np.ndarray, "m m"]:
    """Return the covariance of the scaled parameters; NaN of those that are not determined."""
    hessian = np.sum([scores.weight * scores.normal for scores in bins], axis=0)
    clusters, variance = friedel_clusters(scan.q, scan.phi, np.ones(len(scan.q), int)), 0.0
    for b, scores in enumerate(bins):
        variance += scores.weight**2 / scan.pixels[b] * scores.variance
        for a in np.flatnonzero(clusters[:b] == clusters[b]).tolist():  # of the same speckle
            weight = bins[a].weight * scores.weight / max(scan.pixels[a], scan.pixels[b])
            variance += weight * (bins[a].intensity + scores.intensity)
    scaled = eigensystem(hessian)
    inverse = scaled.pseudoinverse(SINGULAR_OF_MEANS)
    return without(inverse @ variance @ inverse, ~scaled.determined(SINGULAR_OF_MEANS))


def _scores_of_bin(
    scan: PlannedScan, bin: int, averaged: AveragedCells, fitted: FittedPoint
) -> tuple[_Scores, ...]:
    """Return them for each weighting."""
    contrast, mu, pixels = scan.contrast[bin], float(scan.counts[bin]), scan.pixels[bin]
    place, every = (float(scan.q[bin]), float(scan.phi[bin])), np.ones(scan.frames)
    frames = BinFrames((0, scan.frames), every > 0, every, scan.problem.min_lag)
    data = BinData(bin, place, 1.0, contrast, frames, averaged, mu)
    noise = noise_of_model(fitted, data, grid_of_weights(averaged, scan.frames, len(scan.q)))
    size = np.append([1.0, 1.0], np.full(len(fitted.units), contrast))
    project = _eliminating(normal := noise.weights * np.outer(size, size))
    of_scores, normal = noise.of_fields.mapped(project * size), project @ normal @ project.T
    weight = pixels / (1 / mu + contrast) ** 2
    of_pairs = _Scores(normal, of_scores.at(mu), of_scores.constant, weight)
    f, slopes = noise.cells.f, noise.cells.slopes
    X = np.column_stack([np.ones(len(f)), f, slopes.T]) * size
    weighted = np.linalg.solve(regular(noise.of_cells.at(mu)), X)
    project = _eliminating(normal := X.T @ weighted)
    of_scores, normal = noise.of_cells.mapped(project @ weighted.T), project @ normal @ project.T
    return of_pairs, _Scores(normal, normal, of_scores.constant, pixels)


def _eliminating(normal: Float[np.ndarray, "column column"]) -> Float[np.ndarray, "m column"]:
    """Return the map from sums with offset, contrast and parameters to scores without offset and contrast."""
    across = -normal[2:, :2] @ pseudoinverse(normal[:2, :2])
    return np.concatenate([across, np.eye(len(across))], axis=1)


def _cells(frames: int, min_lag: int) -> AveragedCells:
    ages, lags = age_edges(frames), np.unique([*lag_edges(frames), min_lag])
    every = [
        Interval(first, stop, shortest, end)
        for first, stop in pairwise(ages.tolist())
        for shortest, end in pairwise(lags[lags >= min_lag].tolist())
        if first + shortest < frames
    ]
    points = cell_points(every, np.ones(frames, bool))
    pairs = np.round(np.bincount(points.cell, points.weight, len(every))).astype(np.int64)
    return AveragedCells(every, np.zeros((1, len(every))), pairs[None], [points], ages, lags)


def _rates(
    fitted: FittedPoint,
    covariances: Sequence[Float[np.ndarray, "p p"]],
    ages: Float[np.ndarray, " age"],
) -> tuple[list[str], Float[np.ndarray, "rate age"], Float[np.ndarray, "weighting rate age"]]:
    """Return the names of J and γ̇, their values and their standard errors; NaN after the record."""
    model = fitted.point.problem.model
    evaluation, names, curves = evaluation_of(model), list(model.names), {}
    if evaluation.rates is not None:
        curves = evaluation.rates(fitted.point, fitted.time, (0, len(fitted.time)))
    rates = [name for name in curves if name in ("J", "gamma_dot")]
    values = np.full((len(rates), len(ages)), np.nan)
    errors = np.full((len(covariances), *values.shape), np.nan)
    for n, curve in enumerate(curves[name] for name in rates):
        at_ages = partial(np.interp, ages, curve.time, right=np.nan)
        values[n], gradient = at_ages(curve.value), np.array(list(map(at_ages, curve.gradient)))
        places = [names.index(name) for name in curve.parameters]
        free = np.outer(fitted.which[places], fitted.which[places])
        for w, covariance in enumerate(covariances):
            free_covariance = np.where(free, covariance[np.ix_(places, places)], 0.0)
            errors[w, n] = rate_stderr(gradient, free_covariance)
    return rates, values, errors


VARIED = {
    "frames": "frames",
    "counts": "counts per pixel and frame",
    "pixels": "pixels per bin",
    "contrast": "contrast",
    "angles": "angles, with the same total number of pixels",
    "exposure": "frame time [s], with the same total time and dose",
}
"""What can be varied, and its label in figures."""
FEWEST_FRAMES = 10
MOST_FRAMES = 1_000_000
MOST_BINS = 1000


def design(
    model: Model | str,
    params: Mapping[str, float] | ArrayLike,
    *,
    q: ArrayLike,
    frames: int,
    dt: float,
    contrast: ArrayLike,
    counts: ArrayLike,
    pixels: ArrayLike,
    phi: ArrayLike = 0.0,
    gap: str | float | None = None,
    fixed: Sequence[str] = (),
    ages: ArrayLike | None = None,
    vary: Mapping[str, ArrayLike] | None = None,
    min_lag: int = 1,
    convention: str = "physical",
) -> Design:
    """Predict the standard errors of a fit of a planned scan, for both weightings.

    model: a model or its name; params: values of its parameters, by name or in order; fixed: names of
    parameters that will not be fitted. q [1/Å], phi [degree], contrast, counts (per pixel and frame) and
    pixels (independent pixels per bin): one number, or one per bin. frames, dt [s]: number of frames and
    frame time. gap: such as '200 um', for models with shear. ages [s]: ages for the errors of J and γ̇, by
    default the middle of the shortest record. vary: one of frames, counts, pixels, contrast, angles (number
    of bins into which the ring is divided, each at the first q) and exposure (frame time [s], with the same
    total time and dose), with the values to try. min_lag: pairs of frames closer than this are
    excluded. convention: physical or homodyne.

    The noise is that of speckle and counting (docs/explanation/speckle_noise.md); contrast and offset of
    every bin are fitted. Raises OptionError for invalid values.

    >>> detector = {"contrast": 0.2, "counts": 0.5, "pixels": 1000}
    >>> plan = hd.design("brownian", {"D0": 1e4}, q=0.005, frames=300, dt=0.1, **detector)
    >>> plan.dataset["stderr"].values.round(-1).ravel().tolist()  # pairs, speckle
    [610.0, 480.0]
    """
    model = scan_model(model).current()
    width = required_gap(model, gap)
    each = over_bins({"q": q, "phi": phi, "contrast": contrast, "counts": counts, "pixels": pixels})
    theta, fixed = vector_of(model, params), (fixed,) if isinstance(fixed, str) else fixed
    for name in fixed:
        require_known(name, model.names, f"fixed: {model.name} has no parameter {name!r}")
    free = np.array([p.constant is None and p.name not in fixed for p in model.parameters])
    if not free.any():
        raise OptionError("fixed: all parameters are fixed, so there is no error to compute")
    frames = _whole("frames", frames)
    require_count("min_lag", min_lag, 1)
    check_model(model, frames, convention_named(convention), "float64")
    gap_used = width if model.needs_gap else None
    problem = Problem(model, convention_named(convention), gap_used, min_lag)
    scan = PlannedScan(problem, theta, free, frames, float(numbers_of("dt", dt)), **each)
    _check(scan)
    about = (
        f"{model.name}, {counted(len(scan.q), 'bin')}, {frames} frames of {scan.dt:g} s, contrast "
        f"{scan.contrast.mean():.3g}, {scan.counts.mean():.3g} counts per pixel and frame, "
        f"{scan.pixels.mean():.4g} independent pixels per bin"
    )
    scans, attrs, coordinate = [scan], {"scan": about}, ("point", [np.nan])
    require_type(
        "vary", vary, Mapping | None, "a quantity and its values, such as {'frames': [300, 600]}"
    )
    if vary:
        varied, values = _varied(vary)
        scans = [_with(scan, varied, value) for value in values]
        attrs = {"scan": f"{about}; {varied} varied", "varied": varied}
        coordinate = "point", values, {"long_name": VARIED[varied]}
    ages_of_rates = _ages(ages, scans)
    points = [expected_errors(planned, ages_of_rates) for planned in scans]
    # values of parameters and rates are those of the first
    data = xarray.concat(
        points, "point", data_vars="minimal", coords="minimal", compat="override", join="exact"
    )
    return Design(data.assign_coords(varied=coordinate).assign_attrs(attrs))


def _ages(ages: ArrayLike | None, scans: Sequence[PlannedScan]) -> Float[np.ndarray, " age"]:
    """Return the ages [s] at which errors of rates are given, by default one within all records."""
    shortest = min(float(planned.time[-1]) for planned in scans)
    times = np.atleast_1d(numbers_of("ages", shortest / 2 if ages is None else ages))
    if not ((times >= 0) & (times <= RANGES["time"][1])).all():
        raise OptionError(
            f"ages = {shown(ages)} cannot be used: give times of at least 0 s since the first frame"
        )
    return times


def _whole(name: str, value: Any) -> int:
    number = float(numbers_of(name, value))
    if not number.is_integer():
        raise OptionError(f"{name} = {number:g} is not a whole number")
    return int(number)


def _check(scan: PlannedScan) -> None:
    if len(scan.q) > MOST_BINS:
        raise OptionError(
            f"more than {MOST_BINS} bins cannot be planned: give {MOST_BINS} bins or angles at most"
        )
    for name, lowest, highest, what in (
        ("frames", FEWEST_FRAMES, MOST_FRAMES, f"a number from {FEWEST_FRAMES} to {MOST_FRAMES}"),
        ("contrast", SMALLEST_CONTRAST, 1.0, f"numbers from {SMALLEST_CONTRAST:g} to 1"),
        ("counts", 1e-12, 1e12, "positive numbers of at most 1e12"),
        ("pixels", 1e-3, 1e12, "positive numbers of at most 1e12"),
        ("q", *RANGES["q"][:2], "positive numbers of at most 1000, in 1/Å"),
        ("phi", -RANGES["phi"][1], RANGES["phi"][1], "angles in degrees"),
        ("dt", *RANGES["frame_time"][:2], "seconds of at most 1e9"),
        ("theta", -1e60, 1e60, "values of at most 1e60"),
    ):
        values = np.asarray(getattr(scan, name))
        if not ((values >= lowest) & (values <= highest)).all():
            raise OptionError(f"{name} = {shown(values.tolist())} cannot be used: give {what}")


def _varied(vary: Mapping[str, ArrayLike]) -> tuple[str, list[float]]:
    if len(vary) > 1:
        raise OptionError(f"vary = {shown(dict(vary))} cannot be used: vary one quantity at a time")
    ((name, numbers),) = vary.items()
    require_known(name, VARIED, f"vary: {name!r} cannot be varied")
    values = numbers_of(name, numbers).ravel()
    if not len(values) or not ((values > 0) & np.isfinite(values)).all():
        raise OptionError(f"vary: {name} = {shown(numbers)} cannot be used: give positive numbers")
    return name, values.tolist()


def _with(scan: PlannedScan, varied: str, value: float) -> PlannedScan:
    """Return the scan with one quantity changed; a ring of as many pixels in so many bins over 180°."""
    if varied == "frames":
        changed = replace(scan, frames=_whole("frames", value))
    elif varied == "exposure":
        frames, counts = round(scan.frames * scan.dt / value), scan.counts * value / scan.dt
        changed = replace(scan, frames=frames, dt=value, counts=counts)
    elif varied == "angles":
        n = _whole("vary: angles", value)
        ring = {name: np.full(n, getattr(scan, name)[0]) for name in ("q", "contrast", "counts")}
        phi, pixels = scan.phi[0] + 180 / n * np.arange(n), np.full(n, scan.pixels.sum() / n)
        changed = replace(scan, phi=phi, pixels=pixels, **ring)
    else:
        changed = replace(scan, **{varied: np.full(len(scan.q), value)})
    _check(changed)
    return changed


def design_like(result: FitResult, scan: Scan | None = None, **changes: Any) -> Design:
    """Predict the errors of a scan that differs from a fitted one in given quantities.

    Model, values, bins, frames and contrast are those of the fit; counts and pixels are estimated from its
    residuals. changes: arguments of `design`, such as vary={"frames": [300, 600, 1200]}. scan: the fitted
    scan; by default it is opened from its store. Raises OptionError if the residuals do not determine
    counts and pixels.

    >>> result = hd.fit("A0123_c2.zarr", "brownian")
    >>> hd.design_like(result, counts=2, pixels=1000, vary={"frames": [40, 80]}).varied
    'frames'
    """
    scan = fitted_scan(result) if scan is None else as_selected(scan, result)
    table, config, noise = result.parameters, result.config, result.errors.noise
    bins = ~result.scaling["undetermined"].values & (result.scaling["ndata"].values > 0)
    value = dict(zip(table["param"].values.tolist(), table["optimum"].values.tolist(), strict=True))
    time = scan.time[scan.use]
    arguments: dict[str, Any] = {
        "q": scan.q_or_one[bins],
        "phi": np.nan_to_num(scan.phi[bins]),
        "contrast": np.clip(result.scaling["contrast"].values[bins], SMALLEST_CONTRAST, 1.0),
        "frames": len(time),
        "dt": float((time[-1] - time[0]) / (len(time) - 1)),
        "gap": config["gap_angstrom"],
        "fixed": table["param"].values[table["fixed"].values].tolist(),
        "min_lag": config["min_lag"],
        "convention": config["convention"],
        "counts": np.nan if noise is None else noise["mean_counts"].values[bins],
        "pixels": np.nan if noise is None else noise["pixels"].values[bins],
    } | changes
    for name in ("counts", "pixels"):
        if name not in changes and not np.all(arguments[name] > 0):
            raise OptionError(
                f"the residuals of this fit do not determine {name}: give counts (per pixel and frame) and "
                f"pixels (per bin)"
            )
    return design(result.provenance.fitted_model(), value, **arguments)
