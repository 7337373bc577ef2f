"""The averages over age and lag from which initial values are found: their Grams, the best of many points."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.separable_backend import (
    Tables,
    at_times,
    bin_argument,
    f_of,
    f_with_derivatives,
    separable_point,
    tables_of,
)
from homodyne_dask.kernels.user_function_checks import check_finite
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.shear_factor import (
    decay,
    parabolic_factor,
    sheared,
    strain,
    unsheared,
    wave,
)
from homodyne_dask.models.transport import (
    BinScales,
    Convention,
    Shear,
    TransportModel,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
)
from homodyne_dask.models.user_defined import Bin, SeparableModel
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.store.scan import Cuts, Scan, q_or_one
from homodyne_dask.sweep.cell_sums import edges_inside
from homodyne_dask.sweep.sweep import Passes

Theta = Float[np.ndarray, " p"]
MIN_CELLS = 30
"""If fewer stored averages lie in a selection, others are averaged over, by one pass."""
LEAST_OF_PAIRS, LEAST_OF_FEW, FEW_PAIRS = 0.5, 0.95, 10_000
"""Part of the selected pairs in these, with less of which others are averaged over, too; the same where they
hold so few pairs of a bin, of which each counts."""
STEPS_PER_AGE = 128
"""Integrals use steps of one frame up to this frame, and of age / STEPS_PER_AGE after it."""


@dataclass(frozen=True)
class BinnedAverages:
    """The averages of c2 over cells of age and lag; all bins have the same cells."""

    problem: Problem
    time: Float[np.ndarray, " t"]
    c2: Float[np.ndarray, "bin cell"]
    weight: Float[np.ndarray, "bin cell"]
    """Sum of the weights of the averaged pairs; 0 where there are none."""
    t1: Float[np.ndarray, " cell"]
    t2: Float[np.ndarray, " cell"]
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def differences(self, theta: Theta) -> Float[np.ndarray, "rows cell"]:
        """Return u(t2) - u(t1) of every row of integrals at the cells; the last two: strain G, and C of J."""
        problem, nodes = self.problem, self._nodes
        steps = np.diff(nodes) / (self.spacing if problem.convention is Convention.HOMODYNE else 1)
        t = positive_times(nodes, self.spacing)
        rows = rows_of(problem.model, problem.convention, theta, t, steps)
        here, there = (
            rows[:, n] + (rows[:, n + 1] - rows[:, n]) * share for n, share in self._places
        )
        return there - here

    def shear_factor(self, phase: Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return the factor that shear of a phase makes of f."""
        if self.problem.model.shear is Shear.PARABOLIC:
            with np.errstate(divide="ignore"):
                return parabolic_factor(wave(phase))[0]
        power = 4 if self.problem.convention is Convention.HOMODYNE else 2
        return np.sinc(phase / np.pi) ** power

    def at_cells(
        self, at: Int[np.ndarray, " some"] | Bool[np.ndarray, " cell"]
    ) -> "BinnedAverages":
        c2, weight = self.c2[:, at], self.weight[:, at]
        return replace(self, c2=c2, weight=weight, t1=self.t1[at], t2=self.t2[at])

    def of_bins(self, bins: list[int]) -> "BinnedAverages":
        parts = {name: getattr(self, name)[bins] for name in ("c2", "weight", "q", "phi")}
        return replace(self, **parts)

    def up_to_lag(self, longest: float) -> "BinnedAverages":
        return replace(self, weight=np.where(self.t2 - self.t1 <= longest, self.weight, 0.0))

    def scales(self, theta: Theta, phi: Float[np.ndarray, " bin"]) -> BinScales:
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, theta, self.q, phi, problem.gap, self.spacing
        )

    def of_cells(
        self, sums: Float[np.ndarray, "bin cell 4"], at: Int[np.ndarray, " some"]
    ) -> "BinnedAverages":
        """Return averages over other cells; sums: of the weights, and of these times c2 - 1, t1 and t2."""
        weight, total = sums[:, at, 0], sums[:, at].sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            c2 = np.nan_to_num(1 + sums[:, at, 1] / weight, nan=1.0)
        t1, t2 = total[:, 2] / total[:, 0], total[:, 3] / total[:, 0]
        return replace(self, c2=c2, weight=weight, t1=t1, t2=t2)

    @cached_property
    def spacing(self) -> float:
        return frame_spacing(self.time, self.problem.convention)

    @cached_property
    def _nodes(self) -> Float[np.ndarray, " node"]:
        """The frame times between which the rates are integrated."""
        at, last = [0], len(self.time) - 1
        while at[-1] < last:
            at.append(min(at[-1] + max(1, at[-1] // STEPS_PER_AGE), last))
        return self.time[at]

    @cached_property
    def _places(self) -> list[tuple[Int[np.ndarray, " cell"], Float[np.ndarray, " cell"]]]:
        """Of t1 and of t2 of the cells the nodes before them, and how far they are to the next."""
        nodes, found = self._nodes, []
        for t in (self.t1, self.t2):
            below = np.clip(np.searchsorted(nodes, t, side="right") - 1, 0, len(nodes) - 2)
            found.append((below, (t - nodes[below]) / (nodes[below + 1] - nodes[below])))
        return found

    def __call__(self, theta: Theta) -> Gram:
        model = self.problem.model
        of_model = self._transport_moments if isinstance(model, TransportModel) else self._moments
        with float64_on_cpu():
            return Gram(np.asarray(of_model(theta)), (self.weight > 0).sum(1))

    def _transport_moments(self, theta: Theta) -> Array:
        problem, scales = self.problem, self.scales(theta, self.phi)
        J = problem.model.diffusion
        return _cell_moments(
            self.differences(theta), self.c2, self.weight, scales.k, scales.s, scales.ds,
            shear=problem.model.shear, convention=problem.convention, diffusion=J.stop - J.start,
        )  # fmt: skip

    def _moments(self, theta: Theta) -> Array:
        at = separable_point(self.problem, theta, self.time)
        tables = at.tables, at.derivatives
        here, there = (at_times(tables, self.time, t) for t in (self.t1, self.t2))
        bins = bin_argument(self.problem, self.q, self.phi)
        given = self.c2, self.weight, at.theta, here, there, bins
        return _moments(*given, model=self.problem.model)


def binned_averages(scan: Scan, problem: Problem, data: Passes | None = None) -> BinnedAverages:
    cuts = scan.cuts(problem.min_lag)
    few, pairs = len(cuts.t1) < MIN_CELLS, data is not None and scan.cells is None
    read = pairs and not scan.is_table and (few or _misses_pairs(scan, cuts, problem.min_lag))
    if few and not read:
        cuts = replace(scan, frames=(0, scan.n_frames)).cuts()
    i, j = (np.searchsorted(scan.time, t).clip(0, scan.n_frames - 1) for t in (cuts.t1, cuts.t2))
    # of a pair at the mean times of each cell
    weight = 1 / (scan.sigma_row[:, i] * scan.sigma_row[:, j]) ** 2
    stored = BinnedAverages(
        problem=problem,
        time=scan.time,
        c2=np.nan_to_num(cuts.c2, nan=1.0),
        weight=np.where(np.isfinite(cuts.c2), cuts.count * weight, 0.0),
        t1=cuts.t1,
        t2=cuts.t2,
        q=q_or_one(scan),
        phi=scan.phi,
    )
    if read and data is not None:
        sums = data.cells(edges_inside(scan.frames, problem.min_lag)).weighted
        stored = stored.of_cells(sums, np.flatnonzero(sums[..., 0].any(0)))
    if not stored.weight.any():
        raise SelectionError(
            f"all pairs of the {len(scan.bins)} selected bins are masked or unknown: "
            f"widen the selection"
        )
    return stored


def _misses_pairs(scan: Scan, cuts: Cuts, min_lag: int) -> bool:
    if scan.frames == (0, scan.n_frames) and not scan.excluded_frames:
        return False
    whole = replace(scan, frames=(0, scan.n_frames), excluded_frames=())
    selected = whole.cuts(min_lag).count.sum() * (scan.use.sum() / whole.use.sum()) ** 2
    least = LEAST_OF_FEW if cuts.count.sum(1).max() < FEW_PAIRS else LEAST_OF_PAIRS
    return bool(cuts.count.sum() < least * selected)


def averaged_over_scans(summary: BinnedAverages, scan: Scan) -> BinnedAverages:
    """Return averages in which bins that several scans repeat are one, their weighted mean."""
    if len(np.unique(scan.scan_number)) < 2:
        return summary
    bins = np.stack([scan.label, summary.q, np.nan_to_num(summary.phi)], axis=1)
    _, first, place = np.unique(bins, axis=0, return_index=True, return_inverse=True)
    weight, sums = np.zeros((2, len(first), len(summary.t1)))
    np.add.at(weight, place, summary.weight)
    np.add.at(sums, place, summary.weight * (summary.c2 - 1))
    c2 = 1 + sums / np.where(weight > 0, weight, 1.0)
    return replace(summary, c2=c2, weight=weight, q=summary.q[first], phi=summary.phi[first])


@plain_kernel("shear", "convention", "diffusion")
def _cell_moments(
    d: Array, c2: Array, weight: Array, k: Array, s: Array, ds: Array,
    *, shear: Shear, convention: Convention, diffusion: int,
) -> Array:  # fmt: skip
    of_J, of_shear = range(1, 1 + diffusion), range(1 + diffusion, len(d) - 2)

    def of_bin(y: Array, w: Array, k: Array, s: Array, ds: Array) -> Array:
        E = decay(convention, k, d[-1])
        ones = jnp.ones_like(y)
        if not shear:
            f = unsheared(convention, E)
            gradient = [-k * f * d[row] for row in of_J]
        else:
            dG, sign = strain(convention, d[-2])
            f, v = sheared(shear, convention, E, wave(s * dG))
            v = v * sign
            gradient = [-k * f * d[row] for row in of_J]
            gradient += [v * s * d[row] for row in of_shear] + [v * ds * d[-2]]
        X = jnp.stack([ones, y - 1, f, *gradient])
        return (X * w) @ X.T

    return jax.vmap(of_bin)(c2, weight, k, s, ds)


def best_points(
    summary: BinnedAverages, search: Search, mode: str, best: int,
    points: Float[np.ndarray, "point p"],
) -> list[Theta]:  # fmt: skip
    chisqr = chisqr_at_points(summary, search, mode, points)
    if not np.isfinite(chisqr).any():
        raise_not_finite(summary, points[0])
    return [points[n] for n in np.argsort(chisqr)[:best] if np.isfinite(chisqr[n])]


def raise_not_finite(summary: BinnedAverages, theta: Theta) -> NoReturn:
    """Raise OptionError of a search without a finite χ², with the pair of times to blame, if any."""
    problem, time = summary.problem, summary.time
    frames = np.flatnonzero((time >= summary.t1.min()) & (time <= summary.t2.max()))
    check_finite(problem, theta, time, frames, summary.q, summary.phi, everywhere=True)
    raise OptionError(
        f"χ² of model {problem.model.name!r} is not finite at any point tried within its bounds: "
        f"give initial values"
    )


def chisqr_at_points(
    summary: BinnedAverages, search: Search, mode: str, points: Float[np.ndarray, "point p"]
) -> Float[np.ndarray, " point"]:
    """Return χ² of the averages at points; infinite where it is no number, or contrast is negative."""
    chisqr, pairs = np.full(len(points), np.inf), (summary.weight > 0).sum(1)
    with float64_on_cpu():
        of_points = _moments_of_points(
            summary.c2, summary.weight, points, summary.time, (summary.t1, summary.t2),
            bin_argument(summary.problem, summary.q, summary.phi), model=summary.problem.model,
        )  # fmt: skip
    for n, moments in enumerate(np.asarray(of_points)):
        reduced = reduce(Gram(moments, pairs), mode)
        # c2 must decay: contrast is not negative
        if np.isfinite(reduced.chisqr) and np.nanmedian(reduced.contrast) >= 0:
            chisqr[n] = reduced.chisqr + search.prior_chisqr(points[n])
    return chisqr


@plain_kernel("model")
def _moments(
    c2: Array, weight: Array, theta: Array, here: tuple[Tables, Tables],
    there: tuple[Tables, Tables], bins: Bin, *, model: SeparableModel,
) -> Array:  # fmt: skip
    def of_bin(y: Array, w: Array, bin: Bin) -> Array:
        f, derivatives = f_with_derivatives(model, theta, here, there, bin, y.shape)
        return _products(y, w, f, *derivatives)

    return jax.vmap(of_bin)(c2, weight, bins)


def _products(y: Array, w: Array, *columns: Array) -> Array:
    X = jnp.stack([jnp.ones_like(y), y - 1, *columns])
    X = jnp.where(w > 0, X * jnp.sqrt(w), 0.0)
    return X @ X.T


@plain_kernel("model")
def _moments_of_points(
    c2: Array, weight: Array, points: Array, time: Array, cells: tuple[Array, Array], bins: Bin,
    *, model: SeparableModel,
) -> Array:  # fmt: skip
    def at_point(theta: Array) -> Array:
        tables = tables_of(model, theta, time)
        t1, t2 = (jax.tree.map(lambda v, t=t: jnp.interp(t, time, v), tables) for t in cells)

        def of_bin(y: Array, w: Array, bin: Bin) -> Array:
            return _products(y, w, f_of(model, theta, t1, t2, bin, y.shape))

        return jax.vmap(of_bin)(c2, weight, bins)

    return jax.lax.map(at_point, points)
