"""A fit as an xarray Dataset, as netCDF and as NeXus: numbers, units and maps; a validator misses nothing."""

import json
import logging
from dataclasses import replace

import h5py
import numpy as np
import pytest
import xarray
from nexusformat.nexus import validate

import ingest
from homodyne_dask.apps.nexus.nexus_files import nexus_file
from homodyne_dask.errors import SourceError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files import netcdf as export
from homodyne_dask.store.scan import open_dataset
from ingest.readers.nxxpcs import open_nxxpcs
from ingest.readers.options import IngestOptions
from tests.results.made_results import (
    FLOW,
    FLOW_COVARIANCE,
    changed,
    flow_result,
    inputs_of,
    result_for,
    scan_of,
    static_result,
)

INPUTS = inputs_of(
    3, store="F_c2.zarr", source_file="A0123_results.hdf", source_sha256="ab" * 32, labels=[1, 2, 3]
)


def test_a_dataset_holds_every_number_of_the_result():
    result = flow_result()
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


def test_a_covariance_that_is_not_known_is_absent():
    found = static_result().to_dataset()
    assert "covariance" not in found
    assert "covariance_naive" in found


@pytest.mark.parametrize("make", [flow_result, static_result])
def test_a_dataset_survives_netcdf_and_zarr(make, tmp_path):
    whole = make().to_dataset()
    whole.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "r.nc", engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), whole)
    whole.to_zarr(tmp_path / "r.zarr", zarr_format=2)
    with xarray.open_zarr(tmp_path / "r.zarr") as read:
        xarray.testing.assert_equal(read.load(), whole)


def test_the_maps_of_a_file_are_those_of_the_pictures_and_say_what_they_are(tmp_path):
    scan = scan_of(tmp_path, FLOW, dead=[30])
    result = result_for(scan, FLOW, covariance=FLOW_COVARIANCE, inputs=INPUTS)
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
        attributes = found[f"two_time_{part}"].attrs
        assert export.NXXPCS.items() <= attributes.items()
    # the definition's lists of what may stand there
    assert export.NXXPCS["storage_mode"] in ("one_array_q_first", "one_array_q_last")
    assert export.NXXPCS["time_origin_location"] in ("upper_left", "lower_left")
    assert found.attrs["pairs_per_block_side"] == 1


