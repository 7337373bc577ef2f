"""Public names: what lists promise, what help says, and that wrong values are refused.

tests/public_api.txt promises those of the library, and such a file in tests/apps/NAME those of an
application. To accept a change: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/test_public_api.py, then read
the difference. docs/stability.md says which changes need which version.
"""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.result_classes import FitSeries
from tests.applications import APPLICATIONS, command_owners, made_for, owner, public
from tests.documents import PROMISED, kept_in
from tests.results.made_results import flow_result
from tests.synthetic import FLOW, angles, measured, module_scan

CONSTRUCTED = {"Parameter"}
"""Classes that users call; others come from functions."""
MODEL = {"name", "names", "parameters"}
SOME = {
    "Scan": {"attrs", "dataset", "frames", "label", "median_sigma", "n_frames", "n_pixels", "path", "phi",
             "q", "select", "time"},
    "ResidualModel": MODEL | {"residual"},
    "SeparableModel": MODEL | {"f"},
    "TransportModel": MODEL | {"shear"},
}  # fmt: skip
"""What is promised of classes with members that other modules use; of others it is every member."""


def signature(of: Any) -> str:
    """Return names, order and defaults of arguments: annotations are written differently by each Python."""
    whole = inspect.signature(of)
    arguments = [one.replace(annotation=one.empty) for one in whole.parameters.values()]
    return str(whole.replace(parameters=arguments, return_annotation=whole.empty))


def members(of: type) -> Iterator[str]:
    """Yield the public members of a class, those of its libraries' base classes left out."""
    ours = [one for one in of.__mro__ if one.__module__.startswith("homodyne_dask")]
    names = {name for one in ours for name in (*vars(one), *vars(one).get("__annotations__", {}))}
    names |= set(getattr(of, "__dataclass_fields__", ()))
    for name in sorted(name for name in names if not name.startswith("_")):
        member = inspect.getattr_static(of, name, None)
        if name not in SOME.get(of.__name__, {name}):
            continue
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        yield name + (signature(member) if inspect.isfunction(member) else "")


def described(name: str) -> Iterator[str]:
    value = getattr(hd, name)
    if isinstance(value, type) and issubclass(value, Enum):
        yield f"hd.{name}: " + ", ".join(one.name for one in value)
    elif isinstance(value, type):
        yield f"hd.{name}" + (signature(value) if name in CONSTRUCTED else "")
        yield from (f"    .{member}" for member in members(value))
    elif inspect.isfunction(value):
        yield f"hd.{name}{signature(value)}"
    elif isinstance(value, dict):
        yield f"hd.{name}: {', '.join(value)}"
    else:
        yield f"hd.{name}"


