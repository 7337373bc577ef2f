"""A result beside its data: the fitted model at any times, and what several figures and files show."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import xarray
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from homodyne_dask import errors
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint, Problem
from homodyne_dask.models import convention_named
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data import c2_means as means
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.numbers_and_intervals import Vector, half_width
from homodyne_dask.store.files import AnyPath
from homodyne_dask.store.scan import Chunk, Cuts, Scan, open_dataset, with_bins

Times = Float[np.ndarray, "..."]
"""s, which broadcast with others."""
Bins = Int[np.ndarray, " b"]
"""Positions among the bins of a scan."""
DECAY_POINTS = 400
"""Lags at which f is evaluated to find its decay time."""
LIKELIEST = "likeliest_pixels", "likeliest_mean_counts"
LEAST_PER_COUNT = 1e-3
"""1/μ at least, of frames with the least noise."""
MOST_SHOWN = 4
"""Bins of which single figures are drawn."""
LONG, DECAYS_SHOWN, FRAMES_SHOWN = 4, 16, 40
"""A record that is LONG times as long as so many decays of the slowest bin, and frames, is long: in a map of
all of it decays are too narrow to be seen."""


def fitted_scan(result: FitValues, store: AnyPath | None = None) -> Scan:
    """Return the data of a fit: its bins and frames, from a store, by default from where it was."""
    path = store or result.provenance.inputs["store_path"]
    scan = open_dataset(path)
    if scan.digest != result.provenance.inputs["store_sha256"]:
        raise errors.StoreError(
            f"{path} has changed since the fit: fit again, or give the scan in its original state"
        )
    return as_selected(scan, result)


def as_selected(scan: Scan, result: FitValues) -> Scan:
    """Return the bins and frames of a store that were fitted; raises SelectionError where it lacks them."""
    inputs = result.provenance.inputs
    fitted_bins = with_bins(scan, inputs["labels"], inputs.get("scans"))
    if scan.is_table:  # it has no frames
        return fitted_bins
    excluded = {"frames": inputs["frames_excluded"] or None}
    return fitted_bins.select(frames=tuple(inputs["frames"]), exclude=excluded)


def as_fitted(scan: Scan, result: FitValues) -> Scan:
    """Return a scan with the damaged chunks excluded that a fit of it excluded."""
    excluded = result.provenance.inputs["chunks_left_out"]
    return replace(scan, excluded=tuple(Chunk(*chunk) for chunk in excluded))


@dataclass(frozen=True)
class FittedModel:
    point: ModelPoint
    time: Float[np.ndarray, " t"]
    """s, all frames of the store."""
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def shape(self, bins: Bins, t1: Times, t2: Times) -> Float[np.ndarray, "b ..."]:
        """Return f of some bins at times that broadcast together; between frames f is interpolated."""
        f_at = evaluation_of(self.point.problem.model).f_at
        return f_at(self.point, self.time, self.q[bins], self.phi[bins], t1, t2)

    def slopes(self, bins: Bins, t1: Times, t2: Times) -> Float[np.ndarray, "b p ..."]:
        evaluate = evaluation_of(self.point.problem.model).f_and_derivatives_at
        _, slopes = evaluate(self.point, self.time, self.q[bins], self.phi[bins], t1, t2)
        return slopes


@dataclass(frozen=True)
class BinMap:
    """Maps of one bin over all that was fitted, as means over cells: symmetric, NaN where unknown."""

    bin: int
    data: Float[np.ndarray, "n n"]
    model: Float[np.ndarray, "n n"]
    residual: Float[np.ndarray, "n n"]
    """(data - model)/σ of the mean."""


@dataclass(frozen=True)
class FitView:
    """A result and the scan that was fitted; raises SelectionError where the scan has other bins."""

    result: FitValues
    scan: Scan

    def __post_init__(self) -> None:
        errors.require_type("scan", self.scan, Scan, "the scan that was fitted")
        fitted, labels = self.result.scaling["label"].values, self.scan.label
        scans = self.result.provenance.inputs.get("scans", [1] * len(labels))
        if not np.array_equal(fitted, labels) or not np.array_equal(scans, self.scan.scan_number):
            raise errors.SelectionError(
                f"the result is for {len(fitted)} bins (labels {fitted[0]} to {fitted[-1]}), but the scan "
                f"has {len(labels)} (labels {labels[0]} to {labels[-1]}): give the selection that was fitted"
            )

    @cached_property
    def model(self) -> FittedModel:
        """The model at the optimum of the fit; where no decay was seen, its contrast is 0."""
        result, scan = self.result, self.scan
        theta = result.parameters["optimum"].values
        model = result.provenance.fitted_model().current()
        convention = convention_named(result.config["convention"])
        problem = Problem(model, convention, result.config["gap_angstrom"])
        point = evaluation_of(model).point(problem, theta, scan.time)
        return FittedModel(point, scan.time, scan.q_or_one, scan.phi)

    def at_angles(self, q: float, phi: Vector) -> FittedModel:
        return FittedModel(self.model.point, self.scan.time, np.full(len(phi), q), phi)

    def c2(self, bin: int, t1: Times, t2: Times) -> Float[np.ndarray, "..."]:
        table = self.result.scaling
        contrast, offset = (float(table[name].values[bin]) for name in ("contrast", "offset"))
        return offset + contrast * self.model.shape(np.array([bin]), t1, t2)[0]

    def cut(self, bin: int, age: int) -> means.Cut:
        """Return one bin at one age; errors are those of points or of speckle noise, NaN where unknown."""
        cut = means.cut_at_age(self.scan, self.cuts, bin, age)
        return cut if self.scan.is_table else replace(cut, stderr=self._speckle_errors(bin, cut))

    @cached_property
    def speckle_noise(self) -> xarray.Dataset | None:
        """`FitErrors.noise`; None where it is not that of the data, or (in earlier results) not known."""
        noise = self.result.errors.noise
        known = noise is not None and not noise["objection"].item() and LIKELIEST[0] in noise
        return noise if known and self.scan.cells is None else None  # cells may be cut by others

    def _speckle_errors(self, bin: int, cut: means.Cut) -> Vector:
        variances, noise = np.full(len(cut.lag), np.nan), self.speckle_noise
        if noise is None:
            return variances
        pixels, counts = (float(noise[name].values[bin]) for name in LIKELIEST)
        contrast = min(max(float(self.result.scaling["contrast"].values[bin]), 0.0), 1.0)
        first = int(np.searchsorted(self.scan.time, cut.t1.mean()))
        f, counts_at = self._f_around(bin, first, 1), self._counts_at(bin, cut, counts, contrast)
        for n, (lag, lags, ages) in enumerate(cut.size.T.tolist()):
            far, d = lag + lags + ages, np.arange(ages)
            noise_of = contrast, counts_at[n], lag, lags, self._f_around(bin, first + lag, -1)[:far]
            of_pairs = means.covariance_over_age(f[:far], *noise_of)[:ages]
            variances[n] = (2 * (ages - d) @ of_pairs / ages - of_pairs[0]) / ages / pixels
        return np.sqrt(variances)

    def _counts_at(self, bin: int, cut: means.Cut, counts: float, contrast: float) -> Vector:
        """Return the counts of the frames of each mean of a cut: σ² of a frame goes as 1/μ + contrast."""
        sigma, time = self.scan.sigma_row[bin], self.scan.time
        t1, t2 = (
            np.searchsorted(time, t).clip(0, len(time) - 1) for t in (cut.t1, cut.t1 + cut.lag)
        )
        ratio = sigma[t1] * sigma[t2] / np.mean(sigma[self.scan.use] ** 2)
        return 1 / np.maximum(ratio * (1 / counts + contrast) - contrast, LEAST_PER_COUNT)

    def _f_around(self, bin: int, frame: int, direction: int) -> Vector:
        """Return f at lags of 0, 1, 2 ... frames after one frame, or before it."""
        n = self.scan.n_frames
        lag = np.geomspace(1, n, means.CURVE_POINTS)
        pairs = np.sort([np.full(len(lag), frame), frame + direction * lag], axis=0).clip(0, n - 1)
        f = self.model.shape(np.array([bin]), *means.times_of(self.scan, pairs))[0]
        return np.interp(np.arange(n), np.append(0, lag), np.append(1.0, f.clip(0, 1)))

    def curve(self, bin: int, cut: means.Cut) -> tuple[Vector, Vector]:
        x, t1, t2 = cut.line
        return x, self.c2(bin, t1, t2)

    @cached_property
    def shown(self) -> Int[np.ndarray, " b"]:
        return representative(self.result, self.scan)

    @cached_property
    def maps(self) -> list[BinMap]:
        return [self.map_of(int(b)) for b in self.shown]

    @cached_property
    def read(self) -> means.ReadTile:
        """Reads chunks, without those that the fit excluded."""
        return means.tile_reader(as_fitted(self.scan, self.result))

    @cached_property
    def axis(self) -> means.CellAxis:
        """The cells along both sides of a map: all that lie within the selected frames."""
        axis, _ = means.cell_axes(self.scan, *[means.whole_span(self.scan)] * 2)
        first, stop = -(-self.scan.frames[0] // axis.side), self.scan.frames[1] // axis.side
        return replace(axis, first=first, number=max(stop - first, 1))

    @cached_property
    def axis_of_figure(self) -> means.CellAxis:
        """The cells along both sides of a map that is drawn: of a long record those around its middle."""
        first, last = means.used_span(self.scan)
        decays = decay_times(self.model, self.scan)[self.shown]
        length = DECAYS_SHOWN * max(decays[np.isfinite(decays)], default=np.inf)
        length = max(length, FRAMES_SHOWN * frame_spacing(self.scan.time))
        if not LONG * length < last - first:
            return self.axis
        middle = 0.5 * (first + last)
        return means.cell_axes(self.scan, *[(middle - length / 2, middle + length / 2)] * 2)[0]

    def map_of(self, bin: int, axis: means.CellAxis | None = None) -> BinMap:
        axis = self.axis if axis is None else axis
        window = means.read_window(self.scan, self.read, bin, axis, axis)
        data = np.where(window.lags >= self.result.config["min_lag"], window.c2, np.nan)
        return BinMap(bin, data, *self.model_of(bin, window))

    def model_of(self, bin: int, window: means.Window) -> Float[np.ndarray, "2 rows columns"]:
        """Return means of the model over the cells of a window, and (data - model)/σ."""
        rows, columns, lags = window.rows, window.columns, window.lags
        nodes, weights = means.quadrature(rows.side)
        frames = (axis.middles[:, None] + nodes for axis in (rows, columns))
        t1, t2 = (means.times_of(self.scan, side).ravel() for side in frames)
        c2 = self.c2(bin, t1[:, None], t2).reshape(rows.number, len(nodes), -1, len(nodes))
        model = np.where(lags > 0, np.einsum("inkm,n,m->ik", c2, weights, weights), np.nan)
        fitted = lags >= self.result.config["min_lag"]
        return np.stack([model, np.where(fitted, (window.c2 - model) / window.sigma, np.nan)])

    @cached_property
    def cuts(self) -> Cuts:
        return self.scan.cuts(self.result.config["min_lag"])


def view_of(result: FitValues, scan: Scan | None = None) -> FitView:
    """Return a result beside its data, which are opened where they were if no scan is given."""
    return FitView(result, fitted_scan(result) if scan is None else scan)


def decay_times(model: FittedModel, scan: Scan) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which f of each bin falls to 1/e at the age in the middle; NaN where not."""
    first, last = means.used_span(scan)
    middle = 0.5 * (first + last)
    shortest = 1e-3 * frame_spacing(scan.time)
    lag = np.concatenate([[0.0], np.geomspace(shortest, last - middle, DECAY_POINTS)])
    f = model.shape(np.arange(len(model.q)), np.array([middle]), middle + lag)
    return np.array([fall_to_1_e(lag, row) for row in f])


