"""What attributes of HDF5 datasets say of their numbers and units, and names that are not UTF-8."""

from typing import Any

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import SourceError
from tests.ingest_files import noisy, upper

FRAMES = 40
C2 = noisy(FRAMES).astype(np.float64)
PACKED = np.round((C2 - 1) / 1e-4).astype(np.int16)
HOLE = np.zeros((FRAMES, FRAMES), bool)
HOLE[2:6, 20:25] = True
HOLE |= HOLE.T
SCALED = {"scale_factor": 1e-4, "add_offset": 1.0}


def ingested(folder, c2, attributes, name="c2"):
    datasets = {"c2": c2, "q": [0.005], "phi": [0.0], "t": 0.5 * np.arange(FRAMES)}
    options: dict[str, Any] = {"q_dataset": "/q", "phi_dataset": "/phi", "time_dataset": "/t"}
    options["keep_outliers"] = True  # so that attributes alone say what a hole is
    with h5py.File(folder / "A.h5", "w") as file:
        for dataset, values in datasets.items():
            file[dataset] = values
        for dataset, unit in {"q": "1/Å", "t": "s"}.items():
            if dataset != name or not any("unit" in key.lower() for key in attributes):
                file[dataset].attrs["units"] = unit
        file[name].attrs.update(attributes)
    return hd.open_dataset(hd.ingest(folder / "A.h5", dataset="/c2", **options).store)


OBEYED = [
    ("scaled integers", PACKED, SCALED),
    ("in arrays of one", PACKED, {key: np.array([value]) for key, value in SCALED.items()}),
    ("in bytes and capitals", PACKED, {"Scale_Factor": np.bytes_(b"1e-4"), "ADD_OFFSET": "1"}),
    ("a fill value", np.where(HOLE, -32768, PACKED), SCALED | {"_FillValue": np.int16(-32768)}),
    ("missing values", np.where(HOLE, 1e20, C2).astype("f4"), {"missing_value": [-1.0, 1e20]}),
    ("a valid range", np.where(HOLE, 7.0, C2), {"valid_range": [0.0, 5.0]}),
    ("a valid maximum", np.where(HOLE, 7.0, C2), {"valid_max": 5.0}),
    ("unsigned", (PACKED + 30000).astype("u2").view("i2"), {
        "_Unsigned": "true", "scale_factor": 1e-4, "add_offset": -2.0}),
    ("unsigned, a fill value", np.where(HOLE, -1, (PACKED + 30000).astype("u2").view("i2")).astype("i2"), {
        "_Unsigned": "true", "_FillValue": np.int16(-1), "scale_factor": 1e-4, "add_offset": -2.0}),
]  # fmt: skip

WITH_HOLE = (
    "a fill value",
    "unsigned, a fill value",
    "missing values",
    "a valid range",
    "a valid maximum",
)


@pytest.mark.parametrize(("word", "c2", "attributes"), OBEYED, ids=[row[0] for row in OBEYED])
def test_attributes_that_say_how_numbers_are_read_are_obeyed(tmp_path, word, c2, attributes):
    stored = ingested(tmp_path, c2, attributes).dataset["c2"].values[0]
    truth = np.where(HOLE & (word in WITH_HOLE), np.nan, C2)
    assert np.allclose(stored, upper(truth), atol=1e-4, equal_nan=True)


CONTRADICTIONS = [
    ("c2", {"valid_range": [5.0, 0.0]}),
    ("c2", {"scale_factor": "a half"}),
    ("c2", {"scale_factor": [1.0, 2.0]}),
    ("c2", {"scale_factor": 0.0}),
    ("q", {"_FillValue": 0.005}),
    ("t", {"valid_max": 3.0}),
    ("q", {"units": "1/Å", "Units": "1/nm"}),
]


@pytest.mark.parametrize(("name", "attributes"), CONTRADICTIONS)
def test_attributes_that_contradict_the_numbers_are_refused(tmp_path, name, attributes):
    with pytest.raises(SourceError):
        ingested(tmp_path, C2, attributes, name)


CONVERTED = [
    ("q", {"Units": "1/nm"}, 0.0005),
    ("q", {"UNITS": np.bytes_(b"1/nm")}, 0.0005),
    ("q", {"unit": np.array(["1/nm"], object)}, 0.0005),
    ("q", {"scale_factor": 2.0}, 0.01),
    ("t", {"Units": "ms"}, 5e-4),
    ("t", {"scale_factor": 0.1}, 0.05),
    ("phi", {"UNITS": "rad", "add_offset": np.pi}, 180),
]


@pytest.mark.parametrize(("name", "attributes", "value"), CONVERTED)
def test_units_and_scales_of_q_phi_and_time_are_obeyed(tmp_path, name, attributes, value):
    scan = ingested(tmp_path, C2, attributes, name)
    assert {"q": scan.q[0], "t": scan.time[1], "phi": scan.phi[0]}[name] == pytest.approx(value)


def test_a_time_without_a_unit_is_said(tmp_path):
    notes = ingested(tmp_path, C2, {"unit": ""}, "t").attrs["notes"]
    assert "/t of A.h5 has no unit: times are assumed to be in s" in notes


@pytest.mark.parametrize("place", ["group", "link", "beside", "attribute"])
def test_names_that_are_not_utf_8_are_read(tmp_path, place):
    name, dataset = b"m\xe9ssung", "/*/c2" if place == "group" else "/c2"
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file[{"group": name + b"/c2", "link": name}.get(place, b"c2")] = C2
        if place == "link":
            file.id.links.create_soft(b"c2", b"/" + name)
        elif place == "beside":
            file[name] = 1.0
        elif place == "attribute":
            scalar = h5py.h5s.create(h5py.h5s.SCALAR)
            h5py.h5a.create(file["c2"].id, name, h5py.h5t.NATIVE_INT32, scalar)
    with pytest.raises(SourceError, match="c2"):
        hd.ingest(tmp_path / "A.h5")
    report = hd.ingest(tmp_path / "A.h5", dataset=dataset, q=0.005, phi=0.0, dt=0.5)
    stored = hd.open_dataset(report.store).dataset["c2"].values[0]
    assert np.array_equal(stored, upper(C2), equal_nan=True)
