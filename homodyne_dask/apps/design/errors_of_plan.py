"""The errors that a planned scan will give, from speckle and counting noise alone; no data are simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval, cell_points
from homodyne_dask.assessment.speckle_blocks import (
    BinFrames,
    BinModel,
    FittedPoint,
    blocks_of,
    divided,
    noise_of_fields,
)
from homodyne_dask.assessment.speckle_noise import bin_averages, merged_averages
from homodyne_dask.document.blocks import Document, Printed, Section, Sentences, Table
from homodyne_dask.errors import OptionError, require_known, shown
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
from homodyne_dask.results.views.style import in_place_of
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.normal_matrix import SINGULAR_OF_MEANS, eigensystem, pseudoinverse
from homodyne_dask.solver.speckle import regular, sum_over_stretches
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from homodyne_dask.store.scan import Scan, q_or_one
from homodyne_dask.store.schema import RANGES
from homodyne_dask.text import with_unit

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
        from homodyne_dask.apps.design.design_figure import draw_design  # lazy: loads matplotlib

        with in_place_of(ax):
            return draw_design(self.dataset)

    def to_dict(self) -> dict[str, Any]:
        """Return the scan, the varied quantity, and a row of errors for each value and weighting."""
        rows, data = [], self.dataset
        for weighting, errors in zip(data["weighting"].values, data["stderr"].values, strict=True):
            for value, each in zip(data["varied"].values, errors, strict=True):
                varied = {self.varied: value} if self.varied else {}
                stderr = dict(zip(data["parameter"].values, each, strict=True))
                rows.append({"weighting": weighting, **varied, "stderr": stderr})
        return plain_values({"scan": data.attrs["scan"], "varied": self.varied, "errors": rows})

    def _document(self) -> Document:
        data = self.dataset
        tables = self._one_scan(data.isel(point=0)) if self.varied is None else self._errors(data)
        scan, notes = Sentences([data.attrs["scan"]]), Sentences(self._notes(data))
        return Document("", [Section("Scan", [scan, *tables, notes])])

    def _errors(self, data: xarray.Dataset) -> list[Table]:
        rates = [f"{rate}({at:g} s)" for rate in data["rate"].values for at in data["age"].values]
        tables = []
        for n, name in enumerate(data["weighting"].values):
            rows = [[str(self.varied), *map(str, data["parameter"].values), *rates]]
            columns = (data[key].values[n] for key in ("stderr", "rate_stderr"))
            for value, errors, of_rates in zip(data["varied"].values, *columns, strict=True):
                each = map(format_error, [*errors, *of_rates.ravel()])
                rows.append([f"{value:.4g}", *each])
            tables.append(Table(f"standard errors with --weighting {name}", rows, 0))
        return tables

    def _one_scan(self, data: xarray.Dataset) -> list[Table]:
        rows = [["", *(f"--weighting {name}" for name in data["weighting"].values)]]
        for name in map(str, data["parameter"].values):
            one = data.sel(parameter=name)
            unit = "" if one["unit"] == "1" else one["unit"].item()
            rows.append([name, *_with_errors(one["value"].item(), one["stderr"].values, unit)])
        for rate, age in product(data["rate"].values, data["age"].values):
            one = data.sel(rate=rate, age=age)
            cells = _with_errors(one["rate_value"].item(), one["rate_stderr"].values)
            rows.append([f"{rate} at {age:g} s", *cells])
        return [Table("", rows)]

    def _notes(self, data: xarray.Dataset) -> list[str]:
        names, notes = data["parameter"].values, []
        if self.varied is None:
            correlation = data.isel(point=0)["correlation"].isel(weighting=0).values
            pairs = np.argwhere(np.abs(np.tril(correlation, -1)) >= CORRELATED).tolist()
            strong = [f"{names[b]} and {names[a]} {correlation[a, b]:+.3f}" for a, b in pairs]
            notes += [f"strongly correlated: {', '.join(strong)}"] if strong else []
        lost = np.isnan(data["stderr"].values).any(axis=(0, 1))
        if lost.any():
            where = " everywhere" if self.varied else ""
            notes.append(
                f"not determined{where}: {', '.join(map(str, names[lost]))}; fix some of them, or choose "
                f"other angles, lags or counts"
            )
        return notes


def _with_errors(value: float, errors: np.ndarray, unit: str = "") -> list[str]:
    return [
        "-" if np.isnan(error) else with_unit(value_and_error(value, float(error)), unit)
        for error in errors
    ]


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


class ExpectedErrors(NamedTuple):
    covariance: Float[np.ndarray, "weighting p p"]
    """Of theta; NaN where a parameter is fixed or not determined."""
    rates: tuple[str, ...]
    rate_value: Float[np.ndarray, "rate age"]
    """NaN at ages outside the scan."""
    rate_stderr: Float[np.ndarray, "weighting rate age"]


@one_blas_thread()
def expected_errors(scan: PlannedScan, ages: Float[np.ndarray, " age"]) -> ExpectedErrors:
    """Return the covariance of the parameters for each weighting, and the errors of rates at ages [s]."""
    averaged = _cells(scan.frames, scan.problem.min_lag)
    at, m = _fitted_point(scan, averaged), int(scan.free.sum())
    scores = [_of_bin(scan, b, averaged, at) for b in range(len(scan.q))]
    clusters = friedel_clusters(scan.q, scan.phi, np.ones(len(scan.q), int))
    covariance = np.full((len(WEIGHTINGS), *(len(scan.theta),) * 2), np.nan)
    for whole, name in zip(covariance, WEIGHTINGS, strict=True):
        hessian, variance = np.zeros((2, m, m))
        for b, of in enumerate(of_bin[name] for of_bin in scores):
            hessian += of.hessian
            variance += of.variance
            for a in np.flatnonzero(clusters[:b] == clusters[b]):  # they see the same speckle
                other, most = scores[a][name], max(scan.pixels[a], scan.pixels[b])
                variance += other.weight * of.weight / most * (other.intensity + of.intensity)
        inverse = _inverse(hessian)
        scaled = inverse @ variance @ inverse * np.outer(at.units, at.units)
        whole[np.ix_(scan.free, scan.free)] = scaled
    return ExpectedErrors(covariance, *_rates(scan, covariance, ages))


class _Scores(NamedTuple):
    """What a bin adds to the normal equations of the scaled parameters."""

    hessian: Float[np.ndarray, "m m"]
    variance: Float[np.ndarray, "m m"]
    """Of its scores."""
    intensity: Float[np.ndarray, "m m"]
    """The part of their variance of one pixel that bins of the same speckle share, over `weight`²."""
    weight: float
    """Of its pairs, 1/σ² with σ from counts as `ingest` computes it; of weighted averages the pixels."""


def _of_bin(
    scan: PlannedScan, bin: int, averaged: AveragedCells, at: FittedPoint
) -> dict[str, _Scores]:
    contrast, mu, pixels = scan.contrast[bin], float(scan.counts[bin]), scan.pixels[bin]
    model = BinModel(at, float(scan.q[bin]), float(scan.phi[bin]))
    frames = BinFrames(
        (0, scan.frames), np.ones(scan.frames, bool), np.ones(scan.frames), scan.problem.min_lag
    )
    grid = grid_of_weights(averaged, scan.frames, len(scan.q))
    division = divided(model, frames, averaged, grid)
    parts = [blocks_of(model, frames, stretch, contrast) for stretch in division.stretches]
    size = np.append([1.0, 1.0], np.full(int(scan.free.sum()), contrast))

    each = (noise_of_fields(part, frames.min_lag) for part in parts)
    noises, squares = zip(*each, strict=True)
    of_fields, weights = sum_over_stretches(list(noises)), np.sum(squares, axis=0)
    project = _eliminating(weights * np.outer(size, size)) * size
    of_scores = of_fields.mapped(project)
    w = pixels / (1 / mu + contrast) ** 2
    hessian, variance = w * project @ weights @ project.T, w**2 / pixels * of_scores.at(mu)
    found = {PAIRS: _Scores(hessian, variance, of_scores.constant, w)}
    fine = bin_averages(averaged, model)
    cells, noise = merged_averages(fine, division, grid.min_pairs).with_noise(parts)
    X = np.column_stack([np.ones(len(cells.f)), cells.f, cells.slopes.T]) * size
    weighted = np.linalg.solve(regular(noise.at(mu)), X)
    normal = X.T @ weighted
    project = _eliminating(normal)
    shared = project @ weighted.T @ noise.constant @ weighted @ project.T
    information = project @ normal @ project.T * pixels
    return found | {SPECKLE_WEIGHTS: _Scores(information, information, shared, pixels)}


def _eliminating(normal: Float[np.ndarray, "column column"]) -> Float[np.ndarray, "m column"]:
    """Return the map from sums with offset, contrast and parameters to scores without offset and contrast."""
    own, across = normal[:2, :2], normal[2:, :2]
    return np.concatenate([-across @ pseudoinverse(own), np.eye(len(across))], axis=1)


def _inverse(hessian: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m m"]:
    """Return the inverse, NaN on the diagonal of parameters that are not determined."""
    scaled = eigensystem(hessian)
    inverse = scaled.pseudoinverse(SINGULAR_OF_MEANS)
    lost = ~scaled.determined(SINGULAR_OF_MEANS)
    inverse[lost] = inverse[:, lost] = 0.0
    inverse[lost, lost] = np.nan
    return inverse


def _cells(frames: int, min_lag: int) -> AveragedCells:
    ages, lags = age_edges(frames), np.unique([*lag_edges(frames), min_lag])
    every = [
        Interval(first, stop, max(shortest, 1), end)
        for first, stop in pairwise(ages.tolist())
        for shortest, end in pairwise(lags.tolist())
        if shortest >= min_lag and first + max(shortest, 1) < frames
    ]
    points = cell_points(every, np.ones(frames, bool))
    pairs = np.round(np.bincount(points.cell, points.weight, len(every))).astype(np.int64)
    return AveragedCells(every, np.zeros((1, len(every))), pairs[None], [points], ages, lags)


def _fitted_point(scan: PlannedScan, averaged: AveragedCells) -> FittedPoint:
    """Return the model, with units of the free parameters in which no derivative of f is far from 1."""
    point = evaluation_of(scan.problem.model).point(scan.problem, scan.theta, scan.time)
    at = FittedPoint(point, scan.time, scan.free, np.ones(int(scan.free.sum())))
    largest = np.zeros(len(at.units))
    for b in {0, len(scan.q) // 2, len(scan.q) - 1, int(np.argmax(np.nan_to_num(scan.q)))}:
        model = BinModel(at, scan.q[b], scan.phi[b])
        slopes = model.f_and_slopes(*map(model.time, averaged.points[0][:2]))[1]
        largest = np.maximum(largest, np.sqrt(np.mean(slopes**2, axis=1)))
    return at._replace(units=np.where(largest > 0, 1 / np.where(largest > 0, largest, 1.0), 1.0))


def _rates(
    scan: PlannedScan,
    covariance: Float[np.ndarray, "weighting p p"],
    ages: Float[np.ndarray, " age"],
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the names of the rates, their values and their standard errors; NaN after the record."""
    evaluation, names = evaluation_of(scan.problem.model), list(scan.problem.model.names)
    curves = {}
    if evaluation.rates is not None:
        at = evaluation.point(scan.problem, scan.theta, scan.time)
        curves = evaluation.rates(at, scan.time, (0, scan.frames))
    rates = tuple(name for name in curves if name in ("J", "gamma_dot"))
    values = np.full((len(rates), len(ages)), np.nan)
    errors, inside = np.full((len(covariance), *values.shape), np.nan), ages <= scan.time[-1]
    for n, curve in enumerate(curves[name] for name in rates):
        values[n, inside] = np.interp(ages, curve.time, curve.value)[inside]
        gradient = np.array([np.interp(ages, curve.time, one) for one in curve.gradient])
        which = [names.index(name) for name in curve.parameters]
        moved = np.outer(scan.free[which], scan.free[which])
        for w, of in enumerate(covariance):
            error = rate_stderr(gradient, np.where(moved, of[np.ix_(which, which)], 0.0))
            errors[w, n, inside] = error[inside]
    return rates, values, errors