def fall_to_1_e(x: Vector, f: Vector) -> float:
    """Return where a curve first falls to 1/e; NaN where it does not."""
    n = int(np.argmax(f < np.exp(-1)))
    if n == 0:
        return np.nan
    slope = (f[n - 1] - f[n]) / (x[n] - x[n - 1])
    return x[n - 1] + (f[n - 1] - np.exp(-1)) / slope


def representative(result: FitValues, scan: Scan) -> Int[np.ndarray, " b"]:
    """Return positions of bins to show: along the flow, across, between; without flow spread evenly."""
    bins = np.flatnonzero(result.scaling["ndata"].values > 0)
    bins = bins if len(bins) else np.arange(len(scan.bins))
    if len(bins) <= MOST_SHOWN:
        return bins
    names = list(result.parameters["param"].values)
    if "phi0" not in names:
        ordered = bins[np.lexsort((scan.phi[bins], scan.q[bins]))]
        return ordered[np.linspace(0, len(ordered) - 1, MOST_SHOWN).round().astype(int)]
    phi0 = float(result.parameters["optimum"].values[names.index("phi0")])
    rings = scan.q[bins]
    # rings in the middle have neither the fastest nor the slowest decays
    from_middle = np.abs(np.log(rings / np.median(rings)))
    nearest = []
    for angle in (0, 30, 60, 90):
        # modulo 180°: shear enters as cos²; rounded, so that φ of one angle in several rings is equal
        distance = np.abs((scan.phi[bins] - phi0 - angle + 90) % 180 - 90).round(3)
        nearest.append(bins[np.lexsort((from_middle, distance))[0]])
    return np.array(list(dict.fromkeys(nearest)))


