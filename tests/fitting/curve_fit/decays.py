"""Noisy exponential decays, and their fit by scipy."""

import numpy as np
import scipy.optimize
import xarray


def decay(x, a, b, c):
    return a * np.e ** (-b * x) + c


def decay_data(n=200, seed=0, spread=0.1, weighted=False):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 4, n)
    sigma = spread * (rng.uniform(0.3, 3, n) if weighted else np.ones(n))
    y = decay(x, 2.5, 1.3, 0.5) + sigma * rng.standard_normal(n)
    columns = {"x": x, "y": y, "sigma": sigma}
    return xarray.Dataset({name: ("i", values) for name, values in columns.items()})


def scipy_fit(data, p0, sigma=None, absolute=False):
    known = np.isfinite(data["y"].values)
    x, y = data["x"].values[known], data["y"].values[known]
    sigma = None if sigma is None else data[sigma].values[known]
    return scipy.optimize.curve_fit(
        decay, x, y, p0, sigma, absolute, ftol=1e-15, xtol=1e-15, gtol=1e-15,
        jac=lambda x, a, b, c: np.stack([np.exp(-b * x), -a * x * np.exp(-b * x), np.ones_like(x)], 1),
    )  # fmt: skip
