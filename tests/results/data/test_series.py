"""Quantities of fits, series of them, whether they agree, and how they depend on q or age."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray
from scipy import stats

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.fitting.series.rings_and_windows import subsets_of
from homodyne_dask.models.rate_forms import rate_stderr
from homodyne_dask.results.data.derived_quantities import Quantity, shown_names
from homodyne_dask.results.data.findings import OF_MISFIT, Findings, finding
from homodyne_dask.results.data.fit_result import covariance_table, parameter_table
from homodyne_dask.results.data.fit_rows import (
    PARTS,
    FitRow,
    fit_row,
    quantities_of,
    without_chance,
)
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.data.series import homogeneity_test, power_law_of_q
from homodyne_dask.results.files.csv_and_netcdf import entries_csv
from homodyne_dask.results.files.result_folder import write_index
from homodyne_dask.results.result_classes import FitSeries
from homodyne_dask.results.views.style import alternative
from tests import reference
from tests.results.made_results import (
    FLOW,
    FLOW_COVARIANCE,
    changed,
    config_of,
    flow_result,
    rate_dof,
    result_for,
)
from tests.results.three_rings import ANGLES, Q, three_rings
from tests.synthetic import CREEP, measured, module_scan, store

HELD = {"alpha": -0.4, "D_offset": 1000.0}
diffusing = module_scan(lambda: three_rings([CREEP] * 3))


@pytest.fixture(scope="module")
def over_q(diffusing) -> FitSeries:
    return hd.fit_each(diffusing, hd.STATIC, over="q", fixed=HELD)


@pytest.fixture(scope="module")
def over_age(diffusing) -> FitSeries:
    held = {"alpha": 0.0, "D_offset": 0.0}
    return hd.fit_each(diffusing, hd.STATIC, over="age", windows=4, fixed=held)


WINDOWS = [
    ("a number", 4, [(0, 15), (15, 30), (30, 45), (45, 60)]),
    ("times", [(0.0, 3.0), (10.0, 100.0)], [(0, 9), (30, 60)]),
    ("times that overlap", [(0.0, 10.0), (5.0, 15.0)], [(0, 30), (15, 45)]),
]


@pytest.mark.parametrize(("word", "windows", "frames"), WINDOWS, ids=[w for w, *_ in WINDOWS])
def test_windows_of_age_keep_the_origin_of_time(diffusing, word, windows, frames):
    parts = subsets_of(diffusing, "age", windows)
    assert [part.scan.frames for part in parts] == frames
    for part, (first, stop) in zip(parts, frames, strict=True):
        times = diffusing.time[first:stop]
        assert part.axis_values == pytest.approx(
            {"age": times.mean(), "from": times[0], "to": times[-1]}
        )


MISTAKES = [
    ("another word", {"over": "psi"}, "over 'psi' is unknown"),
    ("no windows", {"over": "age"}, "needs windows"),
    ("windows of φ", {"over": "phi", "windows": 3}, "applies only to over 'age' and 'q'"),
    ("too many", {"over": "age", "windows": 21}, "give a number from 1 to 20"),
    ("none", {"over": "age", "windows": []}, "empty list"),
    ("outside", {"over": "age", "windows": [(90, 99)]}, "fewer than 3 frames"),
    ("an option of the fit", {"over": "q", "scaling": "free"}, "scaling 'free' is unknown"),
    ("shared by one bin", {"over": "phi", "scaling": "shared"}, "is for several bins"),
]


def test_a_store_without_q_has_no_rings(tmp_path):
    scan = store(measured(CREEP, 12, ANGLES), tmp_path, q=np.full(3, np.nan))
    with pytest.raises(HomodyneDaskError, match="q is unknown for 3 of 3"):
        hd.fit_each(scan, hd.STATIC, over="q")


@pytest.mark.parametrize(("word", "given", "says"), MISTAKES, ids=[w for w, *_ in MISTAKES])
def test_a_mistake_is_told_before_the_first_fit(diffusing, word, given, says):
    with pytest.raises(HomodyneDaskError, match=says):
        hd.fit_each(diffusing, hd.STATIC, **given)


@pytest.mark.long
def test_each_fit_is_that_of_the_part_alone(diffusing, over_q, over_age):
    alone = hd.fit(diffusing.select(q=Q[1]), hd.STATIC, fixed=HELD)
    assert over_q.results[1].chisqr == alone.chisqr
    assert over_q.table["value"].sel(fit=1, param="D0") == alone.parameters["value"].values[0]
    held = over_age.results[0].config["fixed"]
    late = hd.fit(diffusing.select(frames=(45, 60)), hd.STATIC, fixed=held)
    assert over_age.results[3].chisqr == late.chisqr


def test_diffusion_is_the_same_at_all_q_and_goes_as_q_squared(over_q):
    assert over_q.converged
    assert over_q.errors == "stderr"
    assert set(over_q.table["method"].values) == {"speckle"}
    D0 = over_q.agreement["D0"]
    assert D0.p > 0.01
    assert D0.mean == pytest.approx(20000, abs=4 * D0.stderr)
    assert list(over_q.agreement) == ["D0", "J", "D"]
    law = over_q.power_of_q("J")
    assert abs(law.exponent) < 4 * law.stderr < 0.2


@pytest.mark.long
def test_windows_see_the_rate_at_their_age(over_age):
    table = over_age.table
    J = 20000 * table["age"].values ** -0.4 + 1000
    found = table["value"].sel(param="J").values
    error = table["stderr_naive"].sel(param="J").values
    # one value stands for a window over which J falls, in the first one most
    assert (np.abs(found - J)[1:] < 4 * error[1:] + 0.03 * J[1:]).all(), (found, J, error)
    assert (np.diff(found) < 0).all()
    assert over_age.agreement["D0"].p < 1e-3
    assert "J 4 of 4" not in " ".join(str(over_age).split())


@pytest.mark.parametrize(
    ("p", "word"), [(0.0048, "inconsistent"), (0.0052, "marginal"), (0.06, "consistent")]
)
def test_fits_disagree_below_a_probability_of_1_per_cent_over_the_quantities(over_age, p, word):
    series, test = replace(over_age), over_age.agreement["D0"]._replace(p=p)
    series.__dict__["agreement"] = {"D0": test, "alpha": test, "J": test}
    assert str(series).split().count(word) == 2


def test_the_error_of_a_rate_is_that_of_its_parameters():
    result = flow_result()
    rng = np.random.default_rng(1)
    size = np.nan_to_num(result.parameters["stderr"].values, nan=0.0)
    root = rng.standard_normal((7, 7)) * size[:, None]
    covariance = covariance_table(root @ root.T, list(result.parameters["param"].values))
    result = changed(result, covariance=covariance)
    theta = result.parameters["value"].values
    found = fit_row("", None, result, "", {"q": 0.005, "age": 30.0}).quantities
    for name, first in (("J", 0), ("gamma_dot", 3)):

        def value(theta, first=first):
            return theta[first] * 30.0 ** theta[first + 1] + theta[first + 2]

        step = 1e-6 * np.diag(theta)
        slope = np.array([(value(theta + h) - value(theta - h)) / (2 * h.sum()) for h in step])
        assert found[name].value == pytest.approx(value(theta))
        assert found[name].stderr == pytest.approx(np.linalg.norm(slope @ root), rel=1e-5)
        dof = result.parameters["dof"].values[first : first + 3]
        assert found[name].dof == np.nanmin(dof)


@pytest.mark.long
def test_a_part_that_cannot_be_fitted_is_a_row_and_the_others_go_on(tmp_path):
    scan = store(three_rings([CREEP] * 3, n=20), tmp_path)
    next(path for path in Path(scan.path, "c2/c/4").rglob("*") if path.is_file()).unlink()
    series = hd.fit_each(scan, hd.STATIC, over="q", fixed=HELD)
    assert [entry.outcome for entry in series.entries] == ["CONVERGED", "FAILED", "CONVERGED"]
    assert "bin labelled 5 cannot be read" in series.entries[1].message
    assert not series.converged
    assert np.isnan(series.table["value"].values[1]).all()
    assert series.agreement["D0"].freedom == 1
    series.to_json(tmp_path / "series.json")
    assert str(hd.load_series(tmp_path)) == str(series)


def test_contrasts_given_per_bin_go_to_their_rings(diffusing):
    contrast = np.linspace(0.18, 0.22, 9)
    options = {"scaling": "fixed", "contrast": contrast.tolist(), "offset": 1.0, "fixed": HELD}
    series = hd.fit_each(diffusing, hd.STATIC, over="q", **options)
    for ring, result in enumerate(series.results):
        np.testing.assert_array_equal(result.scaling["contrast"], contrast[3 * ring : 3 * ring + 3])


def test_a_series_is_kept_whole_in_json_and_its_table_in_netcdf(over_q, tmp_path):
    over_q.to_json(tmp_path / "series.json")
    read = hd.load_series(tmp_path / "series.json")
    assert str(read) == str(over_q)
    xarray.testing.assert_identical(read.table, over_q.table)
    over_q.table.to_netcdf(tmp_path / "series.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "series.nc", engine="h5netcdf") as held:
        np.testing.assert_array_equal(held["value"], over_q.table["value"])
        assert held["q"].attrs["units"] == "1/Å"


def test_the_picture_shows_every_value_at_its_q_with_its_error(over_q, over_age):
    table = over_q.plot(panel="D0").tables["D0"]
    np.testing.assert_allclose(table["q [Å⁻¹]"], Q, rtol=1e-9)
    np.testing.assert_array_equal(table["D₀ [Å²/s]"], over_q.table["value"].values[:, 0])
    np.testing.assert_allclose(table["stderr"], np.nan_to_num(over_q.table["stderr"].values[:, 0]))
    assert [axis.get_ylabel() for axis in over_age.plot().axes] == ["D₀ [Å²/s]"]


def test_the_picture_over_q_has_decay_rates_with_the_line_of_q_squared_and_all_decays(over_q):
    picture = over_q.plot()
    rates, decays = picture.axes[-2:]
    assert (rates.get_xscale(), rates.get_yscale()) == ("log", "log")
    np.testing.assert_allclose(
        rates.lines[0].get_ydata(), 0.5 * np.array(Q) ** 2 * over_q.table["value"].sel(param="J")
    )
    styles = [line.get_linestyle() for axis in (picture.axes[0], rates) for line in axis.lines[1:]]
    assert styles == ["--", "-", ":"]  # of the mean, the fitted power, and that of diffusion
    assert rates.get_title().startswith("∝ qᵖ, p = ")
    q, line = rates.lines[-1].get_data()
    np.testing.assert_allclose(line / q**2, line[0] / q[0] ** 2)
    for data, model in zip(decays.lines[::2], decays.lines[1::2], strict=True):
        near = data.get_xdata() < 2.0
        np.testing.assert_allclose(data.get_ydata()[near], model.get_ydata()[near], atol=0.02)
    (legend,) = picture.legends
    assert legend.get_texts()[-1].get_text() == f"q = {Q[-1]:.4g} Å⁻¹"


@pytest.mark.long
def test_a_figure_for_print_is_never_of_an_earlier_series(over_q, tmp_path):
    entries = over_q.entries
    for suffix in ("pdf", ""):
        files = write_index(tmp_path, ["D0"], entries, len(entries), PARTS, suffix=suffix)
        print_file = tmp_path / "series.pdf"
        assert (print_file in files, print_file.is_file()) == (suffix == "pdf",) * 2


def test_one_theta_for_several_q_is_the_dense_optimum_and_the_report_says_which_q(tmp_path):
    scans = three_rings([CREEP] * 3, n=30, contrast=0.3)
    first = dict(zip(hd.STATIC.names, CREEP * 1.1, strict=True))
    scan = store(scans, tmp_path)
    result = hd.fit(scan, hd.STATIC, initial=first)
    theta, contrast, _, chisqr = reference.dense_fit(CREEP, scans.dense())
    assert result.chisqr == pytest.approx(chisqr, rel=1e-9)
    error = result.parameters["stderr_naive"].values
    assert (np.abs(result.parameters["value"].values - theta) < 1e-3 * error).all()
    np.testing.assert_allclose(result.scaling["contrast"], contrast, rtol=1e-5)
    np.testing.assert_array_equal(result.scaling["q"], scans.q)
    view = FitView(result, scan)
    assert "q = 0.003 Å⁻¹" in alternative("maps", view)
    assert "q = 0.008 Å⁻¹" in alternative("maps", view)


def ended(values: dict[str, float], at: dict[str, float]) -> FitRow:
    """A fit of `flow` with other values; D_offset is at a bound if it is one of its default ones."""
    result = flow_result()
    table = result.parameters.copy(deep=True)
    for name, value in values.items():
        n = list(table["param"].values).index(name)
        table["value"].values[n] = table["optimum"].values[n] = value
        if name == "D_offset" and abs(value) == 1e4:
            table["at_bound"].values[n] = True
            for key in ("stderr", "stderr_naive", "dof"):
                table[key].values[n] = np.nan
    return fit_row(f"{at['age']:g} s", None, replace(result, parameters=table), "", at)


def test_a_series_over_q_and_a_variable_has_a_power_of_q_and_D_at_each_value(tmp_path):
    rows = []
    for T, power in ((15.0, 2.0), (35.0, 1.5)):
        for q in Q:
            rate = 1e4 * (q / Q[0]) ** power * Q[0] ** 2
            known = {"Gamma": (rate, "1/s"), "D": (rate / q**2, "Å²/s")}
            of = {
                name: Quantity(unit, value, 0.01 * value, np.nan, np.nan)
                for name, (value, unit) in known.items()
            }
            at = {"T": T, "T_unit": "°C", "q": q, "age": 5.0}
            rows.append(replace(ended({}, at), at=at, quantities=of, name=f"{T} {q}"))
    series = FitSeries("T", tuple(rows))
    cold, hot = series.over_q.values()
    alone = FitSeries("q", tuple(rows[3:]))
    assert [*series.over_q] == ["T = 15 °C", "T = 35 °C"]
    assert hot.powers_of_q == alone.powers_of_q
    assert hot.powers_of_q["Gamma"].exponent == pytest.approx(1.5)
    assert cold.agreement["D"].mean == pytest.approx(1e4)
    laws = str(series).partition("Rates as powers of q")[2]
    assert re.findall(r"Gamma, T = (\d+) °C +(\S+)", laws) == [("15", "2.000"), ("35", "1.500")]
    assert series.table["Gamma_power_of_q"].values == pytest.approx([2.0] * 3 + [1.5] * 3)
    read = series.to_dict()["over_q"]["T = 35 °C"]["powers_of_q"]["Gamma"]
    assert read["exponent"] == pytest.approx(1.5)
    table = entries_csv(series.names, rows, tmp_path, "fit", series.of_rings)
    first, *_, last = csv.DictReader(table.splitlines())
    assert float(last["Gamma_power_of_q"]) == pytest.approx(1.5)
    assert float(first["D_over_q"]) == pytest.approx(1e4)
    two = [str(FitSeries("T", (*rows[:n], *rows[3 : 3 + n]))) for n in (2, 3)]
    tables = [text.partition("Rates as powers of q")[2] for text in two]
    assert tables[0].count("too few rings") == 2  # any two rates are a power of q
    assert [text.count(words) for text in tables for words in ("as for diffusion", "not diffusion")] == [
        0, 0, 1, 1
    ]  # fmt: skip
    means = [re.findall(r"^Gamma.*?(\S+(?: Å²/s)?)$", text, re.MULTILINE) for text in tables]
    assert means[0] == ["-", "-"]
    assert means[1][0].endswith("Å²/s")
    assert means[1][1] == "-"
    units = {key: of for key, of in first.items() if key.endswith("_unit")}
    assert units == {
        "T_unit": "°C", "q_unit": "1/Å", "age_unit": "s", "Gamma_unit": "1/s", "D_unit": "Å²/s"
    }  # fmt: skip


MISFITS = {
    "one fit alone": ([0.004], [1.02], 1),
    "chance in one of many": ([0.004, *[1.0] * 17], [1.02] * 18, 0),
    "clear among many": ([1e-6, *[1.0] * 17], [1.02] * 18, 1),
    "in all of many": ([0.004] * 18, [1.02] * 18, 18),
    "in six of many": ([0.001] * 6 + [1.0] * 12, [1.02] * 18, 6),
    "with a χ² of its own": ([0.004, *[1.0] * 5], [1.59, 1.01, 1.02, 1.03, 1.04, 1.02], 1),
    "with a χ² as others": ([0.004, *[1.0] * 5], [1.04, 1.01, 1.02, 1.03, 1.04, 1.02], 0),
}
"""p of a misfit and reduced χ² of each fit, and the number of misfits; a test alone has the level 0.005."""


@pytest.mark.parametrize("word", MISFITS)
def test_a_misfit_of_one_of_many_fits_is_chance_unless_it_is_clear(word):
    each, redchi, misfits = MISFITS[word]
    result, rows = flow_result(), []
    for p, chisqr in zip(each, redchi, strict=True):
        said = [finding("model-misfit-shape", share=0.1, p=p, level=0.005)] * (p < 0.005)
        diagnosis = replace(
            result.diagnosis,
            findings=Findings([*said, finding("shear-sign", rate=-1.0, bounded="")]),
        )
        numbers = replace(result.statistics, redchi=chisqr)
        fit = replace(result, diagnosis=diagnosis, statistics=numbers)
        rows.append(fit_row("one", None, fit, at={"q": Q[0], "age": 5.0}))
    rows = without_chance(rows, len(rows))
    assert sum("model-misfit-shape" in row.findings.codes for row in rows) == misfits
    assert sum("misfit" in row.outcome_words for row in rows) == misfits
    assert all("shear-sign" in row.findings.codes for row in rows)
    report = " ".join(str(FitSeries("q", tuple(rows))).split())
    assert ("(model-misfit-shape)" in report) == (misfits > 0)
    not_counted = f"of {len(rows)} fits, one deviates so far by chance"
    assert (not_counted in report) == (misfits < sum(p < 0.005 for p in each))


def test_a_warning_about_several_fits_names_their_parameters():
    result, rows = flow_result(), []
    for about in (["alpha"], ["alpha", "D_offset"], []):
        bounds = {"alpha": [2.0, -2.0, 2.0]}
        said = [finding("larger-error", about), finding("at-bound", about[:1], bounds=bounds)]
        said.append(finding("chisqr-high-in-bins", ["5"], highest=30.0))
        diagnosis = replace(result.diagnosis, findings=Findings(said if about else []))
        rows.append(
            fit_row("a", None, replace(result, diagnosis=diagnosis), at={"q": Q[0], "age": 5.0})
        )
    report = " ".join(str(FitSeries("q", tuple(rows))).split())
    assert "2 of 3 rings (a, a): alpha and D_offset: the data do not determine it" in report
    assert "2 of 3 rings (a, a): alpha: χ² falls toward values outside the bounds" in report
    assert "2 of 3 rings (a, a): data and model differ" in report  # bins are no parameters


GELS = {
    "a gel over q": ("frozen_fraction", "q", (0.004, 0.006), "changes"),
    "another parameter over q": ("alpha", "q", (0.004, 0.006), "inconsistent"),
    "a gel in windows of age": ("frozen_fraction", "age", (), "inconsistent"),
    "a gel in rings and windows": ("frozen_fraction", "age", (0.004, 0.006), "changes"),
}
"""A quantity, what the series is over, q of its fits, and what its report says of values that differ."""


@pytest.mark.parametrize("word", GELS)
def test_a_frozen_part_that_differs_from_ring_to_ring_is_a_result_and_no_fault(word):
    name, over, rings, verdict = GELS[word]
    rows = []
    for n in range(2):
        quantities = {name: Quantity("", 0.8 - 0.4 * n, 0.01, np.nan, np.inf)}
        at = {"age": 5.0} | ({"q": rings[n]} if rings else {})
        at |= {"from": 10.0 * n, "to": 10.0 * n + 9} if over == "age" else {}
        rows.append(replace(ended({}, at), at=at, quantities=quantities))
    head, _, agreement = str(FitSeries(over, tuple(rows))).partition(
        "Agreement of the converged fits"
    )
    assert re.findall(rf"{name} +2 of 2 +(\w+)", agreement) == [verdict]
    both = over == "age" and rings
    assert ("2 fits of rings and age windows" in head) == bool(both)


def window(number: int, last: float = 9.0, **values: float) -> FitRow:
    first = 10.0 * number
    return ended(values, {"age": first + 5, "from": first, "to": first + last})


def test_directions_half_a_turn_apart_agree():
    same = FitSeries("age", tuple(window(n, phi0=of) for n, of in enumerate((89.9, -89.9, 89.8))))
    assert same.agreement["phi0"].mean == pytest.approx((89.9 + 90.1 + 89.8) / 3)


def test_what_ended_at_a_bound_is_left_out_of_the_agreement_which_windows_that_overlap_have_not():
    inside = [window(n, D0=68000.0 + 300 * n) for n in range(2)]
    bounds = [window(2, D0=99000.0, D_offset=1e4), window(3, D0=20000.0, D_offset=-1e4)]
    series = FitSeries("age", (*inside, *bounds))
    assert series.agreement["D0"].freedom == 1
    assert series.agreement["gamma_dot_t0"].freedom == 3
    at_bound = series.table["at_bound"].sel(param="D_offset").values
    assert at_bound.tolist() == [False] * 2 + [True] * 2
    assert not FitSeries("age", (*inside, window(2, 15.0), window(3))).agreement
    scans = [
        replace(of, name=f"{scan}, {of.name}", at={**of.at, "T": 20.0})
        for scan in ("a.zarr", "b.zarr")
        for of in (window(0, 15.0), window(1))
    ]
    assert not FitSeries("T", tuple(scans)).agreement
    assert FitSeries("T", tuple(scans[::2])).agreement


def test_fits_of_which_one_has_no_standard_error_agree_by_their_naive_errors():
    entries = [ended({}, {"q": q, "age": 5.0 + n}) for n, q in enumerate(Q)]
    result = entries[0].result
    unknown = {key: ("param", np.full(7, np.nan)) for key in ("stderr", "dof")}
    refused = changed(result, parameters=result.parameters.assign(unknown), covariance=None)
    series = FitSeries("q", (replace(entries[0], result=refused), *entries[1:]))
    assert series.errors == "stderr_naive"


def test_no_naive_error_follows_a_plus_minus():
    D0 = ended({}, {"q": 0.005, "age": 5.0}).quantities["D0"]
    assert "±" in str(D0)
    assert "±" not in str(D0._replace(stderr=np.nan))
    value, error = np.array([1.0, 2.0, 3.2]), np.full(3, 0.1)
    assert np.isnan(homogeneity_test(value, error, np.full(3, np.nan), naive=True).stderr)
    law = power_law_of_q(value, value**2 * [1, 1.1, 1], error, naive=True)
    assert law.stderr == pytest.approx(
        power_law_of_q(value, value**2 * [1, 1.1, 1], 9 * error, True).stderr
    )
    assert law.dof == 1
    assert np.isnan(power_law_of_q(value[:2], value[:2], error[:2], naive=True).stderr)


@pytest.mark.parametrize(
    ("stderr", "words"), [(1.5, "-2.0 ± 1.5 at bound"), (np.nan, "-2 at bound")]
)
def test_a_value_at_a_bound_is_shown_with_the_error_that_tests_of_agreement_use(stderr, words):
    assert str(Quantity("1/s", -2.0, stderr, np.nan, 8.0, at_bound=True)) == words


def rates_at_mean_age(result):
    result = changed(result, inputs=result.provenance.inputs | {"frame_time": 0.1})
    return fit_row("", None, result, at={"age": 3.0}).quantities


@pytest.mark.parametrize(("method", "known"), [("cluster-robust", False), ("speckle", True)])
def test_the_scatter_of_bins_gives_a_rate_an_error_from_four_degrees_of_freedom_on(
    flowing, method, known
):
    freedom = rate_dof(J=3.0, J_integral=3.0, gamma_dot=5.0, strain=5.0)
    result = result_for(flowing, FLOW, covariance=FLOW_COVARIANCE, rate_dof=freedom)
    result = changed(result, parameters=result.parameters.assign_attrs(method=method))
    at_mean_age, curves = rates_at_mean_age(result), rates_in(FitView(result, flowing))
    assert np.isfinite(at_mean_age["J"].stderr) == known
    assert np.isfinite(curves["J_high_95"].values).all() == known
    assert at_mean_age["gamma_dot"].dof == 5
    assert np.isfinite(curves["gamma_dot_high_95"].values).all()


def test_rounding_is_no_error_and_a_gradient_of_zero_has_none():
    covariance = np.array([[1e16, -1e16], [-1e16, 1e16]])
    gradient = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(rate_stderr(gradient, covariance), [np.nan, 1e8, 0.0])


def test_an_error_of_few_degrees_of_freedom_has_its_interval_beside_it():
    few = Quantity("", 100.0, 10.0, np.nan, dof=5.0)
    assert few.interval == "74 to 126 (dof 5.0)"
    assert (few.low_95, few.high_95) == pytest.approx((100 - 25.70582, 100 + 25.70582), rel=1e-6)
    assert few._replace(dof=50.0).interval == ""
    assert few._replace(stderr=np.nan, dof=np.nan).interval == ""


def test_no_interval_is_shown_of_a_misfit_and_no_error_where_only_a_limit_is_known(flowing):
    found = finding("limits-only", ["D0"], limits={"D0": [None, 1760.4, "Å²/s"]})
    few = {"stderr": np.full(7, 0.1), "dof": np.full(7, 5.0)}
    for findings in ((), (found, finding("model-misfit-shape", share=0.1, p=0.001))):
        result = result_for(
            flowing, FLOW, covariance=FLOW_COVARIANCE, table=few, findings=Findings(findings)
        )
        quantities, report = quantities_of(result), result.report()
        row = next(line for line in report.splitlines() if line.startswith("D0 "))
        assert bool(findings) == (str(quantities["D0"]) == "below 1.76e+03") == ("±" not in row)
        assert "±" in str(quantities["J"])
        assert bool(findings) == (OF_MISFIT in " ".join(report.split()))


DRIFT = finding("contrast-drift", size=0.3)
SHAPE = finding("model-misfit-shape", share=0.1, p=1e-9)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([[SHAPE, DRIFT]] * 6, "all 6 rings: the contrast depends on age"),
        ([[SHAPE, DRIFT]] * 2 + [[]] * 4, "2 of 6 rings (q1, q2): the contrast depends on age"),
        ([[DRIFT]] * 5 + [[]], "5 of 6 rings (q1, q2, q3, q4 and 1 more): the contrast"),
        ([[DRIFT], *[[]] * 5], "q1: the contrast depends on age"),
        ([[SHAPE]] * 6, "all 6 rings: a change that the model lacks explains the residuals"),
    ],
)
def test_what_several_rings_have_is_said_once_by_its_cause(flowing, findings, said):
    rows = [
        fit_row(f"q{n}", None, result_for(flowing, FLOW, findings=Findings(of_ring)), "", {"q": n})
        for n, of_ring in enumerate(findings, 1)
    ]
    verdict = " ".join(str(FitSeries("q", tuple(rows))).split())
    assert f"not usable: {said}" in verdict
    assert verdict.count("not usable:") == 1


def test_agreement_with_few_degrees_of_freedom_is_that_of_welch():
    rng = np.random.default_rng(3)
    groups = [rng.normal(0.3 * n, 1 + n, 4 + n) for n in range(4)]
    value, stderr, dof = np.array(
        [(g.mean(), g.std(ddof=1) / len(g) ** 0.5, len(g) - 1) for g in groups]
    ).T
    wanted = stats.f_oneway(*groups, equal_var=False)
    assert homogeneity_test(value, stderr, dof).p == pytest.approx(wanted.pvalue, rel=1e-9)
    certain = homogeneity_test(value, stderr, np.full(4, np.nan))
    mean = np.average(value, weights=stderr**-2.0)
    assert certain.mean == pytest.approx(mean)
    assert certain.p == pytest.approx(stats.chi2.sf((((value - mean) / stderr) ** 2).sum(), 3))


def test_of_few_values_nothing_is_said_or_nothing_tested():
    nan, one, two = np.nan, np.array([1.0, 1.0]), np.array([1.0, 2.0])
    assert homogeneity_test(two, np.array([0.1, nan]), np.full(2, nan)) is None
    assert power_law_of_q(two, np.array([1.0, -1.0]), np.ones(2)) is None
    assert power_law_of_q(one, two, np.ones(2)) is None
    law = power_law_of_q(two, two**2, 0.1 * two**2)
    assert law.exponent == pytest.approx(2.0)
    assert (law.freedom, law.chisqr) == (0, pytest.approx(0.0, abs=1e-20))
    assert np.isnan(law.p)


def test_the_exponent_is_that_of_a_weighted_line_through_logarithms():
    x, y = np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 3.0, 7.0, 9.0])
    stderr = np.array([0.1, 0.2, 0.3, 0.1])
    slope, covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / stderr, cov="unscaled")
    found = power_law_of_q(x, y, stderr)
    assert found.exponent == pytest.approx(slope[0])
    residual = (
        np.log(y) - np.polyval(np.polyfit(np.log(x), np.log(y), 1, w=y / stderr), np.log(x))
    ) * y
    chisqr = ((residual / stderr) ** 2).sum()
    assert (found.chisqr, found.freedom) == (pytest.approx(chisqr), 2)
    assert found.p == pytest.approx(stats.chi2.sf(chisqr, 2))
    assert found.stderr == pytest.approx((covariance[0, 0] * chisqr / 2) ** 0.5)
    certain = power_law_of_q(x, y, 100 * stderr)  # beyond which nothing scatters
    assert certain.stderr == pytest.approx(100 * covariance[0, 0] ** 0.5)


APART = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
RINGS = np.linspace(1.0, 1.7, 8)


def test_means_and_powers_of_values_with_common_noise_scatter_as_their_errors_say():
    rng, correlation, unknown = np.random.default_rng(4), 0.6**APART, np.full(8, np.nan)
    stderr = np.linspace(0.04, 0.08, 8)
    values = 1 + stderr * (rng.normal(size=(3000, 8)) @ np.linalg.cholesky(correlation).T)
    means = [homogeneity_test(y, stderr, unknown, False, correlation) for y in values]
    pulls = np.array([(test.mean - 1) / test.stderr for test in means])
    assert np.std(pulls) == pytest.approx(1, abs=0.04)
    assert np.mean([test.p < 0.1 for test in means]) == pytest.approx(0.1, abs=0.02)
    of_independent = homogeneity_test(values[0], stderr, unknown)
    assert of_independent.stderr < 0.6 * means[0].stderr
    assert of_independent.mean == means[0].mean
    laws = [
        power_law_of_q(RINGS, y * RINGS**2, stderr * RINGS**2, False, np.nan, correlation)
        for y in values
    ]
    pulls = np.array([(law.exponent - 2) / law.stderr for law in laws])
    assert 0.85 < np.std(pulls) < 1.02  # errors are widened where values scatter by more
    assert np.mean([law.p < 0.1 for law in laws]) == pytest.approx(0.1, abs=0.03)


def test_a_series_knows_how_far_its_rings_are_apart(tmp_path):
    rows = [
        ended({"D0": 1e4 + 100 * n}, {"q": q, "age": 5.0}) for n, q in enumerate((0.03, 0.01, 0.02))
    ]
    correlations = (0.5, 0.2)
    series, alone = FitSeries("q", tuple(rows), None, correlations), FitSeries("q", tuple(rows))
    wanted = np.array([[1, 0.2, 0.5], [0.2, 1, 0.5], [0.5, 0.5, 1]])
    np.testing.assert_array_equal(series._correlation_of(rows), wanted)
    np.testing.assert_array_equal(series._correlation_of(rows[1:]), wanted[1:, 1:])
    assert alone._correlation_of(rows) is None
    assert series.agreement["D0"].stderr > 1.2 * alone.agreement["D0"].stderr
    assert "share speckle" in str(series)
    assert "share speckle" not in str(alone)
    series.to_json(tmp_path / "series.json")
    read = hd.load_series(tmp_path)
    assert read.correlations == correlations
    assert read.agreement == series.agreement


def test_rings_of_two_windows_share_no_speckle():
    places = [
        {"age": start + 5.0, "from": start, "to": start + 9.0, "q": q}
        for start in (0.0, 10.0)
        for q in (0.01, 0.02)
    ]
    rows = [ended({"D0": 1e4 + 100 * n}, place) for n, place in enumerate(places)]
    series = FitSeries("age", tuple(rows), None, (0.5,))
    together = [[1, 0.5], [0.5, 1]]
    np.testing.assert_array_equal(series._correlation_of(rows), np.kron(np.eye(2), together))
    assert all(rings.correlations == (0.5,) for rings in series.over_q.values())


def test_of_shares_that_no_speckle_has_p_is_still_known():
    rng, apart = np.random.default_rng(5), np.abs(np.subtract.outer(np.arange(40), np.arange(40)))
    correlation = np.where(apart <= 12, 0.97**apart, 0.0)
    assert np.linalg.eigvalsh(correlation).min() < -0.1
    test = homogeneity_test(
        rng.normal(size=40), np.ones(40), np.full(40, np.nan), False, correlation
    )
    assert 0 <= test.p <= 1
    assert test.stderr > 0.3


def drawn(rng, dof, n=5):
    size = (4000, n)
    return rng.standard_normal(size), np.sqrt(rng.chisquare(dof, size) / dof)


def test_the_error_of_a_mean_allows_for_errors_of_few_degrees_of_freedom():
    dof = np.full(5, 8.0)
    found = [
        homogeneity_test(y, s, dof)
        for y, s in zip(*drawn(np.random.default_rng(1), 8), strict=True)
    ]
    scatter = np.std([one.mean for one in found if one])
    typical = np.sqrt(np.mean([one.stderr**2 for one in found if one]))
    assert typical == pytest.approx(scatter, rel=0.06)


def test_an_exponent_has_the_degrees_of_freedom_of_the_errors_that_it_follows_from():
    q, rng = np.array([1.0, 1.3, 1.7, 2.2, 2.9]), np.random.default_rng(2)
    size, inside, rejected = 0.05, [], []
    for y, s in zip(*drawn(rng, 5), strict=True):
        law = power_law_of_q(
            q, q**2 * np.exp(size * y), size * s * q**2 * np.exp(size * y), dof=5.0
        )
        assert law is not None
        rejected.append(law.p < 0.05)
        inside.append(abs(law.exponent - 2) < half_width(95, law.dof) * law.stderr)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
    assert np.mean(rejected) < 0.08


RING, AGE = 0.0054, 14.95


def stretched(model, theta, names):
    """A fit of one ring by a stretched exponential, with correlated errors."""
    base, size = flow_result(), np.abs(theta) * 0.05
    covariance = np.outer(size, size) * (0.4 + 0.6 * np.eye(len(theta)))
    columns = {"param": names, "value": theta, "stderr": size, "stderr_naive": size / 3}
    columns |= {"dof": [12.0] * 3, "at_bound": [False] * 3, "fixed": [False] * 3}
    columns |= {"unit": ["1/s", "", ""], "method": ["speckle"] * 3}
    known = {name: covariance_table(of, names) for name, of in
             (("covariance", covariance), ("covariance_naive", covariance / 9))}  # fmt: skip
    config = config_of(model)
    return changed(base, parameters=parameter_table(columns), config=config, truth=None, **known)


LAWS = {
    "stretched_q": ("q_exponent", lambda rate, n: rate * (RING / 0.01) ** n),
    "stretched_ageing": ("mu", lambda rate, n: rate * AGE**n),
    "cumulant_q": ("q_exponent", lambda rate, n: rate * (RING / 0.01) ** n),
}


@pytest.mark.parametrize("model", LAWS)
def test_the_error_of_gamma_is_that_of_finite_differences(model):
    power, law = LAWS[model]
    theta = np.array([0.5, 1.4, 0.9])
    result = stretched(model, theta, ["rate", power, "stretching"])
    Gamma, D = (result.derived[name] for name in ("Gamma", "D"))
    step = 1e-6 * np.eye(2)
    slope = [(law(*(theta[:2] + h)) - law(*(theta[:2] - h))) / 2e-6 for h in step]
    V = result.covariance.values[:2, :2]
    assert Gamma.value == pytest.approx(law(*theta[:2]), rel=1e-12)
    assert Gamma.stderr == pytest.approx(np.sqrt(slope @ V @ slope), rel=1e-6)
    assert (D.value, D.stderr) == pytest.approx((Gamma.value / RING**2, Gamma.stderr / RING**2))
    assert D.dof == 12


def test_no_number_is_invented_where_there_is_no_error_or_no_q():
    result = stretched(
        "stretched_q", np.array([0.5, 1.4, 0.9]), ["rate", "q_exponent", "stretching"]
    )
    none = changed(result, covariance=None, covariance_naive=None).derived["Gamma"]
    assert np.isnan([none.stderr, none.stderr_naive, none.dof, none.low_95]).all()
    unknown = result.scaling.assign(q=("bin", np.full(9, np.nan)))
    assert not changed(result, scaling=unknown).derived


def test_the_error_of_the_exponent_knows_of_scatter_beyond_the_errors_and_only_of_more():
    """Errors five times too small: the error is that of the scatter, and p says so."""
    rng = np.random.default_rng(5)
    q = np.geomspace(0.003, 0.01, 6)
    found = [
        power_law_of_q(q, y, y * error)
        for error in (0.01, 0.05)
        for y in 100 * np.exp(0.05 * rng.standard_normal((200, 6)))
    ]
    small, right = found[:200], found[200:]
    for laws in (small, right):
        pulls = np.array([law.exponent / law.stderr for law in laws])
        assert (np.abs(pulls) < 2).mean() > 0.85
    assert np.mean([law.p < 0.001 for law in small]) > 0.9
    assert np.mean([law.p < 0.05 for law in right]) < 0.1


def test_a_rate_of_parameters_without_errors_has_none(flowing):
    """NaN counted as 0: J had the error 0, or that of the other parameters."""
    covariance = FLOW_COVARIANCE.copy()
    covariance[:2] = covariance[:, :2] = np.nan
    found = rates_at_mean_age(result_for(flowing, FLOW, covariance=covariance))
    assert np.isnan(found["J"].stderr)
    assert np.isnan(found["J"].dof)
    assert found["gamma_dot"].stderr > 0


@pytest.mark.parametrize(("codes", "status"), [((), "describes"), (("outliers",), "not-checked")])
def test_a_fit_with_outliers_in_single_bins_is_not_said_to_be_described(over_q, codes, status):
    outliers = finding("chisqr-high-in-bins", ["1"], datum="pairs", highest=6.7)
    result = over_q.results[0]
    assert result.model_status == "describes"
    findings = Findings([outliers] * len(codes))
    changed = replace(result, diagnosis=replace(result.diagnosis, findings=findings))
    assert changed.model_status == status
    assert ("the model describes the data" in changed.verdict) == (status == "describes")


PARAMETER, DERIVED = Quantity("1/s", 1.0), Quantity("1/s", 1.0, formula="follows")
SHOWN = {
    "a user's names": (["D", "Gamma", "rate", "mu"], [], ["D", "Gamma", "rate", "mu"]),
    "stretched": (["rate", "stretching"], ["Gamma", "D", "tau"], ["rate", "stretching", "tau"]),
    "with age": (["rate", "mu"], ["Gamma", "D", "tau"], ["mu", "Gamma", "tau"]),
    "brownian": (["D0"], ["J", "Gamma", "D", "D_SE", "tau"], ["D0", "D_SE"]),
    "ageing": (["D0", "alpha"], ["J", "Gamma_q0.01", "D"], ["D0", "alpha", "J"]),
}


@pytest.mark.parametrize(("parameters", "derived", "shown"), SHOWN.values(), ids=SHOWN)
def test_a_report_has_each_parameter_and_one_name_for_what_follows(parameters, derived, shown):
    quantities = dict.fromkeys(parameters, PARAMETER) | dict.fromkeys(derived, DERIVED)
    assert shown_names(quantities, quantities) == shown
    # a test of agreement is of the rate itself, where it has none of what follows from it
    tested = [name for name in quantities if name not in ("Gamma", "tau")]
    if "rate" in parameters and derived:
        assert "rate" in shown_names(tested, quantities)
