"""Arrays that are ingested without a file, and messages that spell options as Python does."""

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, OptionError
from tests.synthetic import CREEP, angles, measured

PHI = angles(3)
KNOWN = {"q": 0.005, "phi": PHI, "dt": 0.5}


@pytest.fixture(scope="module")
def c2():
    made = measured(CREEP, 40, PHI, dt=0.5).c2
    return np.where(np.isnan(made), np.swapaxes(made, 1, 2), made)


class Tensor:
    """What another library has: NumPy makes an array of it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


FORMS = {
    "float64": lambda c2: c2.astype(float),
    "Fortran order": np.asfortranarray,
    "a view that runs backwards": lambda c2: c2[::-1][::-1],
    "xarray": lambda c2: xarray.DataArray(c2, dims=("bin", "t1", "t2")),
    "of another library": Tensor,
    "a list": lambda c2: c2.tolist(),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_array_is_ingested_as_its_file_would_be(c2, tmp_path, form):
    np.savez(tmp_path / "S.npz", c2=c2, **KNOWN)
    of_file = hd.open_dataset(hd.ingest(tmp_path / "S.npz").store)
    report = hd.ingest(FORMS[form](c2), tmp_path / "new" / "A_c2.zarr", **KNOWN)
    scan = hd.open_dataset(report.store)
    np.testing.assert_array_equal(scan.dataset["c2"].values, of_file.dataset["c2"].values)
    assert scan.phi.tolist() == of_file.phi.tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["A_c2.zarr"]


def test_the_same_call_again_finds_its_store(c2, tmp_path):
    store = tmp_path / "A_c2.zarr"
    hd.ingest(c2, store, **KNOWN)
    assert hd.ingest(c2, store, **KNOWN).skipped
    with pytest.raises(HomodyneDaskError, match="give overwrite=True to replace it"):
        hd.ingest(c2 + 0.001, store, **KNOWN)


COUNTS = [0.3, [0.2, 0.3, 0.4], np.full(40, 0.3), np.full((3, 40), 0.3)]


@pytest.mark.parametrize("counts", COUNTS, ids=["one", "of bins", "of frames", "of both"])
def test_sigma_follows_from_counts_and_pixels(c2, tmp_path, counts):
    report = hd.ingest(c2, tmp_path / "A.zarr", **KNOWN, counts=counts, pixels=[400, 500, 600])
    assert report.sigma_source == "counts"
    assert [row.pixels for row in report.bins] == [400, 500, 600]
    beta = hd.open_dataset(report.store).all_bins["beta_ingest"][1]
    assert report.bins[1].sigma == pytest.approx((1 / 0.3 + beta) / np.sqrt(500), rel=1e-6)


WRONG = [
    {"source": 5}, {"source": None}, {"source": np.ones((3, 4, 5))}, {"source": np.array([["a"]])},
    {"store": None}, {"dt": None}, {"frame_time": 0.5}, {"counts": 0.3}, {"counts": np.ones(7), "pixels": 5},
    {"counts": -1.0, "pixels": 5}, {"pixels": 2.5}, {"pixels": "many"},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: str(changes)[:30])
def test_what_is_wrong_with_an_array_is_named(c2, tmp_path, changes):
    given = {"source": c2, "store": tmp_path / "A.zarr", **KNOWN} | changes
    with pytest.raises(HomodyneDaskError, match="array|" + "|".join(changes)):
        hd.ingest(**given)


def test_counts_of_a_file_stand_in_the_file(c2, tmp_path):
    np.savez(tmp_path / "S.npz", c2=c2, counts=0.3, pixels=500, **KNOWN)
    with pytest.raises(OptionError, match="counts applies to arrays only"):
        hd.ingest(tmp_path / "S.npz", counts=0.3)
    assert hd.ingest(tmp_path / "S.npz").sigma_source == "counts"
