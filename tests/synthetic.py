"""Scans of known truth: as arrays, as blocks for the kernel, as averages for the start, as stores."""

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import ingest
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.fitting import fit as fitting
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.start import initial_values
from homodyne_dask.fitting.start.averages import BinnedAverages
from homodyne_dask.fitting.start.initial_values import find_start
from homodyne_dask.fitting.start.transport_search import Minimum, transport_minima, undecided_minima
from homodyne_dask.kernels.backend_interface import Block, Problem
from homodyne_dask.kernels.gram import merge_tree, stacked
from homodyne_dask.kernels.transport_backend import TRANSPORT
from homodyne_dask.models import LAMINAR_FLOW, STATIC, Convention
from homodyne_dask.models.parameters import Search, search
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.sweep import plan as plans
from homodyne_dask.sweep.layout import coarse_levels, layout
from homodyne_dask.sweep.plan import make_plan
from ingest import store_writer as block_means
from ingest.bin_task import exclude_outliers
from ingest.clean import measure_scatter
from tests import reference

GAP = 2.0e6
Q = 0.0054
FLOW = np.array([2500.0, -0.3, 100.0, 2e-4, 0.2, 1e-5, 5.0])
"""The truth of PHYSICS.md §5."""
CREEP = np.array([20000.0, -0.4, 1000.0])
STRONG_FLOW = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
FAST_DECAY = np.array([2e5, 0.0, 0.0, 1e-3, -0.3, 0.0, 5.0])
"""f is below 1e-16 from a lag of 20 frames on."""


@dataclass(frozen=True)
class Scans:
    """Everything that was measured, and what it was made from."""

    theta: np.ndarray
    time: np.ndarray
    q: np.ndarray
    phi: np.ndarray
    contrast: np.ndarray
    offset: np.ndarray
    sigma_row: np.ndarray
    c2: np.ndarray
    """float32, NaN on and below the diagonal."""
    convention: str
    gap: float | None = GAP

    @property
    def model(self):
        return LAMINAR_FLOW if len(self.theta) == 7 else STATIC

    def problem(self, **options) -> Problem:
        gap = self.gap if self.model.needs_gap else None
        return Problem(self.model, Convention(self.convention), gap, **options)

    def dense(self):
        """The bins as reference.dense_fit takes them."""
        return [
            (self.c2[b].astype(float), self.time, self.q[b], self.phi[b], self.gap, s)
            for b, s in enumerate(self.sigma_row)
        ]


def measured(
    theta,
    n=40,
    phi=(0.0,),
    *,
    q: float | np.ndarray = Q,
    dt=1 / 3,
    time=None,
    contrast=0.2,
    offset=1.0,
    sigma=0.02,
    noise=True,
    convention="physical",
    gap=GAP,
    seed=0,
) -> Scans:
    """A scan with white noise of standard deviation `sigma` on every pair."""
    theta, phi = np.asarray(theta, float), np.atleast_1d(np.asarray(phi, float))
    time = dt * np.arange(n) if time is None else np.asarray(time, float)
    n = len(time)
    per_bin = [np.broadcast_to(np.asarray(v, float), phi.shape) for v in (q, contrast, offset)]
    q, contrast, offset = (v.copy() for v in per_bin)
    model = reference.CONVENTIONS[convention]
    with np.errstate(over="ignore"):  # the lower half is not used
        f = np.array([model(theta, time, a, b, gap) for a, b in zip(q, phi, strict=True)])
    c2 = offset[:, None, None] + contrast[:, None, None] * f
    if noise:
        c2 = c2 + sigma * np.random.default_rng(seed).standard_normal(c2.shape)
    c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    rows = np.full((len(phi), n), np.sqrt(sigma))
    return Scans(
        theta, time, q, phi, contrast, offset, rows, c2.astype(np.float32), convention, gap
    )


def angles(n: int) -> np.ndarray:
    return np.arange(n) * 180.0 / n - 90.0


def published_case() -> Scans:
    phi, offset = np.arange(23) * 180.0 / 23, 1 + 0.002 * np.arange(23)
    contrast = 0.15 + 0.03 * np.cos(2 * np.deg2rad(phi))
    return measured(FLOW, 300, phi, contrast=contrast, offset=offset, convention="homodyne")


