"""Intensity against frame and the mean over frames, in the layouts that hold them."""

import h5py
import numpy as np
import pytest
import zarr

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import StoreError
from homodyne_dask.store.arrays import OPTIONAL_ARRAYS
from ingest.readers.hdf5 import by_frame
from tests.applications import made_for
from tests.ingest_files import DT, edited, nexus, noisy, simulated

N, TRAINS = 40, 40
FLUX = 1 + 0.1 * np.sin(np.arange(40))
IMAGE = np.arange(600 * 300, dtype=np.float32).reshape(600, 300)


def legacy(folder):
    path = simulated(folder / "A.hdf", "aps-legacy", n=N)
    numbered = np.stack([np.arange(N), FLUX])
    return edited(path, **{"/exchange/frameSum": numbered, "/exchange/pixelSum": IMAGE})


def of_chx(folder):
    path = folder / "uid=ab12_Res.h5"
    with h5py.File(path, "w") as file:
        file["g12b"] = np.stack([noisy(N, k) for k in range(2)], axis=-1)
        file["tausb"], file["qval_dict"] = [0, DT], [0]
        file["qval_dict"].attrs.update({"0": [0.01], "1": [0.02]})
        file["imgsum"], file["avg_img"] = FLUX, IMAGE
    return path


def nxxpcs(folder):
    path = nexus(folder / "A.h5", np.stack([noisy(N, k) for k in range(3)]))
    return edited(path, **{"entry/data/frame_sum": FLUX, "entry/data/frame_average": IMAGE})


def of_midtools(folder):
    by_pulse = np.repeat(np.tile(FLUX, TRAINS)[:, None], 7, axis=1)
    by_pulse[3] = np.nan
    ttc = np.stack([noisy(N, k) for k in range(TRAINS)])[:, None]
    path = made_for("trains.test_trains").midtools(folder / "r0280.h5", ttc, t=DT * np.arange(N))
    pictures = {"pulse_resolved/azimuthal_intensity/I": by_pulse, "average/image_2d": IMAGE[None]}
    return edited(path, **pictures)


def kept(path, name):
    """An optional array of the store of a file, which must have it."""
    store = ingest.ingest(path).store
    return hd.open_dataset(store).manifest.read_array(store, name)


@pytest.mark.parametrize("layout", [legacy, of_chx, nxxpcs, of_midtools])
def test_a_store_has_the_pictures_of_its_file(tmp_path, layout):
    path = layout(tmp_path)
    np.testing.assert_allclose(kept(path, "flux"), FLUX)
    mean = kept(path, "mean_image")
    assert mean.shape == (200, 100)  # squares of 3 × 3 pixels
    assert mean[0, 0] == IMAGE[:3, :3].mean()
    scan = hd.open_dataset(ingest.ingest(path).store)
    assert np.isnan(scan.mean_counts).all()  # a flux in any unit is no count


def test_counts_of_aps_u_come_with_its_pictures(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=N)
    flux, image = kept(path, "flux"), kept(path, "mean_image")
    counts = hd.open_dataset(ingest.ingest(path).store).all_bins["intensity"][0]
    np.testing.assert_allclose(flux / flux.mean(), counts / counts.mean())
    assert image.max() == pytest.approx(counts.mean(), rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"/exchange/frameSum": None, "/exchange/pixelSum": None},
        {"/exchange/frameSum": np.ones(7), "/exchange/pixelSum": np.full((9, 9), -1.0)},
        {"/exchange/frameSum": b"none", "/exchange/pixelSum": np.ones(5)},
    ],
    ids=["absent", "of another record and masked throughout", "not numbers"],
)
def test_what_is_no_picture_is_left_out(tmp_path, changes):
    path = edited(legacy(tmp_path), **changes)
    scan = hd.open_dataset(ingest.ingest(path).store)
    assert not scan.manifest.arrays.keys() & OPTIONAL_ARRAYS


def test_pixels_that_are_unknown_or_negative_do_not_enter_the_mean(tmp_path):
    image = np.ones((300, 300))
    image[0, 0], image[0, 1], image[2:4, 2:4] = np.nan, -1.0, -1.0
    path = edited(legacy(tmp_path), **{"/exchange/pixelSum": image})
    mean = kept(path, "mean_image")
    assert mean[0, 0] == 1
    assert np.isnan(mean[1, 1])


def test_files_of_repeats_have_no_picture_in_common(tmp_path):
    paths = [simulated(tmp_path / f"R{n}.hdf", n=N, seed=n) for n in (1, 2)]
    both = hd.open_dataset(ingest.ingest(paths, tmp_path / "all.zarr").store)
    assert "flux" not in both.manifest.arrays


def test_an_edited_picture_is_refused(tmp_path):
    store = ingest.ingest(legacy(tmp_path)).store
    zarr.open_array(store, path="flux")[3] = 5.0
    with pytest.raises(StoreError, match="flux differs from what was ingested"):
        hd.open_dataset(store).manifest.read_array(store, "flux")


@pytest.mark.parametrize("form", [np.asarray, np.atleast_2d, lambda v: v[:, None]])
def test_intensity_may_be_a_row_or_a_column(form):
    np.testing.assert_array_equal(by_frame(form(FLUX), N, 0, 1, 1), FLUX)
    assert by_frame(np.ones((N, N)), N, 0, 1, 1) is None