def fitted_c2(result: FitValues, scan: Scan | None) -> xarray.DataArray:
    """Return offset + contrast·f of a scan (bin, t1, t2), lazily; see `FitResult.model`."""
    import dask.array  # loads for a third of a second

    view = view_of(result, scan)
    data, time = view.scan.dataset["c2"], view.scan.time[slice(*view.scan.frames)]
    contrast, offset = (result.scaling[name].values for name in ("contrast", "offset"))
    # a random name: for one of its own, Dask would hash all arguments
    chunks = {"chunks": data.chunks, "dtype": np.float64, "name": f"fitted-c2-{uuid4().hex}"}
    c2 = dask.array.map_blocks(_block, view.model, time, contrast, offset, **chunks)
    about = {"long_name": "offset + contrast·f", "units": "1"}
    return xarray.DataArray(c2, data.coords, data.dims, "c2", about)


def c2_at(
    result: FitValues,
    times: tuple[ArrayLike, ArrayLike],
    label: int | None,
    scan: Scan | None,
    phi: Any,
    band: float | None,
) -> Any:
    """Return offset + contrast·f at times [s] that broadcast together; see `FitResult.eval`."""
    view = view_of(result, scan)
    scan, labels = view.scan, view.scan.label.tolist()
    if label is not None and label not in labels:
        raise errors.SelectionError(
            f"no fitted bin has the label {errors.shown(label)}; {errors.nearest(label, labels)}"
        )
    t1, t2 = _paired_times(times, scan)
    bins = np.array([scan.bins.index(bin) for bin in scan.select(phi=phi, label=label).bins])
    columns = (result.scaling[name].values[bins] for name in ("contrast", "offset"))
    contrast, offset = (column.reshape(-1, *[1] * t1.ndim) for column in columns)
    ends = np.minimum(t1, t2), np.maximum(t1, t2)
    curves = [offset + contrast * view.model.shape(bins, *ends)]
    if band is not None:
        half = contrast * _half_width(result, view.model.slopes(bins, *ends), band)
        curves += [curves[0] - half, curves[0] + half]
    if label is not None and len(bins) == 1:
        curves = [curve[0] for curve in curves]
    return curves[0] if band is None else tuple(curves)


