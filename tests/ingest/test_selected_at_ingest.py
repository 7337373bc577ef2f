"""Frames that an ingest cuts or leaves out; counts, pixels and units that it is told the names of."""

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError

N, Q = 40, np.array([0.01, 0.02])
T = np.arange(N)
MU, PIXELS = np.linspace(0.2, 0.6, 2 * N).reshape(2, N), np.array([300, 500])


def written(path, seed=0, matlab=False):
    noise = np.triu(np.random.default_rng(seed).normal(0, 0.02, (2, N, N)), 1)
    c2 = 1 + 0.2 * np.exp(-np.abs(T[:, None] - T) / 5) + noise + noise.transpose(0, 2, 1)
    arrays = {
        "c2": c2,
        "q": 10 * Q,
        "t": 1e3 * T,
        "mu": MU,
        "per_bin": MU[:, 0],
        "per_frame": MU[0],
    }
    arrays |= {"pixels": PIXELS, "short": np.ones(7), "rad": np.array([0.0, np.pi / 2])}
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values.T if matlab else values
            if matlab:
                file[name].attrs["MATLAB_class"] = b"double"
        file["q_said"] = Q
        file["q_said"].attrs["units"] = "1/A"
        for k in range(2):
            file[f"bins/{k}/c2"], file[f"bins/{k}/mu"] = c2[k], MU[k]
            file[f"bins/{k}/n"] = PIXELS[k]
    return c2


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return [written(f"{name}.h5", seed) for seed, name in enumerate("ABC")]


def ingested(source="A.h5", **options):
    options = {"dataset": "c2", "q_dataset": "q[1/nm]", "phi": 0, "time_dataset": "t[ms]"} | options
    report = hd.ingest(source, "a.zarr", **options)
    return hd.open_dataset(report.store), report


@pytest.mark.parametrize(
    ("options", "counts"),
    [({"counts_dataset": "mu"}, MU),
     ({"counts_dataset": "per_bin"}, np.repeat(MU[:, :1], N, axis=1)),
     ({"counts_dataset": "per_frame"}, np.stack([MU[0], MU[0]])),
     ({"dataset": "bins/*/c2", "counts_dataset": "bins/*/mu", "pixels_dataset": "bins/*/n"}, MU)],
    ids=["both", "bins", "frames", "star"],
)  # fmt: skip
def test_counts_and_pixels_are_read_by_name(options, counts):
    scan, _ = ingested(**{"pixels_dataset": "pixels"} | options)
    np.testing.assert_allclose(scan.all_bins["intensity"], counts)
    assert scan.n_pixels.tolist() == PIXELS.tolist()
    assert scan.attributes.sigma_source == "counts"


def test_counts_of_matlab_have_the_axes_of_matlab():
    written("M.h5", matlab=True)
    scan, _ = ingested("M.h5", counts_dataset="mu", pixels_dataset="pixels")
    np.testing.assert_allclose(scan.all_bins["intensity"], MU)


def test_a_unit_follows_the_name_of_a_dataset():
    scan, _ = ingested(phi=None, phi_dataset="rad [rad]")
    assert np.allclose(scan.q, Q)
    assert np.allclose(scan.phi, [0, 90])
    assert np.allclose(scan.time, T)


def test_cut_frames_keep_their_times_counts_and_pairs(files):
    scan, report = ingested(frames="10:30", counts_dataset="mu", pixels_dataset="pixels")
    assert np.allclose(scan.time, T[10:30])
    assert np.allclose(scan.all_bins["intensity"], MU[:, 10:30])
    upper = np.triu_indices(20, 1)
    c2 = scan.dataset["c2"].values
    np.testing.assert_allclose(c2[:, *upper], files[0][:, 10:30, 10:30][:, *upper], rtol=1e-6)
    assert "frames 10 to 29 of 40 are stored, at the times that they have" in report.notes


def test_frames_are_left_out_of_one_scan_of_several():
    scan, report = ingested(["A.h5", "B.h5", "C.h5"], exclude_frames="3:10-12,20", frames=(5, 35))
    unknown = np.isnan(scan.dataset["c2"].values)
    dead = [np.flatnonzero(unknown[n].all(axis=0) & unknown[n].all(axis=1)) + 5 for n in range(6)]
    assert [frames.tolist() for frames in dead] == [[20]] * 4 + [[10, 11, 12, 20]] * 2
    assert [row.scan for row in report.bins] == [1, 1, 2, 2, 3, 3]
    assert "scan  label  q [1/Å]" in str(report)
    assert "left out by exclude_frames: 3:10-12, 20, counted from 0" in report.notes


def test_frames_are_left_out_of_a_single_scan():
    scan, report = ingested(exclude_frames="10-12")
    assert np.flatnonzero(~scan.frame_mask).tolist() == [10, 11, 12]
    assert not any("median" in note for note in report.notes)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"counts_dataset": "mu"}, "has counts, but no pixels"),
     ({"counts_dataset": "short", "pixels_dataset": "pixels"}, r"counts of A.h5 have shape \(7,\)"),
     ({"counts_dataset": "none", "pixels_dataset": "pixels"}, "has no dataset none"),
     ({"q_dataset": "q_said[1/nm]"}, r"q_said of A.h5 is in 1/A, not in 1/nm"),
     ({"q_dataset": "q[foo]"}, "only 1/Å, 1/nm and 1/µm are known units"),
     ({"frames": "30:50"}, "frames = 30:50, but A.h5 has frames 0 to 39"),
     ({"exclude_frames": "35-40"}, "exclude_frames = 35-40 is not in frames 0 to 39"),
     ({"exclude_frames": "1:5-9"}, "is of scan 1, but there are 1 scan"),
     ({"exclude_frames": "51:60"}, "'51:60' is not of a form below")],
)  # fmt: skip
def test_what_does_not_fit_the_file_is_refused(options, says):
    with pytest.raises(HomodyneDaskError, match=says):
        ingested(**options)


def test_a_table_of_g2_has_no_frames_to_cut():
    np.savetxt("g2.csv", [[1, 1.2], [2, 1.1], [9, 1.0]], header="delay(s)  g2(q=0.005)")
    for options in ({"frames": "0:3"}, {"exclude_frames": "1"}):
        with pytest.raises(HomodyneDaskError, match="applies to two-time matrices, but g2"):
            hd.ingest("g2.csv", "g.zarr", **options)
