"""Draws of amplitude a, exponent b and offset c of a rate a t^b + c whose values at three times are normal.

For a known exponent the three values are linear in a and c. So the density over b, with c integrated between
its bounds and a summed over cells, is tabulated, and b drawn from the table. At that b the density over a is
tabulated, and a drawn; and c there, from a truncated normal distribution. The draws are independent, inside
of their bounds, and their density is known, also where the data say little and bounds and priors say most.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.machine.cores_and_cgroup_limits import on_cores
from homodyne_dask.models.parameter_priors import (
    SMALLEST,
    AnyPrior,
    log_probability,
    truncated_normal,
)
from homodyne_dask.models.rate_forms import PowerLaw

_EXPONENTS, _AMPLITUDES, _FINE = 48, 16, 64
"""Cells of a table: of exponents, of amplitudes at each, and of amplitudes at the exponent that is drawn."""
_WIDTHS = 6.0
"""Standard deviations to both sides of an amplitude that a table covers, within its bounds."""
_SEARCHED = 32
"""Draws of a batch by which its range of exponents is found."""
_LEAST_MASS = 1e-7
_BATCH = 250
"""Draws that share a range of exponents, of nearly the same tau: cells are then as fine as a density."""


class _Tables(NamedTuple):
    """The densities of some draws over exponent b and amplitude a, c integrated."""

    mass: Float[np.ndarray, "draw b a"]
    """Of every cell, that of the largest being 1."""
    lowest: Float[np.ndarray, "draw b"]
    """Of a; of log a where the prior of a is one of its log."""
    width: Float[np.ndarray, "draw b"]
    """Of a cell, in the same."""


class _Values(NamedTuple):
    """What draws know of the three values: normal, with a prior of c that is normal."""

    law: PowerLaw
    priors: tuple[AnyPrior, AnyPrior, AnyPrior]
    """Of a, b and c."""
    mean: Float[np.ndarray, "draw 3"]
    precision: Float[np.ndarray, "3 3"]
    tau: Float[np.ndarray, " draw"]
    """The precision of a draw is this times that."""
    c: tuple[float, float]
    """Mean and weight 1/sd² of the prior of c; weight 0 for none."""

    def of(self, draws: Int[np.ndarray, " part"]) -> "_Values":
        """Return these of some draws."""
        return self._replace(mean=self.mean[draws], tau=self.tau[draws])


def power_law_draws(
    law: PowerLaw,
    priors: tuple[AnyPrior, AnyPrior, AnyPrior],
    mean: Float[np.ndarray, "draw 3"],
    precision: Float[np.ndarray, "3 3"],
    tau: Float[np.ndarray, " draw"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "draw 3"], Float[np.ndarray, " draw"]]:
    """Return a, b and c for each mean of the three values, and the log of their density.

    priors: of a, b and c; their ends bound the draws. The precision of the values is tau times `precision`.
    """
    of_c = priors[2].normal_part(log=False) or (0.0, 0.0)
    values = _Values(law, priors, mean, precision, tau, of_c)
    x, log_q = np.empty((len(tau), 3)), np.empty(len(tau))
    batches = np.array_split(np.argsort(tau), -(-len(tau) // _BATCH))
    each = zip(batches, rng.spawn(len(batches)), strict=True)
    made = on_cores(lambda of: _drawn(values.of(of[0]), of[1]), each)
    for some, (drawn, density) in zip(batches, made, strict=True):
        x[some], log_q[some] = drawn, density
    return x, log_q


def _range_of_exponents(values: _Values) -> Float[np.ndarray, " edge"]:
    """Return the edges of cells of exponents, over where the density is on average of the draws."""
    n, (low, high) = len(values.tau), values.priors[1].core
    values = values.of(np.linspace(0, n - 1, min(n, _SEARCHED)).astype(int))
    edges = np.linspace(low, high, _EXPONENTS + 1)
    for _ in range(2):
        middles = (edges[1:] + edges[:-1]) / 2
        share = _tables(values, middles, _AMPLITUDES).mass.sum(2)
        share = (share / share.sum(1, keepdims=True)).mean(0)
        some = np.flatnonzero(share > _LEAST_MASS)
        first, last = max(some[0] - 1, 0), min(some[-1] + 2, _EXPONENTS)
        edges = np.linspace(edges[first], edges[last], _EXPONENTS + 1)
    return edges


def _tables(values: _Values, b: Float[np.ndarray, "*b"], cells: int) -> _Tables:
    """Return the tables at exponents b.

    b: exponents for all draws, or of shape (draw, 1) those of each.
    """
    law, priors = values.law, values.priors
    g = law.times ** b[..., None]
    P, tau = values.precision, values.tau[:, None]
    mean_c, weight_c = values.c
    cc = tau * P.sum() + weight_c
    aa, ac = tau * (g @ P * g).sum(-1), tau * (g @ P.sum(1))
    am = tau * ((values.mean @ P)[:, None, :] * g).sum(-1)
    cm = tau * (values.mean @ P.sum(1))[:, None] + weight_c * mean_c
    # near b = 0 amplitude and offset are the same, and what is left of aa is rounding
    curvature = np.maximum(aa - ac**2 / cc, np.finfo(float).eps * aa)
    centre, deviation = (am - ac * cm / cc) / curvature, 1 / np.sqrt(curvature)
    low, high = priors[0].core
    least = low if low > 0 else SMALLEST * high
    lowest = np.clip(centre - _WIDTHS * deviation, least, high * (1 - 1e-3))
    highest = np.clip(centre + _WIDTHS * deviation, lowest * (1 + 1e-3), high)
    if priors[0].log:
        lowest, highest = np.log(lowest), np.log(highest)
    width = (highest - lowest) / cells
    a = lowest[..., None] + width[..., None] * (np.arange(cells) + 0.5)
    # the density at the best a and c of an exponent, but for what all exponents share
    top = centre**2 * curvature / 2 + priors[1].log_density(b)
    log_mass = (top + np.log(width))[..., None]
    if priors[0].log:
        log_mass, a = log_mass + a, np.exp(a)
    log_mass = log_mass - 0.5 * ((a - centre[..., None]) / deviation[..., None]) ** 2
    log_mass += priors[0].log_density(a)
    c = (cm / cc)[..., None] - (ac / cc)[..., None] * a
    ends = ((end - c) * np.sqrt(cc)[..., None] for end in priors[2].support)
    log_mass += log_probability(*ends)
    return _Tables(np.exp(log_mass - log_mass.max((1, 2), keepdims=True)), lowest, width)


def _cell(
    mass: Float[np.ndarray, "draw cell"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, " draw"], Float[np.ndarray, " draw"]]:
    """Return a cell for each draw by the masses of its cells, and the log of its probability."""
    n, cells = mass.shape
    below = mass.cumsum(1)
    chosen = (below < (rng.random(n) * below[:, -1])[:, None]).sum(1).clip(0, cells - 1)
    return chosen, np.log(mass[np.arange(n), chosen] / below[:, -1])


def _drawn(
    values: _Values, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "draw 3"], Float[np.ndarray, " draw"]]:
    edges, law, priors = _range_of_exponents(values), values.law, values.priors
    n, step = len(values.mean), edges[1] - edges[0]
    by_cell = _tables(values, edges[:-1] + step / 2, _AMPLITUDES).mass
    cell, log_q = _cell(by_cell.sum(2), rng)
    b = edges[cell] + step * rng.random(n)
    fine = _tables(values, b[:, None], _FINE)
    cell, log_p = _cell(fine.mass[:, 0], rng)
    width, (mean_c, weight_c) = fine.width[:, 0], values.c
    a = fine.lowest[:, 0] + width * (cell + rng.random(n))
    log_q += log_p - np.log(step * width)
    if priors[0].log:
        log_q, a = log_q - a, np.exp(a)
    left = values.mean - a[:, None] * law.times ** b[:, None]
    cc = values.tau * values.precision.sum() + weight_c
    centre = (values.tau * (left @ values.precision.sum(1)) + weight_c * mean_c) / cc
    ends = [(end - centre) * np.sqrt(cc) for end in priors[2].support]
    z = truncated_normal(rng, n, *ends)
    log_q += -(z**2) / 2 + np.log(cc / (2 * np.pi)) / 2 - log_probability(*ends)
    return np.stack([a, b, centre + z / np.sqrt(cc)], axis=1), log_q
