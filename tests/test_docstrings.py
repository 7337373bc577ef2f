"""What `help` shows of public names: their arguments, errors, and examples that run."""

import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.series import FitSeries
from tests.apps.migration.configurations import write_yaml
from tests.results.made_results import flow_result

SLOW = {
    "compare", "compare_models", "connect", "curve_fit", "fit", "fit_each",
    "iterate", "load_comparison", "load_posterior", "local_cluster", "posterior",
}  # fmt: skip
"""They compile kernels, or start workers. Those of `slurm_cluster` and `view` are shown and not run."""
FUNCTIONS = [name for name in hd.__all__ if inspect.isfunction(getattr(hd, name))]
EXAMPLES = sorted({*FUNCTIONS, "FitResult", "Parameter"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the files that the examples name."""
    where = tmp_path_factory.mktemp("examples")
    hd.simulate(where / "A0123_results.hdf", "creep", angles=9, frames=24)
    hd.ingest(where / "A0123_results.hdf", where / "A0123_c2.zarr")
    (where / "A0123_fit").mkdir()
    (where / "A0123_fit_q").mkdir()
    flow_result().to_json(where / "A0123_fit" / "summary.json")
    write_yaml(where).rename(where / "homodyne.yaml")
    series = FitSeries("q", (fit_row("1", None, flow_result(), "", {"q": 0.0054}),))
    series.to_json(where / "A0123_fit_q" / "series.json")
    return where


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in EXAMPLES]
)
def test_the_example_runs(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    text = inspect.getdoc(getattr(hd, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, {"hd": hd, "np": np}, name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    ran = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert ran.failed == 0, "".join(said)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_names_every_argument_and_the_errors(name):
    text = inspect.getdoc(getattr(hd, name)) or ""
    options = "options: those of `fit`" in text
    arguments = inspect.signature(getattr(hd, name)).parameters.values()
    for argument in (one.name for one in arguments if one.kind is not one.VAR_KEYWORD):
        assert options or re.search(rf"\b{argument}\b", text), f"{name}: {argument}"
    assert re.search(r"\b[Rr]aises?\b", text), f"{name} does not say what it raises"
