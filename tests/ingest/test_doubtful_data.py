"""Units that are probably others, axes in another order, frames and bins without data, broken stores."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import SourceError, StoreError
from tests.run_command import done, run
from tests.synthetic import CREEP, angles, measured, store

TURNED = np.linspace(-np.pi, np.pi, 9)[:-1]


UNITS = [
    ("φ in radians", {"phi": TURNED}, "are the angles in radians?"),
    ("half a turn in radians", {"phi": np.arange(8) * np.pi / 8}, "are the angles in radians?"),
    ("three angles", {"phi": np.resize(np.deg2rad([0, 45, 90]), 8)}, "are the angles in radians?"),
    ("one angle of 30°", {"phi": np.full(8, 0.5236)}, "are the angles in radians?"),
    ("q in 1/nm", {"q": np.full(8, 0.2)}, "is q in 1/nm?"),
    ("small q in 1/nm", {"q": np.full(8, 0.06)}, "is q in 1/nm?"),
    ("times in ms", {"time": 1500.0 * np.arange(40)}, "is the frame time in ms?"),
    ("times of three hours in ms", {"time": 250.0 * np.arange(40)}, "is the frame time in ms?"),
    ("a fine sector", {"phi": np.linspace(-1, 1, 8)}, None),
    ("one angle", {"phi": np.zeros(8)}, None),
    ("degrees", {}, None),
    ("unknown angles and q", {"phi": np.full(8, np.nan), "q": np.full(8, np.nan)}, None),
    ("a slow sample", {"time": 60.0 * np.arange(40)}, None),
]


@pytest.mark.parametrize(("word", "changes", "says"), UNITS, ids=[w[0] for w in UNITS])
def test_units_that_are_probably_others_are_asked_about(tmp_path, word, changes, says):
    notes = store(measured(CREEP, 40, angles(8), dt=0.5), tmp_path, **changes).attrs["notes"]
    if says is None:
        assert not any("?" in note for note in notes)
    else:
        assert notes[0].startswith(says)


UPSIDE_DOWN = r"it is upside down: give c2\[\.\.\., ::-1, :\]"


@pytest.mark.parametrize(
    ("below", "turned", "says"), [(0.0, -1, UPSIDE_DOWN), (0.1, 1, "give half upper")]
)
def test_a_matrix_that_is_upside_down_or_not_symmetric_is_told_apart(tmp_path, below, turned, says):
    made = measured(CREEP, 40, angles(3), dt=0.5).c2
    full = np.where(np.isnan(made), np.swapaxes(made, 1, 2) + below, made)
    full[:, range(40), range(40)] = 1.2
    np.savez(tmp_path / "S.npz", c2=full[:, ::turned], q=0.005, phi=angles(3), dt=0.5)
    with pytest.raises(SourceError, match=says):
        hd.ingest(tmp_path / "S.npz")


def test_notes_count_frames_from_0_and_name_the_bins_that_lack_them(tmp_path):
    made = measured(CREEP, 40, angles(3), dt=0.5)
    made.c2[:, 5:8], made.c2[:, :, 5:8] = np.nan, np.nan
    made.c2[1, 20], made.c2[1, :, 20] = np.nan, np.nan
    notes = store(made, tmp_path).attrs["notes"]
    assert "3 frames have no data in any bin: 5 to 7, counted from 0" in notes
    assert "1 frame has no data in bin 2: 20, counted from 0" in notes


def test_a_scatter_that_no_measurement_has_is_refused(tmp_path):
    made = 1 + (measured(CREEP, 40, angles(3), dt=0.5).c2 - 1) * 1e20
    np.savez(tmp_path / "S.npz", c2=made, q=0.005, phi=angles(3), dt=0.5)
    with pytest.raises(SourceError, match=r"cannot be ingested: sigma = .* is implausible"):
        hd.ingest(tmp_path / "S.npz")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(value=None, all_bins=False, **arrays):
        c2 = measured(CREEP, 40, angles(4), dt=0.5).c2
        if value is not None:
            c2[slice(None) if all_bins else 2] = value
        np.savez("S.npz", c2=c2, q=0.005, phi=angles(4), dt=0.5, **arrays)
        return "S.npz"

    return write


DECAYS_TO_0 = 0.2 * np.exp(-0.3 * np.abs(np.subtract.outer(range(40), range(40))))


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf, 1.0, DECAYS_TO_0])
def test_one_dead_angle_is_left_out_and_said(file, value):
    report = hd.ingest(file(value))
    assert [row.label for row in report.bins] == [1, 2, 4]
    assert report.notes[0].startswith("1 of 4 bins left out: bin 3 (c2[2]) of S.npz ")
    scan = hd.open_dataset(report.store)
    assert scan.label.tolist() == [1, 2, 4]
    assert scan.dataset["c2"].sizes["bin"] == 3
    result = hd.fit(scan, "static")
    assert result.provenance.inputs["labels"] == [1, 2, 4]


def test_strict_refuses_it_and_the_same_ingest_goes_on_without(file):
    name = file(np.nan)
    assert "bin 3 (c2[2]) of S.npz contains no data" in run("ingest", name, "--strict").output
    assert "3 bins × 40 frames" in done("ingest", name)


def test_a_file_without_any_data_is_refused(file):
    with pytest.raises(SourceError, match=r"bin 1 .* contains no data: .*; no bin is left to fit"):
        hd.ingest(file(np.nan, all_bins=True))


@pytest.mark.parametrize("content", ['{"attributes": {"for', "{}", None])
def test_a_broken_store_can_be_replaced(file, content):
    root = hd.ingest(file()).store / "zarr.json"
    root.write_text(content) if content else root.unlink()
    with pytest.raises(StoreError, match="give overwrite=True"):
        ingest.ingest("S.npz")
    assert len(ingest.ingest("S.npz", overwrite=True).bins) == 4
