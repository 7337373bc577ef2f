"""Other optima than that of the fit: no data tell the sign of a shear rate, and few angles its direction."""

import numpy as np

from homodyne_dask.apps.posterior.chains import LogDensity, Places, Roots, Values
from homodyne_dask.apps.posterior.log_density import Target, rate_values

_APART, _MOST = 4.0, 4
"""Distance of an optimum from others, in widths; optima."""
_POINTS, _LEVELS = 64, 8
"""Points along a period; searches between them for a maximum."""


def modes_of(
    target: Target, log_density: LogDensity, least: float, middle: Values, root: Roots
) -> Places:
    """Return the optimum, `middle`, and others as dense, in z; root: of the covariance there.
    least: log density from which one counts.

    They are sought with one parameter after the other of another sign, or elsewhere in its period; of a rate
    the value at the middle time.
    """
    moves, modes = target.moves, middle[None]
    laws = {n: law for law in target.at.laws for n in law.at}
    for n, prior in enumerate(target.priors):
        turned = moves.back(modes)
        if np.isfinite(prior.period):
            turned = np.concatenate([_along(target, log_density, x, n) for x in turned])
        elif n not in laws:
            turned[:, n] *= -1
        elif n == laws[n].at[2]:
            turned[:, n] -= 2 * rate_values(laws[n], turned[:, laws[n].at])[:, 1]
        turned = moves.of(turned[moves.inside(turned)])
        for z in turned[log_density(turned) > least] if len(turned) else ():
            apart = np.linalg.norm(np.linalg.solve(root, (modes - z).T), axis=0).min()
            if apart > _APART and len(modes) < _MOST:
                modes = np.concatenate([modes, z[None]])
    return modes


def _along(target: Target, log_density: LogDensity, x: Values, n: int) -> Places:
    """Return x with a periodic parameter at each maximum along its period, refined."""

    def moved_to(values: Values) -> Places:
        there = np.tile(x, (len(values), 1))
        there[:, n] = values
        return there

    step = target.priors[n].period / _POINTS
    grid = target.moves.lower[n] + step * (np.arange(_POINTS) + 0.5)
    there = log_density(target.moves.of(moved_to(grid)))
    tops = grid[(there >= np.roll(there, 1)) & (there > np.roll(there, -1))]
    for _ in range(_LEVELS):
        near = tops[:, None] + step * np.linspace(-1, 1, 9)
        best = log_density(target.moves.of(moved_to(near.ravel()))).reshape(near.shape).argmax(1)
        tops, step = near[np.arange(len(tops)), best], step / 4
    return moved_to(tops)
