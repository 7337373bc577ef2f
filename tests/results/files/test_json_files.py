"""summary.json and series.json: what was damaged or edited is a sentence, never other numbers."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import SourceError
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.result_tables import table_of
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.files.saved_results import load_result
from tests.results.made_results import changed, flow_result, result_of_model

READ = {
    "summary.json": load_result,
    "series.json": hd.load_series,
    "comparison.json": hd.load_comparison,
}
SAMPLE = 150


def series() -> FitSeries:
    at = ({"q": 0.003, "age": 5.0}, {"q": 0.005, "age": 5.0})
    entries = (fit_row(f"part {n}", None, flow_result(), "", at[n]) for n in range(2))
    return FitSeries("q", tuple(entries))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("json")
    flow_result().to_json(made / "summary.json")
    series().to_json(made / "series.json")
    fits = [result_of_model("laminar_flow", 7), result_of_model("static", 3, 10.0)]
    hd.compare(fits).to_json(made / "comparison.json")
    return made


def content(path: Path):
    """All that a file says once it is read."""
    read = READ[path.name](path)
    if isinstance(read, FitSeries):
        return [
            (e.name, e.message, dict(e.at), e.result and e.result.to_dict()) for e in read.entries
        ]
    return read.to_dict()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(READ))
def test_a_flipped_bit_is_a_sentence_or_changes_nothing(folder, tmp_path, name, all_of_them):
    whole, damaged = (folder / name).read_bytes(), tmp_path / name
    before, refused = content(folder / name), 0
    flips = [(byte, bit) for byte in range(len(whole)) for bit in range(8)]
    for byte, bit in flips if all_of_them else random.Random(1).sample(flips, SAMPLE):
        damaged.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
        try:
            assert content(damaged) == before, (byte, bit)
        except SourceError as e:
            refused += str(damaged) in str(e)
    assert refused > 100


@pytest.mark.parametrize("name", list(READ))
def test_a_file_written_otherwise_is_read_and_an_edited_one_only_without_its_checksum(
    folder, tmp_path, name
):
    file, before = tmp_path / name, content(folder / name)
    read = json.loads((folder / name).read_text())
    file.write_text(json.dumps(read, sort_keys=True, ensure_ascii=False))
    assert content(file) == before
    edited = read | {"version": "mine", "store": "mine"}
    if name == "series.json":
        edited = read | {"over": "age"}
    file.write_text(json.dumps(edited))
    with pytest.raises(SourceError, match=r"changed after it was written.*remove its last entry"):
        content(file)
    del edited["sha256"]
    file.write_text(json.dumps(edited))
    assert "mine" in str(content(file)) or READ[name](file).over == "age"


OTHERS = {
    "a value is missing": lambda read: read.pop("parameters"),
    "a value is text": lambda read: read.update(scaling_per_bin="none"),
    "an unknown outcome": lambda read: read.update(outcome="GOOD"),
    "columns of two lengths": lambda read: read["scaling_per_bin"]["q"].pop(),
    "no version": lambda read: read.pop("format_version"),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=list(OTHERS))
def test_a_file_without_checksum_that_lacks_something_is_a_sentence(folder, tmp_path, change):
    read = json.loads((folder / "summary.json").read_text())
    del read["sha256"]
    change(read)
    (tmp_path / "summary.json").write_text(json.dumps(read))
    with pytest.raises(SourceError, match="fit again"):
        load_result(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "\xff"])
def test_what_is_no_result_is_a_sentence(tmp_path, text):
    (tmp_path / "summary.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError, match="give a folder made by fit"):
        load_result(tmp_path)


@pytest.mark.parametrize("name", ["../precious", "/precious", "..", "", "a/b", 7])
def test_a_fit_of_a_series_in_a_folder_elsewhere_is_refused(folder, tmp_path, name):
    read = json.loads((folder / "series.json").read_text())
    del read["sha256"]
    read["fits"][0]["folder"] = name
    (tmp_path / "series.json").write_text(json.dumps(read))
    with pytest.raises(SourceError, match="ValueError: folder = "):
        hd.load_series(tmp_path)


def test_every_number_of_a_result_is_read_back(tmp_path):
    """Also those of a table without rows, as where all parameters are at bounds."""
    columns = {"direction": {"eigenvalue": []}, "direction param": {"vector": np.empty((0, 7))}}
    none = table_of(columns, param=flow_result().parameters["param"].values)
    made = changed(flow_result(), identifiability=none)
    made.to_json(tmp_path / "summary.json")
    read = load_result(tmp_path)
    assert read.to_dict() == made.to_dict()
    xarray.testing.assert_identical(read.parameters, made.parameters)
    xarray.testing.assert_identical(read.diagnosis.identifiability, none)
