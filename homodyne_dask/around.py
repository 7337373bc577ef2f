"""Other strains and directions of flow, diffusion being what a small fit found.

Where shear turns the phase many times in a record, χ² has a minimum on either side of every
direction in which some bin sees no shear, and in the valleys γ̇ cos(phi0 - φ) = constant between them.
None is below the rest by much, a least-squares step does not cross from one to the next, and a grid
of the whole model cannot be that fine. Diffusion held, one product of matrices shows them all.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.averages import Summary
from homodyne_dask.grid import Grid, best_scaled, local_minima
from homodyne_dask.models.transport import Convention, bin_scales, frame_spacing

FINE, COARSE = 24, 10
"""Strains per decade, for γ̇(t) of the shape found and for bare power laws."""
STEP, WIDE = 1.0, 4.0
"""Steps of phi0 for the same, in degrees."""
BESIDE = (0.15, 0.3, 0.55, 0.8, 1.3)
"""Degrees from the directions in which a bin sees no shear, for the shape found."""
MOST_BESIDE = 36
"""With more angles than this the bins themselves lie closer than these."""
SMALLEST = 1e-3
"""cos(phi0 - φ) below this counts as this."""
OF_SHAPE, OF_POWERS = 6, 4
"""Points taken for the shape found and for bare power laws."""


class _Shape(NamedTuple):
    """γ̇(t) up to a factor."""

    amplitude: float
    beta: float
    offset: float


def around(grid: Grid, theta: Float[np.ndarray, " p"]) -> list[Float[np.ndarray, " p"]]:
    """Return other starts: theta with strains and phi0 at minima of χ² on the averages.

    What the user gave stays as in theta.
    """
    found = _points(grid, theta, [_Shape(*theta[3:6])], FINE, _fine_angles(grid))[:OF_SHAPE]
    if np.isnan(grid.search.start[3:6]).all():
        powers = [_Shape(grid.middle**-beta, beta, grid.shear_offset) for beta in grid.betas]
        angles = np.arange(-90.0, 90.0, WIDE) + WIDE / 2
        found += _points(grid, theta, powers, COARSE, angles)[:OF_POWERS]
    return found


def _points(
    grid: Grid,
    theta: Float[np.ndarray, " p"],
    shapes: list[_Shape],
    per_decade: int,
    angles: Float[np.ndarray, " angle"],
) -> list[Float[np.ndarray, " p"]]:
    """Return theta at the minima of the map of each shape, best first."""
    low, high = grid.search.lower[6], grid.search.upper[6]
    angles = angles[(angles >= low) & (angles <= high)]
    if np.isfinite(grid.search.start[6]) or not len(angles):
        angles = theta[6:7]
    scored = []
    for shape in shapes:
        factors, chisqr = _map(grid.summary, theta, shape, per_decade, angles)
        if np.isfinite(grid.search.start[3:6]).any():  # its size is the user's
            here = int(np.argmin(np.abs(factors - 1)))
            factors, chisqr = np.ones(1), chisqr[here : here + 1]
        for n, m in local_minima(chisqr):
            size = factors[n]
            shear = [shape.amplitude * size, shape.beta, shape.offset * size, angles[m]]
            scored.append((chisqr[n, m], np.array([*theta[:3], *shear])))
    scored.sort(key=lambda entry: entry[0])
    given = np.isfinite(grid.search.start)
    return [grid.search.inside(np.where(given, theta, point)) for _, point in scored]


def _map(
    summary: Summary,
    theta: Float[np.ndarray, " p"],
    shape: _Shape,
    per_decade: int,
    angles: Float[np.ndarray, " angle"],
) -> tuple[Float[np.ndarray, " factor"], Float[np.ndarray, "factor angle"]]:
    """Return factors of the shape and χ² for each of them and each phi0.

    Factors are evenly spaced on a log scale, so that |cos(phi0 - φ)| of a bin is a shift along it.
    """
    problem = summary.problem
    spacing = frame_spacing(summary.time, problem.convention)
    flat = np.array([*theta[:3], *shape, 0.0])
    aligned = np.zeros_like(summary.phi)
    scales = bin_scales(
        problem.model, problem.convention, flat, summary.q, aligned, problem.gap, spacing
    )
    k, s = scales.k, scales.s
    rows = summary.differences(flat)
    dC, strains = rows[-1], rows[-2] * np.abs(s).max()
    step = np.log(10) / per_decade
    factors, fine = _factors(strains, len(summary.time), step)
    power = 4 if problem.convention is Convention.HOMODYNE else 2
    S = np.array([np.sinc(factor * strains / np.pi) ** power for factor in fine])
    first = len(fine) - len(factors) - 1
    chisqr = np.zeros((len(factors), len(angles)))
    for b in range(len(summary.q)):
        E = np.exp(-k[b] * dC)[None]
        row = best_scaled(summary.c2[b] - 1, summary.weight[b], E, S)[0]
        seen = np.abs(np.cos(np.deg2rad(angles - summary.phi[b])) * s[b]) / np.abs(s).max()
        shift = np.log(np.maximum(seen, SMALLEST)) / step
        below = np.floor(shift).astype(int)
        at = first + np.arange(len(factors))[:, None] + below
        chisqr += row[at] * (1 - (shift - below)) + row[at + 1] * (shift - below)
    return factors, chisqr


def _factors(
    strains: Float[np.ndarray, " cell"], frames: int, step: float
) -> tuple[Float[np.ndarray, " factor"], Float[np.ndarray, " fine"]]:
    """Return factors that give strains from 0.2 over the record to 20 per frame, and those bins see."""
    largest = max(np.abs(strains).max(), np.finfo(float).tiny ** 0.5)
    low = np.floor(np.log(0.2 / largest) / step)
    high = np.ceil(np.log(20 * frames / largest) / step)
    reach = np.ceil(-np.log(SMALLEST) / step)
    fine = np.exp(step * np.arange(low - reach, high + 2))
    return fine[int(reach) : -1], fine


def _fine_angles(grid: Grid) -> Float[np.ndarray, " angle"]:
    """Return directions evenly, and close to each in which a bin sees no shear."""
    angles = np.arange(-90.0, 90.0, STEP) + STEP / 2
    blind = np.unique(np.round(grid.summary.phi + 90.0, 3))
    if len(blind) > MOST_BESIDE:
        return angles
    beside = np.array([sign * away for away in BESIDE for sign in (-1, 1)])
    close = np.mod(blind[:, None] + beside + 90.0, 180.0) - 90.0
    return np.unique(np.concatenate([angles, close.ravel()]))
