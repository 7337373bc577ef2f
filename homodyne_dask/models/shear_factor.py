"""f at pairs (t1, t2), and the derivative fields, from differences of the tables; sinc and its slope.

Arrays are of JAX, traced or not, or of NumPy. XLA's own float64 sin is not vectorised: sines and cosines
are in plain arithmetic here, with one common unknown sign, that of the reduction modulo pi. Every use
is even in it (sinc², sinc⁴, products of sines and cosines), which saves the selection of quadrants.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.polynomial import Chebyshev

from homodyne_dask.models.transport import Convention, Shear

NEAR = 0.5
"""|x| below which sinc and its slope are taken from their series."""
_PI = Fraction(314159265358979323846264338327950288419716939937510582097494459, 10**62)
_TERMS = {"float64": 11, "float32": 7}
_NEAR_TERMS = {"float64": 7, "float32": 4}
SMOOTHING = 1e-12
FLOOR_G1 = 1e-10
"""Both of the `homodyne` convention, in its units (see `transport`)."""
Array = Any
"""Of JAX, traced or not, or of NumPy. No `type` statement: the oldest jaxtyping cannot read its aliases."""


def _sinc_series(terms: int) -> list[float]:
    return [(-1) ** k / math.factorial(2 * k + 1) for k in range(terms)]


def _slope_series(terms: int) -> list[float]:
    return [(-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, terms + 1)]


def _split_pi(bits: int) -> tuple[float, float, float]:
    first = Fraction(math.floor(_PI * 2 ** (bits - 2)), 2 ** (bits - 2))
    second = Fraction(math.floor((_PI - first) * 2 ** (2 * bits)), 2 ** (2 * bits))
    return float(first), float(second), float(_PI - first - second)


_PARTS_OF_PI = {"float64": _split_pi(33), "float32": _split_pi(11)}


def _horner(z: Array, coefficients: list[float]) -> Array:
    total = z.__array_namespace__().full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= z
        total += coefficient
    return total


def sin_cos(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return (+-sin x, +-cos x) with one common sign, in the precision of x, for |x| < 1e6.

    With r = x - n pi and z = r²: sin r = r P(z), cos r = P(z) + z D(z), both Taylor series.
    The error is about one unit in the last place of 1. NumPy's tangent is vectorised, its sine is not.
    """
    if isinstance(x, np.ndarray):
        tangent = np.tan(x)
        cosine = 1 / np.sqrt(1 + tangent * tangent)
        return tangent * cosine, cosine
    dtype = str(x.dtype)
    first, second, third = _PARTS_OF_PI[dtype]
    n = x.__array_namespace__().round(x * (1 / math.pi))
    # n times the first part of pi is exact, for it has few bits: little is lost in the difference
    r = ((x - n * first) - n * second) - n * third
    z = r * r
    P = _horner(z, _sinc_series(_TERMS[dtype]))
    return r * P, P + z * _horner(z, _slope_series(_TERMS[dtype]))


