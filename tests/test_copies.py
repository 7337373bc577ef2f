"""What users hold: a copy, also by deepcopy or pickle, is the same, and nothing of it can be changed."""

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask import errors
from homodyne_dask.fitting.events import Event
from homodyne_dask.models.user_defined import UserDefined
from homodyne_dask.read_only import HandedOut
from homodyne_dask.request.options import FitOptions
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.fitted_parameters import UnknownParameterError
from homodyne_dask.results.result_classes import Comparison, FitSeries
from tests.applications import made_for, public
from tests.results.made_results import flow_result, flow_result_of, result_of_model
from tests.synthetic import FLOW, GAP, angles, measured, module_scan

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}


ERRORS = [
    of
    for of in vars(errors).values()
    if isinstance(of, type) and issubclass(of, hd.HomodyneDaskError)
]
scan = module_scan(lambda: measured(FLOW, 20, angles(3)))


def line(p, x):
    return p["a"] * x


def decay(theta, t1, t2, bin):
    return 1 / (1 + theta[0] * bin.q**2 * (t2 - t1))


def curve():
    x = np.arange(5.0)
    return public("curve_fit")(lambda x, a: a * x, x, 2 * x + 1e-3 * x**2, p0=[1.0])


def drawn(scan):
    result = flow_result_of(scan)
    made = made_for("posterior.made_draws")
    return made.posterior_from(result, made.gaussian(result, 200), scan)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda scan: scan,
    "Scan of some bins": lambda scan: scan.select(label=[3, 1], frames=(2, None)),
    "selection": lambda scan: scan.selection,
    "dataset": lambda scan: scan.dataset,
    "cuts": lambda scan: scan.cuts(),
    "plan": lambda scan: hd.plan(scan, "laminar_flow", gap=GAP),
    "FitResult": flow_result_of,
    "FitResult, asked before": lambda scan: [(r := flow_result_of(scan)), r.params, r.summary()][0],
    "params": lambda scan: flow_result().params,
    "FitSeries": lambda scan: FitSeries("q", (fit_row("1", None, flow_result(), "", {"q": 1.0}),)),
    "Posterior": drawn,
    "Comparison": lambda scan: Comparison((), "A0123_c2.zarr", 3, 1.0, True),
    "fitted c2": lambda scan: flow_result_of(scan).model(),
    "CurveFit": lambda scan: curve(),
    "TransportModel": lambda scan: hd.LAMINAR_FLOW,
    "SeparableModel": lambda scan: hd.separable(decay, [hd.Parameter("k")]).current(),
    "ResidualModel": lambda scan: hd.model(line, [hd.Parameter("a")]).current(),
    "Parameter": lambda scan: hd.Parameter("D0", "Å²/s", (1, 2), scale="log"),
    "options": lambda scan: FitOptions(),
    "Convention": lambda scan: hd.Convention.HOMODYNE,
    "Outcome": lambda scan: hd.Outcome.STALLED,
    "MODELS": lambda scan: hd.MODELS,
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, part by part: arrays make no truth value of ==."""
    if type(one) is not type(other):
        return False
    if isinstance(one, xarray.Dataset | xarray.DataArray | xarray.DataTree):
        return one.identical(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if is_dataclass(one) and not isinstance(one, UserDefined):  # these know when they are equal
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    nan = isinstance(one, float) and one != one
    return bool(other != other if nan else one == other)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_copy_is_the_same(scan, make, way):
    one = make(scan)
    assert same(one, way(one))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("error", [*ERRORS, UnknownParameterError])
def test_an_error_comes_back_from_a_worker_with_its_sentence(error, way):
    found = way(error("no 'D0'"))
    assert (type(found), str(found)) == (error, "no 'D0'")


FACTOR = 1.0


def scaled(p, x):
    return FACTOR * p["a"] * x


@pytest.mark.parametrize("way", ["copy", "deepcopy"])
def test_a_copy_of_a_model_sees_what_its_function_reads_as_the_model_does(monkeypatch, way):
    one = hd.model(scaled, [hd.Parameter("a")]).current()
    other = WAYS[way](one)
    monkeypatch.setattr(f"{__name__}.FACTOR", 2.0)
    assert other.current() == one.current() != one


TABLES = (xarray.Dataset, xarray.DataArray, xarray.DataTree)


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
    for way in WAYS.values():
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
