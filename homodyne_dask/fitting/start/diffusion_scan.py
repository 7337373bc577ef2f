"""A scan of the diffusion parameters at the shear parameters of a fit to the averages.

A constant rate and one that decreases at first may fit almost equally well, since D0 t^alpha and D_offset
can replace each other; a least-squares fit does not go from one minimum to the other.
"""

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.start.averages import BinnedAverages
from homodyne_dask.fitting.start.grid_scan import Grid, chisqr_with_best_scaling
from homodyne_dask.models.transport import Convention

MAX_EXPONENTS = 3
"""Most exponents returned, each with its best rate."""


def diffusion_candidates(
    grid: Grid, summary: BinnedAverages, theta: Float[np.ndarray, " p"], below: float
) -> list[Float[np.ndarray, " p"]]:
    """Return theta with the rates and exponents of the scan that have the lowest χ² at its shear.

    Values given by the user stay as in theta. below: points with a higher χ² are excluded.
    """
    chisqr = _chisqr(grid, summary, theta)
    best: dict[float, int] = {}
    for n in np.argsort(chisqr).tolist():
        best.setdefault(grid.diffusion_pairs[n][1], n)
    chosen = [n for n in list(best.values())[:MAX_EXPONENTS] if chisqr[n] < below]
    model = summary.problem.model
    points = [
        model.with_parts(theta, diffusion=(*grid.diffusion_pairs[n], grid.offset)) for n in chosen
    ]
    given = np.isfinite(grid.search.start)
    return [grid.search.inside(np.where(given, theta, point)) for point in points]


def _chisqr(
    grid: Grid, summary: BinnedAverages, theta: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " flow"]:
    """Return χ² of all bins for every (rate, alpha) of the scan."""
    power = 4 if summary.problem.convention is Convention.HOMODYNE else 2
    scales, strain = summary.scales(theta, summary.phi), summary.strain(theta)
    S = np.sinc(scales.s[:, None] * strain / np.pi) ** power
    model = summary.problem.model
    thetas = [model.with_parts(theta, diffusion=(*at, grid.offset)) for at in grid.diffusion_pairs]
    dC = np.array([summary.diffusion(at) for at in thetas])
    all_of, total = np.ones((1, len(strain))), np.zeros(len(dC))
    for value in np.unique(scales.k):
        E = np.exp(-value * dC)
        for b in np.flatnonzero(scales.k == value):
            total += chisqr_with_best_scaling(
                summary.c2[b] - 1, summary.weight[b], E * S[b], all_of
            )[:, 0]
    return total