VARIED = ("frames", "counts", "pixels", "contrast", "angles", "exposure")
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
    known = convention_named(convention)
    width = required_gap(model, gap)
    each = over_bins({"q": q, "phi": phi, "contrast": contrast, "counts": counts, "pixels": pixels})
    theta, fixed = vector_of(model, params), (fixed,) if isinstance(fixed, str) else fixed
    for name in fixed:
        require_known(name, model.names, f"fixed: {model.name} has no parameter {name!r}")
    free = np.array([p.constant is None and p.name not in fixed for p in model.parameters])
    if not free.any():
        raise OptionError("fixed: all parameters are fixed, so there is no error to compute")
    frames = _whole("frames", frames)
    check_model(model, frames, known, "float64")
    problem = Problem(model, known, width if model.shear else None, min_lag)
    scan = PlannedScan(problem, theta, free, frames, float(numbers_of("dt", dt)), **each)
    _check(scan)
    varied, values = _varied(vary)
    scans = [_with(scan, varied, value) for value in values]
    shortest = min(float(one.time[-1]) for one in scans)
    wanted = np.atleast_1d(numbers_of("ages", shortest / 2 if ages is None else ages))
    if not ((wanted >= 0) & (wanted <= RANGES["time"][1])).all():
        raise OptionError(
            f"ages = {shown(ages)} cannot be used: give times of at least 0 s since the first frame"
        )
    found = [expected_errors(one, wanted) for one in scans]
    return Design(_dataset(scan, varied, values, wanted, found))


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
        ("contrast", 1e-9, 1.0, "positive numbers of at most 1"),
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


