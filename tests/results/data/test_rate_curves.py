"""`result.rates`: values, errors and bands of J(t), γ̇(t) and their integrals."""

import csv
import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

import homodyne_dask as hd
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.models.rate_forms import rate
from homodyne_dask.results.data.fit_rows import quantities_of
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import BANDS, half_width_everywhere, rates_in
from homodyne_dask.results.files.csv_and_netcdf import rates_csv
from homodyne_dask.results.saved_results import from_summary
from homodyne_dask.results.views.fit_figures import page_of_rates
from tests.results.made_results import FLOW, FLOW_COVARIANCE, result_for, scan_of, truth_of
from tests.synthetic import CREEP, fit_here, measured, store

NAMES = ("J", "J_integral", "gamma_dot", "strain")


def replaced(result, theta):
    return replace(result, parameters=result.parameters.assign(optimum=("param", theta)))


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "convention", ["physical", pytest.param("homodyne", marks=pytest.mark.slow)]
)
def test_bands_are_those_of_random_parameters(convention, flowing):
    rng = np.random.default_rng(7)
    spread = np.diag(0.01 * np.abs(FLOW)) @ rng.normal(size=(7, 7))
    covariance = spread @ spread.T / 7
    result = result_for(flowing, FLOW, naive=covariance, convention=convention)
    found = rates_in(FitView(result, flowing))
    assert found.attrs["covariance"] == "naive"
    without_bands = result_for(flowing, FLOW, convention=convention)
    drawn = [
        rates_in(FitView(replaced(without_bands, theta), flowing))
        for theta in rng.multivariate_normal(FLOW, covariance, 600, method="cholesky")
    ]
    for name in NAMES:
        samples = np.array([one[name].values for one in drawn])[:, 1:]
        np.testing.assert_allclose(found[f"{name}_stderr"][1:], samples.std(axis=0), rtol=0.12)
        inside = {}
        for band in BANDS:
            low, high = (found[f"{name}_{end}_{band}"].values[1:] for end in ("low", "high"))
            inside[band] = (low < samples) & (samples < high)
        assert inside["68"].mean() == pytest.approx(0.68, abs=0.04)
        assert inside["95"].mean() == pytest.approx(0.95, abs=0.03)
        assert inside["95_everywhere"].all(1).mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("dof", [4.0, 12.0, np.inf])
def test_a_band_everywhere_holds_the_whole_curve_as_often_as_it_says(dof):
    t = np.linspace(0.05, 6, 200)
    rng = np.random.default_rng(1)
    for theta, size in ((CREEP, (500.0, 0.05, 300.0)), (FLOW[3:6], (1e-5, 0.1, 2e-5))):
        gradient = rate(t, theta, None)[1]
        root = np.diag(size) @ rng.normal(size=(3, 3))
        covariance = root @ root.T
        draws = rng.normal(size=(20_000, 3)) @ root.T @ gradient
        scale = 1.0 if np.isinf(dof) else np.sqrt(rng.chisquare(dof, (20_000, 1)) / dof)
        stderr = np.sqrt(np.einsum("pn,pq,qn->n", gradient, covariance, gradient))
        half = half_width_everywhere(0.95, gradient, covariance, np.full(200, dof))
        inside = (np.abs(draws) < half * stderr * scale).all(1).mean()
        assert 0.945 < inside < 0.965
        assert (half > stdtrit(dof, 0.975)).all()


def test_bands_of_few_bins_are_of_speckle_with_its_degrees_of_freedom(tmp_path):
    scan = store(measured(CREEP, 60, [0.0], sigma=0.05, seed=3), tmp_path)
    result = fit_here(scan, STATIC, fixed={"D_offset": CREEP[2]})
    rates, table = result.rates, result.parameters
    assert rates.attrs["covariance"] == "speckle"
    fewest = np.nanmin(table["dof"].values)
    np.testing.assert_allclose(rates["J_dof"], fewest)
    half = stdtrit(fewest, 0.975)
    J = rates["J"].values
    np.testing.assert_allclose(rates["J_high_95"], J + half * rates["J_stderr"].values)


@pytest.mark.long
def test_robust_bands_widen_with_the_degrees_of_freedom_of_the_combination(tmp_path):
    scans = measured(FLOW, 40, np.linspace(-80, 80, 60), sigma=0.02, seed=2)
    start = dict(zip(LAMINAR_FLOW.names, FLOW, strict=True))
    result = fit_here(store(scans, tmp_path), LAMINAR_FLOW, gap="200 um", initial=start)
    rates, table = result.rates, result.errors.rate_dof
    assert rates.attrs["covariance"] == "robust"
    np.testing.assert_allclose(
        rates["J_dof"].values, table["J"].values, rtol=1e-12
    )  # of 40 frames, each is an age
    t, value, theta = rates["t"].values, rates["J"].values, result.parameters["value"].values[:3]
    known, gradient = rate(t, theta, None)
    np.testing.assert_allclose(value, known)
    covariance = result.covariance.values[:3, :3]
    stderr = np.sqrt(np.einsum("in,ij,jn->n", gradient, covariance, gradient))
    np.testing.assert_allclose(rates["J_stderr"], stderr)
    half = stdtrit(table["J"].values, 0.975)
    np.testing.assert_allclose(rates["J_high_95"], value + half * stderr)
    fewest = result.parameters["dof"].values[:3].min()
    assert abs(table["J"].values / fewest - 1).max() > 0.05
    read = from_summary(result.to_dict())
    np.testing.assert_array_equal(read.errors.rate_dof["J"], table["J"])
    again = pickle.loads(pickle.dumps((result, rates)))
    assert again[0].rates.identical(rates)
    assert again[1].identical(rates)


