"""A start on the other side of γ̇ = 0, where χ² has a minimum of its own.

f depends on ΔG² alone, so γ̇(t) and -γ̇(t) are the same flow (`physical`). With gamma_dot_t0 above 0 the rates
a t^b + c that are positive and the mirrored ones, -a t^b - c where the rate is negative, are two families: a
rate that rises with log t ever faster is in the first, one that rises ever more slowly in the second. They
meet at b = 0, where a and c diverge, so a fit does not go from one to the other.
"""

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.start.grid import Grid
from homodyne_dask.models.transport import Convention

MIN_EXPONENT = 0.5
"""Smallest |beta| of the start: closer to 0 a and c are so large that fits hardly change them."""


def mirrored_shear(grid: Grid, theta: Float[np.ndarray, " p"]) -> list[Float[np.ndarray, " p"]]:
    """Return theta with the opposite shear rate: in the middle of the record value and slope of -γ̇.

    Nothing where the user gave part of the rate, or where rates are not negative (`homodyne`).
    """
    problem, search = grid.summary.problem, grid.search
    model = problem.model
    given = not np.isnan(search.start[model.shear_rate]).all()
    a, b, c = theta[model.shear_rate]
    if given or problem.convention is Convention.HOMODYNE or b == 0:
        return []
    power = grid.middle**b
    exponent = -np.copysign(max(abs(b), MIN_EXPONENT), b)
    growth = -a * b * power / exponent
    rate = growth * grid.middle**-exponent, exponent, -(a * power + c) - growth
    return [search.inside(model.with_parts(theta, shear_rate=rate))]
