"""Results of ESRF's correlators: averages over cells of age and lag."""

import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store.cells import Cells
from ingest.readers.esrf import cells_of_centres, open_esrf
from tests.esrf_files import averaged, esrf
from tests.ingest_files import DT, arrays, attributes, noisy, upper


def unbinned(full):
    n = full.shape[-1]
    ttcf = np.full((2, 2 * n - 1, n), np.nan)
    for i in range(n):
        for j in range(i, n):
            ttcf[:, i + j, j - i] = full[:, i, j]
    return ttcf, DT * 0.5 * np.arange(2 * n - 1), DT * np.arange(n)


def test_unbinned_ages_and_lags_give_every_pair_back(tmp_path):
    full = np.stack([noisy(24, 0), noisy(24, 1)])
    report = ingest.ingest(esrf(tmp_path / "A.h5", *unbinned(full)), phi=0, sigma=0.02)
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(full))
    assert [row.q for row in report.bins] == pytest.approx([0.005, 0.01])
    assert [row.pixels for row in report.bins] == [35, 35]
    assert attributes(report.store)["source_format"] == "esrf"
    assert any("assumed to be in 1/nm" in note for note in report.notes)
    assert attributes(report.store)["cells"] is None


def test_a_cell_of_0_is_a_measurement_unless_its_whole_age_or_lag_is_0(tmp_path):
    full = np.stack([noisy(24, 0), noisy(24, 1)])
    full[:, 3, 8] = 0
    ttcf, age, lag = unbinned(full)
    ttcf[:, 20], ttcf[:, :, 6] = 0, 0  # ages and lags that the correlator has not reached
    c2 = arrays(ingest.ingest(esrf(tmp_path / "A.h5", ttcf, age, lag), phi=0, sigma=1).store)["c2"]
    i, j = np.indices((24, 24))
    expected = np.where((i + j == 20) | (j - i == 6), np.nan, full)
    np.testing.assert_array_equal(c2, upper(expected))
    assert (c2[:, 3, 8] == 0).all()


@pytest.mark.parametrize(("n", "ages", "decade", "lags"), [
    (150, 12, 1, 8), (101, 10, 1, 2), (97, 96, 0, 9), (300, 7, 2, 5), (1001, 20, 1, 3),
])  # fmt: skip
def test_cells_hold_the_pairs_that_the_correlator_averaged(n, ages, decade, lags):
    """Also where a lag or an age lies at an edge; centres may be float32."""
    _, age, lag, count = averaged(np.ones((1, n, n)), ages, decade, lags)
    cells = cells_of_centres(*(centres.astype(np.float32).astype(float) for centres in (age, lag)))
    assert isinstance(cells, Cells)
    assert cells.n_frames == n
    np.testing.assert_array_equal(cells.pairs.reshape(count.shape), count)


def test_the_pairs_of_cells_are_those_of_their_tiles():
    cells = Cells(np.array([0, 30, 31, 31, 90, 180]), np.array([0, 1, 2, 7, 40, 91]), 91)
    tiles = [cells.of_tile(i, j, 32) for i in range(0, 91, 32) for j in range(i, 91, 32)]
    counted = np.bincount(np.concatenate([tile.ravel() for tile in tiles]))
    np.testing.assert_array_equal(counted[: cells.number], cells.pairs)
    assert cells.pairs.sum() == 91 * 92 // 2 - 1  # the last frame with itself is at i + j = 180


@pytest.mark.parametrize("old", [False, True])
def test_every_pair_takes_the_average_of_its_cell_and_cells_weigh_as_many_pairs(tmp_path, old):
    n = 150
    full = np.stack([noisy(n, 0), noisy(n, 1)])
    ttcf, age, lag, count = averaged(full, ages=12, decade=1, lags=8)
    options = {"q": [0.005, 0.01]} if old else {}
    path = esrf(tmp_path / "A.h5", ttcf, DT * age, DT * lag, old=old)
    report = ingest.ingest(path, phi=[0, 90], **options)
    store = arrays(report.store)
    assert store["time"] == pytest.approx(DT * np.arange(n))
    c2 = store["c2"][1]
    values, pairs = np.unique(c2[np.isfinite(c2)], return_counts=True)
    expected = {np.float32(v): c for v, c in zip(ttcf[1].ravel(), count.ravel(), strict=True)}
    assert [expected[v] for v in values] == pairs.tolist()
    assert pairs.sum() == n * (n - 1) // 2
    assert report.sigma_source == "constant"
    assert [row.sigma for row in report.bins] == pytest.approx([0.02, 0.02], rel=0.35)
    assert any("cells of age and lag" in note for note in report.notes)


@pytest.mark.parametrize("name", ["age", "lag"])
def test_ages_and_lags_in_a_unit_that_is_none_of_time_are_refused(tmp_path, name):
    path = esrf(tmp_path / "A.h5", np.ones((2, 6, 5)), np.arange(6.0), np.arange(5.0))
    with h5py.File(path, "r+") as file:
        file[f"entry_0000/correlations/full/twotime/{name}"].attrs["units"] = "frames"
    with pytest.raises(SourceError, match=f"{name} of A.h5 is in 'frames', but the known units"):
        open_esrf(path, IngestOptions(phi=0))


MIDDLES = np.arange(20) + 0.5
ESRF_MISTAKES = {
    "shape": ({"age": np.arange(4.0)}, "has shape .* it must be"),
    "order": ({"age": -np.arange(6.0)}, "age of .* must be two or more increasing"),
    "long": ({"age": 1e5 * MIDDLES[:6]}, "the limit is 20,000 frames"),
    "age": ({"age": 2.0 ** np.arange(6)}, "age of .* does not match ESRF's correlator"),
    "lag": ({"lag": 2.0 ** np.arange(5)}, "lag of .* does not match ESRF's correlator"),
    "q": ({"q": [0.1]}, "has 1 entries instead of 2"),
}


@pytest.mark.long
@pytest.mark.parametrize("word", ESRF_MISTAKES)
def test_what_is_wrong_with_cells_is_named(tmp_path, word):
    changes, message = ESRF_MISTAKES[word]
    datasets = {"ttcf": np.ones((2, 6, 5)), "age": MIDDLES[:6], "lag": np.arange(5.0)}
    with pytest.raises(SourceError, match=message):
        ingest.ingest(esrf(tmp_path / "A.h5", **(datasets | changes)), phi=0)


def test_a_file_of_cells_needs_the_angle_and_says_which_analysis_was_read(tmp_path):
    datasets = {"age": MIDDLES, "lag": np.arange(5.0)}
    ttcf = 1 + 0.01 * np.random.default_rng(0).standard_normal((2, 20, 5))
    path = esrf(tmp_path / "A.h5", ttcf, **datasets)
    esrf(path, ttcf, **datasets, analysis="sectors")
    with pytest.raises(OptionError, match="give phi"):
        ingest.ingest(path)
    report = ingest.ingest(path, phi=0)
    assert any("analysis full was read; the file also contains sectors" in n for n in report.notes)
    flat = esrf(tmp_path / "B.h5", np.ones((2, 20, 5)), **datasets)
    with pytest.raises(SourceError, match="give sigma"):
        ingest.ingest(flat, phi=0)
