"""A fit as an xarray Dataset and as netCDF: numbers, units and maps."""

import json

import numpy as np
import pytest
import xarray

from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files import csv_and_netcdf as export
from tests.results import made_results as made

INPUTS = made.inputs_of(
    3, store="F_c2.zarr", source_file="A0123_results.hdf", source_sha256="ab" * 32, labels=[1, 2, 3]
)


def test_a_dataset_holds_every_number_of_the_result():
    result = made.flow_result()
    found = result.to_dataset()
    for name in ("value", "stderr", "stderr_naive", "dof", "at_bound", "fixed"):
        np.testing.assert_array_equal(found[name], result.parameters[name])
    for name, given in (("contrast", "contrast"), ("redchi_per_bin", "redchi")):
        np.testing.assert_array_equal(found[name], result.scaling[given])
    assert found["unit"].values.tolist()[0] == "Å²/s"
    assert found["q"].attrs["units"] == "1/angstrom"
    assert found["phi"].attrs["units"] == "degree"
    assert float(found["redchi"]) == result.redchi
    assert float(found["covariance"].sel(cov_i="D0", cov_j="D0")) == 1.0
    assert found.attrs["outcome"] == "CONVERGED"
    assert found.attrs["convention"] == "physical"
    assert Findings.from_plain(json.loads(found.attrs["findings"])) == result.findings


@pytest.mark.parametrize("make", [made.flow_result, made.static_result])
def test_a_dataset_survives_netcdf_and_zarr(make, tmp_path):
    whole = make().to_dataset()
    assert ("covariance" in whole) == (make is made.flow_result)
    whole.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "r.nc", engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), whole)
    whole.to_zarr(tmp_path / "r.zarr", zarr_format=2)
    with xarray.open_zarr(tmp_path / "r.zarr") as read:
        xarray.testing.assert_equal(read.load(), whole)


def test_the_maps_of_a_file_are_those_of_the_pictures_and_say_what_they_are(tmp_path):
    scan = made.scan_of(tmp_path, made.FLOW, dead=[30])
    result = made.result_for(scan, made.FLOW, covariance=made.FLOW_COVARIANCE, inputs=INPUTS)
    (tmp_path / "result.nc").write_bytes(export.result_netcdf(FitView(result, scan)))
    with xarray.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as read:
        found = read.load()
    assert found["param"].values.tolist() == list(LAMINAR_FLOW.names)
    assert found["map_label"].values.tolist() == scan.label.tolist()
    for n in range(3):
        view = FitView(result, scan).map_of(n)
        for part in ("data", "model", "residual"):
            wanted = getattr(view, part).astype(np.float32)
            np.testing.assert_array_equal(found[f"two_time_{part}"][n], wanted)
    np.testing.assert_allclose(found["t1"], scan.time + 0.05)
    assert found["t1"].attrs["units"] == "s"
    for part in ("data", "model"):
        assert export.NXXPCS.items() <= found[f"two_time_{part}"].attrs.items()
    assert found.attrs["pairs_per_block_side"] == 1
