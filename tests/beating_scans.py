"""Scans of counted photons of a sample that moves on a reference, from parameters of two_component."""

import numpy as np

import homodyne_dask as hd
from tests import reference
from tests.photons import MEAN, MODES, PIXELS, counted, noise
from tests.synthetic import Scans

Q, DT = 0.01, 0.1
TWO = hd.MODELS["two_component"]
ANGLES = np.arange(6) * 30.0


def power(t, exponent):
    return np.maximum(t, DT / 2) ** exponent


def field(rng, C):
    """(frame, pixel·mode): a field that loses its memory as exp(-½ q² ΔC)."""
    shape = (PIXELS * MODES,)
    fields = [noise(rng, shape)]
    for memory in np.exp(-0.5 * Q**2 * np.diff(C)):
        fields.append(memory * fields[-1] + np.sqrt(1 - memory**2) * noise(rng, shape))
    return np.array(fields)


def photographed(truth, seed, n=100, phi=ANGLES, way=None) -> Scans:
    """A scan of counted photons of two components, from parameters of two_component by name.

    way: how far the sample has moved at each frame, in Å, where that is no power law.
    """
    rng, t = np.random.default_rng(seed), DT * np.arange(n)

    def rate_integrated(amplitude, exponent):
        return reference.integral(truth[amplitude] * power(t, truth[exponent]), t)

    odds = truth["fraction"] / (1 - truth["fraction"]) * np.exp(truth["fraction_growth"] * t)
    V = rate_integrated("v0", "v_beta") if way is None else way
    moving, c2 = odds / (1 + odds), []
    for angle in phi:
        turned = np.exp(1j * Q * np.cos(np.deg2rad(truth["phi0"] - angle)) * V)
        at_rest = (1 - moving)[:, None] * field(rng, rate_integrated("D0_ref", "alpha_ref"))
        moved = (moving * turned)[:, None] * field(
            rng, rate_integrated("D0_sample", "alpha_sample")
        )
        power_of = np.abs(at_rest + moved) ** 2 / ((1 - moving) ** 2 + moving**2)[:, None]
        counts = rng.poisson(MEAN * power_of.reshape(n, PIXELS, MODES).mean(2).T).astype(float)
        counts /= counts.mean(0)
        c2.append(counts.T @ counts / PIXELS)
    theta = np.array([truth[name] for name in TWO.names])
    return counted(np.array(c2), theta, t, np.full(len(phi), Q), np.asarray(phi, float))