EXPERIMENT = {
    "scan_number": {"value": 123},
    "start_time": {"value": "2026-11-22T23:30:00Z"},
    "incident_energy": {"value": 10.9, "units": "keV"},
    "count_time": {"value": 0.09, "units": "s"},
    "beam_center_x": {"value": 890.5, "units": "pixel"},
    "beam_center_y": {"value": 310.0, "units": "pixel"},
    "temperature": {"value": 293.2, "units": "K"},
}
CONFIG = {"scaling": "individual", "loss": "linear", "bounds": {"D0": (1e3, 1e5)}}
PARAMETERS = "entry/fit/global_fit_function/fit_parameters"
DEPRECATED = "This field is now deprecated. Use the ``entry_identifier`` field."
"""Of scan_number, which NXxpcs asks for none the less."""
BASE_CLASSES = [  # NXxps and NXmpes have their fits there, NXxpcs its masks and scan_number
    "NXfit is an invalid class in NXentry",
    "This field is not defined in NXentry",
    *["This field is not defined in NXnote"] * 3,
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A result and its scan, of which everything is known that NXxpcs asks for."""
    scan = scan_of(tmp_path_factory.mktemp("nexus"), FLOW, dead=[30])
    pixels = scan.all_bins | {"n_pixels": np.array([70, 80, 90])}
    scan = replace(scan, attrs=scan.attrs | {"experiment": EXPERIMENT}, all_bins=pixels)
    result = result_for(scan, FLOW, covariance=FLOW_COVARIANCE, inputs=INPUTS)
    result = changed(result, config=result.config | CONFIG)
    units = [parameter.unit for parameter in LAMINAR_FLOW.parameters]
    table, known = result.parameters, result.parameters["stderr"].values
    table = table.assign(
        unit=("param", units),
        stderr=("param", [400.0, 0.01, *known[2:]]),
        method=("param", ["cluster-robust"] * 2 + [""] * 5),
    )
    scaling = result.scaling.assign(contrast_stderr=result.scaling["contrast"] / 50)
    return changed(result, parameters=table, scaling=scaling), scan


@pytest.fixture(scope="module")
def written(fitted, tmp_path_factory):
    result, scan = fitted
    path = tmp_path_factory.mktemp("nexus") / "result.nx.h5"
    result.to_nexus(path, scan)
    return path


def complaints(check, path, caplog) -> list[str]:
    """The warnings and errors of the validator."""
    logger = validate.logger
    handlers, logger.handlers = logger.handlers, [caplog.handler]
    logger.setLevel(logging.WARNING)
    try:
        with caplog.at_level(logging.WARNING):
            check(str(path))
    finally:
        logger.handlers = handlers
    return sorted(r.getMessage().strip() for r in caplog.records if r.levelno < logging.CRITICAL)


@pytest.mark.parametrize(
    ("check", "known"),
    [(validate.validate_application, [DEPRECATED]), (validate.validate_file, BASE_CLASSES)],
)
def test_a_validator_misses_nothing_of_nxxpcs_and_knows_the_base_classes(
    written, caplog, check, known
):
    assert complaints(check, written, caplog) == known


def test_what_the_source_did_not_say_is_absent_and_all_that_a_validator_misses(
    fitted, tmp_path, caplog
):
    result, scan = fitted
    known = {name: value for name, value in scan.attrs.items() if name != "experiment"}
    unknown = scan.all_bins | {"n_pixels": np.zeros(3, int), "q": np.full(3, np.nan)}
    (tmp_path / "r.nx.h5").write_bytes(
        nexus_file(FitView(result, replace(scan, attrs=known, all_bins=unknown)))
    )
    with h5py.File(tmp_path / "r.nx.h5") as file:
        assert set(file["entry/instrument/detector_1"]) == {"frame_time"}
        assert set(file["entry/instrument/masks"]) == {"dynamic_phi_list"}
    missed = complaints(validate.validate_application, tmp_path / "r.nx.h5", caplog)
    fields = [
        "This required field is not in the NeXus file"
    ] * 6  # of beam, detector, map and entry
    assert missed == [*fields, "This required group is not in the NeXus file"]


def test_its_correlations_are_read_back_as_they_were(fitted, written):
    _, scan = fitted
    report = ingest.ingest(written)
    again = open_dataset(report.store)
    np.testing.assert_array_equal(again.dataset["c2"], scan.dataset["c2"])
    for name in ("q", "phi", "n_pixels", "time"):
        np.testing.assert_allclose(getattr(again, name), getattr(scan, name), rtol=1e-14)
    identity = {"entry_identifier": {"value": "A0123"}}
    assert again.attrs["experiment"] == EXPERIMENT | identity
    assert again.attrs["frame_time"] == scan.attrs["frame_time"]


def test_means_over_cells_are_not_read_back_as_pairs(fitted, tmp_path):
    result, scan = fitted
    cells = {"age": [0, 60, 119], "lag": [1, 2, 60]}
    result.to_nexus(tmp_path / "r.nx.h5", replace(scan, attrs=scan.attrs | {"cells": cells}))
    with pytest.raises(SourceError, match="ingest the file that was fitted"):
        open_nxxpcs(tmp_path / "r.nx.h5", IngestOptions())


def test_its_fit_has_the_parameters_with_what_is_known_of_them(fitted, written):
    result, scan = fitted
    with h5py.File(written) as file:
        held = {name: (field[()], dict(field.attrs)) for name, field in file[PARAMETERS].items()}
        model = file["entry/fit/data/fit_sum"][()]
        assert file["entry/fit/data/input_dependent"] == file["entry/twotime/two_time_corr_func"]
        assert file["entry/fit/figure_of_merit_redchi"][()] == result.redchi
        summary = json.loads(file["entry/process/summary/data"][()])
        g2 = file["entry/data/g2"][()]
        shown = file["entry/twotime/two_time_corr_func"][()]
    assert {name: value for name, (value, _) in held.items() if name in LAMINAR_FLOW.names} == dict(
        zip(LAMINAR_FLOW.names, FLOW, strict=True)
    )
    assert held["D0"][1] == {
        "units": "Å²/s", "vary": True, "error": 400.0, "error_method": "cluster-robust", "min": 1e3,
        "max": 1e5,
    }  # fmt: skip
    assert "error" not in held["beta"][1]
    np.testing.assert_array_equal(held["contrast"][1]["error"], np.full(3, 0.004))
    assert "error" not in held["offset"][1]
    upper = np.triu_indices(60, 1)
    wanted = result.model(scan).values
    np.testing.assert_allclose(model[:, *upper], wanted[:, *upper], rtol=1e-6)
    assert summary["parameters"]["D0"]["value"] == FLOW[0]
    np.testing.assert_allclose(g2[4], [np.nanmean(np.diagonal(c, 5)) for c in shown], rtol=1e-6)


def test_a_long_scan_is_shown_in_blocks_that_say_their_times(tmp_path):
    scan = scan_of(tmp_path, FLOW, n=400, phi=[0.0], dt=0.01).select(frames=(21, 400))
    result = result_for(scan, FLOW, inputs=INPUTS)
    result = changed(result, config=result.config | CONFIG)
    result.to_nexus(tmp_path / "r.nx.h5", scan)
    again = open_dataset(ingest.ingest(tmp_path / "r.nx.h5").store)
    assert again.attrs["frame_time"] == pytest.approx(0.02)
    np.testing.assert_allclose(again.time, 0.225 + 0.02 * np.arange(189))
    notes = "\n".join(again.attrs["notes"])
    assert "starting at 0.225 s" in notes
    assert "each row is the mean of 2 frames" in notes
    pairs = scan.dataset["c2"].values[0, 1:3, 11:13]
    np.testing.assert_allclose(again.dataset["c2"].values[0, 0, 5], pairs.mean(), rtol=1e-6)
