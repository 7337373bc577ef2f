"""Fits of tables of g2(delay) are dense least squares of their points, and refuse what needs ages."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t as student

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.results.data.fit_view import view_of
from homodyne_dask.results.views.fit_figures import lags_and_residuals
from tests.run_command import done, run

Q = np.array([0.004, 0.006, 0.009])
TAU = np.geomspace(1e-3, 30, 40)
ERROR = np.array([2e-3, 3e-3, 5e-3])[:, None] * (1 + np.exp(-TAU))
X = TAU * Q[:, None]


def table(path, f, errors=True, seed=0):
    """A table of 0.1 f + 1 with noise, some points unknown; g2 and its errors."""
    g2 = 1 + 0.1 * f + ERROR * np.random.default_rng(seed).standard_normal(ERROR.shape)
    g2[1, 5:8] = np.nan
    names = [f"q={q}" for q in Q] + [f"err{n}" for n in range(3)] * errors
    rows = np.c_[TAU, g2.T, *([ERROR.T] * errors)]
    np.savetxt(
        path, rows, delimiter=",", header=",".join(["tau", *names]), comments="", fmt="%.17g"
    )
    return g2


def cumulant(x, mu):
    return np.exp(-2 * x) * (1 + mu * x**2 / 2) ** 2


FORMS = {
    "brownian": ((1.5e4,), lambda D: np.exp(-D * X * Q[:, None])),
    "stretched": ((0.5, 0.8), lambda G, s: np.exp(-2 * (G * TAU) ** s) * np.ones((3, 1))),
    "cumulant": ((0.5, 0.3), lambda G, mu: cumulant(G * TAU, mu) * np.ones((3, 1))),
    "cumulant_q": ((1.0, 2.0, 0.3), lambda G, n, mu: cumulant(G * (Q[:, None] / 0.01) ** n * TAU, mu)),
    "ballistic": ((60.0, 1.4), lambda v, s: np.exp(-2 * (v * X) ** s)),
    "brownian + brownian": ((2e5, 5e3, 0.4), lambda A, B, x: (
        x * np.exp(-A * X * Q[:, None] / 2) + (1 - x) * np.exp(-B * X * Q[:, None] / 2)) ** 2),
}  # fmt: skip


def scipys(f, g2, truth, **options):
    """Optimum and errors: of the parameters, of contrasts, of offsets."""
    known = np.isfinite(g2)

    def curve(_, *p):
        contrast, offset = np.reshape(p[-6:], (2, 3, 1))
        return (offset + contrast * f(*p[:-6]))[known]

    start = [*truth, *[0.1] * 3, *[1.0] * 3]
    options |= dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15)
    options |= {"method": "trf", "jac": "3-point", "x_scale": "jac"}
    best, covariance = curve_fit(curve, None, g2[known], p0=start, **options)
    return best, np.sqrt(np.diag(covariance)), known


def values_of(result):
    free = ~result.parameters["fixed"].values
    columns = (
        ("value", "contrast", "offset"),
        ("stderr_naive", "contrast_stderr_naive", "offset_stderr_naive"),
    )
    return [
        np.r_[result.parameters[name].values[free], *(result.scaling[row].values for row in rows)]
        for name, *rows in columns
    ]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("model", "errors"), [("brownian", False), ("brownian", True), *(
    pytest.param(name, True, marks=pytest.mark.long) for name in FORMS if name != "brownian"
)])  # fmt: skip
def test_values_and_naive_errors_are_scipys_with_the_residuals_as_noise_above_errors(
    tmp_path, model, errors
):
    truth, f = FORMS[model]
    g2 = table(tmp_path / "A.csv", f(*truth), errors)
    given = {"sigma": ERROR[np.isfinite(g2)], "absolute_sigma": True} if errors else {}
    best, error, known = scipys(f, g2, truth, **given)
    result = hd.fit(hd.read_g2(tmp_path / "A.csv"), model)
    value, stderr = values_of(result)
    np.testing.assert_allclose(value, best, rtol=1e-6)
    above = max(result.redchi, 1) ** 0.5 if errors else 1.0
    np.testing.assert_allclose(stderr, error * above, rtol=1e-6)
    assert np.isnan(result.parameters["stderr"].values).all()
    assert result.ndata == known.sum()
    assert "points-correlated" in result.findings.codes


def test_a_table_that_several_fits_read_at_once_is_read_by_one_and_fitted_by_all(tmp_path):
    table(tmp_path / "A_g2.csv", np.exp(-X))
    with ThreadPoolExecutor(4) as pool:
        digests = {scan.digest for scan in pool.map(hd.read_g2, [tmp_path / "A_g2.csv"] * 8)}
    assert len(digests) == 1


RATES = {
    "cumulant of all rings": ("cumulant", {}, None, {"Gamma", "tau"}),
    "cumulant of one ring": ("cumulant", {}, 1, {"Gamma", "tau", "D"}),
    "a free power of q": ("cumulant_q", {}, None, {f"Gamma_q{q}" for q in Q}),
    "the power 2 of q": ("cumulant_q", {"q_exponent": 2}, None, {f"Gamma_q{q}" for q in Q} | {"D"}),
    "another power of q": ("cumulant_q", {"q_exponent": 3}, None, {f"Gamma_q{q}" for q in Q}),
    "any power of one q": ("stretched_q", {"q_exponent": 3}, 1, {"Gamma", "tau", "D"}),
}


@pytest.mark.parametrize("case", RATES)
def test_every_model_with_a_rate_gives_gamma_and_where_it_has_a_meaning_tau_and_d(tmp_path, case):
    model, fixed, bin, names = RATES[case]
    n = fixed.get("q_exponent", 2) if "_q" in model else 0
    rate = 0.5 * (Q[:, None] / 0.01) ** n
    table(tmp_path / "a_g2.csv", cumulant(rate * TAU, 0.3))
    scan = hd.read_g2(tmp_path / "a_g2.csv")
    q = Q[bin or 0]
    result = hd.fit(scan if bin is None else scan.select(q=q), model, fixed=fixed)
    derived, base = result.derived, result.params["rate"]
    assert {*derived} == names
    power = fixed.get("q_exponent") or result.params["q_exponent"].value if "_q" in model else 0
    Gamma = derived.get("Gamma") or derived[f"Gamma_q{q}"]
    factor = (q / 0.01) ** power
    assert Gamma.value == pytest.approx(base.value * factor)
    assert Gamma.stderr_naive > 0
    if "D" in names:
        assert derived["D"].value == pytest.approx(Gamma.value / q**2)
        of_gamma = derived["D"].stderr_naive / derived["D"].value
        assert of_gamma == pytest.approx(Gamma.stderr_naive / Gamma.value)
    if "tau" in names:
        assert derived["tau"].value == pytest.approx(1 / Gamma.value)


def test_rates_of_a_tied_power_of_q_are_left_out_and_not_those_of_no_power(tmp_path):
    table(tmp_path / "a_g2.csv", cumulant(0.5 * (Q[:, None] / 0.01) ** 2 * TAU, 0.3))
    tied = hd.fit(hd.read_g2(tmp_path / "a_g2.csv"), "cumulant_q", tie={"q_exponent": "2"})
    assert {*tied.derived} == {"q_exponent"}


NATURAL = {
    "a variance at 0": ("cumulant", 1.3, {}, "polydispersity", "--fixed polydispersity=0"),
    "bounds of the user": (
        "cumulant",
        1.3,
        {"polydispersity": (0.5, 1)},
        "",
        "--bounds polydispersity=0:1",
    ),
    "an exponent, of any sign": (
        "stretched_q",
        1.0,
        {"q_exponent": (0, 6)},
        "",
        "--bounds q_exponent=-12:6",
    ),
    "a frozen share": (
        "frozen + stretched",
        1.0,
        {},
        "frozen_fraction",
        "--fixed frozen_fraction=0",
    ),
}


@pytest.mark.parametrize("case", NATURAL)
def test_no_advice_leads_beyond_what_a_parameter_can_be(tmp_path, case):
    model, stretching, bounds, natural, advice = NATURAL[case]
    f = np.exp(-2 * (0.5 * (Q[:, None] / Q[0]) ** (-0.2 * ("_q" in model)) * TAU) ** stretching)
    # c2 that ends below the offset looks like a frozen part below 0
    options = {"offset": "prior=1:0.001"} if "frozen" in model else {}
    table(tmp_path / "a_g2.csv", f - 0.05 * bool(options))
    result = hd.fit(hd.read_g2(tmp_path / "a_g2.csv"), model, bounds=bounds, **options)
    (said,) = result.findings.of("at-bound")
    assert said.advice == advice
    assert ("this is the natural bound of" in str(said)) == bool(natural)
    assert said.numbers["natural"] == [natural] * bool(natural)
    assert "default-bounds-reached" not in result.findings.codes


def test_curves_of_a_fit_are_drawn_against_their_delays(tmp_path):
    g2 = table(tmp_path / "A.csv", FORMS["brownian"][1](1e4))
    result = hd.fit(hd.read_g2(tmp_path / "A.csv"), "brownian")
    drawn, known = result.plot.cuts(panel="bin 2").tables["bin 2"], np.isfinite(g2[1])
    np.testing.assert_allclose(drawn["lag [s]"][: known.sum()], TAU[known])
    np.testing.assert_allclose(drawn["g₂"][: known.sum()], g2[1, known], rtol=1e-6)
    lag, _ = lags_and_residuals(view_of(result))
    np.testing.assert_allclose(np.unique(np.round(lag, 12)), TAU, rtol=1e-6)


@pytest.mark.parametrize(("errors", "share"), [(True, 1.0), (False, 0.01)])
def test_a_model_that_does_not_describe_the_curves_is_no_success(tmp_path, errors, share):
    rng, f = np.random.default_rng(0), FORMS["ballistic"][1](60.0, 2.0)
    g2 = 1 + 0.1 * f + share * ERROR * rng.standard_normal(ERROR.shape)
    columns, names = [TAU, *g2, *ERROR], [f"q={q}" for q in Q] + ["err1", "err2", "err3"]
    of = 7 if errors else 4
    head = ",".join(["tau", *names][:of])
    np.savetxt(tmp_path / "A.csv", np.c_[*columns[:of]], delimiter=",", header=head, comments="")
    result = hd.fit(hd.read_g2(tmp_path / "A.csv"), "brownian")
    assert result.misfit
    assert not result.success
    assert "✓" not in str(result)
    assert "the model does not describe the curves" in result.verdict


def of_curves(path, number, seed):
    """Curves with noise that points share with their neighbours, and errors that do not say so."""
    rng, q = np.random.default_rng(seed), np.linspace(0.004, 0.012, number)
    noise = 4e-3 * rng.standard_normal((number, 12)).repeat(4, axis=1)[:, :40]
    g2 = 1 + 0.1 * np.exp(-1e4 * q[:, None] ** 2 * TAU) + noise
    names = [f"{name}(q={one:.6f})" for name in ("g2", "err") for one in q]
    rows = np.c_[TAU, g2.T, np.full((40, number), 5e-3)]
    np.savetxt(path, rows, delimiter=",", header=",".join(["tau", *names]), comments="")
    return hd.read_g2(path)


def test_a_series_of_curves_with_correlated_points_draws_no_verdict_from_their_errors(tmp_path):
    series = hd.fit_each(of_curves(tmp_path / "A.csv", 3, 0), "stretched", over="q")
    assert (series.agreement, series.powers_of_q, series.power_of_q("rate")) == ({}, {}, None)
    assert np.isnan(series.table["p"].values).all()
    saved = series.to_dict()
    assert (saved["agreement"], saved["powers_of_q"]) == ({}, {})
    said = " ".join(str(series).split())
    assert "±" not in said.replace("± is the standard error; values without ±", "")
    assert "points of one curve are correlated, so that naive errors tell neither" in said
    assert "a table has no covariance of its points" in said


@pytest.mark.long
def test_from_eight_curves_on_intervals_hold_the_truth_as_often_as_they_say(tmp_path):
    pulls = np.zeros((2, 40))
    for n in range(40):
        of = hd.fit(of_curves(tmp_path / f"{n}.csv", 10, n), "brownian").params["D0"]
        away = abs(of.value - 1e4)
        pulls[:, n] = away / of.stderr / student.ppf(0.975, of.dof), away / of.stderr_naive / 1.96
    held, naive = (pulls < 1).mean(1)
    assert held >= 0.85
    assert naive < 0.85


@pytest.mark.parametrize(("model", "options", "said"), [
    ("power_law", {}, "power_law depends on age"),
    ("stretched_ageing", {}, "stretched_ageing depends on age"),
    ("brownian * power_law", {}, "depends on age"),
    ("static", {"rates": "spline"}, "rates = spline needs two-time data"),
    ("brownian", {"weighting": "speckle"}, "weighting = speckle needs two-time data"),
    ("brownian", {"min_lag": 2}, "remove the first lines of the table"),
    ("brownian", {"convention": "homodyne"}, "homodyne convention needs evenly spaced frames"),
])  # fmt: skip
def test_what_needs_ages_frames_or_speckle_is_refused(tmp_path, model, options, said):
    table(tmp_path / "A.csv", FORMS["brownian"][1](1e4))
    with pytest.raises(HomodyneDaskError, match=said):
        hd.fit(hd.read_g2(tmp_path / "A.csv"), model, **options)
    for selection in ({"frames": (0, 9)}, {"time": (0, 1)}, {"exclude": {"frames": 3}}):
        with pytest.raises(HomodyneDaskError, match="a table of g2 has only delays"):
            hd.open_dataset(tmp_path / "A_g2.zarr").select(**selection)


def test_an_exponent_of_age_that_is_fixed_at_0_is_none(tmp_path):
    table(tmp_path / "A.csv", FORMS["brownian"][1](1e4))
    scan = hd.read_g2(tmp_path / "A.csv")
    one, other = (hd.fit(scan, "brownian"), hd.fit(scan, "power_law", fixed={"alpha": 0.0}))
    assert one.chisqr == pytest.approx(other.chisqr, rel=1e-9)


@pytest.mark.parametrize(("name", "said"), [("offset", ()), ("contrast", ("prior-outweighed",))])
def test_no_note_says_that_a_narrow_prior_of_an_offset_outweighs_the_curves(tmp_path, name, said):
    table(tmp_path / "A.csv", FORMS["brownian"][1](1e4), errors=False)
    prior = {name: f"prior={1 if name == 'offset' else 0.1}:0.001"}
    result = hd.fit(hd.read_g2(tmp_path / "A.csv", sigma=3e-4), "brownian", **prior)
    assert tuple(result.findings.of("prior-outweighed").codes) == said


def test_the_command_says_once_and_before_the_fit_how_a_table_was_read(tmp_path):
    path, g1 = tmp_path / "A.csv", np.sqrt(FORMS["brownian"][1](1e4))
    head = ",".join(["tau (ms)", *(f"g1 (q={10 * q} 1/nm)" for q in Q)])
    np.savetxt(path, np.c_[1e3 * TAU, g1.T], delimiter=",", header=head, comments="")
    fit = run("fit", str(path), "--model", "brownian", "--pictures", "none", "--json")
    assert json.loads(fit.stdout)["model"] == "brownian"
    said, _, of_fit = fit.stderr.partition("points of 3 bins")
    for note in (
        "times converted from ms to s",
        "q converted from 1/nm",
        "all curves taken for g1",
    ):
        assert said.count(note) == 1, said
        assert note not in of_fit
    again = run("plan", str(path), "--model", "brownian")
    assert "times converted" in again.stderr


@pytest.mark.long
def test_the_command_fits_a_table_as_it_is_and_each_q_on_workers_with_the_same_bits(tmp_path):
    table(tmp_path / "A.csv", FORMS["brownian"][1](1e4))
    for name, more in (("here", ()), ("there", ("--workers", "2"))):
        words = ("--over", "q", "-o", str(tmp_path / name), "--no-pictures", *more)
        done("fit", str(tmp_path / "A.csv"), "--model", "brownian", *words)
    read = [json.loads((tmp_path / name / "series.json").read_text()) for name in ("here", "there")]
    values = [[row["result"]["parameters"] for row in of["fits"]] for of in read]
    assert values[0] == values[1]
    assert (tmp_path / "A_g2.zarr").exists()
