"""APS results, of before and after the upgrade."""

import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers.detect import open_source
from tests.ingest_files import DT, Q, arrays, attributes, edited, noisy, simulated

QMAP = "/xpcs/qmap/"
TWOTIME = "/xpcs/twotime/"
DETECTOR = "/entry/instrument/detector_1/frame_time"
EXPOSURE = "/measurement/instrument/detector/exposure_period"


def test_unsorted_and_sparse_processed_bins_find_their_q_and_phi(tmp_path):
    matrices = {5: noisy(30, 5), 2: noisy(30, 2), 4: noisy(30, 4)}
    with h5py.File(tmp_path / "A.hdf", "w") as file:
        file[TWOTIME + "processed_bins"] = list(matrices)
        for number, c2 in enumerate(matrices.values(), start=1):
            file[f"{TWOTIME}correlation_map/c2_{number:05d}"] = np.triu(c2)
        file[TWOTIME + "config/stride_frame"] = 2
        file[TWOTIME + "config/avg_frame"] = 3
        file[TWOTIME + "config/begin_frame"] = 10
        file[DETECTOR] = np.float32(0.05)
        file[QMAP + "dynamic_num_pts"] = [2, 3]
        file[QMAP + "dynamic_v_list_dim0"] = [0.001, 0.002]
        file[QMAP + "dynamic_v_list_dim1"] = [-60.0, 0.0, 60.0]
        file[QMAP + "dynamic_index_mapping"] = [0, 2, 3, 4, 5]
    report = ingest.ingest(tmp_path / "A.hdf")
    assert [row.label for row in report.bins] == [2, 4, 5]
    assert [row.q for row in report.bins] == [0.001, 0.002, 0.002]
    assert [row.phi for row in report.bins] == [60.0, 0.0, 60.0]
    c2 = arrays(report.store)["c2"]
    for index, label in enumerate([2, 4, 5]):
        expected = np.where(np.tri(30), np.nan, matrices[label])
        np.testing.assert_array_equal(c2[index], expected.astype(np.float32))
    attrs = attributes(report.store)
    assert (attrs["frame_time"], attrs["stride"], attrs["avg"]) == (0.3, 2, 3)
    assert (attrs["begin_frame"], attrs["end_frame"]) == (11, 189)
    assert attrs["sigma_source"] == "scatter"


@pytest.mark.parametrize(("layout", "name"), [("aps-u", DETECTOR), ("aps-legacy", EXPOSURE)])
@pytest.mark.parametrize(
    ("unit", "seconds"), [("s", 0.1), ("seconds", 0.1), ("ms", 1e-4), ("µs", 1e-7), ("Hz", None)]
)
def test_times_are_in_the_unit_of_the_file(tmp_path, layout, name, unit, seconds):
    path = simulated(tmp_path / "A.hdf", layout, n=20, bins=1)
    with h5py.File(path, "r+") as file:
        file[name].attrs["units"] = unit
    options = IngestOptions()
    if seconds is not None:
        assert open_source(path, options).measurement.frame_time == seconds
        return
    with pytest.raises(SourceError, match=f"{name} of A.hdf is in 'Hz', but the known units of"):
        open_source(path, options)


def test_a_frame_time_that_the_file_has_too_is_accepted(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=20, bins=1)
    assert open_source(path, IngestOptions(frame_time=DT)).measurement.frame_time == DT
    with pytest.raises(OptionError, match=r"= 0\.11 s, but A\.hdf has 0\.1 s between"):
        open_source(path, IngestOptions(frame_time=0.11))


IN_UNITS = {
    "q": ("aps-u", ["1/nm", "deg"], {QMAP + "dynamic_v_list_dim0": lambda q: 10 * q}),
    "phi": ("aps-u", ["1/A", "rad"], {QMAP + "dynamic_v_list_dim1": np.deg2rad}),
    "q, by an attribute": ("aps-legacy", None, {"/xpcs/dqlist": lambda q: 10 * q}),
}


@pytest.mark.parametrize("case", IN_UNITS)
def test_q_in_inverse_nanometres_and_angles_in_radian_are_converted(tmp_path, case):
    layout, units, changes = IN_UNITS[case]
    changes = changes if units is None else changes | {QMAP + "map_units": units}
    path = edited(simulated(tmp_path / "A.hdf", layout, n=20), **changes)
    if units is None:
        with h5py.File(path, "r+") as file:
            file["/xpcs/dqlist"].attrs["units"] = "nm^-1"
    report = ingest.ingest(path)
    assert [row.q for row in report.bins] == pytest.approx([Q] * 3, rel=1e-15)
    assert [row.phi for row in report.bins] == pytest.approx([-60, 0, 60])
    assert any("converted from" in note for note in report.notes)


