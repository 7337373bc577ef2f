"""sin(x)/x and its slope against 50 digits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from homodyne_dask.models.shear_factor import sin_cos, sinc_and_slope

RNG = np.random.default_rng(7)
NEAR_MULTIPLES = np.array(
    [n * np.pi * (1 + e) for n in (1, 2, 3, 10, 317, 9999, 10**5) for e in (0, 1e-15, -3e-12, 1e-6)]
)
ARGUMENTS = [
    ("zero and tiny", np.array([0.0, -0.0, 5e-324, 1e-300, 1e-160, -1e-20, 1e-8])),
    ("around the first reduction", np.linspace(np.pi / 2 - 1e-3, np.pi / 2 + 1e-3, 41)),
    ("small", np.concatenate([-np.geomspace(1e-6, 1.5, 60), np.geomspace(1e-6, 1.5, 60)])),
    ("a few turns", RNG.uniform(-30, 30, 200)),
    ("large", RNG.uniform(-1e6, 1e6, 200)),
    ("near multiples of pi", np.concatenate([NEAR_MULTIPLES, -NEAR_MULTIPLES])),
]


def exact(x: float) -> tuple[float, float]:
    x = mpmath.mpf(float(x))
    if abs(x) < 1e-15:  # the difference below would need more digits
        return mpmath.mpf(1), -x / 3
    sinc = mpmath.sin(x) / x
    return sinc, (mpmath.cos(x) - sinc) / x


@jax.jit
def both(x):
    return sinc_and_slope(x, *sin_cos(x), 1 / x)


def measured(x, kind, library="jax"):
    if library == "numpy":
        with np.errstate(all="ignore"):
            return sinc_and_slope(x.astype(kind), *sin_cos(x.astype(kind)), 1 / x.astype(kind))
    with jax.enable_x64(True):
        return [np.asarray(part) for part in both(jnp.asarray(x, kind))]


def off(found, wanted, size, eps) -> float:
    error = abs(mpmath.mpf(float(found)) - wanted)
    return 0.0 if error == 0 else float(error / max(size * eps, mpmath.mpf(5e-324)))


@pytest.mark.long
@pytest.mark.parametrize(("word", "x"), ARGUMENTS, ids=[word for word, _ in ARGUMENTS])
@pytest.mark.parametrize(
    ("library", "kind", "largest", "ulp"),
    [("jax", np.float64, 1e6, 4), ("jax", np.float32, 1e3, 4), ("numpy", np.float64, 1e6, 4)],
    ids=["64", "32", "NumPy"],
)
def test_sinc_and_slope_are_right_to_four_ulp(word, x, library, kind, largest, ulp):
    x = x[np.abs(x) <= largest].astype(kind)
    eps = float(np.finfo(kind).eps)
    sinc, slope = measured(x, kind, library)
    with mpmath.workdps(50):
        for at, s, d in zip(x, sinc, slope, strict=True):
            wanted, steep = exact(at)
            sign = 1 if abs(float(wanted) - s) <= abs(float(wanted) + s) else -1
            # one common sign is lost; near zeros of sin the size is that of the rounded argument
            floor = 1 / max(1.0, abs(float(at)))
            assert off(s, sign * wanted, max(abs(wanted), floor), eps) <= ulp, (at, s)
            assert off(d, sign * steep, max(abs(steep), min(abs(at), floor)), eps) <= ulp, (at, d)