def commands(command: click.Command, words: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from commands(below, f"{words} {name}")
        return
    options = [one for one in command.params if isinstance(one, click.Option)]
    names = sorted(name for one in options for name in (*one.opts, *one.secondary_opts))
    arguments = [str(one.name) for one in command.params if isinstance(one, click.Argument)]
    yield " ".join([words, *arguments, *names])


OWNERS = {*map(owner, hd.__all__), *command_owners().values()} & {"", *APPLICATIONS}


@pytest.mark.parametrize("application", sorted(OWNERS))
def test_public_names_arguments_and_options_are_those_that_are_promised(application):
    lines = [line for n in sorted(hd.__all__) if owner(n) == application for line in described(n)]
    for name, owner_of_command in sorted(command_owners().items()):
        if owner_of_command == application:
            lines += commands(main.commands[name], f"homodyne-dask {name}")
    found = "".join(f"{line}\n" for line in lines)
    list_of_names = Path(__file__).parent / ("apps" if application else "") / application
    assert found == kept_in(list_of_names / "public_api.txt", found)


def test_type_checkers_find_each_public_name_where_it_is_loaded_from():
    stub = Path(hd.__file__).with_suffix(".pyi").read_text()
    found = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    assert {name for _, name in found} | {"__version__", "guide"} == set(hd.__all__)
    for module, name in found:
        if owner(name) in ("", *APPLICATIONS):
            assert getattr(hd, name) is getattr(import_module(module), name)


def test_the_page_lists_every_public_name_and_every_command():
    assert {name for name in PROMISED if name.startswith("hd.")} == {f"hd.{n}" for n in hd.__all__}
    assert set(main.commands) <= PROMISED


SLOW = {
    "compare", "compare_models", "compare_results", "connect", "curve_fit", "fit", "fit_each",
    "iterate", "load_comparison", "load_posterior", "local_cluster", "posterior",
}  # fmt: skip
"""They compile kernels, or start workers. Those of `slurm_cluster` and `view` are shown and not run."""
PUBLIC = [name for name in hd.__all__ if owner(name) in ("", *APPLICATIONS)]
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(hd, name))]
EXAMPLES = sorted({*FUNCTIONS, "FitResult", "Parameter"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("examples")
    hd.simulate(where / "A0123_results.hdf", "creep", angles=9, frames=24)
    hd.ingest(where / "A0123_results.hdf", where / "A0123_c2.zarr")
    (where / "A0123_fit").mkdir()
    (where / "A0123_fit_q").mkdir()
    flow_result().to_json(where / "A0123_fit" / "summary.json")
    series = FitSeries("q", (fit_row("1", None, flow_result(), "", {"q": 0.0054}),))
    series.to_json(where / "A0123_fit_q" / "series.json")
    return where


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in EXAMPLES]
)
def test_the_example_runs(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    if name == "from_homodyne_yaml":
        made_for("migration.configurations").write_yaml(folder).rename("homodyne.yaml")
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


WRONG = [object(), b"x", [object()], {3: object()}, 3j, np.array([object()])]
"""Wrong for every argument that is not a function's own data."""
NUMBER = hd.Parameter("a")
POINTS = xarray.Dataset({"x": ("i", np.arange(5.0)), "y": ("i", 2 * np.arange(5.0))})
LINE = hd.model(lambda theta, x, y: y - theta[0] * x, [hd.Parameter("k")], name="line")


def constant(theta, t1, t2, bin):
    return theta[0]


def public_page(name):
    return public("guide").page(name)


scan = module_scan(lambda: measured(FLOW[:3], 30, angles(4)))


CALLS: dict[str, tuple[Callable[..., Any] | None, dict[str, Any]]] = {
    "open_dataset": (None, {}),
    "select": (lambda scan, **given: scan.select(**given), {"scan": ...}),
    "plan": (None, {"data": ..., "model": "static"}),
    "fit": (None, {"data": ..., "model": "static"}),
    "iterate": (None, {"data": ..., "model": "static"}),
    "fit_each": (None, {"data": ..., "model": "static", "over": "age", "windows": 2}),
    "compare_models": (None, {"data": ...}),
    "predict": (None, {"model": "static", "params": [1e4, 0, 0], "times": [0, 1, 2], "q": 0.01}),
    "fit of a residual": (hd.fit, {"data": POINTS, "model": LINE, "initial": {"k": 1}}),
    "curve_fit": (None, {"f": lambda x, a: a * x, "xdata": POINTS}),
    "model": (None, {"residual": lambda theta, x: x, "parameters": [NUMBER]}),
    "separable": (None, {"f": constant, "parameters": [NUMBER]}),
    "Parameter": (None, {"name": "a"}),
    "load_result": (None, {}),
    "load_series": (None, {}),
    "compare": (None, {}),
    "compare_results": (None, {}),
    "load_comparison": (None, {}),
    "from_homodyne_yaml": (None, {}),
    "local_cluster": (None, {}),
    "connect": (None, {"address": "tcp://127.0.0.1:1"}),
    "slurm_cluster": (None, {"jobs": 0}),
    "cuts": (lambda scan, **given: scan.cuts(**given), {"scan": ...}),
    "page": (public_page, {}),
    "ingest": (None, {"source": "none.npz"}),
    "simulate": (None, {"path": "none.h5"}),
}  # fmt: skip
"""What is called, the public function of the name where it says None, with arguments that fit."""
ARGUMENTS = {
    "select": ["q", "phi", "label", "frames", "time"],
    "cuts": ["min_lag"],
    "slurm_cluster": ["site", "jobs", "folder", "task", "walltime", "cores", "wall_time"],
    "fit of a residual": ["data", "initial", "fixed", "bounds", "absolute_sigma", "max_passes"],
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
    function = function or public(name)
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
