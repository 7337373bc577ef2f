"""A script of a user: the model written in jax, fitted by `nlsq.curve_fit` with its defaults.

Each pair t1 < t2 once; contrast and offset are parameters like the others. Called as
`python -m tests.benchmarks.peers.nlsq DATA RESULT SCALING`.
"""

import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from tests.benchmarks.peers import data


def model_of(case: data.Case, scalings: int):
    """Return c2 of (angle, row, column) at the parameters, as `curve_fit` calls it."""
    import jax.numpy as jnp

    times = jnp.where(case.time <= data.DT / 2, data.DT / 2, case.time)
    azimuth = jnp.deg2rad(case.phi)

    def integral(a, b, c):
        rate = jnp.maximum(a * times**b + c, 1e-10)
        steps = 0.5 * (rate[1:] + rate[:-1]) * data.DT
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])

    def model(x, *parameters):
        D0, alpha, D_offset, gamma, beta, gamma_offset, phi0, *scaling = parameters
        contrast, offset = jnp.array(scaling[:scalings]), jnp.array(scaling[scalings:])
        k, i, j = x.astype(int)
        at = k if scalings > 1 else 0 * k
        C, G = integral(D0, alpha, D_offset), integral(gamma, beta, gamma_offset)
        wave = data.Q * data.GAP / (2 * jnp.pi) * jnp.cos(jnp.deg2rad(phi0) - azimuth)
        shear = jnp.sinc(wave[k] * (G[j] - G[i]) / jnp.pi) ** 4
        return offset[at] + contrast[at] * jnp.exp(-(data.Q**2) * (C[j] - C[i])) * shear

    return model


def main(source: str, target: str, scaling: str) -> None:
    import nlsq

    case = data.load(Path(source))
    n, angles = len(case.time), len(case.phi)
    scalings = angles if scaling == "individual" else 1
    i, j = np.triu_indices(n, 1)
    x = np.stack([np.repeat(np.arange(angles), len(i)), np.tile(i, angles), np.tile(j, angles)])
    y = case.c2[:, i, j].ravel().astype(float)

    def whole(physical, contrast, offset):
        return np.concatenate([physical, np.full(scalings, contrast), np.full(scalings, offset)])

    bounds = tuple(
        whole(physical, data.CONTRAST_BOUNDS[side], data.OFFSET_BOUNDS[side])
        for side, physical in enumerate((data.LOWER, data.UPPER))
    )
    began = time.perf_counter()
    result = nlsq.curve_fit(
        model_of(case, scalings),
        x.astype(float),
        y,
        p0=whole(data.START, data.CONTRAST, data.OFFSET),
        sigma=np.full(len(y), data.SIGMA),
        absolute_sigma=True,
        bounds=bounds,
    )
    seconds = time.perf_counter() - began
    found = [float(v) for v in result.popt]
    data.report(
        Path(target),
        data.Estimate(found[:7], found[7 : 7 + scalings], found[7 + scalings :]),
        status="converged" if result.success else "not converged",
        note=f"{result.get('nfev')} evaluations, {result.get('message')}",
        fit_seconds=seconds,
        version=metadata.version("nlsq"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
