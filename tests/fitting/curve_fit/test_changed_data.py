"""Points that change between two fits: the second fit is of the new ones."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import xarray

import homodyne_dask as hd
from homodyne_dask.fitting.curve_fit import points
from tests.fitting.curve_fit.decays import decay, decay_data


@pytest.mark.parametrize("where", ["in memory", "in a store"])
def test_data_that_changed_between_two_fits_are_read_again(tmp_path, monkeypatch, where):
    """Only the middle changes: sizes, the first chunk and the last one are those of the first fit."""
    monkeypatch.setattr(points, "MAX_POINTS_PER_CHUNK", 64)
    before, place = decay_data(), tmp_path / "points.zarr"
    after = before.copy(deep=True)
    after["y"][80:120] += 1

    def placed(data: xarray.Dataset) -> Any:
        if where == "in memory":
            return data
        data.chunk({"i": 50}).to_zarr(place, consolidated=False, mode="w")
        return place

    hd.curve_fit(decay, placed(before), max_passes=3)
    columns = after["x"].values, after["y"].values
    popt, _ = scipy.optimize.curve_fit(decay, *columns, ftol=1e-14, xtol=1e-14)
    np.testing.assert_allclose(hd.curve_fit(decay, placed(after)).popt, popt, rtol=1e-6)


@pytest.mark.cluster
@pytest.mark.slow
def test_workers_have_the_changed_data_and_the_changed_function(tmp_path):
    place = tmp_path / "points.zarr"
    x = np.linspace(0, 1, 600)
    data = xarray.Dataset({"x": ("i", x), "y": ("i", 3 * x)})
    outliers = data.copy(deep=True)
    outliers["y"][200:400] += 5
    factor = [1.0]

    def line(x, a):
        return a * factor[0] * x

    with hd.local_cluster(processes=2, threads=1, dashboard=None) as client:
        fits = []
        for points in (outliers, data, data):
            points.chunk({"i": 100}).to_zarr(place, consolidated=False, mode="w")
            fits.append(hd.curve_fit(line, place, client=client))
        factor[0] = 10.0
        changed = hd.curve_fit(line, place, client=client)
    assert fits[0].chisqr > 1
    np.testing.assert_allclose([fits[1].popt[0], changed.popt[0]], [3, 0.3])
    assert fits[2].compilations["gram"] == 0
