"""`fit --check-rates`: a sentence on the terminal, in the report and in the files of the result."""

import json
from pathlib import Path

import pytest

from homodyne_dask.results.files.saved_results import load_result
from tests.run_command import FIT, done
from tests.synthetic import angles, measured, store

CHECKED = ("fit", "S_c2.zarr", "--model", "static", "--fixed", "D_offset=0", "--check-rates")


@pytest.mark.usefixtures("no_pictures")
def test_the_outcome_is_printed_and_a_part_of_the_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(measured((8000.0, -0.2, 0.0), 40, angles(7), sigma=0.02), tmp_path, "S_c2")
    printed = done(*CHECKED)  # status 0
    sentence = json.loads(Path("S_fit/rates_check.json").read_text())["sentence"]
    assert sentence.startswith("S_c2.zarr: J follows the power law of static (p = 0.")
    assert f"\n{sentence}\n" in printed
    assert "summary.json, rates_check.json" in printed
    words = sentence.removeprefix("S_c2.zarr: ")
    result = load_result("S_fit")
    assert result.diagnosis.rates_check["sentence"] == sentence
    assert words in " ".join(str(result).split())
    assert f"{result}\n" == Path("S_fit/report.txt").read_text() == done("show", "S_fit")
    assert f"<b>rates</b>: {words}" in Path("S_fit/report.html").read_text()
    done(*CHECKED[:-1], "--overwrite")
    assert load_result("S_fit").diagnosis.rates_check is None
    assert not Path("S_fit/rates_check.json").exists()


@pytest.mark.usefixtures("here", "no_pictures")
def test_too_few_angles_are_no_mistake():
    printed = done(*FIT, "--check-rates")
    assert "rates are not checked: " in printed
    assert not Path("A_fit/rates_check.json").exists()
    assert load_result("A_fit").diagnosis.rates_check is None
