"""A fit as a NeXus file: a validator misses nothing, and what it holds is read back as it was."""

import io
import json
import logging
from dataclasses import replace

import h5py
import numpy as np
import pytest
from nexusformat.nexus import validate

import ingest
from homodyne_dask import plugins
from homodyne_dask.apps.nexus.nexus_files import nexus_file
from homodyne_dask.errors import PackageError, SourceError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.store.schema import CellEdges
from ingest.readers.nxxpcs import open_nxxpcs
from tests.results.made_results import (
    FLOW,
    FLOW_COVARIANCE,
    changed,
    inputs_of,
    result_for,
    scan_of,
)
from tests.results.test_every_output import FOUND, partly_determined
from tests.run_command import run

INPUTS = inputs_of(3, store="F_c2.zarr", source_file="A0123_results.hdf", labels=[1, 2, 3])
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


def with_attributes(scan, **changes):
    return replace(scan, attributes=scan.attributes.model_copy(update=changes))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A result and its scan, of which everything is known that NXxpcs asks for."""
    scan = scan_of(tmp_path_factory.mktemp("nexus"), FLOW, dead=[30])
    pixels = scan.all_bins | {"n_pixels": np.array([70, 80, 90])}
    scan = replace(with_attributes(scan, experiment=EXPERIMENT), all_bins=pixels)
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
    unknown = scan.all_bins | {"n_pixels": np.zeros(3, int), "q": np.full(3, np.nan)}
    unknown_scan = replace(with_attributes(scan, experiment={}), all_bins=unknown)
    (tmp_path / "r.nx.h5").write_bytes(nexus_file(FitView(result, unknown_scan)))
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
    cells = CellEdges(age=[0, 60, 119], lag=[1, 2, 60])
    result.to_nexus(tmp_path / "r.nx.h5", with_attributes(scan, cells=cells))
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


def test_what_the_data_do_not_determine_has_no_value_but_its_limits(tmp_path):
    scan = scan_of(tmp_path, FLOW)
    result = partly_determined(scan)
    with h5py.File(io.BytesIO(nexus_file(FitView(result, scan)))) as file:
        rate = file["entry/fit/derived_quantities/gamma_dot"]
        assert rate[()] == pytest.approx(result.derived["gamma_dot"].value, nan_ok=True)
        for name, wanted in FOUND.values():
            field = file[PARAMETERS][name]
            limits = (field.attrs.get(key, np.nan) for key in ("lower_limit", "upper_limit"))
            np.testing.assert_allclose((field[()], *limits), wanted, 1e-12, err_msg=name)


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


def test_without_the_application_a_nexus_file_is_refused_in_one_sentence(
    fitted, tmp_path, monkeypatch
):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(plugins, "import_module", missing)
    with pytest.raises(PackageError, match=r"^to_nexus needs the application .*\.nexus, which is"):
        fitted[0].to_nexus(tmp_path / "r.nx.h5", fitted[1])
    assert not [*tmp_path.iterdir()]
    refused = run("fit", fitted[1].path, "--model", "static", "--nexus")
    assert refused.stderr.startswith("error: --nexus needs the application ")
    assert len(refused.stderr.splitlines()) == 1
