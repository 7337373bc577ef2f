"""Models given as f with splines: rates of the age, and distributions of rates."""

import numpy as np
import pytest
from scipy.optimize import least_squares

import homodyne_dask as hd
from homodyne_dask.models.rate_forms import LogDensityForm, SplineForm
from homodyne_dask.models.stretched_exponentials import slopes_of, weights_of
from homodyne_dask.results.data.rate_curves import distribution_in
from homodyne_dask.results.files.result_folder import write_result
from tests import reference
from tests.synthetic import angles, fit_here, measured, of_decay, store

SIGMA = 0.02


def ageing(course, stretching, frames=24, bins=4, seed=0):
    scans = measured(np.ones(3), frames, angles(bins), contrast=0.3, noise=False, sigma=SIGMA)
    t = scans.time
    age = 0.5 * (t[:, None] + t)
    f = np.exp(-2 * (course(age / t[-1]) * np.abs(t[:, None] - t)) ** stretching)
    return of_decay(scans, f, SIGMA, seed)


def wave(u):
    return 1 + 0.5 * np.sin(2 * np.pi * u)


def test_the_stretching_is_found_where_all_rates_are_fixed_far_from_those_of_the_data(tmp_path):
    """From the stretching of a fit with free rates, f had decayed before the second frame."""
    scan = store(ageing(np.ones_like, 1.0), tmp_path)
    result = fit_here(scan, "stretched", rates="spline", knots=6, fixed={"rate": 100.0})
    assert result.converged
    assert result.redchi == pytest.approx(1.073, abs=0.001)


@pytest.mark.long
def test_a_rate_of_the_age_is_that_of_dense_penalized_least_squares(tmp_path):
    scans, strength = ageing(wave, 0.8), 30.0
    result = fit_here(
        store(scans, tmp_path), "stretched", rates="spline", knots=6, smoothness={"rate": strength},
    )  # fmt: skip
    assert result.converged
    form, t = SplineForm(**result.config["splines"]["rate"]), scans.time
    i, j = np.triu_indices(len(t), 1)
    basis = form.basis(0.5 * (t[i] + t[j]))
    weight = form.ages ** float(result.diagnosis.smoothing["exponent"].values[0])

    def residuals(x):
        f = np.exp(-2 * (x[:6] @ basis * (t[j] - t[i])) ** x[6])
        c2 = x[11:, None] + x[7:11, None] * f
        of_data = (scans.c2[:, i, j].astype(float) - c2) / SIGMA
        return np.append(of_data.ravel(), np.sqrt(strength) * weight * np.diff(x[:6], 2))

    start = np.concatenate([np.ones(6), [1.0], np.full(4, 0.3), np.ones(4)])
    lowest = np.append(np.zeros(6), np.full(9, -9.0))
    found = least_squares(
        residuals, start, bounds=(lowest, 9), xtol=1e-14, ftol=1e-14, gtol=1e-12
    ).x
    values, errors = (result.parameters[key].values for key in ("value", "stderr_naive"))
    inside = ~result.parameters["at_bound"].values
    assert inside[1:].all()  # the first spline is nearly all before the record
    # what fits with penalties leave at most (`levenberg_marquardt.SMOOTHED`)
    assert (np.abs(values - found[:7]) < 0.02 * errors)[inside].all()
    derived = result.derived["Gamma"]
    assert derived.value == pytest.approx(values[:6] @ form.basis(np.array([t.mean()]))[:, 0])


@pytest.mark.long
def test_bands_of_a_rate_hold_what_has_no_formula_and_the_files_show_it(tmp_path):
    result = fit_here(store(ageing(wave, 0.8, 80, 8), tmp_path), "stretched", rates="spline")
    rates = result.rates
    truth = wave(rates["t"].values / rates["t"].values[-1])
    held = (rates["rate_low_95"] <= truth) & (truth <= rates["rate_high_95"])
    assert held.mean() > 0.9
    assert np.abs(rates["rate"].values - truth).max() < 0.15
    assert "rate(t)" in str(result)
    assert result.plot.rates() is not None
    assert abs(result.params["stretching"].value - 0.8) < 0.06


TAU, ERROR = np.geomspace(1e-2, 10, 30), 1e-3
PEAKS = {
    "one rate": ([2.0], 0.0),
    "two rates a factor 10 apart": ([0.6, 6.0], 0.0),
    "a lognormal distribution": ([2.0], 0.5),
}
"""Rates of equal weights, and the width of each in ln Γ."""


def curve(word, tmp_path, seed=0):
    rates, width = PEAKS[word]
    x = np.linspace(-4, 4, 81)
    spread = np.exp(width * x[:, None]) * np.array(rates)
    weight = np.exp(-(x**2) / 2)[:, None] / np.exp(-(x**2) / 2).sum() / len(rates)
    g = (weight[..., None] * np.exp(-spread[..., None] * TAU)).sum((0, 1))
    g2 = 1 + 0.2 * g**2 + ERROR * np.random.default_rng(seed).standard_normal(len(TAU))
    table = np.column_stack([TAU, g2, np.full(len(TAU), ERROR)])
    names = "delay(s),q=0.01,error(q=0.01)"
    np.savetxt(tmp_path / "a_g2.csv", table, delimiter=",", header=names, comments="")
    return hd.read_g2(tmp_path / "a_g2.csv"), float((weight * spread).sum()), g2


