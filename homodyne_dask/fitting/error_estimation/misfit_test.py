"""The check of the model: whether means of residuals exceed what noise and correlated speckle allow."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from homodyne_dask.fitting.error_estimation.residual_cells import ResidualCells, residual_cells
from homodyne_dask.fitting.request import Request
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.results.data.misfit import ModelCheck
from homodyne_dask.solver.state import State
from homodyne_dask.store.rings import friedel_clusters, ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

LEVEL = 0.01
"""Probability that a right model is called wrong, by Bonferroni's bound over all means."""
MIN_SHARE = 0.005
"""Deviations below this share of the contrast are not called misfit, however certain."""
MIN_CELLS = 12
"""With fewer cells nothing is tested."""
MIN_FREEDOM = 4
"""Fewest degrees of freedom between bins from which noise is estimated."""
PARTS = np.linspace(0.0, 1.0, 21)
SIZES = 4
"""Groups of cells, by size, in each of which the scatter between bins must be explained."""


class _Means(NamedTuple):
    """Residuals averaged over some bins."""

    words: str
    residual: Float[np.ndarray, " cell"]
    z: Float[np.ndarray, " cell"]
    """In standard errors; NaN where there is none."""
    contrast: float


def examine_model(
    request: Request, state: State, of_cells: CellMeans | None = None
) -> ModelCheck | None:
    """Return the test of the model at the end of a fit; None where there is too little to test.

    of_cells: [1, y - 1, f] of data that are means over cells.
    """
    scan, reduced = request.scan, state.reduced
    if not reduced.finite:
        return None
    cells = residual_cells(request, state, of_cells)
    if cells is None:
        return None
    if np.isfinite(cells.residual).any(0).sum() < MIN_CELLS:
        return None
    contrast = np.abs(np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast)))
    largest = cells.correlated_variance()
    shared = cells.correlated_variance(_part_from_scatter(scan, cells))
    means = _means(scan, cells, (shared, largest), contrast)
    z = np.abs(np.array([one.z for one in means]))
    tests = int(np.isfinite(z).sum())
    if tests < MIN_CELLS:  # the model interpolates the data
        return None
    threshold = float(-ndtri(LEVEL / 2 / tests))
    large = np.array([np.abs(one.residual) >= MIN_SHARE * one.contrast for one in means])
    strict = np.where(np.isfinite(z) & large, z, 0.0)
    at, cell = np.unravel_index(int(np.argmax(strict)), z.shape)
    worst = means[int(at)]
    return ModelCheck(
        tests=tests,
        threshold=threshold,
        deviating=int((strict > threshold).sum()),
        largest=float(strict[at, cell]),
        where=worst.words,
        age=(float(cells.age[cell, 0]), float(cells.age[cell, 1])),
        lag=(float(cells.lag[cell, 0]), float(cells.lag[cell, 1])),
        residual=float(worst.residual[cell]),
        share=float(worst.residual[cell] / max(worst.contrast, np.finfo(float).tiny)),
        depends_on=_depends_on(scan, cells, shared),
    )


def _means(
    scan: Scan,
    cells: ResidualCells,
    variances: tuple[Float[np.ndarray, "bin cell"], Float[np.ndarray, "bin cell"]],
    contrast: Float[np.ndarray, " bin"],
) -> list[_Means]:
    """Return the residuals of all bins together, of each ring if there are several, and of each bin.

    variances: of the residuals where several bins are averaged, and where a bin stands alone.
    """
    everything = np.ones(len(scan.bins), bool)
    clusters = friedel_clusters(scan.q, scan.phi)
    same = np.array([(clusters == one).sum() for one in clusters])  # bins of the same speckle
    groups = [("all bins", everything)] if len(scan.bins) > 1 else []
    rings, numbers = rings_of(scan.q), ring_numbers(scan.q)
    if len(rings) > 1 and not np.isnan(scan.q).any():
        groups += [(f"the bins of q {q:.6g} 1/Å", numbers == n) for n, q in enumerate(rings)]
    groups += [
        (f"the bin labelled {label}", np.arange(len(scan.bins)) == b)
        for b, label in enumerate(scan.label)
    ]
    found = []
    for words, members in groups:
        alone = members.sum() == 1
        residual, weight = _averaged(cells.residual, variances[int(alone)], members)
        several = np.ones(1) if alone else same[members]
        found.append(
            _Means(
                words,
                residual,
                residual * np.sqrt(weight / several.max()),
                float(np.median(contrast[members])),
            )
        )
    return found + _with_phi(scan, cells, variances[0], float(np.median(contrast)))


def _trends(scan: Scan) -> Float[np.ndarray, "bin column"]:
    """Return a column for each ring, then cos 2φ and sin 2φ."""
    rings = ring_numbers(scan.q)
    angle = np.deg2rad(2 * np.nan_to_num(scan.phi))
    columns = [rings == ring for ring in np.unique(rings)]
    return np.stack([*columns, np.cos(angle), np.sin(angle)], axis=1).astype(float)


