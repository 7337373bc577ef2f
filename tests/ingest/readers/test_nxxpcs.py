"""NXxpcs files, in every way the definition allows."""

import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.clean import clean
from ingest.readers.detect import open_source
from ingest.readers.nxxpcs import open_nxxpcs
from tests.ingest_files import DT, Q, arrays, attributes, nexus, noisy, upper

N = 30
BINS = [noisy(N, k) for k in range(3)]
PHI = [-60.0, 0.0, 60.0]
FULL = np.stack(BINS)
LAST, BELOW = {"storage_mode": "one_array_q_last"}, {"time_origin_location": "lower_left"}
UPPER, LOWER = ({"populated_elements": f"{half}_half"} for half in ("upper", "lower"))
KEYS = {"storage_mode": "data_exchange_keys"}
STORED = {
    "q first": ({}, lambda c2: c2),
    "q last": (LAST, lambda c2: np.moveaxis(c2, 0, -1)),
    "keys": (KEYS, lambda c2: {f"roi_{n + 1:04d}": c2[n] for n in range(3)}),
    "upper": (UPPER, np.triu),
    "lower": (LOWER, np.tril),
    "filling": (UPPER, lambda c2: np.triu(c2) + np.tri(N, k=-1)),
    "filling above": (LOWER, lambda c2: np.tril(c2) + np.tri(N, k=-1).T),
    "origin below": (BELOW, lambda c2: c2[:, ::-1]),
    "upper, origin below": (BELOW | UPPER, lambda c2: np.triu(c2)[:, ::-1]),
    "lower, origin below": (BELOW | LOWER, lambda c2: np.triu(c2)[:, ::-1]),
    "drawn from below": (BELOW, lambda c2: c2),
    "bytes": ({"time_origin_location": np.bytes_("upper_left")}, lambda c2: c2),
}
"""Attributes, and what is stored of full matrices."""


@pytest.mark.long
@pytest.mark.parametrize("word", STORED)
def test_every_way_nxxpcs_stores_matrices_gives_the_same_bins(tmp_path, word):
    storage, stored = STORED[word]
    report = ingest.ingest(nexus(tmp_path / "A.nxs", stored(FULL), **storage))
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(FULL))
    assert [(row.label, row.q, row.phi) for row in report.bins] == [
        (1, Q, PHI[0]), (2, Q, PHI[1]), (3, 2 * Q, PHI[2]),
    ]  # fmt: skip
    assert [row.pixels for row in report.bins] == [25] * 3
    attrs = attributes(report.store)
    assert (attrs["source_format"], attrs["frame_time"]) == ("nxxpcs", DT)
    assert any("taken to be in degrees" in note for note in attrs["notes"])


@pytest.mark.parametrize("half", ["all", "upper_half"])
def test_a_baseline_of_0_is_what_the_attribute_says_even_where_c2_has_not_decayed(tmp_path, half):
    slow = 0.9 * FULL  # above one half everywhere
    path = nexus(
        tmp_path / "A.nxs",
        slow if half == "all" else np.triu(slow),
        baseline_reference=0,
        populated_elements=half,
    )
    report = ingest.ingest(path)
    np.testing.assert_allclose(arrays(report.store)["c2"], upper(1 + slow), rtol=1e-6)
    assert any("1 was added" in note for note in report.notes)


@pytest.mark.parametrize("baseline", [0, 1])
@pytest.mark.parametrize("word", STORED)
def test_a_0_is_a_measurement_unless_the_whole_frame_is_0(tmp_path, word, baseline):
    storage, stored = STORED[word]
    c2 = FULL - np.float32(1 - baseline)
    c2[:, 3, 8], c2[:, 8, 3] = 0, 0
    c2[:, 12], c2[:, :, 12] = 0, 0
    path = nexus(tmp_path / "A.nxs", stored(c2), **storage, baseline_reference=baseline)
    source = open_nxxpcs(path, IngestOptions())
    expected = c2 + np.float32(1 - baseline)
    expected[:, 12], expected[:, :, 12] = np.nan, np.nan
    for k in range(3):
        cleaned = clean(source.read(k), N, "bin 1", source.baseline)
        np.testing.assert_allclose(cleaned.c2, upper(expected)[k], rtol=1e-6)
        assert (cleaned.zeros, cleaned.dead.tolist(), cleaned.baseline) == (1, [12], baseline)