def test_splines_of_a_log_density_hold_lognormal_distributions_of_any_width():
    form = LogDensityForm.over(TAU, 20)
    x = form.nodes
    for width in (0.2, 1.0, 3.0):
        coefficients = form.projected(x, -((x / width) ** 2) / 2)
        weight, exact = weights_of(form, coefficients), np.exp(-((x / width) ** 2) / 2)
        assert weight == pytest.approx(exact / exact.sum(), abs=2e-3)
        steps = reference.gradient(lambda c: np.log(weights_of(form, c)), coefficients)
        assert slopes_of(form, weight) == pytest.approx(steps, abs=1e-4)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("word", PEAKS)
def test_a_distribution_is_that_of_dense_penalized_least_squares(word, tmp_path):
    scan, mean, g2 = curve(word, tmp_path)
    strength = 0.03
    result = hd.fit(scan, "distribution_of_rates", knots=12, smoothness={"log_density": strength})
    assert result.converged
    form = LogDensityForm(**result.config["splines"]["log_density"])
    rates, fixed = np.exp(form.nodes), result.parameters["fixed"].values

    def residuals(x):
        c = np.insert(x[2:], np.flatnonzero(fixed)[0], 0.0)
        log = c @ form.basis(form.nodes)
        weight = np.exp(log - log.max())
        g = weight / weight.sum() @ np.exp(-rates[:, None] * TAU)
        bends = [np.diff(c, 2), LogDensityForm.third * np.diff(c, 3)]
        return np.concatenate(
            [(x[0] + x[1] * g**2 - g2) / ERROR, np.sqrt(strength) * np.concatenate(bends)]
        )

    values = result.parameters["value"].values
    start = np.concatenate([[1.0, 0.2], values[~fixed] + 0.1])
    found = least_squares(residuals, start, xtol=1e-14, ftol=1e-14, gtol=1e-10, x_scale="jac").x
    c = np.insert(found[2:], np.flatnonzero(fixed)[0], 0.0)
    shown, known = distribution_in(result), result.derived["mean_rate"]
    Gamma, tau, D = (result.derived[name] for name in ("Gamma", "tau", "D"))
    assert (Gamma.value, D.value) == (known.value, pytest.approx(known.value / scan.q[0] ** 2))
    assert tau.value == 1 / known.value
    assert tau.stderr_naive / tau.value == pytest.approx(known.stderr_naive / known.value)
    listed = [line.split()[:1] for line in str(result).splitlines()]
    assert ["mean_rate"] in listed
    assert ["Gamma"] not in listed
    step = np.diff(form.nodes)[0]
    assert shown["density"].values * step == pytest.approx(weights_of(form, c), abs=1e-5)
    assert abs(known.value - mean) < 3 * known.stderr_naive + 0.05 * mean
    assert np.isnan([known.stderr, *shown["low_95"], *shown["high_95"]]).all()  # of one curve


@pytest.mark.long
def test_the_mean_of_a_stretched_decay_which_has_none_is_not_quoted(tmp_path):
    delay = np.geomspace(1e-3, 10, 60)
    g2 = 1 + 0.2 * np.exp(-2 * (0.5 * delay) ** 0.8)
    g2 += 0.002 * np.random.default_rng(1).standard_normal(60)
    table, names = np.column_stack([delay, g2, np.full(60, 0.002)]), "delay(s),q=0.01,error(q=0.01)"
    np.savetxt(tmp_path / "a_g2.csv", table, delimiter=",", header=names, comments="")
    result = hd.fit(hd.read_g2(tmp_path / "a_g2.csv"), "distribution_of_rates")
    assert result.converged
    assert "mean_rate" not in result.derived
    assert "the data do not determine its mean" in " ".join(str(result.report(all=True)).split())


@pytest.mark.long
def test_a_single_rate_is_a_narrow_peak_whose_mean_is_held(tmp_path):
    """Its strength fell without end, and the fit did not converge."""
    scan, mean, _ = curve("one rate", tmp_path)
    result = hd.fit(scan, "distribution_of_rates")
    assert result.converged
    known = result.derived["mean_rate"]
    assert abs(known.value - mean) < 3 * known.stderr_naive < 0.15 * mean
    assert "polydispersity" not in result.derived


@pytest.mark.long
def test_the_files_of_two_time_data_show_the_distribution(tmp_path):
    scans = measured(np.ones(3), 40, angles(8), contrast=0.3, noise=False, sigma=SIGMA)
    lag = np.abs(scans.time[:, None] - scans.time)
    f = np.exp(-np.array([0.3, 1.5])[:, None, None] * lag).mean(0) ** 2
    scan = store(of_decay(scans, f, SIGMA), tmp_path)
    result = fit_here(scan, "distribution_of_rates")
    assert result.converged
    known = result.derived["mean_rate"]
    assert known.low_95 < 0.9 < known.high_95
    assert known.stderr < 0.1
    shown = distribution_in(result)
    assert (shown["low_95"] <= shown["density"]).all()
    assert (shown["density"] <= shown["high_95"]).all()
    assert "cannot be told from a single rate" in " ".join(str(result).split())
    folder = tmp_path / "fit"
    folder.mkdir()
    assert {"distribution.csv", "rates.png"} <= {p.name for p in write_result(result, scan, folder)}
    table = np.genfromtxt(folder / "distribution.csv", delimiter=",", names=True)
    assert np.trapezoid(table["density"], np.log(table["rate"])) == pytest.approx(1, abs=0.05)
    assert list(result.plot.rates().tables) == ["distribution"]
