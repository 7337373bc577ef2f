"""Models as users write them."""

import jax.numpy as jnp
import numpy as np

import homodyne_dask as hd
from tests.synthetic import FLOW, GAP, angles, measured, of_decay

FLOW_PARAMETERS = hd.LAMINAR_FLOW.parameters


def integrals(theta, times):
    """C and G of the transport models, as a user would write them."""
    t = jnp.maximum(times, 0.5 * (times[1] - times[0]))

    def integral(rate):
        steps = 0.5 * (rate[1:] + rate[:-1]) * jnp.diff(times)
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])

    return {
        "C": integral(theta[0] * t ** theta[1] + theta[2]),
        "G": integral(theta[3] * t ** theta[4] + theta[5]),
    }


def flow_decay(theta, t1, t2, bin):
    x = 0.5 * bin.q * GAP * jnp.cos(jnp.deg2rad(theta[6] - bin.phi)) * (t2["G"] - t1["G"])
    return jnp.exp(-(bin.q**2) * (t2["C"] - t1["C"])) * jnp.sinc(x / jnp.pi) ** 2


def relaxation(theta, t1, t2, bin):
    rate, alpha = theta
    return jnp.exp(-rate * (t2 - t1) * (1 + 0.5 * (t1 + t2)) ** alpha)


RELAXATION = (
    hd.Parameter("rate", "1/s", (1e-3, 1e2), scale="log"),
    hd.Parameter("alpha", "", (-2, 2)),
)


def relaxing_scan(n=60, bins=8, seed=0):
    scans = measured(FLOW, n, angles(bins), sigma=0.01, seed=seed)
    f = relaxation((0.4, -0.6), scans.time[:, None], scans.time, None)
    return of_decay(scans, np.asarray(f), 0.01, seed)


def stretched(theta, t1, t2, bin):
    return jnp.exp(-((bin.q**2 * theta[0] * (t2 - t1)) ** theta[1]))


STRETCHED = hd.separable(
    stretched, parameters=[hd.Parameter("rate"), hd.Parameter("gamma")]
).current()

INTEGRATED = hd.separable(
    lambda theta, a, b, bin: jnp.exp(-(bin.q**2) * (b - a)),
    parameters=[hd.Parameter("rate"), hd.Parameter("power")],
    precompute=lambda theta, t: theta[0] * t ** (1 + theta[1]),
    name="integrated",
).current()
