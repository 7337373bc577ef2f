"""The options of a fit: each defined once, found everywhere, used or refused."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import homodyne_dask as hd
from homodyne_dask import fitting
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.fitting.options import FitOptions, fit_options, plan_options
from homodyne_dask.fitting.request import prepare
from tests.synthetic import FLOW, angles, measured, store

OPTIONS = {option.name: option for option in fit_options()}
WITH_ONE_MORE = """
import inspect, json, sys
from dataclasses import dataclass
from pathlib import Path

from homodyne_dask.fitting import options

@dataclass(frozen=True, kw_only=True)
class OneMore(options.FitOptions):
    novelty: float | None = options.define(
        None, "how new it is", "0.5", "a number", unit="1/s", default_text="not at all", plan=True
    )

options.FitOptions = OneMore

from click.testing import CliRunner
import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.cli.fit_config import template
from homodyne_dask.cli.read_options import from_options
from homodyne_dask.fitting.request import prepare

def help_of(command):
    return CliRunner().invoke(main, [command, "--help-all"]).output

def refusal(**given):
    try:
        hd.fit(scan, hd.STATIC, checkpoint="fit.ckpt", resume=True, **given)
    except hd.HomodyneDaskError as e:
        return str(e)

scan = sys.argv[1]
config = from_options({"data": scan, "model": "static", "novelty": "0.5"})
request = prepare(scan, hd.STATIC, **config.fit_options())
result = hd.fit(scan, hd.STATIC, checkpoint="fit.ckpt", novelty=0.5)
result.to_json("result.json")
print(json.dumps({
    "signatures": {
        name: str(inspect.signature(getattr(hd, name)))
        for name in ("fit", "iterate", "fit_each", "plan")
    },
    "docstring": hd.fit.__doc__,
    "fit --help": help_of("fit"),
    "plan --help": help_of("plan"),
    "template": template(),
    "plan": config.plan_options(),
    "request": [request.options.novelty, request.config["novelty"]],
    "summary": json.loads(Path("result.json").read_text())["config"]["novelty"],
    "report": str(result),
    "report read again": str(hd.load_result("result.json")),
    "resumed with another": refusal(novelty=0.7),
    "resumed with none": refusal(),
    "resumed with the same": refusal(novelty=0.5),
}))
"""


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return store(measured(FLOW[:3], 30, angles(4)), tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def one_more(scan, tmp_path_factory):
    """What a program shows whose options are one more."""
    here = tmp_path_factory.mktemp("one_more")
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITH_ONE_MORE, scan.path],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("name", ["fit", "iterate", "fit_each", "plan"])
def test_an_option_more_is_in_the_signature(one_more, name):
    assert "novelty: float | None = None" in one_more["signatures"][name]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("docstring", "novelty: how new it is [1/s]; default: not at all."),
        ("fit --help", "--novelty FLOAT How new it is [1/s]; default: not at all."),
        ("plan --help", "--novelty FLOAT How new it is [1/s]; default: not at all."),
        ("template", "# how new it is [1/s]; default: not at all # novelty: 0.5"),
        ("report", "options novelty 0.5"),
        ("report read again", "options novelty 0.5"),
    ],
)
def test_an_option_more_is_in_every_text(one_more, where, text):
    assert text in " ".join(one_more[where].split())


def test_an_option_more_goes_through_configuration_request_and_record(one_more):
    assert one_more["plan"]["novelty"] == 0.5
    assert one_more["request"] == [0.5, 0.5]
    assert one_more["summary"] == 0.5


def test_a_fit_resumes_only_with_the_same_value_of_an_option_more(one_more):
    assert "novelty was 0.5, now 0.7" in one_more["resumed with another"]
    assert "novelty was 0.5, now not given" in one_more["resumed with none"]
    assert one_more["resumed with the same"] is None


@pytest.mark.parametrize("function", [hd.fit, hd.iterate, hd.fit_each], ids=lambda f: f.__name__)
def test_signatures_and_docstrings_have_every_option_with_its_default(function):
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in OPTIONS} == FitOptions().values()
    if function is not hd.iterate:
        lines = [line.strip() for line in function.__doc__.splitlines()]
        assert not [
            name for name in OPTIONS if not any(line.startswith(f"{name}: ") for line in lines)
        ]


def test_a_plan_takes_the_options_it_depends_on_and_no_others(scan):
    names = {option.name for option in plan_options()}
    assert names == {
        "gap", "convention", "min_lag", "memory", "device", "loss", "loss_scale", "initial", "fixed",
        "bounds", "prior", "tie", "rates", "knots", "weighting",
    }  # fmt: skip
    assert set(inspect.signature(hd.plan).parameters) == {
        "data", "model", "client", "workers", *names,
    }  # fmt: skip
    with pytest.raises(TypeError, match="unexpected keyword argument 'scaling'"):
        hd.plan(scan, hd.STATIC, scaling="shared")


def test_an_option_that_there_is_not_is_refused_with_the_nearest(scan):
    with pytest.raises(TypeError, match=r"argument 'los'; did you mean 'loss'\?"):
        hd.fit(scan, hd.STATIC, los="huber")


def test_every_option_reaches_the_request(scan, monkeypatch):
    seen = {}

    def prepared(data, model, **given):
        seen.update(given)
        raise HomodyneDaskError("enough")

    monkeypatch.setattr("homodyne_dask.fitting.fit.prepare", prepared)
    given = {name: yaml.safe_load(option.example) for name, option in OPTIONS.items()}
    with pytest.raises(HomodyneDaskError, match="enough"):
        hd.fit(scan, hd.STATIC, **given)
    assert seen == given


def test_every_option_is_read_where_fits_are_made():
    folder = Path(fitting.__file__).parent
    sources = [file for file in folder.rglob("*.py") if file.name != "options.py"]
    text = "\n".join(file.read_text() for file in sources)
    unused = [name for name in OPTIONS if not re.search(rf"\b(options|used)\.{name}\b", text)]
    assert not unused


def test_the_record_has_every_option_and_names_those_changed(scan):
    config = prepare(scan, hd.STATIC, max_passes=7, bounds={"D0": (1.0, 1e12)}).config
    assert set(OPTIONS) < set(config)
    assert config["changed"] == ["bounds", "max_passes"]
    assert prepare(scan, hd.STATIC).config["changed"] == []


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.choices])
def test_a_value_that_is_not_one_of_the_choices_is_refused(scan, name):
    with pytest.raises(HomodyneDaskError, match=rf"{name} 'xyzzy' is unknown; choose from "):
        prepare(scan, hd.STATIC, **{name: "xyzzy"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gap", [1]),
        ("gap", True),
        ("convention", None),
        ("scaling", 3),
        ("initial", 5),
        ("fixed", ["D0"]),
        ("bounds", 5),
        ("min_lag", 1.5),
        ("starts", 1.5),
        ("starts", "a"),
        ("starts", True),
        ("max_passes", 2.5),
        ("max_passes", None),
        ("profile", 5),
    ],
)
def test_a_value_of_another_type_is_refused_in_a_sentence(scan, name, value):
    with pytest.raises(HomodyneDaskError, match=name):
        prepare(scan, hd.STATIC, **{name: value})


def test_values_of_numpy_are_those_of_python_and_a_checkpoint_holds_them(scan, tmp_path):
    """What JSON cannot hold would end the fit after its first pass."""
    of_numpy = {
        "contrast_prior": np.array([0.25, 0.125], np.float32),
        "contrast_bounds": np.array([0, 1]),
        "min_lag": np.int64(2),
        "starts": np.int64(2),
        "max_passes": np.int64(50),
        "fixed": {"alpha": np.float32(-0.5)},
        "prior": {"D0": np.array([2500, 300], np.float32)},
    }
    of_python = {
        "contrast_prior": (0.25, 0.125), "contrast_bounds": (0.0, 1.0), "min_lag": 2, "starts": 2,
        "max_passes": 50, "fixed": {"alpha": -0.5}, "prior": {"D0": (2500, 300)},
    }  # fmt: skip
    result = hd.fit(scan, hd.STATIC, checkpoint=tmp_path / "fit.ckpt", **of_numpy)
    same = hd.fit(scan, hd.STATIC, **of_python)
    assert result.chisqr == same.chisqr
    result.to_json(tmp_path / "result.json")
    assert hd.load_result(tmp_path / "result.json").config["starts"] == 2


def test_one_parameter_may_be_given_for_a_profile_without_a_list(scan):
    assert prepare(scan, hd.STATIC, profile="D0").config["profile"] == ("D0",)