def legacy(path, names, bins):
    with h5py.File(path, "w") as file:
        for name in names:
            file[f"/exchange/C2T_all/g2_{name:05d}"] = noisy(20, name)
        if bins is not None:
            file["/xpcs/qphi_bin_to_process"] = np.array(bins)[:, None]
        file["/xpcs/dqlist"] = 0.001 * np.arange(1, 10)[None]
        file["/xpcs/dphilist"] = 10.0 * np.arange(1, 10)[None]
        file[EXPOSURE] = [[0.1]]
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "names", "bins", "labels"),
    [
        ("names are bins", [3, 7, 9], [3, 7, 9], [3, 7, 9]),
        ("names are bins, list unsorted", [3, 7, 9], [9, 3, 7], [3, 7, 9]),
        ("names run, bins sparse", [1, 2, 3], [3, 7, 9], [3, 7, 9]),
        ("names run, bins unsorted", [1, 2, 3], [9, 3, 7], [9, 3, 7]),
        ("both agree", [1, 2, 3], [1, 2, 3], [1, 2, 3]),
        ("no list", [2, 5], None, [2, 5]),
    ],
)
def test_legacy_names_are_bins_or_run_through_the_list(tmp_path, word, names, bins, labels):
    report = ingest.ingest(legacy(tmp_path / "A.hdf", names, bins))
    assert [row.label for row in report.bins] == sorted(labels)
    c2 = arrays(report.store)["c2"]
    for index, label in enumerate(sorted(labels)):
        assert c2[index, 0, 5] == noisy(20, names[labels.index(label)])[0, 5]
        assert report.bins[index].q == pytest.approx(0.001 * label)


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "names", "bins", "message"),
    [
        ("both, different", [1, 2, 3], [2, 3, 1], "ambiguous: g2_00001 may be bin 1 or"),
        ("a bin is missing", [3, 9], [3, 7, 9], "numbered neither as the 3 bins"),
        ("neither", [1, 5, 8], [3, 7, 9], "numbered neither as the 3 bins"),
        ("twice", [1, 2, 3], [3, 3, 9], "distinct bin numbers"),
        ("beyond the lists", [3, 77], None, "9 entries.* and there is a bin 77"),
    ],
)
def test_legacy_names_that_may_mean_two_things_are_refused(tmp_path, word, names, bins, message):
    with pytest.raises(SourceError, match=message):
        ingest.ingest(legacy(tmp_path / "A.hdf", names, bins))


def test_what_the_file_says_of_the_measurement_is_kept_and_nothing_else(tmp_path):
    path = simulated(tmp_path / "A_results.hdf", "aps-u")
    before = ingest.ingest(path, tmp_path / "before.zarr")
    assert "experiment" not in attributes(before.store)
    edited(
        path,
        **{
            "/entry/start_time": "2026-11-22T23:30:00Z",
            "/entry/scan_number": 17,
            "/entry/instrument/incident_beam/incident_energy": np.float32([10.9]),
            "/entry/instrument/detector_1/beam_center_x": np.nan,
            "/entry/instrument/detector_1/count_time": [0.1, 0.2],
            "/entry/instrument/detector_1/description": " ",
        },
    )
    with h5py.File(path, "r+") as file:
        file["/entry/instrument/incident_beam/incident_energy"].attrs["units"] = "keV"
    assert attributes(ingest.ingest(path).store)["experiment"] == {
        "start_time": {"value": "2026-11-22T23:30:00Z"},
        "scan_number": {"value": 17},
        "incident_energy": {"value": 10.9, "units": "keV"},
    }


def test_paths_that_are_asked_for_are_kept_or_refused(tmp_path):
    path = simulated(tmp_path / "A_results.hdf", "aps-u")
    edited(path, **{"/entry/sample/humidity": [12.5], "/entry/log": [1.0, 2.0], "/entry/T": "25 C"})
    kept = ingest.ingest(path, keep="/entry/sample/humidity, /entry/T")
    assert attributes(kept.store)["experiment"] == {
        "/entry/sample/humidity": {"value": 12.5},
        "/entry/T": {"value": "25 C"},
    }
    humid = simulated(tmp_path / "B_results.hdf", "aps-u", seed=2)
    edited(humid, **{"/entry/sample/humidity": 13.5})
    both = ingest.ingest([path, humid], tmp_path / "b.zarr", keep="/entry/sample/humidity")
    assert attributes(both.store)["experiment"]["/entry/sample/humidity"]["value"] == [12.5, 13.5]
    edited(path, **{"/entry/sample/relative humidity": 12.5, "/entry/a:b": 3})
    names = ["/entry/sample/relative humidity", "/entry/a:b"]
    kept = ingest.ingest(path, tmp_path / "d.zarr", keep=names)
    assert attributes(kept.store)["experiment"].keys() == {*names}
    for name, says in (
        ("/entry/log", r"no single number \(its shape is \(2,\)\) at /entry/log"),
        ("/entry", "no dataset /entry:"),
    ):
        with pytest.raises(SourceError, match=says):
            ingest.ingest(path, tmp_path / "c.zarr", keep=name)
    with pytest.raises(OptionError, match=r"keep = .* cannot be used"):
        ingest.ingest(path, tmp_path / "c.zarr", keep=[""])
    np.save(tmp_path / "c2.npy", np.ones((9, 9)))
    with pytest.raises(OptionError, match="keep is for HDF5 files, which c2"):
        ingest.ingest(tmp_path / "c2.npy", q=0.01, phi=0, frame_time=1, keep="/entry/T")
