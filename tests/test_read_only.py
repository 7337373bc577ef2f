"""What results, events and stores hand out cannot be changed: later numbers and files would not be theirs."""

import copy
import json
import pickle
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.fitting.events import Event
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.result_classes import FitSeries
from tests.results.made_results import flow_result, flow_result_of, result_of_model
from tests.synthetic import FLOW, angles, measured, module_scan
from tests.test_copies import curve, drawn

TABLES = (xarray.Dataset, xarray.DataArray, xarray.DataTree)
scan = module_scan(lambda: measured(FLOW, 20, angles(3)))


def parts_of(value: Any) -> dict[str, Any]:
    """What a value hands out and keeps: fields, cached properties, items, and the arrays of tables."""
    if isinstance(value, TABLES):
        nodes = value.subtree if isinstance(value, xarray.DataTree) else [value]
        tables = [
            of.to_dataset(name="it") if isinstance(of, xarray.DataArray) else of for of in nodes
        ]
        return {f"[{name}]": of.data for one in tables for name, of in one.variables.items()}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{n}]": part for n, part in enumerate(value)}
    if not is_dataclass(value) or isinstance(value, type):
        return {}
    names = {of.name for of in fields(value)} - {"definition", "manifest"}
    if isinstance(value, HandedOut | Event):
        known = vars(type(value)).items()
        names |= {name for name, of in known if isinstance(of, cached_property)}
        names = {name for name in names if not name.startswith("_")}
    parts = {}
    for name in names:
        with suppress(hd.HomodyneDaskError):  # of a model or store that is not here
            parts[f".{name}"] = getattr(value, name)
    return parts


def changeable(value: Any, path: str, seen: list[Any]) -> list[str]:
    """Where a value can be changed, looked at to the last part; of a table its arrays alone."""
    if any(value is one for one in seen):
        return []
    seen.append(value)
    if isinstance(value, np.ndarray):
        return [path] * value.flags.writeable
    if isinstance(value, dict | list):
        with suppress(TypeError):
            value.clear()
            return [path]
    return [
        of for name, part in parts_of(value).items() for of in changeable(part, path + name, seen)
    ]


def events_of_a_fit(scan):
    events = []
    hd.fit(scan, "brownian", callbacks=[events.append])
    return tuple(events)


MADE = {
    "result": flow_result_of,
    "series": lambda scan: FitSeries("q", tuple(
        fit_row(str(q), None, flow_result(), "", {"q": q}) for q in (1.0, 2.0))),
    "comparison": lambda scan: hd.compare(
        [result_of_model("laminar_flow", 7), result_of_model("static", 3, 10.0)]),
    "posterior": drawn,
    "curve": lambda scan: curve(),
}  # fmt: skip


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_no_part_of_a_result_can_be_changed(scan, make):
    made = make(scan)
    assert changeable(made, "it", []) == []
    for way in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert changeable(way(made), "it", []) == []


def test_no_part_of_an_event_or_of_what_a_scan_keeps_can_be_changed(scan):
    assert changeable(events_of_a_fit(scan), "it", []) == []
    kept = ("attrs", "all_bins", "time", "frame_mask", "chunk_sums")
    assert changeable(tuple(getattr(scan, name) for name in kept), "it", []) == []


def test_a_table_is_handed_out_as_it_is_and_a_copy_of_it_can_be_changed(scan):
    result = replace(flow_result_of(scan), errors=replace(
        flow_result().errors, profiles={"D0": xarray.Dataset({"value": ("point", [1.0])})}))  # fmt: skip
    before = json.dumps(result.to_dict())
    assert result.parameters is result.parameters
    for table in (result.parameters, result.errors.profiles["D0"]):
        with pytest.raises(ValueError, match="read-only"):
            table["value"][:] = 0.0
        changed = table.copy()
        changed["value"] = changed["value"] + 1.0
        changed.attrs["units"] = "m"
    assert result.to_dataset()["q"].attrs != result.scaling["q"].attrs
    assert json.dumps(result.to_dict()) == before
    with pytest.raises(TypeError, match="read-only"):
        result.config["model"] = "static"


def test_a_column_that_is_added_to_a_table_changes_no_parameter(scan):
    result = flow_result_of(scan)
    result.parameters["relative"] = result.parameters["stderr"] / result.parameters["value"]
    assert str(result.params) == str(flow_result_of(scan).params)
    assert str(result) == str(flow_result_of(scan))