def test_integrals_are_the_trapezoid_sums_of_the_rates(tmp_path):
    scan = scan_of(tmp_path, FLOW).select(frames=(10, 50))
    for convention in ("physical", "homodyne"):
        found = rates_in(FitView(result_for(scan, FLOW, convention=convention), scan))
        t = found["t"].values
        for of, integral in (("J", "J_integral"), ("gamma_dot", "strain")):
            value = found[of].values
            steps = 0.5 * (value[1:] + value[:-1]) * np.diff(t)
            np.testing.assert_allclose(found[integral].values[1:], np.cumsum(steps), rtol=1e-8)
        np.testing.assert_allclose(t, scan.time[10:50])
    assert {name: found[name].attrs["units"] for name in NAMES} == {
        "J": "angstrom^2/s", "J_integral": "angstrom^2", "gamma_dot": "1/s", "strain": "1"
    }  # fmt: skip


@pytest.mark.parametrize("unknown", [(0, 1, 2), (2,)])
def test_there_is_no_band_where_the_error_of_a_parameter_is_not_known(flowing, unknown):
    covariance = FLOW_COVARIANCE.copy()
    covariance[unknown, :] = covariance[:, unknown] = np.nan
    result = result_for(flowing, FLOW, covariance=covariance)
    at_bound = "param", np.isin(np.arange(7), unknown)
    result = replace(result, parameters=result.parameters.assign(at_bound=at_bound))
    found = rates_in(FitView(result, flowing))
    for column in ("stderr", "low_68", "high_95", "high_95_everywhere"):
        assert np.isnan(found[f"J_{column}"]).all()
        assert np.isfinite(found[f"gamma_dot_{column}"][1:]).all()
    assert "D_offset is unknown" in found["J"].attrs["no_band"]
    assert "conditional" not in found["gamma_dot"].attrs
    known = quantities_of(result, age=2.0)
    assert np.isnan(known["J"].stderr)
    assert known["gamma_dot"].stderr > 0


def test_csv_picture_and_dataset_show_the_same_band(flowing):
    result = result_for(
        flowing, FLOW, covariance=FLOW_COVARIANCE, truth=truth_of(FLOW, LAMINAR_FLOW.names)
    )
    found = rates_in(FitView(result, flowing))
    rows = list(csv.DictReader(io.StringIO(rates_csv(found))))
    assert list(rows[0])[: 1 + len(found)] == ["t", *map(str, found.data_vars)]
    units = {"t": "s", "J": "Å²/s", "J_integral": "Å²", "gamma_dot": "1/s", "strain": "1"}
    assert {name: rows[0][f"{name}_unit"] for name in units} == units
    of_csv = np.array([float(row["J_low_95"]) for row in rows])
    np.testing.assert_array_equal(of_csv, found["J_low_95"])
    drawn = page_of_rates(FitView(result, flowing)).figure().tables["J"].set_index("series")
    ends = drawn["low"].dropna()[: len(rows)], drawn["high"].dropna()[-len(rows) :]
    np.testing.assert_array_equal(ends, (found["J_low_95"], found["J_high_68"]))
    np.testing.assert_array_equal(drawn.loc["fit", "J [Å²/s]"], found["J"])
    truth = drawn.loc["truth", "J [Å²/s]"].iloc[-1]
    assert truth == pytest.approx(1.1 * 20000 * 5.9 ** (-0.44) + 1100, rel=1e-9)


STEP = {"J_before": 8e3, "J_after": 2.4e4, "t_step": 3.0, "width": 0.1}
OF_FLOW = truth_of(FLOW, LAMINAR_FLOW.names)
TRUTHS = {
    "of a step": ({"model": "temperature_step", "parameters": STEP}, [1, 0, 0]),
    "unknown": (None, [0, 0, 0]),
    "in another convention": (OF_FLOW | {"convention": "homodyne"}, [0, 0, 0]),
    "with another gap": (OF_FLOW | {"gap_angstrom": 1e6}, [0, 0, 0]),
}
"""By what it is of: the truth, and lines of it in each of the axes. No power law describes a step."""


@pytest.mark.parametrize(("truth", "drawn"), TRUTHS.values(), ids=TRUTHS)
def test_truth_is_drawn_where_it_is_known_of_these_rates(truth, drawn, flowing):
    axes = page_of_rates(FitView(result_for(flowing, FLOW, truth=truth), flowing)).figure().axes
    lines = [[line for line in axis.get_lines() if line.get_label() == "truth"] for axis in axes]
    assert [len(some) for some in lines] == drawn
    if drawn[0]:
        assert lines[0][0].get_ydata()[[0, -1]] == pytest.approx([8e3, 2.4e4], rel=1e-6)


@pytest.mark.long
def test_a_rate_without_a_formula_is_drawn_with_its_truth_and_no_power_law(tmp_path):
    hd.simulate(tmp_path / "S.h5", "step", angles=3, frames=60)
    scan = hd.open_dataset(hd.ingest(tmp_path / "S.h5").store)
    result = fit_here(scan, "static_free")
    found = rates_in(FitView(result, scan))
    truth = 8e3 + 16e3 / (1 + np.exp(-(found["t"].values - 3.0) / 0.15))
    inner = slice(6, -6)
    assert np.median(np.abs(found["J"].values / truth - 1)[inner]) < 0.15
    axis = page_of_rates(FitView(result, scan)).figure().axes[0]
    assert axis.get_xscale() == "linear"
    lines = axis.get_lines()
    drawn = {line.get_label(): line.get_ydata() for line in lines}
    assert {*drawn} >= {"fit", "truth"}
    assert not any("power law" in str(label) for label in drawn)
    np.testing.assert_allclose(drawn["truth"], truth, rtol=1e-4)
