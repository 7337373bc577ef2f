"""Bins without data, which do not stop an ingest, and stores that are broken."""

from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import SourceError, StoreError
from tests.run_command import done, run
from tests.synthetic import CREEP, angles, measured


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file of four bins, the third of which is given."""
    monkeypatch.chdir(tmp_path)

    def write(value=None, all_bins=False, **more):
        c2 = measured(CREEP, 40, angles(4), dt=0.5).c2
        if value is not None:
            c2[slice(None) if all_bins else 2] = value
        np.savez("S.npz", c2=c2, q=0.005, phi=angles(4), dt=0.5, **more)
        return "S.npz"

    return write


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf, 1.0])
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


def test_a_broken_ingest_can_be_replaced(file):
    with pytest.raises(SourceError):
        hd.ingest(file(np.nan), strict=True)
    record = next(Path("S_c2.zarr/.ingest").glob("bin-000001.json"))
    record.write_text("{")
    with pytest.raises(StoreError, match="give overwrite=True"):
        hd.ingest("S.npz")
    assert len(hd.ingest("S.npz", overwrite=True).bins) == 3