def sinc_and_slope(
    x: Float[Array, "..."],
    sine: Float[Array, "..."],
    cosine: Float[Array, "..."],
    inverse: Float[Array, "..."],
    *,
    far: bool = False,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return sin(x)/x and its slope from x, ± sin x, cos x and 1/x; by series near 0, but not where `far`."""
    if far:
        sinc = sine * inverse
        return sinc, (cosine - sinc) * inverse
    dtype, xp = str(x.dtype), x.__array_namespace__()
    z = x * x
    near = z < NEAR**2
    sinc = xp.where(near, _horner(z, _sinc_series(_NEAR_TERMS[dtype])), sine * inverse)
    # near 0 the slope would be the difference of two numbers near 1
    series = x * _horner(z, _slope_series(_NEAR_TERMS[dtype]))
    return sinc, xp.where(near, series, (cosine - sinc) * inverse)


def _parabolic_series(terms: int) -> list[float]:
    """Return the coefficients of |∫₀¹ exp(2i x u²) du|² = ∬ cos 2x(u² - v²) du dv in x²."""

    def moment(n: int) -> Fraction:
        terms = (
            Fraction((-1) ** j * math.comb(n, j), (2 * n - 2 * j + 1) * (2 * j + 1))
            for j in range(n + 1)
        )
        return sum(terms, Fraction(0))

    return [float((-4) ** k * moment(2 * k) / math.factorial(2 * k)) for k in range(terms)]


def _beyond_wall() -> tuple[list[float], list[float]]:
    """Return polynomials in `_place` of A and B: ∫₁^∞ exp(i a (u² - 1)) du = (B/a + i A) / 2a, a = 2x.

    A = 2/√π ∫₀^∞ exp(-y²) / (1 + y⁴/a²) dy, B the same with y² before the quotient: the auxiliary functions
    of Fresnel integrals (Abramowitz and Stegun 7.3), by the trapezoid rule.
    """
    y = 0.2 * np.arange(45)
    weight = 0.4 / math.sqrt(math.pi) * np.exp(-y * y) * np.where(y > 0, 1.0, 0.5)

    def of(power: int) -> list[float]:
        def values(place: np.ndarray) -> np.ndarray:
            root = 3 * math.sqrt(PARABOLA_NEAR) / (1 - place) - math.sqrt(PARABOLA_NEAR) / 2
            return (weight * y**power / (1 + (y * y / (2 * root[:, None] ** 2)) ** 2)).sum(1)

        return (
            Chebyshev.interpolate(values, 21).convert(kind=np.polynomial.Polynomial).coef.tolist()
        )

    return of(0), of(2)


PARABOLA_NEAR = 2.0
"""|x| below which S of a parabolic profile is taken from its series."""
_PARABOLA = _parabolic_series(16)
_PARABOLA_SLOPE = [2 * k * c for k, c in enumerate(_PARABOLA)][1:]
_TAIL_A, _TAIL_B = _beyond_wall()


def nearest_far(shear: Shear) -> float:
    return PARABOLA_NEAR if shear is Shear.PARABOLIC else NEAR


def parabolic_factor(phase: "Wave", *, far: bool = False) -> tuple[Array, Array]:
    """Return S(x) = |∫₀¹ exp(2i x u²) du|² and its derivative; `far` as in `sinc_and_slope`.

    Far from zero it is the integral to infinity less that from 1, with a = 2|x| and r = √(π/a):
    S = [½ + f² + g² - (f + g) cos a + (f - g) sin a] r²/2, f = A/√(2πa), g = B/(a √(2πa)),
    and a S' / 2 is the projection of that integral on the phase at the wall (u = 1), less S.
    """
    x, xp = phase.x, phase.x.__array_namespace__()
    size = abs(x)
    near = size < PARABOLA_NEAR
    bound = size if far else xp.where(near, PARABOLA_NEAR, size)
    root, inverse = xp.sqrt(bound), 0.5 / bound
    place = 1 - 3 * math.sqrt(PARABOLA_NEAR) / (root + math.sqrt(PARABOLA_NEAR) / 2)
    f = _horner(place, _TAIL_A) * (0.5 / math.sqrt(math.pi)) / root
    g = _horner(place, _TAIL_B) * (0.5 / math.sqrt(math.pi)) * inverse / root
    sine = 2 * phase.sine * phase.cosine * xp.sign(x)
    cosine = (phase.cosine - phase.sine) * (phase.cosine + phase.sine)
    S = (0.5 + f * f + g * g - (f + g) * cosine + (f - g) * sine) * (0.5 * math.pi * inverse)
    at_wall = (0.5 * (cosine + sine) - g) * xp.sqrt(0.5 * math.pi * inverse)
    slope = xp.sign(x) * 2 * inverse * (at_wall - S)
    if far:
        return S, slope
    z = xp.where(near, x * x, 0.0)
    series = x * _horner(z, _PARABOLA_SLOPE)
    return xp.where(near, _horner(z, _PARABOLA), S), xp.where(near, series, slope)


def decay(convention: Convention, k: Array | float, dC: Float[Array, "..."]) -> Float[Array, "..."]:
    xp = dC.__array_namespace__()
    if convention is Convention.HOMODYNE:
        return xp.exp(2 * xp.maximum(-0.5 * k * xp.sqrt(dC * dC + SMOOTHING), -700.0))
    return xp.exp(-k * dC)


def strain(convention: Convention, dG: Float[Array, "..."]) -> tuple[Array, Array]:
    xp = dG.__array_namespace__()
    if convention is Convention.HOMODYNE:
        smooth = xp.sqrt(dG * dG + SMOOTHING)
        return smooth, dG / smooth
    return dG, xp.ones_like(dG)


class Wave(NamedTuple):
    x: Array
    sine: Array
    cosine: Array
    inverse: Array


def wave(x: Float[Array, "..."]) -> Wave:
    return Wave(x, *sin_cos(x), 1 / x)


def sheared(
    shear: Shear, convention: Convention, E: Float[Array, "..."], phase: Wave, *, far: bool = False
) -> tuple[Array, Array]:
    """Return f = E·S(x) and E·S'(x), E = exp(-k ΔC); `far`: no |x| is below `nearest_far`."""
    if shear is Shear.PARABOLIC:
        S, by_x = parabolic_factor(phase, far=far)
        return E * S, E * by_x
    sinc, slope = sinc_and_slope(*phase, far=far)
    if convention is Convention.HOMODYNE:
        square = sinc * sinc
        f, v = E * square * square, 4.0 * E * square * sinc * slope
        above, xp = f > FLOOR_G1**2, f.__array_namespace__()
        return xp.where(above, f, FLOOR_G1**2), xp.where(above, v, 0.0)
    return E * sinc * sinc, 2.0 * E * sinc * slope


def unsheared(convention: Convention, E: Float[Array, "..."]) -> Float[Array, "..."]:
    if convention is Convention.HOMODYNE:
        return E.__array_namespace__().maximum(E, FLOOR_G1**2)
    return E
