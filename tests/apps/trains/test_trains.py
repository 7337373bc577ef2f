"""Files of midtools, one matrix for each train: they are averaged, and the pulses are the frames."""

import sys

import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import OptionError, PackageError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store.scan import open_dataset
from ingest.readers.detect import open_source
from ingest.readers.source import Source
from tests.ingest_files import arrays, attributes, decay, edited, upper
from tests.run_command import done

N, TRAINS, SIGMA, DT = 24, 12, 0.1, 4.4e-7
WHERE = "train_resolved/correlation"
Q = [0.1, 0.2]
"""1/nm."""


def trains(sigma=SIGMA, n=TRAINS):
    """(train, q, t, t), symmetric; the diagonal is the mean beside it."""
    rng = np.random.default_rng(3)
    both = np.stack([decay(N, k) for k in range(2)])
    noise = np.triu(rng.normal(0, sigma, (n, 2, N, N)), 1)
    c2 = both + noise + noise.swapaxes(-1, -2)
    at = np.arange(N)
    c2[..., at, at] = np.diagonal(c2, 1, -2, -1).mean(-1)[..., None]
    return c2.astype(np.float32)


def midtools(path, ttc, stride=None, t=None):
    with h5py.File(path, "w") as file:
        file.create_dataset(f"{WHERE}/ttc", data=ttc, compression="gzip", chunks=True)
        file[f"{WHERE}/q"] = Q[: ttc.shape[-3]]
        file[f"{WHERE}/t"] = DT * np.arange(N) if t is None else t
        file["identifiers/train_ids"] = 10_000 + np.arange(len(ttc))
        if stride is not None:
            file[f"{WHERE}/stride"] = stride
    return path


def opened(path, phi=None, q=None, trains=None, frame_time=None) -> Source:
    return open_source(path, IngestOptions(q=q, phi=phi, frame_time=frame_time, trains=trains))


def bins(path, **options) -> np.ndarray:
    source = opened(path, **options)
    return np.stack([source.read(k) for k in range(2)])


def check_c2(store, matrices, **tolerance):
    """The store has the mean of matrices (train, ..., t, t)."""
    mean = upper(matrices.astype(float).mean(0).reshape(-1, N, N))
    np.testing.assert_allclose(arrays(store)["c2"], mean, **{"rtol": 1e-6} | tolerance)


def test_the_matrices_of_all_trains_become_one_dataset_of_their_mean(tmp_path):
    ttc = trains()
    report = ingest.ingest(midtools(tmp_path / "r0280.h5", ttc))
    held, attrs = arrays(report.store), attributes(report.store)
    check_c2(report.store, ttc)
    np.testing.assert_allclose(held["q"], [0.01, 0.02])
    assert np.isnan(held["phi"]).all()
    np.testing.assert_allclose(held["time"], DT * np.arange(N), rtol=1e-12)
    assert (attrs["source_format"], attrs["frame_time"]) == ("midtools", DT)
    assert f"mean of {TRAINS} of {TRAINS} trains, 0 to {TRAINS - 1}" in attrs["notes"]
    sigma = open_dataset(report.store).median_sigma
    np.testing.assert_allclose(sigma, SIGMA / np.sqrt(TRAINS), rtol=0.15)


def test_trains_are_selected_and_a_store_of_others_is_not_taken_for_it(tmp_path):
    ttc, path = trains(), tmp_path / "r.h5"
    midtools(path, ttc)
    assert "mean of 7 of 12 trains, 5 to 11" in done("ingest", str(path), "--trains", "5:12")
    store = tmp_path / "r_c2.zarr"
    check_c2(store, ttc[5:12])
    assert attributes(store)["ingest_options"]["trains"] == [5, 12]
    assert ingest.ingest(path, trains=(5, 12)).skipped
    with pytest.raises(Exception, match="the same file with other options"):
        ingest.ingest(path)


@pytest.mark.parametrize("within", [0, 1])
def test_correlations_between_trains_are_left_out(tmp_path, within):
    ttc = trains()
    stacked = np.stack([ttc, ttc + 7.0] if within == 0 else [ttc + 7.0, ttc], axis=1)
    stride = [0, 10] if within == 0 else [10, 0]
    found = bins(midtools(tmp_path / "r.h5", stacked, stride))
    np.testing.assert_allclose(found, ttc.astype(float).mean(0), rtol=1e-6)


