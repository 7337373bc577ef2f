"""Noisy exponential decays."""

import numpy as np
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