def _varied(vary: Mapping[str, ArrayLike] | None) -> tuple[str | None, list[float]]:
    if not vary:
        return None, [np.nan]
    if len(vary) > 1:
        raise OptionError(f"vary = {shown(dict(vary))} cannot be used: vary one quantity at a time")
    name, given = next(iter(vary.items()))
    require_known(name, VARIED, f"vary: {name!r} cannot be varied")
    values = np.atleast_1d(numbers_of(name, given)).ravel()
    if not ((values > 0) & np.isfinite(values)).all():
        raise OptionError(f"vary: {name} = {shown(given)} are not positive numbers")
    return name, values.tolist()


def _with(scan: PlannedScan, varied: str | None, value: float) -> PlannedScan:
    """Return the scan with one quantity changed; a ring of as many pixels in so many bins over 180°."""
    changes: dict[str, Any] = {}
    if varied == "frames":
        changes["frames"] = _whole("frames", value)
    elif varied == "exposure":
        changes = {"frames": round(scan.frames * scan.dt / value), "dt": value}
        changes["counts"] = scan.counts * value / scan.dt
    elif varied == "angles":
        n = _whole("vary: angles", value)
        changes = {name: np.full(n, getattr(scan, name)[0]) for name in ("q", "contrast", "counts")}
        changes["phi"] = scan.phi[0] + 180 / n * np.arange(n)
        changes["pixels"] = np.full(n, scan.pixels.sum() / n)
    elif varied is not None:
        changes[varied] = np.full(len(scan.q), value)
    changed = replace(scan, **changes)
    _check(changed)
    return changed


