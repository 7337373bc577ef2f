"""Stores that are opened, and those that are refused; bins and frames that are selected, or cannot be."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr

import homodyne_dask as hd
from homodyne_dask.errors import SelectionError, StoreError
from homodyne_dask.fitting.series.rings_and_windows import subsets_of
from homodyne_dask.store import schema
from homodyne_dask.store.rings_and_clusters import nearest_angles, nearest_ring
from homodyne_dask.store.scan import open_dataset
from tests.ingest_files import reseal
from tests.synthetic import FLOW, measured, store

RINGS = [0.004, 0.004, 0.004, 0.008, 0.008]
PHI = [-60.0, 0.0, 60.0, 0.0, 45.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dataset")


@pytest.fixture(scope="module")
def scan(folder):
    return store(measured(FLOW, 40, PHI, q=RINGS, dt=0.5), folder)


def test_every_pair_is_counted_once_and_only_those_far_enough_apart(scan):
    assert scan.manifest.pairs.sum() == scan.cuts().count.sum() == 5 * 40 * 39 // 2
    for min_lag in (2, 3, 5, 9):
        assert (scan.cuts(min_lag).count[0].sum()) <= (41 - min_lag) * (40 - min_lag) // 2


@pytest.fixture
def copy(scan, tmp_path):
    target = tmp_path / "copy.zarr"
    shutil.copytree(scan.path, target)
    return target


def change(path, **attributes):
    group = zarr.open_group(str(path), mode="r+", use_consolidated=False)
    group.attrs.update(attributes)


DAMAGED = {
    "foreign zarr": lambda path: change(path, format="other"),
    "metadata cut off": lambda path: (path / "zarr.json").write_text("{"),
    "metadata gone": lambda path: (path / "zarr.json").unlink(),
    "q rewritten": lambda path: zarr.open_group(path, mode="r+")["q"].__setitem__(..., 0.01),
}


@pytest.mark.parametrize("word", DAMAGED)
def test_a_store_that_is_not_whole_is_refused(copy, word):
    """Other damage: tests/faults/test_store.py, and with right checksums test_sealed_lies.py."""
    open_dataset(copy)
    DAMAGED[word](copy)
    with pytest.raises(StoreError, match=r"copy\.zarr") as raised:
        open_dataset(copy)
    assert "\n" not in str(raised.value)


def test_what_is_no_store_is_refused(tmp_path):
    file = tmp_path / "result.hdf"
    file.write_bytes(b"\x89HDF")
    (tmp_path / "empty").mkdir()
    for path, says in (
        (tmp_path / "missing.zarr", "does not exist"),
        (file, "is a file, not a store"),
        (tmp_path / "empty", "not a Zarr store"),
    ):
        with pytest.raises(StoreError, match=says):
            open_dataset(path)


def test_the_same_data_with_another_sigma_time_or_q_are_another_selection(folder):
    scans = measured(FLOW, 30, (0.0, 40.0), dt=0.5)
    first = store(scans, folder, "changing").selection
    changes = {
        "sigma": [0.01, 0.03],
        "time": 2 * scans.time,
        "q": [0.005, 0.006],
        "phi": [10.0, 50.0],
    }
    for name, value in changes.items():
        assert store(scans, folder, "changing", **{name: value}).selection != first, name
    assert store(scans, folder, "changing").selection == first


LATER = {"cuts": lambda scan: scan.cuts(), "sums": lambda scan: scan.chunk_sums}


@pytest.mark.parametrize("name", LATER)
def test_what_is_read_later_is_of_the_store_that_was_opened(folder, copy, name):
    scan = open_dataset(copy)
    other = store(measured(FLOW, 40, PHI, q=RINGS, dt=0.5, seed=1), folder, "other")
    shutil.rmtree(copy)
    shutil.copytree(other.path, copy)
    with pytest.raises(
        StoreError, match=f"{name}/.* differs from what was ingested: .* was replaced"
    ):
        LATER[name](scan)


@pytest.mark.parametrize(
    ("frames", "side"), [(3, 64), (64, 64), (65, 128), (300, 320), (512, 512), (513, 512)]
)
def test_chunks_of_short_scans_are_no_larger_than_these_need(frames, side):
    assert schema.tile_side(frames) == side


SELECTED = [
    ("a ring", {"q": 0.004}, [1, 2, 3]),
    ("a ring within 2 %", {"q": 0.00407}, [1, 2, 3]),
    ("two rings", {"q": [0.004, 0.008]}, [1, 2, 3, 4, 5]),
    ("angles between", {"phi": (-10, 50)}, [2, 4, 5]),
    ("the ends of angles belong", {"phi": (0, 45)}, [2, 4, 5]),
    ("one angle", {"phi": 60.5}, [3]),
    ("one angle, a turn further", {"phi": 420}, [3]),
    ("an angle of both rings", {"phi": 0.3}, [2, 4]),
    ("three angles", {"phi": [-60, 0.2, 45]}, [1, 2, 4, 5]),
    ("an angle and a range", {"phi": [0, (40, 50)]}, [2, 4, 5]),
    ("two ranges as lists", {"phi": [[-70, -50], [40, 50]]}, [1, 5]),
    ("around 180°", {"phi": (60, -120)}, [3]),
    ("around 180°, in degrees up to 360", {"phi": (300, 10)}, [1, 2, 4]),
    ("all of a turn", {"phi": (-180, 180)}, [1, 2, 3, 4, 5]),
    ("labels, in their order", {"label": [5, 1]}, [5, 1]),
    ("one label", {"label": 4}, [4]),
    ("ring and angles", {"q": 0.008, "phi": (-10, 10)}, [4]),
]


@pytest.mark.parametrize(("word", "given", "labels"), SELECTED, ids=[w for w, *_ in SELECTED])
def test_bins_are_selected(scan, word, given, labels):
    found = scan.select(**given)
    assert found.label.tolist() == labels
    assert found.frames == (0, 40)
    assert scan.label.tolist() == [1, 2, 3, 4, 5]


FRAMES = [
    ("frames", {"frames": (5, 20)}, (5, 20)),
    ("frames beyond the last", {"frames": (5, 400)}, (5, 40)),
    ("time, without the frame at its end", {"time": (2.0, 5.0)}, (4, 10)),
    ("all of the time", {"time": (0, np.inf)}, (0, 40)),
    ("time between frames", {"time": (1.9, 5.2)}, (4, 11)),
    ("both", {"frames": (6, 30), "time": (2.0, 5.0)}, (6, 10)),
    ("from a frame on", {"frames": (10, None)}, (10, 40)),
    ("up to a frame", {"frames": (None, 12)}, (0, 12)),
    ("a slice", {"frames": slice(10, 20)}, (10, 20)),
    ("an open slice", {"frames": slice(10, None)}, (10, 40)),
    ("from a time on", {"time": (5.0, None)}, (10, 40)),
    ("up to a time", {"time": (None, 6.0)}, (0, 12)),
]


@pytest.mark.parametrize(("word", "given", "frames"), FRAMES, ids=[w for w, *_ in FRAMES])
def test_frames_are_selected_and_time_keeps_its_origin(scan, word, given, frames):
    found = scan.select(**given)
    assert found.frames == frames
    assert np.flatnonzero(found.use).tolist() == list(range(*frames))
    assert found.time[0] == 0


RINGS_CLOSE = np.array([0.00536, 0.00543, 0.00543 * (1 + 4e-7), 0.00610, np.nan])
NAMED = [
    ("a value between two that is nearer to one", 0.00538, [0]),
    ("bins whose q differs by rounding", 0.00543, [1, 2]),
    ("within 2 %", 0.0062, [3]),
]


@pytest.mark.parametrize(("word", "asked", "found"), NAMED, ids=[w for w, *_ in NAMED])
def test_a_q_names_the_ring_it_is_near(word, asked, found):
    assert nearest_ring(RINGS_CLOSE, asked).tolist() == found


def test_a_q_that_may_be_two_rings_is_refused_with_all_there_are():
    says = "q = 0.0054 1/Å matches the rings 0.00536 and 0.00543 1/Å: .*; choose from .*0.0061 1/Å"
    with pytest.raises(SelectionError, match=says):
        nearest_ring(RINGS_CLOSE, 0.0054)
    with pytest.raises(SelectionError, match="the store has no q"):
        nearest_ring(RINGS_CLOSE[4:], 0.0054)


def test_one_angle_is_the_nearest_of_a_ring_and_not_all_within_a_degree():
    q, phi = np.full(4, 0.01), np.array([10.0, 10.8, 11.5, 190.0])
    assert nearest_angles(q, phi, 10.2).tolist() == [True, False, False, False]
    with pytest.raises(SelectionError, match=r"the nearest: 10°, 10\.8°, 11\.5°"):
        nearest_angles(q, phi, 12.6)
    with pytest.raises(SelectionError, match=r"phi = 10\.5° matches the angles 10\.8 and 10°"):
        nearest_angles(q, phi, 10.5)


def test_values_for_each_bin_have_the_order_of_the_labels(scan):
    truth = dict(zip(hd.STATIC.names, FLOW, strict=False)) | {"D0": 1e4, "alpha": 0, "D_offset": 0}
    scaling = {"scaling": "fixed", "contrast": [0.1, 0.3], "offset": [1.1, 0.9]}
    for labels in ([2, 1], [1, 2]):
        found = hd.fit(scan.select(label=labels), hd.STATIC, fixed=truth, **scaling).scaling
        assert found["label"].values.tolist() == labels
        assert found["contrast"].values.tolist() == [0.1, 0.3]


def test_windows_that_follow_each_other_share_no_frame(scan):
    parts = subsets_of(scan, "age", [(0, 5), (5, 12.5), (12.5, 20)])
    assert [part.scan.frames for part in parts] == [(0, 10), (10, 25), (25, 40)]
    tenths = replace(scan, time=0.1 * np.arange(40))  # 3 · 0.1 is a little more than 0.3
    parts = subsets_of(tenths, "age", [(0, 0.3), (0.3, 0.6), (0.6, 0.9)])
    assert [part.scan.frames for part in parts] == [(0, 3), (3, 6), (6, 9)]


MISTAKES = [
    {"q": 0.006}, {"label": 9}, {"label": [3, 3]}, {"q": 0.008, "phi": 60},
    {"frames": (3, 5)}, {"frames": (20, 5)}, {"frames": (-50, 15)}, {"frames": (0.5, 15)}, {"frames": 5},
    {"time": (5, 2)}, {"time": (-5, 2)}, {"time": (np.nan, 2)}, {"time": (100, 200)},
    {"phi": (70, 80)}, {"phi": (40, 20)}, {"phi": (-200, 300)}, {"phi": "north"}, {"phi": [(1, 2, 3), 4]},
    {"phi": [-1, 45]}, {"phi": np.array([-1, 45])},  # a range, or two angles
]  # fmt: skip


@pytest.mark.parametrize("given", MISTAKES, ids=str)
def test_a_selection_that_cannot_be_meant_names_what_was_given(scan, given):
    name = {"q": "q|ring", "label": "label", "phi": "phi|φ"}.get(next(iter(given)), "frames|time")
    with pytest.raises(SelectionError, match=name) as raised:
        scan.select(**given)
    assert "\n" not in str(raised.value)


def test_the_digest_is_that_of_the_whole_store(scan, copy):
    assert open_dataset(copy).digest == scan.digest
    change(copy, notes=["another"])
    reseal(copy)
    assert open_dataset(copy).digest != scan.digest
