import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import HomodyneDaskError, SourceError
from ingest.readers.source import decimal
from tests.ingest_files import Q, arrays, attributes, edited, noisy, simulated

QMAP = "/xpcs/qmap/"
TWOTIME = "/xpcs/twotime/"
DETECTOR = "/entry/instrument/detector_1/frame_time"
EXPOSURE = "/measurement/instrument/detector/exposure_period"
FLUX = "/xpcs/spatial_mean/intensity_vs_time"
IMAGE = "/xpcs/temporal_mean/scattering_2d"


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
    assert (attrs["begin_frame"], attrs["end_frame"]) == (11, 190)
    assert attrs["sigma_source"] == "scatter"


@pytest.mark.parametrize("layout", ["aps-u", "aps-legacy"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("width", [np.float32, np.float64])
def test_a_scalar_may_have_any_shape_and_width(tmp_path, layout, shape, width):
    path = simulated(tmp_path / "A.hdf", layout, n=20, bins=1)
    value = np.full(shape, 0.05, dtype=width)
    edited(path, **{DETECTOR if layout == "aps-u" else EXPOSURE: value})
    assert ingest.ingest(path).frame_time == 0.05


@pytest.mark.parametrize("value", [0.05, 0.1, 0.3333333, 1e-5, 7.0, 1234.5])
def test_a_float32_is_read_as_the_shortest_decimal(value):
    assert decimal(np.float32(value)) == float(f"{value:.7g}")
    assert decimal(np.float64(value)) == value


NANOMETRE = {
    "map_units": ("aps-u", {QMAP + "map_units": ["1/nm", "deg"]}, QMAP + "dynamic_v_list_dim0"),
    "attribute": ("aps-legacy", {}, "/xpcs/dqlist"),
}


@pytest.mark.parametrize("where", NANOMETRE)
def test_q_in_inverse_nanometres_is_converted(tmp_path, where):
    layout, changes, name = NANOMETRE[where]
    path = edited(
        simulated(tmp_path / "A.hdf", layout, n=20), **changes, **{name: lambda q: 10 * q}
    )
    if where == "attribute":
        with h5py.File(path, "r+") as file:
            file[name].attrs["units"] = "nm^-1"
    report = ingest.ingest(path)
    assert [row.q for row in report.bins] == pytest.approx([Q] * 3, rel=1e-15)
    assert any("to 1/Å" in note for note in report.notes)


def test_angles_in_radian_are_converted(tmp_path):
    path = edited(
        simulated(tmp_path / "A.hdf", n=20),
        **{QMAP + "map_units": ["1/A", "rad"], QMAP + "dynamic_v_list_dim1": np.deg2rad},
    )
    assert [row.phi for row in ingest.ingest(path).bins] == pytest.approx([-60, 0, 60])


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


@pytest.mark.parametrize(
    ("word", "names", "bins", "message"),
    [
        ("both, different", [1, 2, 3], [2, 3, 1], "ambiguous: g2_00001 may be bin 1 or"),
        ("a bin is missing", [3, 9], [3, 7, 9], "g2_00007 of A.hdf is missing"),
        ("a number is missing", [1, 3], [4, 7, 9], "g2_00002 of A.hdf is missing"),
        ("neither", [1, 5, 8], [3, 7, 9], "named neither after the 3 bins"),
        ("twice", [1, 2, 3], [3, 3, 9], "different bin numbers"),
        ("beyond the lists", [3, 77], None, "9 entries: there is bin 77"),
    ],
)
def test_legacy_names_that_may_mean_two_things_are_refused(tmp_path, word, names, bins, message):
    with pytest.raises(SourceError, match=message):
        ingest.ingest(legacy(tmp_path / "A.hdf", names, bins))


WRONG = {
    "detector time zero": ({DETECTOR: 0.0}, "frame_time of A.hdf is 0: it must be positive"),
    "detector time NaN": ({DETECTOR: np.nan}, "no finite numbers"),
    "detector time missing": ({DETECTOR: None}, f"A.hdf has no {DETECTOR}"),
    "detector time text": ({DETECTOR: "fast"}, "holds object, not numbers"),
    "two detector times": ({DETECTOR: [0.1, 0.2]}, "must be one number, not 2"),
    "stride a fraction": ({TWOTIME + "config/stride_frame": 1.5}, "must be a whole number"),
    "matrix missing": (
        {TWOTIME + "correlation_map/c2_00002": None},
        "c2_00002 of A.hdf is missing: .* lists 3 bins but there are 2",
    ),
    "matrix too many": (
        {TWOTIME + "correlation_map/c2_00004": noisy(20)},
        "processed_bins of A.hdf has 3 entries but there are 4 matrices",
    ),
    "matrix of another size": (
        {TWOTIME + "correlation_map/c2_00002": noisy(21)},
        "c2_00002 of A.hdf is 21×21 but .*c2_00001 is 20×20",
    ),
    "matrix not square": (
        {TWOTIME + "correlation_map/c2_00002": np.ones((20, 19))},
        r"c2_00002 of A.hdf has shape \(20, 19\)",
    ),
    "matrix of text": (
        {TWOTIME + "correlation_map/c2_00002": np.full((20, 20), b"x")},
        "c2_00002 of A.hdf holds",
    ),
    "matrix asymmetric": (
        {TWOTIME + "correlation_map/c2_00002": noisy(20) + np.tri(20, k=-1)},
        r"bin \d .*c2_00002.* of A.hdf is not symmetric",
    ),
    "no matrices": ({TWOTIME + "correlation_map": None}, "has no two-time matrices: neither"),
    "processed bins missing": ({TWOTIME + "processed_bins": None}, "has no .*processed_bins"),
    "processed bins twice": ({TWOTIME + "processed_bins": [1, 2, 2]}, "different bin numbers"),
    "processed bins zero": ({TWOTIME + "processed_bins": [0, 1, 2]}, "from 1 on"),
    "bin beyond the map": ({TWOTIME + "processed_bins": [4, 5, 6000]}, "there are 6000 bins"),
    "mapping short": (
        {QMAP + "dynamic_index_mapping": [1, 2, 3]},
        "dynamic_index_mapping of A.hdf has 3 entries but there are 5 bins",
    ),
    "mapping long": (
        {QMAP + "dynamic_index_mapping": np.arange(6)},
        "dynamic_index_mapping of A.hdf has 6 entries but there are 5 bins",
    ),
    "mapping beyond the grid": (
        {QMAP + "dynamic_index_mapping": [1, 2, 3, 4, 99]},
        "points to cell 99 of 6",
    ),
    "angles short": (
        {QMAP + "dynamic_v_list_dim1": [0.0, 1.0]},
        "2 and 2 entries but dynamic_num_pts of A.hdf says 2 and 3",
    ),
    "unit unknown": ({QMAP + "map_units": ["pixel", "deg"]}, "is in 'pixel': only 1/Å and 1/nm"),
    "roi map negative": ({QMAP + "dynamic_roi_map": -np.ones((4, 4))}, "dynamic_roi_map .*damaged"),
    "mixed baselines": (
        {TWOTIME + "correlation_map/c2_00002": np.triu(noisy(20) - 1)},
        "decay to 0, the others to 1",
    ),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_damaged_aps_u_file_is_refused_naming_the_thing(tmp_path, word):
    changes, message = WRONG[word]
    path = edited(simulated(tmp_path / "A.hdf", n=20), **changes)
    with pytest.raises(SourceError, match=message):
        ingest.ingest(path)
    if (tmp_path / "A_c2.zarr").exists():
        assert attributes(tmp_path / "A_c2.zarr")["complete"] is False


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    whole = simulated(tmp_path / "A.hdf", n=60).read_bytes()
    for part in (0.999, 0.9, 0.5, 0.01, 0.0):
        path = tmp_path / "B.hdf"
        path.write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(SourceError, match=r"B\.hdf"):
            ingest.ingest(path)


def test_a_flipped_byte_never_shows_a_traceback(tmp_path):
    whole = simulated(tmp_path / "A.hdf", n=20).read_bytes()
    rng = np.random.default_rng(0)
    sentences = []
    for trial in range(12):
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 6000), 4):
            damaged[place] ^= 1 << int(rng.integers(8))
        path = tmp_path / "B.hdf"
        path.write_bytes(damaged)
        try:
            ingest.ingest(path, tmp_path / f"{trial}.zarr")
        except HomodyneDaskError as error:
            sentences.append(str(error))
    assert sentences


@pytest.mark.parametrize(
    ("word", "content", "message"),
    [
        ("text", b"# not data\n", "neither HDF5 nor .npy nor .npz"),
        ("empty", b"", "neither HDF5 nor .npy nor .npz"),
        ("only the signature", b"\x89HDF\r\n\x1a\n", "cannot be opened as HDF5"),
        ("npy header only", b"\x93NUMPY\x01\x00", "cannot be read as NumPy"),
        ("broken zip", b"PK\x03\x04" + bytes(50), "cannot be read as NumPy"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, word, content, message):
    (tmp_path / "A.hdf").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        ingest.ingest(tmp_path / "A.hdf", q=1, phi=0, frame_time=1)


def test_a_missing_file_and_a_foreign_hdf5_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"B\.hdf is no file"):
        ingest.ingest(tmp_path / "B.hdf")
    with h5py.File(tmp_path / "A.hdf", "w") as file:
        file["/entry/data"] = [1, 2, 3]
    with pytest.raises(SourceError, match="is HDF5 but has no two-time matrices"):
        ingest.ingest(tmp_path / "A.hdf")


def test_counts_follow_flux_and_averaging(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30, counts=0.8, avg=4, n_pixels=3000)
    report = ingest.ingest(path)
    held = arrays(report.store)
    assert held["intensity"].mean() == pytest.approx(0.8, rel=1e-6)
    assert held["n_pixels"].tolist() == [3000] * 3
    with h5py.File(path) as file:
        flux = file[FLUX][1]
    np.testing.assert_allclose(held["intensity"][0] / 0.8, flux / flux.mean(), rtol=1e-6)
    for row, mu, beta in zip(
        held["sigma_row"], held["intensity"], held["beta_ingest"], strict=True
    ):
        law = np.sqrt(np.outer(1 / mu + beta, 1 / mu + beta) / 3000)
        np.testing.assert_allclose(np.outer(row, row), law, rtol=1e-12)


def test_flux_of_all_detector_frames_is_averaged_like_the_frames(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=20, avg=3, stride=2)
    raw = 1 + np.arange(130) % 7
    edited(path, **{FLUX: np.stack([np.arange(130), raw])})
    mu = arrays(ingest.ingest(path).store)["intensity"][0]
    expected = raw[:120:2].reshape(20, 3).mean(axis=1)
    np.testing.assert_allclose(mu / mu.mean(), expected / expected.mean())


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("no image", {IMAGE: None}),
        ("no flux", {FLUX: None}),
        ("no roi map", {QMAP + "dynamic_roi_map": None}),
        ("image of another detector", {IMAGE: np.ones((3, 3))}),
        ("flux too short", {FLUX: np.ones((2, 7))}),
        ("image dark", {IMAGE: lambda image: 0 * image}),
    ],
)
def test_without_counts_sigma_is_the_scatter(tmp_path, word, changes):
    report = ingest.ingest(edited(simulated(tmp_path / "A.hdf", n=80), **changes))
    law = (1 + 0.25) / np.sqrt(5000)
    assert report.sigma_source == "scatter"
    assert [row.sigma for row in report.bins] == pytest.approx([law] * 3, rel=0.05)
    assert any("scatter" in note for note in report.notes)


def test_beam_trips_are_masked_and_listed(tmp_path):
    def trip(flux):
        flux[1, 6:9] *= 0.3
        flux[1, 15] = 0
        return flux

    report = ingest.ingest(edited(simulated(tmp_path / "A.hdf", n=40), **{FLUX: trip}))
    held = arrays(report.store)
    assert np.flatnonzero(~held["frame_mask"]).tolist() == [6, 7, 8, 15]
    assert any("4 frames masked" in note and "7-9, 16" in note for note in report.notes)
    assert np.isfinite(held["sigma_row"]).all()
    assert report.bins[0].frames == 36


def test_counts_in_another_unit_are_noticed(tmp_path):
    path = edited(simulated(tmp_path / "A.hdf", n=60), **{IMAGE: lambda image: 100 * image})
    assert any("times what the bins scatter" in note for note in ingest.ingest(path).notes)