def _dataset(
    scan: PlannedScan,
    varied: str | None,
    values: list[float],
    ages: Float[np.ndarray, " age"],
    found: list[ExpectedErrors],
) -> xarray.Dataset:
    model, free = scan.problem.model, scan.free
    covariance = np.stack([one.covariance[:, free][..., free] for one in found], axis=1)
    rate_stderr = np.stack([one.rate_stderr for one in found], axis=1)
    stderr = np.sqrt(np.einsum("wpaa->wpa", covariance))
    parameters = [p for p, one in zip(model.parameters, free, strict=True) if one]
    with np.errstate(invalid="ignore"):
        correlation = covariance / (stderr[..., :, None] * stderr[..., None, :])
    about = (
        f"{model.name}, {len(scan.q)} {'bin' if len(scan.q) == 1 else 'bins'}, {scan.frames} frames of "
        f"{scan.dt:g} s, contrast {scan.contrast.mean():.3g}, {scan.counts.mean():.3g} counts per pixel and "
        f"frame, {scan.pixels.mean():.4g} independent pixels per bin"
    )
    attrs = {"scan": about}
    if varied is not None:
        attrs = {"scan": f"{about}; {varied} varied", "varied": varied}
    each, names = ("weighting", "point"), [p.name for p in parameters]
    return xarray.Dataset(
        {
            "value": ("parameter", scan.theta[free]),
            "unit": ("parameter", [p.unit for p in parameters]),
            "stderr": ((*each, "parameter"), stderr),
            "correlation": ((*each, "parameter", "other"), correlation),
            "rate_value": (("rate", "age"), found[0].rate_value),
            "rate_stderr": ((*each, "rate", "age"), rate_stderr),
        },
        coords={
            "weighting": list(WEIGHTINGS),
            "parameter": names,
            "other": names,
            "rate": np.array(found[0].rates, dtype=str),
            "age": ("age", ages, {"units": "s"}),
            "varied": ("point", values),
        },
        attrs=attrs,
    )


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
    table, config = result.parameters, result.config
    bins = ~result.scaling["undetermined"].values & (result.scaling["ndata"].values > 0)
    value = dict(zip(table["param"].values.tolist(), table["optimum"].values.tolist(), strict=True))
    time = scan.time[scan.use]
    given: dict[str, Any] = {
        "q": q_or_one(scan)[bins],
        "phi": np.nan_to_num(scan.phi[bins]),
        "contrast": np.clip(result.scaling["contrast"].values[bins], 1e-6, 1.0),
        "frames": len(time),
        "dt": float((time[-1] - time[0]) / (len(time) - 1)),
        "gap": config["gap_angstrom"],
        "fixed": table["param"].values[table["fixed"].values].tolist(),
        "min_lag": config["min_lag"],
        "convention": config["convention"],
    }
    noise, unknown = result.errors.noise, np.full(len(bins), np.nan)
    for name, column in (("counts", "mean_counts"), ("pixels", "pixels")):
        given[name] = (unknown if noise is None else noise[column].values)[bins]
        if name not in changes and not (np.isfinite(given[name]) & (given[name] > 0)).all():
            raise OptionError(
                f"the residuals of this fit do not determine {name}: give counts (per pixel and frame) and "
                f"pixels (per bin)"
            )
    return design(result.provenance.fitted_model(), value, **given | changes)
