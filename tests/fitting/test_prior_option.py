"""The option prior of a fit: from initial values to report, and mistakes in it."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.results.files.csv_and_netcdf import parameters_csv
from homodyne_dask.solver.levenberg_marquardt import Outcome
from tests.synthetic import CREEP, angles, fit_here, measured, module_scan

PRIOR = {"D0": (20500, 30)}
scan = module_scan(lambda: measured(CREEP, 40, angles(9), contrast=0.25, sigma=0.003))


@pytest.fixture(scope="module")
def result(scan):
    return fit_here(scan, hd.STATIC, prior=PRIOR, profile=("D0",))


def value(result, name="D0", key="value"):
    return float(result.parameters[key].sel(param=name))


@pytest.mark.long
def test_report_json_and_csv_name_the_prior(result, tmp_path):
    assert result.outcome is Outcome.CONVERGED
    assert "prior: D0 = 20500 ± 30 Å²/s" in str(result)
    assert result.ndata == 9 * 39 * 20 + 1
    free = result.ndata - 3 - 18
    assert result.redchi == pytest.approx(result.chisqr / free, rel=1e-12)
    of_bins = (
        (result.scaling["redchi"] * result.scaling["ndata"]).values.sum() * free / result.ndata
    )
    of_prior = ((value(result) - 20500) / 30) ** 2
    assert result.chisqr == pytest.approx(of_bins + of_prior, rel=1e-12)
    result.to_json(tmp_path / "result.json")
    read = hd.load_result(tmp_path / "result.json")
    assert str(read) == str(result)
    assert read.config["prior"] == {"D0": [20500, 30]}
    D0, alpha, *_ = csv.DictReader(parameters_csv(result).splitlines())
    assert (D0["prior_mean"], D0["prior_sd"]) == ("20500.0", "30.0")
    assert (alpha["prior_mean"], alpha["prior_sd"]) == ("", "")


def test_a_fit_far_from_its_prior_says_so(scan, result):
    far = fit_here(scan, hd.STATIC, prior={"alpha": (0.5, 0.2)})
    assert [one.about for one in far.findings.of("far-from-prior")] == [("alpha",)]
    assert not result.findings.of("far-from-prior", "prior-outweighed")


@pytest.mark.long
def test_a_prior_far_beyond_a_bound_hides_neither_decay_nor_optimum(scan):
    """Its χ² of 1e15 would be taken for noise of the data: no decay seen, and converged anywhere."""
    far = fit_here(scan, hd.STATIC, prior={"D_offset": (5e4, 1e-3)})
    fixed = fit_here(scan, hd.STATIC, fixed={"D_offset": 1e4})
    assert far.outcome is fixed.outcome is Outcome.CONVERGED
    assert value(far, "D_offset") == 1e4
    assert value(far) == pytest.approx(value(fixed), abs=0.01 * value(fixed, key="stderr"))
    assert value(far, key="stderr") == pytest.approx(value(fixed, key="stderr"), rel=1e-3)
    assert far.findings.of("far-from-prior")


def test_a_profile_counts_the_prior(result):
    """The data alone determine D0 to 140."""
    table = result.errors.profiles["D0"]
    assert table["converged"].all()
    rise, parabola = (table[key].values - result.chisqr for key in ("chisqr", "parabola"))
    away = table["value"].values - value(result)
    np.testing.assert_allclose(rise, (away / 30) ** 2, rtol=0.1)
    np.testing.assert_allclose(parabola, rise, rtol=0.05)


def test_a_resumed_fit_has_the_same_bits(scan, result, tmp_path):
    path = tmp_path / "fit.ckpt"
    given = {"prior": {"D0": "20500:30"}, "profile": ("D0",)}
    assert fit_here(scan, hd.STATIC, path, stop_after=1, **given) is None
    resumed = fit_here(scan, hd.STATIC, path, resume=True, **given)
    assert resumed.chisqr == result.chisqr
    assert resumed.parameters.equals(result.parameters)


few = module_scan(lambda: measured(CREEP, 40, angles(3), contrast=0.25, sigma=0.003))


def test_few_bins_have_errors_of_speckle_with_the_prior(few):
    narrow = fit_here(few, hd.STATIC, prior={"alpha": (-0.4, 1e-6)}).parameters
    fixed = fit_here(few, hd.STATIC, fixed={"alpha": -0.4}).parameters
    assert narrow.attrs["method"] == fixed.attrs["method"] == "speckle"
    stderr, wanted = (table["stderr"].values for table in (narrow, fixed))
    assert stderr[1] == pytest.approx(1e-6, rel=1e-3)
    # the noise is measured with one parameter more
    np.testing.assert_allclose(stderr[[0, 2]], wanted[[0, 2]], rtol=0.15)
    assert narrow["dof"].values[1] > 1000


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_few_bins_of_other_noise_have_no_error_with_a_prior_either(few):
    narrow = fit_here(few, hd.STATIC, prior={"alpha": (-0.4, 1e-6)})
    assert np.isnan(narrow.parameters["stderr"]).all()
    assert narrow.findings.of("no-standard-error")[0].numbers["why"] == "not-normal"


def even(theta, t1, t2, bin):
    """The sign of the rate is not seen."""
    return jnp.exp(-jnp.square(theta[0] * (t2 - t1)))


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("sign", [-1, 1])
def test_of_minima_alike_the_prior_chooses_and_starts_where_nothing_else_does(scan, sign):
    model = hd.separable(even, [hd.Parameter("rate", "1/s")], name="even")
    with pytest.raises(OptionError, match="rate has neither an initial value nor finite bounds"):
        fit_here(scan, model)
    found = fit_here(scan, model, prior={"rate": (sign * 0.5, 5)})
    assert value(found, "rate") * sign > 0


def test_a_search_with_every_parameter_known_starts_there(scan):
    given = {"D0": (2e4, 1e3), "alpha": (-0.4, 0.1), "D_offset": (1e3, 500)}
    result = fit_here(scan, hd.STATIC, prior=given)
    assert result.outcome is Outcome.CONVERGED
    assert value(result, "alpha") == pytest.approx(-0.4, abs=0.1)


@pytest.mark.parametrize("given", ["2e4:300", [2e4, 300], ["2e4", "300"], "normal:2e4:300"])
def test_it_is_written_in_one_of_these_ways(scan, given):
    config = FitConfig(data=scan.path, model="static", prior={"D0": given})
    request = prepare(scan, hd.STATIC, **config.values())
    assert request.config["prior"] == {"D0": (2e4, 300.0)}


@pytest.mark.slow
def test_every_window_has_the_prior(scan):
    series = hd.fit_each(scan, hd.STATIC, over="age", windows=2, prior={"D0": (21000, 1e-3)})
    assert [value(entry.result) for entry in series.entries] == pytest.approx([21000] * 2, abs=0.1)
