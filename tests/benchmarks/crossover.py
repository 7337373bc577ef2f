"""The number of points from which hd.curve_fit is faster than scipy: fits of 10² to 10⁸ points.

y = a exp(-b x) + c with noise, fitted from the same start: by scipy's `curve_fit` on NumPy arrays with
the derivatives given, by `hd.curve_fit` in this process from memory, and from a Zarr store on workers that
run already. The second run counts, because the first one compiles. Starting workers is a row of its
own. NumPy is excluded where it would need half of the free memory.
"""

import time
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import psutil
import scipy.optimize
import xarray

import homodyne_dask as hd

START = [2.0, 1.0, 0.4]
CHUNK = 2**20
BYTES_OF_SCIPY = 15 * 8
"""Of a point: x, y, three derivatives, and the memory to factorize them."""


def curve(x, a, b, c):
    return a * jnp.exp(-b * x) + c


def plain(x, a, b, c):
    return a * np.exp(-b * x) + c


def slopes(x, a, b, c):
    e = np.exp(-b * x)
    return np.stack([e, -a * x * e, np.ones_like(x)], axis=1)


def simulated(points: int) -> xarray.Dataset:
    x = np.linspace(0, 4, points)
    y = plain(x, 2.5, 1.3, 0.5) + 0.1 * np.random.default_rng(0).standard_normal(points)
    return xarray.Dataset({"x": ("i", x), "y": ("i", y)})


def seconds(fit: Callable[[], object]) -> tuple[float, float]:
    """Of the first and the second run."""
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        fit()
        spent.append(time.perf_counter() - start)
    return spent[0], spent[1]


def run(folder: Path, least: int = 2, most: int = 8) -> dict[str, float]:
    row: dict[str, float] = {}
    start = time.perf_counter()
    with hd.local_cluster(dashboard=None) as client:
        client.wait_for_workers(1)
        row["start of the workers s"] = time.perf_counter() - start
        for points in [10**n for n in range(least, most + 1)]:
            data, path = simulated(points), folder / f"{points}.zarr"
            chunks = {"chunks": (min(points, CHUNK),)}
            data.to_zarr(path, mode="w", consolidated=False, encoding={"x": chunks, "y": chunks})
            x, y = data["x"].values, data["y"].values
            name = f"1e{round(np.log10(points))}"
            if 2 * points * BYTES_OF_SCIPY < psutil.virtual_memory().available:
                fit = lambda x=x, y=y: scipy.optimize.curve_fit(plain, x, y, START, jac=slopes)  # noqa: E731
                row[f"{name} NumPy s"] = seconds(fit)[1]
            here = seconds(lambda data=data: hd.curve_fit(curve, data, p0=START))
            row[f"{name} in process, first s"], row[f"{name} in process s"] = here
            row[f"{name} Dask s"] = seconds(
                lambda path=path: hd.curve_fit(curve, path, p0=START, client=client)
            )[1]
    return row
