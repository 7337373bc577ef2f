"""Bins and frames left out of a scan that is already ingested."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.cell_residuals import stored_cells
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.store.scan import coarse_use
from tests.applications import application
from tests.run_command import done
from tests.synthetic import FAST_DECAY, FLOW, angles, fit_here, measured, store

BAD = [(0, 3), (51, 61), (640, 641)]


def spoilt(made, frames, by=0.4):
    c2 = made.c2.copy()
    for first, stop in frames:
        c2[:, first:stop] += np.float32(by)
        c2[:, :, first:stop] += np.float32(by)
    return replace(made, c2=c2)


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("excluded")
    # far blocks are not read, their sums are stored
    made = measured(FAST_DECAY, 700, angles(3), dt=0.1)
    bad, without = spoilt(made, BAD), spoilt(made, BAD, np.nan)
    return store(bad, folder, "bad"), store(without, folder, "without")


@pytest.mark.long
def test_excluded_frames_are_as_if_they_had_no_data(scans):
    bad, empty = scans
    exclude = {"frames": BAD[:2], "time": (64.0, 64.1)}
    found, truth = (
        fit_here(one, hd.LAMINAR_FLOW, gap="200 um") for one in (bad.select(exclude=exclude), empty)
    )
    assert found is not None
    assert truth is not None
    assert found.ndata == truth.ndata
    assert found.chisqr == pytest.approx(truth.chisqr, rel=1e-6)
    values = found.parameters["value"].values
    np.testing.assert_allclose(values, truth.parameters["value"].values, rtol=1e-3)
    assert found.provenance.inputs["frames_excluded"] == [list(one) for one in BAD]


def test_no_average_has_a_pair_of_an_excluded_frame(scans):
    bad, _ = scans
    chosen = bad.select(exclude={"frames": BAD})
    cells = stored_cells(chosen, 1)
    assert 0 < len(cells.intervals) < len(stored_cells(bad, 1).intervals)
    for one in cells.intervals:
        i = np.arange(one.first, one.stop)
        j = np.concatenate([i + lag for lag in range(one.shortest, one.end)])
        assert chosen.use[i].all()
        assert chosen.use[j[j < 700]].all()
    assert not coarse_use(chosen, 4)[[0, 12, 13, 14, 15, 160]].any()
    assert coarse_use(chosen, 4).sum() == 175 - 6


EXCLUDED = [
    ("an angle", {"phi": -90}, [2, 3], ()),
    ("angles between", {"phi": (-40, 40)}, [1], ()),
    ("labels", {"label": [1, 3]}, [2], ()),
    ("a slice of frames", {"frames": slice(690, None)}, [1, 2, 3], ((690, 700),)),
    ("ranges that touch", {"frames": [(9, 12), (5, 9), [11, 14]]}, [1, 2, 3], ((5, 14),)),
    ("single frames", {"frames": {7, 5, 6, 640}}, [1, 2, 3], ((5, 8), (640, 641))),
    ("frames and ranges", {"frames": [64, (9, 12), 5]}, [1, 2, 3], ((5, 6), (9, 12), (64, 65))),
    ("frames of an array", {"frames": np.array([2.0, 5, 6])}, [1, 2, 3], ((2, 3), (5, 7))),
    ("frames up to one", {"frames": [None, 3]}, [1, 2, 3], ((0, 3),)),
    ("a mask of two", {"frames": np.arange(700) % 400 == 7}, [1, 2, 3], ((7, 8), (407, 408))),
    ("a mask of frames", {"frames": np.arange(700) >= 695}, [1, 2, 3], ((695, 700),)),
    ("both", {"frames": (0, 2), "time": (0.1, 0.3), "label": 2}, [1, 3], ((0, 3),)),
    ("nothing", {}, [1, 2, 3], ()),
    ("what an option leaves out", {"frames": None, "phi": None}, [1, 2, 3], ()),
]


@pytest.mark.parametrize(
    ("word", "exclude", "labels", "ranges"), EXCLUDED, ids=[w[0] for w in EXCLUDED]
)
def test_bins_and_frames_are_excluded(scans, word, exclude, labels, ranges):
    found = scans[0].select(exclude=exclude)
    assert found.label.tolist() == labels
    assert found.excluded_frames == ranges
    assert found.use.sum() == 700 - sum(b - a for a, b in ranges)


def test_exclusions_add_up_and_keep_to_the_selected_frames(scans):
    once = scans[0].select(frames=(40, 200), exclude={"frames": (0, 50)})
    twice = once.select(exclude={"frames": (100, 120)})
    assert once.excluded_frames == ((40, 50),)
    assert twice.excluded_frames == ((40, 50), (100, 120))
    assert twice.select(frames=(110, 200)).excluded_frames == ((110, 120),)
    assert "frames 40 to 199 of 700 without 40 to 49, 100 to 119" in str(twice)
    assert not twice.dataset["frame_mask"].values[:10].any()


MISTAKES = [
    {"frame": (1, 2)}, [(1, 2)], {"frames": (700, 800)}, {"frames": (20, 5)}, {"frames": (2, 700)},
    {"label": [1, 2, 3]}, {"label": 9}, {"phi": 10}, {"frames": [2, 5]}, {"frames": np.ones(9, bool)},
    {"frames": {"2"}}, {"frames": [2, None, 5]}, {"frames": [2.5, 4, 6]}, {"frames": [2, 5, 700]},
    {"frames": [True, False, True]}, {"frames": np.array([2, 5])}, {"frames": [-1, 3, 5]},
]  # fmt: skip


@pytest.mark.parametrize("exclude", MISTAKES, ids=str)
def test_what_cannot_be_excluded_is_refused(scans, exclude):
    with pytest.raises(SelectionError, match=r"exclude|frames|label|angle"):
        scans[0].select(exclude=exclude)


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        ("2,5,10-14", [(2, 3), (5, 6), (10, 15)]),
        (("51:61", "7"), [(51, 61), (7, 8)]),
        ("bad.txt,3", [(4, 5), (8, 10), (20, 30), (3, 4)]),
        ((51, 61), [(51, 61)]),
        ([[51, 61], "70:72"], [(51, 61), (70, 72)]), (5, [(5, 6)]), ("2:5", [(2, 5)]),
        ([2, "10-14", [51, 61], 7], [(2, 3), (10, 15), (51, 61), (7, 8)]),
        ("5.5", None), ("-3", None), ("good.txt", None), ("x" * 300, None), ("own.txt", None),
        ("14-10", [(14, 11)]), ([2, 5, 10], [(2, 3), (5, 6), (10, 11)]), ([-1, 5.5, 7], None),
    ],
    ids=str,
)  # fmt: skip
def test_frames_are_excluded_one_by_one_in_ranges_or_by_a_file(
    tmp_path, monkeypatch, given, ranges
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text("4 # beam lost\n8-9, 20:30\n")
    (tmp_path / "own.txt").write_text("4 own.txt")
    if ranges is None:
        with pytest.raises(OptionError, match="give frames, ranges of them, or a file of both"):
            FitConfig(data="A.zarr", model="static", exclude_frames=given)
        return
    assert FitConfig(data="A.zarr", model="static", exclude_frames=given).exclude_frames == ranges


def test_a_list_of_two_frames_is_refused_with_how_each_meaning_is_written(tmp_path, scans):
    file = tmp_path / "fit.yaml"
    file.write_text("data: A.zarr\nmodel: static\nexclude_frames: [2, 5]")
    with pytest.raises(OptionError, match=r"write 2:5 for the range, 2,5 without brackets for the"):
        read_config(file)
    with pytest.raises(SelectionError, match=r"write \(2, 5\) for the range, \{2, 5\} for the"):
        scans[0].select(exclude={"frames": [2, 5]})


@pytest.mark.long
def test_a_fit_excludes_what_options_name_and_its_result_remembers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = measured(FLOW, 60, angles(4), dt=0.5)
    store(spoilt(made, [(20, 24)]), tmp_path, "S_c2")
    words = ["--exclude-frames", "20:22,22:24", "--exclude-label", "4,1", "--no-pictures"]
    done("fit", "S_c2.zarr", "--model", "static", *words)
    assert "frames 20 to 23" in done("show", "S_fit", "--all")
    result = hd.load_result("S_fit")
    assert result.provenance.inputs["labels"] == [2, 3]
    assert result.ndata == 2 * (56 * 55 // 2)
    options = "--exclude-frames 20:24 --label 2,3"
    done("fit", *f"S_c2.zarr {options} --model static --no-pictures -o again".split())
    assert "frames 20 to 23" in done("show", "again", "--all")
    assert hd.load_result("again").provenance.inputs["labels"] == [2, 3]
    assert "maps.png" in done("show", "S_fit", "--pictures")
    plan = done("plan", "S_c2.zarr", "--model", "static", "--exclude-phi", "-90,0")
    assert "bins               2 in" in plan


@pytest.mark.long
def test_a_comma_between_values_is_as_good_as_a_second_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(measured(FLOW, 40, angles(4), dt=0.5), tmp_path, "S_c2")
    fit = ["fit", "S_c2.zarr", "--model", "static", "--no-pictures", "--overwrite"]
    for words in (["--phi", "-90,45"], ["--phi", "-90", "--phi", "45"]):
        done(*fit, *words, "--fixed", "alpha=0,D_offset=0")
        found = hd.load_result("S_fit")
        assert found.provenance.inputs["labels"] == [1, 4]
        assert found.config["fixed"] == {"alpha": 0, "D_offset": 0}


def test_the_page_shows_a_store_without_what_is_excluded(scans):
    (scan,) = application("view.viewed_data").sources_of(
        [scans[0].path], {"label": [2], "frames": (51, 61)}
    )
    assert scan.label.tolist() == [1, 3]
    assert scan.excluded_frames == ((51, 61),)
