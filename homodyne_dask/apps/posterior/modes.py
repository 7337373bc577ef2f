"""Other optima than that of the fit: no data tell the sign of a shear rate, and few angles its direction."""

import numpy as np
from jaxtyping import Float

from homodyne_dask.apps.posterior.chains import LogDensity, StudentT
from homodyne_dask.apps.posterior.log_density import Target, rate_values

_REACH, _APART = 12.0, 16.0
"""Log density below the optimum, and squared distance from other modes, in widths, at which one counts."""
_POINTS, _LEVELS, _MOST = 64, 8, 4
"""Points along a period, and of each search for a maximum between them; such searches; modes."""


def modes_of(target: Target, log_density: LogDensity, by: StudentT) -> Float[np.ndarray, "mode u"]:
    """Return distances in z of the optimum and of others, as dense.

    They are sought with one parameter after the other of another sign, or elsewhere in its period; of a rate
    the value at the middle time. by: of the width of the optimum.
    """
    moves, x = target.moves, target.at.x[None]
    first = moves.of(x)
    best = (
        log_density(first)[0]
        if np.isfinite(log_density(first)[0])
        else log_density(by.mean[None])[0]
    )
    alone = set(range(x.shape[1])) - {n for law in target.at.laws for n in law.at}
    for n in [*sorted(alone), *(law.at[2] for law in target.at.laws)]:
        turned = x.copy()
        if np.isfinite(moves.upper[n] - moves.lower[n]) and _periodic(target, n):
            turned = np.concatenate([_along(target, log_density, of, n) for of in x])
        elif n in alone:
            turned[:, n] *= -1
        else:
            law = next(law for law in target.at.laws if n in law.at)
            turned[:, n] -= 2 * rate_values(law, x[:, law.at])[:, 1]
        turned = turned[moves.inside(turned)]
        for z in moves.of(turned):
            known = by._replace(modes=moves.of(x) - first, mean=first[0])
            near = log_density(z[None])[0] > best - _REACH
            if near and known.distances(z[None]).min() > _APART and len(x) < _MOST:
                x = np.concatenate([x, moves.back(z)[None]])
    return moves.of(x) - first


def _periodic(target: Target, n: int) -> bool:
    return bool(np.isfinite(target.priors[n].period))


def _along(
    target: Target, log_density: LogDensity, x: Float[np.ndarray, " x"], n: int
) -> Float[np.ndarray, "maximum x"]:
    """Return x with a periodic parameter at each maximum of its period but the highest, refined."""
    period = target.priors[n].period

    def densities(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        tried = np.tile(x, (len(values), 1))
        tried[:, n] = values
        return log_density(target.moves.of(tried))

    step = period / _POINTS
    grid = target.moves.lower[n] + step * (np.arange(_POINTS) + 0.5)
    there = densities(grid)
    tops = grid[(there >= np.roll(there, 1)) & (there > np.roll(there, -1))]
    for _ in range(_LEVELS):
        near = tops[:, None] + step * np.linspace(-1, 1, 9)
        best = densities(near.ravel()).reshape(near.shape).argmax(1)
        tops, step = near[np.arange(len(tops)), best], step / 4
    found = np.tile(x, (len(tops), 1))
    found[:, n] = tops
    return found