def test_keys_may_be_fewer_than_the_regions(tmp_path):
    keys = {"roi_0003": BINS[2], "roi_0001": BINS[0]}
    report = ingest.ingest(nexus(tmp_path / "A.nxs", keys, storage_mode="data_exchange_keys"))
    assert [(row.label, row.phi) for row in report.bins] == [(1, PHI[0]), (3, PHI[2])]
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(FULL[[0, 2]]))


def test_q_and_phi_may_be_two_columns_of_one_list(tmp_path):
    path = nexus(tmp_path / "A.nxs", FULL)
    with h5py.File(path, "r+") as file:
        masks = file["entry/instrument/masks"]
        del masks["dynamic_phi_list"], masks["dynamic_q_list"]
        masks["dynamic_q_list"] = np.column_stack([[0.1, 0.1, 0.2], PHI])
        masks["dynamic_q_list"].attrs["units"] = "nm^-1"
    report = ingest.ingest(path)
    assert [row.q for row in report.bins] == pytest.approx([0.01, 0.01, 0.02])
    assert [row.phi for row in report.bins] == PHI


def test_lists_that_are_absent_are_given_as_options(tmp_path):
    path = nexus(tmp_path / "A.nxs", FULL, masks=False)
    with pytest.raises(OptionError, match="give q in 1/Å"):
        ingest.ingest(path)
    with pytest.raises(OptionError, match="give phi in degrees"):
        ingest.ingest(path, q=Q)
    report = ingest.ingest(path, q=Q, phi=PHI)
    assert [row.phi for row in report.bins] == PHI
    with pytest.raises(OptionError, match="leave it out"):
        ingest.ingest(nexus(tmp_path / "B.nxs", FULL), q=Q)


NEXUS_MISTAKES = {
    "no attribute": ({"baseline_reference": None}, "has no attribute baseline_reference"),
    "attribute": ({"populated_elements": "upper"}, "did you mean 'upper_half'"),
    "other": ({"storage_mode": "other"}, "storage_mode of .* is 'other'"),
    "order": ({"storage_mode": "one_array_q_last"}, r"is \(frames, frames, q\)"),
    "no detector": ({"detector": "a/b"}, "must have one frame_time"),
}


@pytest.mark.long
@pytest.mark.parametrize("word", NEXUS_MISTAKES)
def test_what_an_nxxpcs_file_leaves_open_is_named(tmp_path, word):
    storage, message = NEXUS_MISTAKES[word]
    with pytest.raises(SourceError, match=message):
        ingest.ingest(nexus(tmp_path / "A.nxs", FULL, **storage))


def with_axis(path, values, unit="s", **storage):
    first = storage.get("storage_mode") != "one_array_q_last"
    matrices = FULL if first else np.moveaxis(FULL, 0, -1)
    nexus(path, matrices, **storage)
    with h5py.File(path, "r+") as file:
        group = file["entry/twotime"]
        group["age"] = values
        group["age"].attrs["units"] = unit
        group.attrs["axes"] = [".", "age", "age"] if first else ["age", "age", "."]
    return path


@pytest.mark.parametrize("mode", ["one_array_q_first", "one_array_q_last"])
def test_times_are_those_of_the_axis_that_the_group_names(tmp_path, mode):
    times = 1.5 + DT * np.arange(N)
    report = ingest.ingest(with_axis(tmp_path / "A.nxs", times, storage_mode=mode))
    np.testing.assert_allclose(arrays(report.store)["time"], times)
    assert any("starting at 1.5 s" in note for note in report.notes)


def test_an_axis_in_frames_leaves_the_times_to_the_detector(tmp_path):
    report = ingest.ingest(with_axis(tmp_path / "A.nxs", np.arange(N), unit="frames"))
    np.testing.assert_allclose(arrays(report.store)["time"], DT * np.arange(N))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (DT * np.arange(N + 1), f"has {N + 1} entries for {N} frames"),
        (-DT * np.arange(N), "time must increase"),
        (2 * DT * np.arange(N), "frame time of 0.1 s, but its times are 0.2 s apart"),
    ],
)
def test_an_axis_that_cannot_be_the_times_of_the_frames_is_refused(tmp_path, values, words):
    path = with_axis(tmp_path / "A.nxs", values)
    with pytest.raises(SourceError, match=words):
        open_source(path, IngestOptions())