def _half_width(
    result: FitValues, slopes: Float[np.ndarray, "bin p ..."], percent: float
) -> Float[np.ndarray, "bin ..."]:
    table = result.parameters
    free = ~(table["fixed"].values | table["at_bound"].values)
    covariance = np.nan if result.covariance is None else result.covariance.values
    varied = np.where(free[:, None] & free, covariance, 0)
    if result.covariance is None or np.isnan(varied).any():
        raise errors.OptionError(
            "the fit lacks standard errors of some parameters, so there is no band: omit the argument band"
        )
    stderr = np.sqrt(np.einsum("bp...,pr,br...->b...", slopes, varied, slopes))
    # the widest t of all parameters: the band holds whichever of them it depends on
    fewest = float(np.nanmin(table["dof"].values[free], initial=np.inf))
    return half_width(percent, fewest) * stderr


def _paired_times(times: tuple[ArrayLike, ArrayLike], scan: Scan) -> tuple[Times, Times]:
    t1, t2 = (_times(*side, scan.time) for side in zip(("t1", "t2"), times, strict=True))
    try:
        t1, t2 = np.broadcast_arrays(t1, t2)
    except ValueError:
        raise errors.OptionError(
            f"the times cannot be paired: t1 {t1.shape} and t2 {t2.shape}; give times whose shapes broadcast"
        ) from None
    return t1, t2


def _times(name: str, value: ArrayLike, frames: Float[np.ndarray, " t"]) -> Times:
    try:
        times = np.asarray(value, float)
    except (TypeError, ValueError):
        raise errors.OptionError(f"{name} = {errors.shown(value)}: give times in seconds") from None
    first, last = frames[[0, -1]]
    outside = times[~((times >= first) & (times <= last))]  # NaN, too
    if outside.size:
        raise errors.OptionError(
            f"{name} = {outside[0]:g} s is outside the scan, {first:g} to {last:g} s: give times within it"
        )
    return times


def _block(
    model: FittedModel,
    time: Times,
    contrast: np.ndarray,
    offset: np.ndarray,
    block_info: Any = None,
) -> Float[np.ndarray, "bin t1 t2"]:
    bins, rows, columns = (slice(*ends) for ends in block_info[None]["array-location"])
    t1, t2 = time[rows, None], time[None, columns]
    f = model.shape(np.arange(len(contrast))[bins], np.minimum(t1, t2), np.maximum(t1, t2))
    return offset[bins, None, None] + contrast[bins, None, None] * f
