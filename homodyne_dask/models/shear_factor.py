"""f at pairs (t1, t2), and the derivative fields, from differences of the tables.

Arrays are of JAX, traced or not, or of NumPy.
"""

from typing import NamedTuple

from jaxtyping import Float

from homodyne_dask.models.sincos import Array, sin_cos, sinc_and_slope
from homodyne_dask.models.transport import Convention

SMOOTHING = 1e-12
FLOOR_G1 = 1e-10
"""Both of the `homodyne` convention, in its units (see `transport`)."""


def decay(convention: Convention, k: Array | float, dC: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return exp(-k ΔC), the part of f that all bins of one q share."""
    xp = dC.__array_namespace__()
    if convention is Convention.HOMODYNE:
        return xp.exp(2 * xp.maximum(-0.5 * k * xp.sqrt(dC * dC + SMOOTHING), -700.0))
    return xp.exp(-k * dC)


def strain(convention: Convention, dG: Float[Array, "..."]) -> tuple[Array, Array]:
    """Return ΔG as the shear factor takes it and its derivative by ΔG."""
    xp = dG.__array_namespace__()
    if convention is Convention.HOMODYNE:
        smooth = xp.sqrt(dG * dG + SMOOTHING)
        return smooth, dG / smooth
    return dG, xp.ones_like(dG)


class Wave(NamedTuple):
    """x = s·ΔG with its sine, cosine (up to one common sign) and inverse."""

    x: Array
    sine: Array
    cosine: Array
    inverse: Array


def wave(x: Float[Array, "..."]) -> Wave:
    """Return x with its sine, cosine and inverse."""
    return Wave(x, *sin_cos(x), 1 / x)


def sheared(
    convention: Convention, E: Float[Array, "..."], at: Wave, *, far: bool = False
) -> tuple[Array, Array]:
    """Return f = E·S(x) and E·S'(x), E = exp(-k ΔC); `far` as in `sinc_and_slope`."""
    sinc, slope = sinc_and_slope(*at, far=far)
    if convention is Convention.HOMODYNE:
        square = sinc * sinc
        f, v = E * square * square, 4.0 * E * square * sinc * slope
        above, xp = f > FLOOR_G1**2, f.__array_namespace__()
        return xp.where(above, f, FLOOR_G1**2), xp.where(above, v, 0.0)
    return E * sinc * sinc, 2.0 * E * sinc * slope


def unsheared(convention: Convention, E: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return f of the static model."""
    if convention is Convention.HOMODYNE:
        return E.__array_namespace__().maximum(E, FLOOR_G1**2)
    return E