def blocks(
    scans: Scans, side: int = 64, cuts=None, padded: int | None = None
) -> list[tuple[np.ndarray, Block]]:
    """The blocks of all pairs; `cuts` are the first frames of the tiles' rows and columns."""
    n = len(scans.time)
    starts = list(range(0, n, side)) if cuts is None else sorted({0, *cuts})
    stops = [*starts[1:], n]
    found = []
    for value in np.unique(scans.q):
        members = np.flatnonzero(scans.q == value)
        capacity = len(members) if padded is None else padded
        for i0, i1 in zip(starts, stops, strict=True):
            for j0, j1 in zip(starts, stops, strict=True):
                if j0 < i0:
                    continue
                assert i1 - i0 <= side
                c2 = np.full((capacity, side, side), np.nan, np.float32)
                c2[: len(members), : i1 - i0, : j1 - j0] = scans.c2[members, i0:i1, j0:j1]
                weights = np.zeros((2, capacity, side))
                weights[0, : len(members), : i1 - i0] = 1 / scans.sigma_row[members, i0:i1] ** 2
                weights[1, : len(members), : j1 - j0] = 1 / scans.sigma_row[members, j0:j1] ** 2
                bins = scans.q[members], scans.phi[members]
                found.append((members, Block(c2, *weights, *bins, i0, j0)))
    return found


def evaluator(
    scans: Scans,
    problem: Problem | None = None,
    side: int = 64,
    cuts=None,
    padded: int | None = None,
):
    """theta, and (offset - 1, contrast) with a loss → the Gram of all bins, by the kernel of a fit."""
    problem = problem or scans.problem()
    pieces = blocks(scans, side, cuts, padded)

    def evaluate(theta, linear_params=None):
        groups, point = defaultdict(list), TRANSPORT.point(problem, theta, scans.time)
        for members, block in pieces:
            if linear_params is None:
                gram = TRANSPORT.gram(point, block)[0]
            else:
                gram = TRANSPORT.robust_gram(point, block, linear_params[members])
            groups[tuple(members)].append(gram)
        totals = {members: merge_tree(grams) for members, grams in groups.items()}
        order = np.argsort(np.concatenate([list(members) for members in totals]))
        return stacked(totals.values(), order)

    return evaluate


def summary(scans: Scans, problem: Problem | None = None) -> BinnedAverages:
    """The averages that initial values are made from, as ingest makes them."""
    n, problem = len(scans.time), problem or scans.problem()
    ages, lags = age_edges(n), lag_edges(n)
    use = np.ones(n, bool)
    cells = []
    for c2, rows in zip(scans.c2, scans.sigma_row, strict=True):
        filled = block_means.mask_matrix(c2.copy(), use)
        exclude_outliers(filled, max(np.median(rows) ** 2, measure_scatter(c2) or 0.0), scans.time)
        cells.append(block_means.cell_averages(filled, ages, lags))
    c2, count = (np.array(part) for part in zip(*cells, strict=True))
    t1, t2 = block_means.cell_times(scans.time, ages, lags)
    inside = np.isfinite(t1)
    weight = 1 / np.median(scans.sigma_row, axis=1) ** 4
    c2, weight = np.nan_to_num(c2[:, inside], nan=1.0), count[:, inside] * weight[:, None]
    at = t1[inside], t2[inside]
    return BinnedAverages(problem, scans.time, c2, weight, *at, scans.q, scans.phi)


def solve_robust(
    evaluate, chosen, theta, scaling, options=None, linear_params=None
) -> list[lm.State]:
    if linear_params is None:
        linear_params = reduce(evaluate(theta), scaling).linear_params
    return solve(evaluate, chosen, theta, scaling, options, linear_params)


def solve(
    evaluate, chosen, theta, mode="individual", options=None, linear_params=None
) -> list[lm.State]:
    def problem(trial):
        known = () if linear_params is None else (trial.linear_params,)
        prior, grams = chosen.prior_terms(trial.theta), evaluate(trial.theta, *known)
        return reduce(grams, mode, prior=prior, linear_params=trial.linear_params)

    start = lm.Trial(np.asarray(theta, float), linear_params)
    return list(lm.iterate(chosen, problem, start, options or lm.Options()))


def asked(scans: Scans, **given) -> Search:
    laws = scans.model.laws_over(scans.time)
    return search(scans.model.parameters, **given, laws=laws)


def searched(scans: Scans, **given) -> list[lm.State]:
    chosen = asked(scans, **given)
    minima = transport_minima(summary(scans), chosen, "individual")
    return lowest_fit(evaluator(scans), chosen, undecided_minima(minima))


