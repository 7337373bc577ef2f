"""Where nobody reads what is printed (`| head`), results are saved and the command ends quietly."""

import os
import sys
from pathlib import Path

import pytest

from homodyne_dask.cli import main
from homodyne_dask.cli.printing import echo


@pytest.fixture
def closed(monkeypatch):
    """Standard output is a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        yield


def test_printing_goes_on_without_a_word(closed):
    for _ in range(2):
        echo("a line")


@pytest.mark.parametrize(
    "stores", [["A_c2.zarr"], ["A_c2.zarr", "F_c2.zarr"]], ids=["one", "several"]
)
def test_results_are_saved_and_the_status_is_that_of_the_fit(
    stores, here, no_pictures, closed, capfd
):
    words = ["fit", *stores, "--model", "static", "--fixed", "D_offset=0"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, 3)
    assert Path("A_fit/summary.json").exists()
    assert not Path("A_fit/checkpoint.json").exists()
    assert "error" not in capfd.readouterr().err
    if len(stores) > 1:
        assert "FAILED" not in Path("scans.csv").read_text()
