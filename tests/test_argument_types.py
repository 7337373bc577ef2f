"""A value of a wrong type, for any argument of any public function, is refused in one sentence."""

import inspect
from contextlib import AbstractContextManager

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from tests.synthetic import FLOW, angles, measured, module_scan

WRONG = [object(), b"x", [object()], {3: object()}, 3j, np.array([object()])]
"""Wrong for every argument that is not a function's own data."""
NUMBER = hd.Parameter("a")
POINTS = xarray.Dataset({"x": ("i", np.arange(5.0)), "y": ("i", 2 * np.arange(5.0))})
LINE = hd.model(lambda theta, x, y: y - theta[0] * x, [hd.Parameter("k")], name="line")


def constant(theta, t1, t2, bin):
    return theta[0]


scan = module_scan(lambda: measured(FLOW[:3], 30, angles(4)))


CALLS = {
    "open_dataset": (hd.open_dataset, {}),
    "select": (lambda scan, **given: scan.select(**given), {"scan": ...}),
    "plan": (hd.plan, {"data": ..., "model": "static"}),
    "fit": (hd.fit, {"data": ..., "model": "static"}),
    "iterate": (hd.iterate, {"data": ..., "model": "static"}),
    "fit_each": (hd.fit_each, {"data": ..., "model": "static", "over": "age", "windows": 2}),
    "compare_models": (hd.compare_models, {"data": ...}),
    "predict": (hd.predict, {"model": "static", "params": [1e4, 0, 0], "times": [0, 1, 2], "q": 0.01}),
    "fit of a residual": (hd.fit, {"data": POINTS, "model": LINE, "initial": {"k": 1}}),
    "curve_fit": (hd.curve_fit, {"f": lambda x, a: a * x, "xdata": POINTS}),
    "model": (hd.model, {"residual": lambda theta, x: x, "parameters": [NUMBER]}),
    "separable": (hd.separable, {"f": constant, "parameters": [NUMBER]}),
    "Parameter": (hd.Parameter, {"name": "a"}),
    "load_result": (hd.load_result, {}),
    "load_series": (hd.load_series, {}),
    "compare": (hd.compare, {}),
    "load_comparison": (hd.load_comparison, {}),
    "from_homodyne_yaml": (hd.from_homodyne_yaml, {}),
    "local_cluster": (hd.local_cluster, {}),
    "connect": (hd.connect, {"address": "tcp://127.0.0.1:1"}),
    "slurm_cluster": (hd.slurm_cluster, {"jobs": 0}),
    "cuts": (lambda scan, **given: scan.cuts(**given), {"scan": ...}),
    "page": (hd.guide.page, {}),
    "ingest": (hd.ingest, {"source": "none.npz"}),
    "simulate": (hd.simulate, {"path": "none.h5"}),
}  # fmt: skip
ARGUMENTS = {
    "select": ["q", "phi", "label", "frames", "time"],
    "cuts": ["min_lag"],
    "slurm_cluster": ["site", "jobs", "folder", "task", "walltime", "cores", "wall_time"],
    "fit of a residual": ["data", "initial", "fixed", "bounds", "absolute_sigma", "client", "max_passes",
                          "callbacks"],
}  # fmt: skip
"""Of functions whose signature does not name them."""


def called(function, given):
    """The result of a call; a generator is begun and a context entered, which fits and starts nothing."""
    found = function(**given)
    if isinstance(found, AbstractContextManager):
        with found:
            return found
    return next(found) if inspect.isgenerator(found) else found


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_refused_in_one_sentence(scan, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, valid = CALLS[name]
    valid = {key: scan if value is ... else value for key, value in valid.items()}
    for argument in ARGUMENTS.get(name) or inspect.signature(function).parameters:
        for wrong in WRONG:
            with pytest.raises(HomodyneDaskError) as raised:
                called(function, valid | {argument: wrong})
            said = str(raised.value)
            assert said.strip(), (argument, wrong)
            assert "\n" not in said, (argument, wrong)
            assert len(said) < 400, (argument, wrong)
            assert " at 0x" not in said or "object" in said, (argument, wrong)