def lowest_fit(evaluate, chosen, starts) -> list[lm.State]:
    fits = [solve(evaluate, chosen, theta) for theta in starts]
    return min(fits, key=lambda states: states[-1].reduced.chisqr)


def store(scans: Scans, folder, name="scan", keep_outliers=False, **changes):
    """The same scan, ingested from an .npz and opened."""
    source, target = folder / f"{name}.npz", folder / f"{name}.zarr"
    c2 = np.where(np.isnan(scans.c2), np.swapaxes(scans.c2, 1, 2), scans.c2)
    held = {name: getattr(scans, name) for name in ("q", "phi", "time")}
    held |= {"c2": c2, "sigma": scans.sigma_row[:, 0] ** 2} | changes
    np.savez(source, **{key: value for key, value in held.items() if value is not None})
    ingest.ingest(source, target, overwrite=True, keep_copies=True, keep_outliers=keep_outliers)
    return open_dataset(target)


def module_scan(make, name="scan"):
    """A fixture: the scan that `make` returns as a store, once for all tests of a module."""

    @pytest.fixture(scope="module")
    def scan(tmp_path_factory):
        return store(make(), tmp_path_factory.mktemp("scan"), name)

    return scan


def plan_here(request):
    work = layout(request.scan, request.problem.min_lag)
    levels = coarse_levels(request.scan, work, request.problem.min_lag)
    model, bins = request.problem.model, len(request.scan.bins)
    return make_plan(work, this_process(), model.name, model.size, bins, levels=levels)


def fit_here(scan, model, checkpoint=None, resume=False, stop_after=None, **options):
    """What `hd.fit` does, in this process whatever the size; None if stopped before its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "IN_PROCESS_PAIRS", np.inf)
        passes = fitting.iterate(scan, model, checkpoint=checkpoint, resume=resume, **options)
        try:
            while next(passes).passes != stop_after:
                pass
        except StopIteration as end:
            return end.value
        passes.close()
    return None


def minimized(request, sweep):
    *_, state = minimize(request, sweep, partial(find_start, request, [sweep]), FitRecord(0.0))
    return state


@contextmanager
def started_as_given():
    """Fits start at their initial values, and search no others: from poor ones they take many passes."""

    search_for = initial_values.find_initial_values

    def given(request, data=None):
        start = request.search.start
        known = np.isfinite(start).all()
        return [Minimum(start, np.nan, 1)] if known else search_for(request, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initial_values, "find_initial_values", given)
        yield


def of_rate(scans: Scans, J, noise: float, seed: int) -> Scans:
    """The scan of a sample without flow whose rate at each frame is J, with noise of a deviation."""
    C = reference.integral(J, scans.time)
    f = np.exp(-(scans.q[:, None, None] ** 2) * np.abs(C[None] - C[:, None]))
    return of_decay(scans, f, noise, seed)


def of_decay(scans: Scans, f, noise: float, seed: int = 0) -> Scans:
    """The scan of a sample whose f is this, of all bins or of each, with noise of a deviation."""
    c2 = scans.offset[:, None, None] + scans.contrast[:, None, None] * f
    c2 += noise * np.random.default_rng(seed).standard_normal(c2.shape)
    return replace(scans, c2=np.where(np.isnan(scans.c2), np.nan, c2).astype(np.float32))


def without_some(scans: Scans, share: float = 0.1, seed: int = 1) -> Scans:
    """The same scan with a share of the pairs and one frame unknown, and rows of unequal noise."""
    rng = np.random.default_rng(seed)
    c2 = scans.c2.copy()
    c2[rng.random(c2.shape) < share] = np.nan
    dead = rng.integers(len(scans.time))
    c2[:, dead], c2[:, :, dead] = np.nan, np.nan
    rows = scans.sigma_row * rng.uniform(0.5, 2.0, scans.sigma_row.shape)
    return replace(scans, c2=c2, sigma_row=rows)


def with_outliers(scans, share=0.02, seed=7):
    """The same scan, a share of the pairs off by 20 to 200 standard deviations."""
    rng = np.random.default_rng(seed)
    c2 = scans.c2.copy()
    hit = rng.random(c2.shape) < share
    sigma = np.median(scans.sigma_row) ** 2
    c2[hit] += sigma * rng.choice([-1, 1], hit.sum()) * rng.uniform(20, 200, hit.sum())
    return replace(scans, c2=c2.astype(np.float32))
