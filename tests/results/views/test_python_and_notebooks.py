"""What Python and notebooks show of scans, plans, models and results, and load for it; c2 in xarray."""

import pickle
import subprocess
import sys

import dask.array
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.result_classes import FitSeries
from tests import reference
from tests.results.made_results import flow_result
from tests.synthetic import FLOW, GAP, angles, measured, module_scan, store

SIDE = 64
scan = module_scan(lambda: measured(FLOW, 70, angles(30)))


@pytest.fixture(scope="module")
def result(scan):
    """A fit that is not one: parameters near the truth, contrast and offset of each bin fitted to them."""
    values = dict(zip(hd.LAMINAR_FLOW.names, FLOW, strict=True))
    return hd.fit(scan, "laminar_flow", gap=GAP, fixed=values | {"D0": 2600.0})


def shown(scan, result):
    rows = tuple(fit_row(f"{n}", None, flow_result(), "", {"q": n}) for n in (1, 2))
    mine = hd.separable(lambda theta, t1, t2, bin: t1, [hd.Parameter("a")], name="m")
    made = {
        "scan": scan,
        "plan": hd.plan(scan, "laminar_flow", gap=GAP),
        "user-defined model": mine,
    }
    return made | {"model": hd.LAMINAR_FLOW, "result": result, "series": FitSeries("q", rows)}


@pytest.mark.long
def test_notebooks_show_tables(scan, result):
    for name, one in shown(scan, result).items():
        assert {"plan": "<dl>"}.get(name, "<table") in one._repr_html_(), name


def test_the_dataset_is_that_of_the_selection_with_its_coordinates(scan):
    chosen = scan.select(label=[5, 2], frames=(10, None))
    c2 = chosen.dataset["c2"]
    assert c2.dims == ("bin", "t1", "t2")
    assert c2.shape == (2, 60, 60)
    np.testing.assert_array_equal(c2["t1"], scan.time[10:])
    np.testing.assert_array_equal(c2["t2"], scan.time[10:])
    for name in ("q", "phi", "label"):
        np.testing.assert_array_equal(c2[name], getattr(chosen, name))
        assert c2[name].chunks is None, name
    assert (c2["q"].attrs["units"], c2["t1"].attrs["units"]) == ("1/angstrom", "s")
    whole = hd.open_dataset(scan.path).dataset["c2"]
    np.testing.assert_array_equal(c2, whole.values[[4, 1], 10:, 10:])
    assert whole.chunks[1] == scan.dataset["c2"].chunks[1]


def test_the_fitted_c2_is_that_of_the_reference_and_of_the_pictures(scan, result):
    fitted = result.model(scan)
    assert isinstance(fitted.data, dask.array.Array)
    assert fitted.chunks == scan.dataset["c2"].chunks
    theta = result.parameters["value"].values
    above = np.triu(np.ones((70, 70), bool), 1)
    for b in (0, 17):
        contrast, offset = (float(result.scaling[n].values[b]) for n in ("contrast", "offset"))
        f = reference.f_physical(theta, scan.time, scan.q[b], scan.phi[b], GAP)
        mine = fitted[b].values
        np.testing.assert_allclose(mine[above], (offset + contrast * f)[above], rtol=1e-12)
        np.testing.assert_array_equal(mine, mine.T)
        drawn = FitView(result, scan).map_of(b).model
        np.testing.assert_allclose(mine[above], drawn[above], rtol=1e-12)
    np.testing.assert_array_equal(result.model()[17], fitted[17])
    later = scan.select(frames=(10, 40))
    np.testing.assert_allclose(result.model(later), fitted[:, 10:40, 10:40], rtol=1e-13)
    deviation = (scan.dataset["c2"] - fitted).std()  # coordinates agree, nothing is dropped
    assert abs(float(deviation) - 0.02) < 0.001


def test_the_fitted_c2_of_other_bins_is_refused(scan, result):
    with pytest.raises(HomodyneDaskError, match="give the selection that was fitted"):
        result.model(scan.select(label=[1, 2]))
    with pytest.raises(HomodyneDaskError, match="scan = 5 cannot be used"):
        result.model(5)


PROGRAM = """
import pickle, sys
shown = pickle.load(sys.stdin.buffer)
heavy = ("matplotlib", "jinja2")
print(shown)
assert not [name for name in heavy if name in sys.modules]
assert shown._repr_html_().startswith("<div")
assert callable(shown.plot) or callable(shown.plot.rates)
assert "matplotlib.pyplot" not in sys.modules
"""


@pytest.mark.parametrize("over", [None, "q"])
def test_an_unpickled_result_prints_itself_in_a_bare_process_without_html_or_matplotlib(over):
    result = flow_result()
    entry = fit_row("q 0.0054", None, result, "", {"q": 0.0054, "age": 30.0})
    shown = result if over is None else FitSeries(over, (entry,))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps(shown), capture_output=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout.decode() == f"{shown}\n"


FIT = """
import sys
import homodyne_dask as hd

loaded = []
first = [lambda _: loaded.append(set(sys.modules))]
result = hd.fit("scan.zarr", hd.STATIC, fixed={"alpha": 0}, callbacks=first)
print([name for name in ("jax", "xarray") if name in loaded[0]])
str(result), result.to_dataset(), result._repr_html_()
print([name for name in ("dask.array", "distributed", "matplotlib", "bokeh") if name in sys.modules])
import numpy, xarray
chunked = result.parameters.chunk()
masked = chunked["value"].copy(data=numpy.ma.masked_invalid([1, numpy.nan, 3])).chunk()
print(type(chunked["value"].data).__module__, masked.mean().compute().item())
"""


@pytest.mark.long
def test_a_fit_in_this_process_and_its_tables_load_neither_dask_nor_drawing(tmp_path):
    store(measured(FLOW[:3], 60, (0.0, 50.0)), tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", FIT], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ran.stdout.splitlines() == ["[]", "[]", "dask.array.core 2.0"], ran.stderr
