"""A variable of the scans, such as temperature, as the axis of their fits."""

from types import SimpleNamespace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.series.rings_and_windows import Subset
from homodyne_dask.fitting.series.subsets import places_of
from homodyne_dask.plugins import PackageWarning
from homodyne_dask.store.schema import Attributes
from tests.synthetic import measured, store

NAMES = ("A_c2", "B c2", "C_c2")


def part(name, **experiment):
    scan = SimpleNamespace(
        path=f"{name}.zarr", scan_number=np.array([1]), scan_names=[f"{name}.h5"]
    )
    held = {key: of for key, of in experiment.items() if of}
    scan.attributes = Attributes.model_construct(experiment=held)
    return Subset(f"{name}.zarr", name, {}, scan)  # ty: ignore


PARTS = [part(name) for name in NAMES]
WAYS = [
    ("numbers", {"A": 35, "B c2": "25", "C_c2.zarr": 2.5e1}, [35, 25, 25], None),
    ("text with units", {"A": "35 C", "B c2": "25°C", "C": "-5 celsius"}, [35, 25, -5], "°C"),
    (
        "a table",
        "scan,T,temperature [K]\nA,1,308\nB c2,2,298.5\nC,3,298 K\n",
        [308, 298.5, 298],
        "K",
    ),
    ("two columns", "A,308\nB c2,298\nC,290\n", [308, 298, 290], None),
]


@pytest.mark.parametrize(("way", "given", "values", "unit"), WAYS, ids=[way for way, *_ in WAYS])
def test_values_are_read_as_people_write_them(way, given, values, unit, tmp_path):
    if isinstance(given, str):
        (tmp_path / "t.csv").write_text(given)
        given = tmp_path / "t.csv"
    found = places_of("temperature", PARTS, given, False)
    assert [of["temperature"] for of in found] == values
    assert {of.get("temperature_unit") for of in found} == {unit}


def test_values_are_those_of_the_stores_where_none_are_given():
    parts = [part(name, temperature={"value": n, "units": "K"}) for n, name in enumerate(NAMES)]
    found = places_of("temperature", parts, None, False)
    assert [(of["temperature"], of["temperature_unit"]) for of in found] == [
        (n, "K") for n in (0, 1, 2)
    ]
    assert [of["scan"] for of in places_of("scan", parts, None, False)] == [1, 2, 3]


def test_a_path_that_ingest_kept_is_a_variable_named_by_its_last_word():
    path = "/entry/sample/humidity"
    parts = [part(name, **{path: {"value": n, "units": "%"}}) for n, name in enumerate(NAMES)]
    found = places_of(path, parts, None, False)
    assert found == [{"humidity": float(n), "humidity_unit": "%"} for n in (0, 1, 2)]
    with pytest.raises(OptionError, match=f"the store has {path}\\): ingest with keep /a/b, or"):
        places_of("/a/b", parts, None, False)
    with pytest.raises(OptionError, match="cannot name a variable"):
        places_of("/entry/q", parts, None, False)
    given = {"A": 1, "B c2": 2, "C": 3}
    assert places_of("/entry/sample/x", parts, given, False)[1] == {"x": 2.0}


MISTAKES = [
    ("missing", {"A": 1, "B c2": 2}, "temperature of C_c2.zarr is unknown: give it with"),
    ("no number", {"A": 1, "B c2": "hot", "C": 3}, "of B c2.zarr is 'hot', not a number"),
    (
        "two units",
        {"A": "25 C", "B c2": "298 K", "C": 3},
        "B c2.zarr is in K, but of A_c2.zarr in °C",
    ),
    ("no table", "none.csv", "none.csv' cannot be read"),
]


@pytest.mark.parametrize(("what", "given", "says"), MISTAKES, ids=[what for what, *_ in MISTAKES])
def test_a_value_that_is_unknown_is_refused_with_the_name_of_its_scan(what, given, says):
    with pytest.raises(OptionError, match=says):
        places_of("temperature", PARTS, given, False)


@pytest.mark.long
def test_scans_at_one_value_are_repeats_and_the_axis_is_in_all_that_is_written(tmp_path):
    made = [(10000.0, 1), (20000.0, 2), (20000.0, 3)]
    scans = [
        store(
            measured(np.array([D0, 0.0, 0.0]), 60, (0.0,), sigma=0.01, seed=seed),
            tmp_path,
            f"S{seed}",
        )
        for D0, seed in made
    ]
    values = {"S1": "35 C", "S2": "25 C", "S3": "25 C"}
    given = {"over_scans": "temperature", "scan_values": values}
    series = hd.fit_each(scans, "brownian", **given)
    damaged = store(measured(np.array([1e4, 0.0, 0.0]), 60, (0.0,), seed=4), tmp_path, "S4")
    for chunk in (path for path in (tmp_path / "S4.zarr/c2/c").rglob("*") if path.is_file()):
        chunk.write_bytes(chunk.read_bytes()[:-9])
    more = given | {"scan_values": values | {"S4": "30 C"}}
    with pytest.warns(PackageWarning, match="of S2, S3 are not used"):
        entries = hd.fit_each([*scans[:1], damaged], "brownian", **more).entries
    assert [entry.result is None for entry in entries] == [False, True]
    assert "S4.zarr" in entries[1].message
    assert series.table["temperature"].values.tolist() == [35, 25, 25]
    assert series.table["temperature"].attrs["units"] == "°C"
    assert [*series.repeats] == ["temperature = 25 °C"]
    same = series.repeats["temperature = 25 °C"].agreement["D0"]
    own = [one.params["D0"] for one in series.results[1:]]
    weights = [one.stderr**-2 for one in own]
    assert same.mean == pytest.approx(np.average([one.value for one in own], weights=weights))
    words = str(series)
    assert "temperature [°C]" in words
    assert "D0 = 2 D_SE" in words
    assert "S1.zarr" in words
    of_axes = {axis.get_xlabel() for axis in series.plot().axes}
    assert of_axes == {"temperature [°C]"}
    series.to_json(tmp_path / "s.json")
    assert str(hd.load_series(tmp_path / "s.json")) == words
    by_ring = hd.fit_each(scans, "brownian", over="q", **given)
    assert [(of.at["temperature"], "q" in of.at) for of in by_ring.entries] == [(35, True)] + [
        (25, True)
    ] * 2
