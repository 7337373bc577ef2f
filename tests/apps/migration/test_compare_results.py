"""The result of homodyne beside ours: one convention, and what explains the difference."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.apps.migration.from_homodyne_command import compare_with_homodyne
from homodyne_dask.document.blocks import as_text
from homodyne_dask.errors import OptionError
from tests.apps.migration.configurations import FLOW_NAMES, translated, write_yaml
from tests.results.made_results import changed, config_of, flow_result
from tests.run_command import run


def homodyne_results(folder: Path, values: dict[str, float], share: float = 0.1, **more) -> Path:
    """Results as homodyne 2.23 writes them, with older names of two parameters."""
    errors = dict(zip(FLOW_NAMES, flow_result().parameters.stderr.values, strict=True))
    older = {"gamma_dot_t0": "gamma_dot_0", "phi0": "phi_0"}
    rows = {
        older.get(name, name): {"value": value, "uncertainty": share * errors[name]}
        for name, value in values.items()
    }
    content = {"analysis_mode": "laminar_flow", "convergence_status": "converged"} | more
    content["parameters"] = {"contrast": {"value": 0.1, "uncertainty": 0.0}} | rows
    (folder / "nlsq").mkdir(parents=True)
    (folder / "nlsq/parameters.json").write_text(json.dumps(content))
    return folder


def ours(**options) -> hd.FitResult:
    return changed(flow_result(), config=config_of("laminar_flow", **options))


def of_ours() -> dict[str, float]:
    return dict(zip(FLOW_NAMES, flow_result().parameters["value"].values.tolist(), strict=True))


def compared(tmp_path: Path, results: Path, result: hd.FitResult, **changes) -> str:
    text = as_text(compare_with_homodyne(translated(tmp_path, **changes).config, results, result))
    return " ".join(text.split())


def test_fits_that_agree_are_said_to_and_small_uncertainties_are_explained(tmp_path):
    results = homodyne_results(tmp_path / "results", of_ours())
    said = compared(tmp_path, results, ours(convention="homodyne", scaling="shared"))
    assert "The values agree" in said
    assert "The uncertainties of homodyne are 0.1 of our standard errors" in said
    assert "initial value" not in said
    assert "fit again" not in said


def test_rates_are_compared_in_the_convention_of_our_fit(tmp_path):
    values = of_ours()
    for name in ("gamma_dot_t0", "gamma_dot_t_offset"):
        values[name] *= math.pi / math.sqrt(2)
    results = homodyne_results(tmp_path / "results", values)
    said = compared(tmp_path, results, ours(convention="physical", scaling="shared"))
    assert "The values agree" in said
    assert "gamma_dot_t0 and gamma_dot_t_offset of homodyne are divided by π/√2" in said


def test_a_fit_that_stayed_where_it_began_is_said_to(tmp_path):
    values = of_ours() | {"D0": 1e5, "alpha": -0.5}
    results = homodyne_results(tmp_path / "results", values, convergence_status="max_iter")
    said = compared(tmp_path, results, ours(convention="homodyne", scaling="individual"))
    assert "The values differ" in said
    assert "alpha of homodyne: the initial value, from which its fit has not moved." in said
    assert "D0 of homodyne: at a bound" in said
    assert "fit again with `--scaling shared`" in said
    assert "has not converged: it ended as max_iter." in said


def test_an_unknown_error_is_no_number(tmp_path):
    known = ours(convention="homodyne", scaling="shared")
    unknown = known.parameters.assign(stderr=known.parameters["stderr"].where(False))
    result = changed(known, parameters=unknown)
    results = homodyne_results(tmp_path / "results", of_ours(), share=math.nan)
    said = compared(tmp_path, results, result)
    assert "uncertainties of homodyne" not in said
    assert "nan" not in said


def test_parameters_that_the_data_do_not_tell_apart_have_no_distance(tmp_path):
    known = ours(convention="homodyne", scaling="shared")
    covariance = xarray.ones_like(known.errors.covariance)
    result = changed(known, errors=replace(known.errors, covariance=covariance))
    results = homodyne_results(tmp_path / "results", of_ours())
    assert "with correlations" not in compared(tmp_path, results, result)


@pytest.mark.parametrize(
    ("content", "message"),
    {
        "{": "parameters.json",
        '{"parameters": {}}': "has no parameters",
        '{"parameters": {"D0": {"value": "x"}}}': "D0.value = 'x': Input should be a valid number",
        '{"parameters": {"D": {"value": 1}}}': "none of the parameters of laminar_flow",
    }.items(),
)
def test_what_is_no_result_of_homodyne_is_said(tmp_path, content, message):
    (tmp_path / "parameters.json").write_text(content)
    with pytest.raises(OptionError, match=message):
        compared(tmp_path, tmp_path, ours(convention="homodyne"))


def test_the_command_finds_our_result_or_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path)
    homodyne_results(Path("results"), of_ours())
    words = ("from-homodyne", "homodyne.yaml", "--compare", "results")
    assert "data/E_fit cannot be read" in run(*words).stderr
    Path("fit").mkdir()
    ours(convention="homodyne", scaling="shared").to_json("fit/summary.json")
    compared = run(*words, "--fit", "fit")
    assert compared.exit_code == 0, compared.output
    assert "difference [stderr]" in compared.stdout
    assert run(*words, "-o", "x.yaml").exit_code == 2
    assert run("from-homodyne", "homodyne.yaml", "--fit", "fit").exit_code == 2