def _freedom(basis: Float[np.ndarray, "bin column"]) -> int:
    """Return how many more bins there are than trends."""
    return len(basis) - int(np.linalg.matrix_rank(basis))


def _with_phi(
    scan: Scan, cells: ResidualCells, variance: Float[np.ndarray, "bin cell"], contrast: float
) -> list[_Means]:
    """Return the parts of the residuals that go with cos 2φ and sin 2φ, where there are enough bins."""
    basis = _trends(scan)
    if _freedom(basis) < MIN_FREEDOM:
        return []
    inverse = np.linalg.pinv(basis)[-2:]
    part, error = inverse @ cells.residual, np.sqrt(inverse**2 @ variance)
    words = ("all bins, as cos 2φ", "all bins, as sin 2φ")
    return [_Means(*of, contrast) for of in zip(words, part, part / error, strict=True)]


def _part_from_scatter(scan: Scan, cells: ResidualCells) -> float:
    """Return the part of the correlated noise that the scatter between bins leaves room for, at most 1.

    A wrong model gives bins of one ring alike residuals, or such that go with cos 2φ and sin 2φ; what is
    left is noise. The part is the smallest at which noise explains it in small and in large cells. 1
    with fewer than MIN_FREEDOM bins more than such columns.
    """
    basis = _trends(scan)
    whole = np.isfinite(cells.residual).all(0)
    freedom = _freedom(basis)
    if freedom < MIN_FREEDOM or whole.sum() < MIN_CELLS:
        return 1.0
    residual = cells.residual[:, whole]
    left = residual - basis @ np.linalg.lstsq(basis, residual, rcond=None)[0]
    order = np.argsort((cells.correlated_variance() / cells.variance)[:, whole].mean(0))
    for part in PARTS:
        variance = cells.correlated_variance(part)[:, whole]
        ratio = (left**2 / variance).sum(0)[order] / freedom
        if all(some.mean() <= 1 for some in np.array_split(ratio, SIZES)):
            return float(part)
    return 1.0


def _averaged(
    residual: Float[np.ndarray, "bin cell"],
    variance: Float[np.ndarray, "bin cell"],
    members: np.ndarray,
) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"]]:
    """Return the mean residual of some bins in each cell and 1/variance of that mean."""
    residual, variance = residual[members], variance[members]
    known = np.isfinite(residual) & (variance > 0)
    weight = np.where(known, 1 / np.where(known, variance, 1.0), 0.0)
    total = weight.sum(0)
    sums = (weight * np.where(known, residual, 0.0)).sum(0)
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan), total


def _depends_on(scan: Scan, cells: ResidualCells, variance: Float[np.ndarray, "bin cell"]) -> str:
    """Return what explains most of the deviations beyond noise: q, bin, age or lag.

    Σ residual²/variance is split, as in an analysis of variance, into that of the mean over ages and bins
    at each lag, and what age, ring and bin add.
    """
    rings, residual = ring_numbers(scan.q), cells.residual
    members = [rings == ring for ring in np.unique(rings)]
    every = np.ones(len(scan.bins), bool)
    whole, weight = _averaged(residual, variance, every)
    there = weight > 0
    of_all = _size(whole, weight)
    at_lags, lags = _over_ages(whole[there], weight[there], cells.lag_number[there])
    of_rings = sum(_size(*_averaged(residual, variance, some)) for some in members)
    known = np.isfinite(residual) & (variance > 0)
    of_bins = float((residual[known] ** 2 / variance[known]).sum())
    n = int(there.sum())
    parts = {
        "lag": (at_lags, lags),
        "age": (of_all - at_lags, n - lags),
        "q": (of_rings - of_all, n * (len(members) - 1)),
        "bin": (of_bins - of_rings, n * (len(scan.bins) - len(members))),
    }
    possible = [name for name, (_, freedom) in parts.items() if freedom > 0]
    return max(possible, key=lambda name: parts[name][0] - parts[name][1])


def _size(residual: Float[np.ndarray, " cell"], weight: Float[np.ndarray, " cell"]) -> float:
    return float((weight * np.nan_to_num(residual) ** 2).sum())


def _over_ages(
    residual: Float[np.ndarray, " cell"],
    weight: Float[np.ndarray, " cell"],
    lag: Int[np.ndarray, " cell"],
) -> tuple[float, int]:
    """Return Σ residual²/variance of the means over all ages at each lag, and the number of lags."""
    total = np.bincount(lag, weight)
    sums = np.bincount(lag, weight * residual)
    some = total > 0
    return float((sums[some] ** 2 / total[some]).sum()), int(some.sum())