def test_trains_without_pixels_and_pulses_without_photons_are_no_data(tmp_path):
    ttc = trains()
    known = np.ones(ttc.shape, bool)
    ttc[3, 0], known[3, 0] = -100, False
    ttc[:, 1, 4, 9], known[:, 1, 4, 9] = np.nan, False
    ttc[:, 1, 9, 4], known[:, 1, 9, 4] = np.nan, False
    ttc[7, :, 2], ttc[7, :, :, 2], known[7, :, 2], known[7, :, :, 2] = 0, 0, False, False
    ttc[7, :, 2, 2] = 1.0  # midtools fills the diagonal
    ttc[11, 0, 6, 8] = ttc[11, 0, 8, 6] = 0  # a measurement
    mean = np.ma.masked_array(ttc.astype(float), ~known).mean(0).filled(np.nan)
    found = bins(midtools(tmp_path / "r.h5", ttc))
    off_diagonal = ~np.eye(N, dtype=bool)
    np.testing.assert_allclose(found[:, off_diagonal], mean[:, off_diagonal], rtol=1e-6)


def test_times_may_be_lags_and_azimuths_may_be_given(tmp_path):
    path = midtools(tmp_path / "r.h5", trains(n=4), t=DT * np.arange(1, N))
    source = opened(path, phi=[0.0, 90.0])
    np.testing.assert_allclose(source.time, DT * np.arange(N), rtol=1e-12)
    np.testing.assert_array_equal(source.phi, [0.0, 90.0])


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({f"{WHERE}/ttc": np.ones((3, 2, N, N + 1))}, {}, r"must be \(train, q, t, t\)"),
        ({f"{WHERE}/ttc": np.ones((3, 4, 2, N, N))}, {}, "must be 4 distances between trains"),
        ({f"{WHERE}/stride": [1, 5, 10]}, {}, "one of them 0"),
        ({f"{WHERE}/t": DT * np.arange(N + 3)}, {}, f"has {N + 3} entries for"),
        ({f"{WHERE}/q": [0.1]}, {}, "has 1 entries instead of 2"),
        ({}, {"trains": "3:3"}, "trains = 3:3, but r.h5 has 3"),
        ({}, {"trains": "all"}, "trains = 'all' .* such as 0:500"),
        ({}, {"q": 0.1}, "leave it out"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, changes, options, words):
    path = midtools(tmp_path / "r.h5", np.ones((3, 3, 2, N, N)), [0, 1, 10])
    with pytest.raises((SourceError, OptionError), match=words):
        opened(edited(path, **changes), **options)


def test_trains_of_a_file_without_are_refused(tmp_path):
    np.save(tmp_path / "A.npy", decay(N))
    with pytest.raises(OptionError, match="contains no trains: leave out trains"):
        opened(tmp_path / "A.npy", q=0.01, phi=0.0, frame_time=1.0, trains=(0, 3))


def test_without_the_application_a_file_of_trains_is_of_no_known_layout(tmp_path, monkeypatch):
    path = midtools(tmp_path / "r.h5", trains())
    monkeypatch.setitem(sys.modules, "homodyne_dask.apps.trains", None)
    with pytest.raises(SourceError, match="no two-time matrices of a known layout"):
        opened(path)
    with pytest.raises(
        PackageError, match=r"trains needs the application homodyne_dask\.apps\.trains"
    ):
        opened(path, trains="0:5")


def test_groups_of_many_trains_are_scans(tmp_path):
    ttc, path = trains(n=100), tmp_path / "r.h5"
    report = ingest.ingest(midtools(path, ttc))
    check_c2(report.store, ttc.reshape(10, 10, 2, N, N).swapaxes(0, 1))
    scan = open_dataset(report.store)
    assert scan.scan_names[:2] == ["trains 0 to 9", "trains 10 to 19"]
    assert scan.scan_number.tolist() == sorted([*range(1, 11)] * 2)
    assert any("10 scans, each the mean of a group, of 100 of 100" in one for one in report.notes)
    assert len(opened(path, trains="10:58").scans) == 8
    mean = ingest.ingest(path, tmp_path / "mean.zarr", average="scans")
    check_c2(mean.store, ttc, rtol=1e-7, atol=SIGMA / 15)
    np.testing.assert_allclose(open_dataset(mean.store).median_sigma, SIGMA / 10, rtol=0.1)
