"""Shear factors: sin(x)/x and its slope against 50 digits; flow between walls at rest, with fits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models.shear_factor import (
    PARABOLA_NEAR,
    parabolic_factor,
    sin_cos,
    sinc_and_slope,
    wave,
)
from tests.synthetic import GAP, Q, Scans, angles, measured, store

THETA = [2500.0, 0, 0, 8e-3, 0, 0, 5.0]
JOINT = np.nextafter(PARABOLA_NEAR, [0, 3])


def averaged(x):
    """|∫₀¹ exp(2i x u²) du|² and its derivative by x: Gauss's rule on parts of a turn or less."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    parts = int(abs(x)) + 2
    u = (np.arange(parts)[:, None] + (nodes + 1) / 2) / parts
    waves = np.exp(2j * x * u * u) * (weights / (2 * parts))
    mean, slope = waves.sum(), (2j * u * u * waves).sum()
    return abs(mean) ** 2, 2 * (mean.conjugate() * slope).real


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_the_factor_and_its_slope_are_those_of_an_average_over_the_profile(library):
    x = np.array([0.0, 1e-300, -1e-9, 1e-3, 0.3, -1.5, *JOINT, -2.5, 7, 30.2, -444, 5e3, 5e4, 1e5])
    wanted = np.transpose([averaged(one) for one in x])
    if library == "numpy":
        with np.errstate(divide="ignore"):
            found = parabolic_factor(wave(x))
    else:
        with jax.enable_x64(True):
            found = jax.jit(lambda x: parabolic_factor(wave(x)))(jnp.asarray(x))
            of_jax = jax.vmap(jax.grad(lambda x: parabolic_factor(wave(x))[0]))(jnp.asarray(x))
        np.testing.assert_allclose(of_jax, wanted[1], atol=1e-12, rtol=0)
    np.testing.assert_allclose(found, wanted, atol=1e-12, rtol=0)


def flow(frames=80, sigma=0.02) -> Scans:
    """Noise, and c2 from 4000 layers of the gap, each with the displacement of its place."""
    made = measured(THETA[:3], frames, angles(10), dt=0.1, sigma=sigma)
    height = (np.arange(4000) + 0.5) / 4000 - 0.5
    lag = np.abs(made.time[:, None] - made.time)
    lags, place = np.unique(np.round(lag, 6), return_inverse=True)
    moved = 0.25 * THETA[3] * GAP * np.outer(lags, 1 - 4 * height**2)
    for b, phi in enumerate(made.phi):
        field = np.exp(1j * Q * np.cos(np.deg2rad(THETA[6] - phi)) * moved).mean(1)
        factor = (np.abs(field) ** 2)[place].reshape(lag.shape)
        made.c2[b] += made.contrast[b] * np.exp(-(Q**2) * THETA[0] * lag) * (factor - 1)
    return made


@pytest.mark.long
def test_a_flow_made_of_layers_is_found_by_the_parabola_and_not_by_the_linear_profile(tmp_path):
    scan = store(flow(), tmp_path)
    right, linear = (hd.fit(scan, name, gap="200 um") for name in ("poiseuille", "couette"))
    assert right.converged
    for at, name in (0, "D0"), (3, "gamma_dot_t0"), (6, "phi0"):
        assert abs(right.params[name].value - THETA[at]) < 4 * right.params[name].stderr
    assert not right.misfit
    assert linear.misfit


@pytest.mark.long
def test_chisqr_is_that_of_the_predicted_matrices(tmp_path):
    made = flow(40)
    scan = store(made, tmp_path)
    fixed = {"gamma_dot_t0": THETA[3], "phi0": THETA[6]}
    result = hd.fit(scan, "poiseuille", gap="200 um", initial={"D0": 2000.0}, fixed=fixed)
    theta, total, upper = fixed | {"D0": result.params["D0"].value}, 0.0, np.triu_indices(40, 1)
    of_fit = hd.predict("poiseuille", theta, made.time, q=Q, phi=made.phi, gap="200 um")
    for f, y, sigma in zip(of_fit, made.c2, scan.sigma_row, strict=True):
        X = np.stack([np.ones(len(upper[0])), f[upper]], 1) / sigma[0] ** 2
        total += np.linalg.lstsq(X, y[upper] / sigma[0] ** 2)[1].sum()
    assert result.chisqr == pytest.approx(total, rel=1e-6)


def test_other_conventions_and_sums_of_fields_are_refused(tmp_path):
    scan = store(measured(THETA[:3], 30, angles(3)), tmp_path)
    with pytest.raises(OptionError, match="plates that move"):
        hd.fit(scan, "poiseuille", gap="200 um", convention="homodyne")
    with pytest.raises(OptionError, match="has a phase"):
        hd.MODELS["poiseuille"] + hd.BROWNIAN
    assert (hd.MODELS["poiseuille"] * hd.MODELS["stretched"]).needs_gap


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


def of_library(x, kind, library="jax"):
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
    sinc, slope = of_library(x, kind, library)
    with mpmath.workdps(50):
        for at, s, d in zip(x, sinc, slope, strict=True):
            wanted, steep = exact(at)
            sign = 1 if abs(float(wanted) - s) <= abs(float(wanted) + s) else -1
            # one common sign is lost; near zeros of sin the size is that of the rounded argument
            floor = 1 / max(1.0, abs(float(at)))
            assert off(s, sign * wanted, max(abs(wanted), floor), eps) <= ulp, (at, s)
            assert off(d, sign * steep, max(abs(steep), min(abs(at), floor)), eps) <= ulp, (at, d)
