"""Intensity against frame and the mean over frames, in the layouts that hold them."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import StoreError
from homodyne_dask.store.arrays import OPTIONAL_ARRAYS
from ingest.readers.pictures import by_frame
from tests.ingest.readers.test_any_layout import chx
from tests.ingest.readers.test_nxxpcs import FULL, nexus
from tests.ingest.readers.test_trains import N, midtools, trains
from tests.ingest_files import edited, simulated

FLUX = 1 + 0.1 * np.sin(np.arange(40))
IMAGE = np.arange(600 * 300, dtype=np.float32).reshape(600, 300)


def aps_u(folder):
    path = simulated(folder / "A.hdf", n=40)
    return path, 40


def legacy(folder):
    path = simulated(folder / "A.hdf", "aps-legacy", n=40)
    numbered = np.stack([np.arange(40), FLUX])
    return edited(path, **{"/exchange/frameSum": numbered, "/exchange/pixelSum": IMAGE}), 40


def of_chx(folder):
    path = chx(folder / "uid=ab12_Res.h5", [[0.01], [0.02], [0.03]])
    n = len(hd.open_dataset(ingest.ingest(path, folder / "first.zarr").store).time)
    return edited(path, imgsum=FLUX[:n], avg_img=IMAGE), n


def nxxpcs(folder):
    path, n = nexus(folder / "A.h5", FULL), FULL.shape[-1]
    return edited(path, **{"entry/data/frame_sum": FLUX[:n], "entry/data/frame_average": IMAGE}), n


def euxfel(folder):
    path = midtools(folder / "r0280.h5", trains())
    by_pulse = np.repeat(np.tile(FLUX[:N], len(trains()))[:, None], 7, axis=1)
    by_pulse[3] = np.nan
    name = "pulse_resolved/azimuthal_intensity/I"
    return edited(path, **{name: by_pulse, "average/image_2d": IMAGE}), N


LAYOUTS = [legacy, of_chx, nxxpcs, euxfel]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_has_the_pictures_of_its_file(tmp_path, layout):
    path, n = layout(tmp_path)
    scan = hd.open_dataset(ingest.ingest(path, tmp_path / "A.zarr").store)
    np.testing.assert_allclose(scan.optional_array("flux"), FLUX[:n])
    mean = scan.optional_array("mean_image")
    assert mean.shape == (200, 100)  # squares of 3 × 3 pixels
    assert mean[0, 0] == IMAGE[:3, :3].mean()
    assert np.isnan(scan.mean_counts).all()  # a flux in any unit is no count


def test_counts_of_aps_u_come_with_its_pictures(tmp_path):
    scan = hd.open_dataset(ingest.ingest(aps_u(tmp_path)[0]).store)
    flux = scan.optional_array("flux")
    counts = scan.all_bins["intensity"][0]
    np.testing.assert_allclose(flux / flux.mean(), counts / counts.mean())
    assert scan.optional_array("mean_image").max() == pytest.approx(counts.mean(), rel=1e-3)


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
    path = edited(legacy(tmp_path)[0], **changes)
    scan = hd.open_dataset(ingest.ingest(path).store)
    assert [scan.optional_array(name) for name in OPTIONAL_ARRAYS] == [None, None]


def test_pixels_that_are_unknown_or_negative_do_not_enter_the_mean(tmp_path):
    image = np.ones((300, 300))
    image[0, 0], image[0, 1], image[2:4, 2:4] = np.nan, -1.0, -1.0
    path = edited(legacy(tmp_path)[0], **{"/exchange/pixelSum": image})
    mean = hd.open_dataset(ingest.ingest(path).store).optional_array("mean_image")
    assert mean[0, 0] == 1
    assert np.isnan(mean[1, 1])


def test_files_of_repeats_have_no_picture_in_common_but_groups_of_trains_have(tmp_path):
    paths = [simulated(tmp_path / f"R{n}.hdf", n=40, seed=n) for n in (1, 2)]
    both = hd.open_dataset(ingest.ingest(paths, tmp_path / "all.zarr").store)
    assert both.optional_array("flux") is None
    path = midtools(tmp_path / "many.h5", trains(n=40))
    edited(path, **{"average/image_2d": IMAGE[None]})
    groups = hd.open_dataset(ingest.ingest(path, tmp_path / "groups.zarr").store)
    assert len(groups.scan_names) > 1
    assert groups.optional_array("mean_image").shape == (200, 100)


def test_an_edited_picture_is_refused(tmp_path):
    import zarr

    store = ingest.ingest(legacy(tmp_path)[0]).store
    zarr.open_group(store)["flux"][3] = 5.0
    with pytest.raises(StoreError, match="flux is not what was ingested"):
        hd.open_dataset(store).optional_array("flux")


@pytest.mark.parametrize("form", [np.asarray, np.atleast_2d, lambda v: v[:, None]])
def test_intensity_may_be_a_row_or_a_column(form):
    np.testing.assert_array_equal(by_frame(form(FLUX), 40, 0, 1, 1), FLUX)
    assert by_frame(np.ones((40, 40)), 40, 0, 1, 1) is None
