"""A posterior in numbers and as a tree, of draws whose distribution is known."""

import json
import math
import warnings
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from scipy.special import ndtri, stdtrit

from homodyne_dask.apps.posterior.arviz_tree import (
    AGES,
    OTHERS,
    QUANTILES,
    variable_names,
    write_netcdf,
)
from homodyne_dask.apps.posterior.posterior import (
    load_posterior,
    one_sided,
    posterior_section,
)
from homodyne_dask.document.blocks import Document, as_text
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.results.data.fit_result import parameter_table
from homodyne_dask.results.data.fit_view import FitView
from tests.apps.posterior.made_draws import banana, gaussian, posterior_from
from tests.ingest_files import WAYS, moved_elsewhere
from tests.results.made_results import FLOW, changed, fit_of
from tests.results.views.figures.texts import texts_of

SD = 0.02 * np.abs(FLOW)


@pytest.fixture(scope="module")
def normal(flowing, fitted):
    return posterior_from(fitted, gaussian(fitted), flowing)


def test_moments_and_quantiles_are_those_of_the_distribution_that_was_drawn_from(normal):
    table = normal.summary
    assert (np.abs(table["mean"].values - FLOW) < 4 * SD / math.sqrt(4000)).all()
    np.testing.assert_allclose(table["sd"], SD, rtol=4 / math.sqrt(8000))
    known = FLOW[:, None] + SD[:, None] * ndtri(QUANTILES)
    away = np.abs(table["quantile"].values - known) / SD[:, None]
    assert (away < 0.17).all()  # four errors of an end
    np.testing.assert_array_equal(table["value"], FLOW)


def test_a_bent_posterior_has_quantiles_of_its_own(flowing, fitted):
    bent = posterior_from(fitted, banana(fitted, 20000), flowing)
    alpha = (bent.summary.sel(param="alpha")["quantile"].values - FLOW[1]) / SD[1]
    z = np.random.default_rng(0).normal(size=(2, 1_000_000))
    np.testing.assert_allclose(
        alpha, np.quantile(z[0] + 0.7 * (z[1] ** 2 - 1), QUANTILES), atol=0.2
    )
    assert bent.summary["quote"].sel(param="alpha") == "median, 95 %"


def test_the_shift_is_that_of_the_ends_from_those_of_the_fit(normal):
    """The fit has t intervals of 6 degrees of freedom, the draws are normal."""
    shift = normal.summary["shift"].values
    assert (np.abs(shift - (stdtrit(6, 0.975) - ndtri(0.975))) < 0.17).all()
    assert not normal.summary["enough"].any()
    assert (normal.summary["quote"] == "value ± stderr").all()  # only the width differs


def test_error_bars_are_enough_where_the_ends_agree_to_five_per_cent(flowing, fitted):
    table = fitted.parameters.assign(dof=("param", np.full(7, 1e9)))
    result = replace(fitted, parameters=table)
    theta = gaussian(result, 4000)
    exact = ndtri((np.arange(4000) + 0.5) / 4000)
    theta[0, :, :] = FLOW + SD * exact[:, None]
    theta[0, :, 3] += 0.5 * SD[3]
    made = posterior_from(result, theta, flowing)
    moved = made.summary["param"].values == "gamma_dot_t0"
    np.testing.assert_array_equal(made.summary["enough"], ~moved)
    quote = np.where(moved, "median, 95 %", "value ± stderr")
    np.testing.assert_array_equal(made.summary["quote"], quote)
    np.testing.assert_allclose(made.summary["shift"].sel(param="gamma_dot_t0"), 0.5, atol=0.01)
    error = made.summary["shift_error"].values
    known = math.sqrt(0.025 * 0.975 / 3200) / (math.exp(-0.5 * 1.96**2) / math.sqrt(2 * math.pi))
    np.testing.assert_allclose(error, known, rtol=0.1)


NARROW = np.array([0.3, 1, 1, 1, 1, 1, 1])
QUOTES = {
    "too few draws": (1.0, {"effective_draws": 100.0}, "more draws"),
    "naive": (1.0, {"adjust": "none"}, ""),
    "narrowed by the prior": (NARROW, {"prior": ...}, "median, 95 %, prior"),
}


@pytest.mark.parametrize(("width", "given", "quote"), QUOTES.values(), ids=QUOTES)
def test_what_is_quoted_is_what_the_draws_and_their_prior_allow(
    width, given, quote, flowing, fitted
):
    exact = fitted.parameters.assign(dof=("param", np.full(7, 1e9)))
    result = replace(fitted, parameters=exact) if "effective_draws" in given else fitted
    theta = FLOW + width * (gaussian(result) - FLOW)
    more = {"prior": theta[0]} if "prior" in given else given
    made = posterior_from(result, theta, flowing, **more)
    assert made.summary["quote"].sel(param="D0") == quote
    assert not made.summary["enough"].any()


@pytest.mark.parametrize("check", [{"r_hat": 1.51}, {"largest_error": 0.6}])
def test_draws_that_fail_their_check_have_a_headline_that_says_so_and_no_interval(
    check, flowing, fitted
):
    made = posterior_from(fitted, gaussian(fitted), flowing, **check)
    text = str(made)
    assert text.splitlines()[2].startswith("the draws are unreliable, and no interval is given")
    for shown in (text, made._repr_html_()):
        assert "mean ± sd" not in shown


def test_a_periodic_parameter_is_drawn_about_the_value_of_the_fit(flowing, fitted):
    table = fitted.parameters.copy(deep=True)
    table["value"].loc[{"param": "phi0"}] = 89.9
    turned = replace(fitted, parameters=table)
    theta = gaussian(turned, 1000)
    theta[..., 6] = np.where(theta[..., 6] > 90, theta[..., 6] - 180, theta[..., 6])
    made = posterior_from(turned, theta, flowing)
    assert abs(made.summary["mean"].sel(param="phi0") - 89.9) < 0.01
    assert float(made.summary["sd"].sel(param="phi0")) < 0.1


def test_a_direction_that_is_not_known_has_no_limit(flowing, fitted):
    theta = gaussian(fitted)
    theta[..., 6] = FLOW[6] + np.random.default_rng(5).uniform(-90, 90, theta.shape[:2])
    made = posterior_from(fitted, theta, flowing)
    assert made.summary["limit"].sel(param="phi0").item() == ""


def test_numbers_of_an_earlier_version_are_shown_with_what_to_do(normal):
    earlier = {name: of for name, of in normal.plain.items() if name != "r_hat"}
    section = posterior_section(earlier | {"pareto_k": 0.2, "effective_draws": 900.0})
    text = as_text(Document("", [section]), all=True)
    assert "draw again with `homodyne-dask posterior`" in " ".join(text.split())
    assert "mean ± sd" not in text


def test_rates_of_draws_are_those_of_the_backend_at_each(normal, flowing):
    group = normal.tree["posterior"].dataset
    at = FitView(normal.result, flowing).model.point
    backend = backend_of(at.problem.model)
    for n in (0, 1777):
        point = backend.point(at.problem, normal.theta[n], flowing.time)
        for name, curve in backend.rates(point, flowing.time, flowing.frames).items():
            if name not in group:
                continue
            expected = np.interp(group["age"], curve.time, curve.value)
            np.testing.assert_allclose(group[name].values[0, n], expected, rtol=1e-12, atol=1e-15)
    assert group["J"].attrs["units"] == "Å²/s"


@pytest.mark.parametrize("n", [1, 50, 51, 3000, 100_000])
def test_ages_are_at_most_fifty_frames_from_the_first_to_the_last(n):
    at = some_ages(n, AGES)
    assert (len(at), at[0], at[-1]) == (min(n, AGES), 0, n - 1)
    assert (np.diff(at) > 0).all()


def same_draws(read, written):
    """Compare the groups of two posteriors to the last bit."""
    assert set(read.tree.children) == set(written.tree.children)
    for name, group in written.tree.children.items():
        xarray.testing.assert_identical(group.to_dataset(), read.tree[name].to_dataset())


@pytest.mark.long
def test_what_is_written_is_read_again(normal, tmp_path):
    path = tmp_path / "p.nc"
    normal.to_netcdf(path)
    normal.to_netcdf(path)  # replaces it
    read = load_posterior(path)
    same_draws(read, normal)
    assert str(read) == str(normal)
    assert read._repr_html_() == normal._repr_html_()
    assert not list(tmp_path.glob("*.partial"))
    with xarray.open_datatree(path) as tree:  # xarray alone reads it with its checksum
        np.testing.assert_array_equal(tree["posterior/D0"], normal.tree["posterior/D0"])
    with pytest.raises(OptionError, match=r"p\.zarr cannot be written as netCDF.*ends with \.nc"):
        normal.to_netcdf(tmp_path / "p.zarr")


def test_numbers_without_draws_are_plain_values(normal):
    read = json.loads(json.dumps(normal.values()))
    at = read["parameters"]["D0"]["quantiles"]
    np.testing.assert_array_equal([*at.values()], normal.summary["quantile"].sel(param="D0"))
    assert [*at] == ["2.5", "16", "50", "84", "97.5"]
    assert len(read["contrast"]["50"]) == 3
    assert len(read["rates"]["J"]["97.5"]) == len(read["age_s"]) == 50


def test_fixed_parameters_and_bins_without_pairs_come_back(flowing, tmp_path):
    result = fit_of(flowing, fixed=("beta", "phi0"))
    counts = result.scaling["ndata"].copy(data=[10, 0, 10])
    result = replace(result, scaling=result.scaling.assign(ndata=counts))
    theta = gaussian(result, 300)
    made = posterior_from(result, theta, flowing, dof=math.inf, r_hat=math.nan)
    assert made.tree["log_likelihood"]["bin"].values.tolist() == flowing.label[[0, 2]].tolist()
    assert "beta" not in made.tree["posterior"]
    assert float(made.tree["constant_data"]["phi0"]) == FLOW[6]
    assert made.tree["constant_data"]["phi0"].attrs["units"] == "degree"
    made.to_netcdf(tmp_path / "p.nc")
    read = load_posterior(tmp_path / "p.nc")
    same_draws(read, made)
    np.testing.assert_array_equal(read.theta, made.theta)


def test_leave_one_angle_out_runs_on_the_tree(normal):
    stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("xarray_einstats")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these draws are no posterior of that likelihood
        found = stats.loo(normal.tree)
        table = stats.summary(normal.tree, var_names=["D0", "contrast"], round_to="none")
    assert found.n_data_points == 3
    assert found.elpd_i["bin"].values.tolist() == normal.result.scaling["label"].values.tolist()
    np.testing.assert_allclose(table.loc["D0", "mean"], normal.summary["mean"].sel(param="D0"))


def test_names_that_a_file_cannot_hold_are_changed_and_kept_beside():
    names = ["D0", "contrast", "J", "a/b", "a b", "a_b", "__x", "..", "τ", "c2", "c2_"]
    found = variable_names(names)
    assert len(set(found.values())) == len(names)
    assert not set(found.values()) & {*OTHERS}
    assert all("/" not in name and not name.startswith((".", "__")) for name in found.values())
    assert (found["D0"], found["τ"]) == ("D0", "τ")


HOSTILE = ["D0", "<script>$x_$", "offset", "a/b\x1b[31m", "$\\frac", "bin", "phi0"]


@pytest.mark.long
def test_hostile_names_of_parameters_do_no_harm(flowing, fitted, tmp_path):
    table = fitted.parameters
    columns = {key: table[key].values for key in table.data_vars}
    model = replace(
        fitted.provenance.definition or FitView(fitted, flowing).model.point.problem.model,
        name="laminar_flow",
    )
    result = changed(fitted, parameters=parameter_table(columns | {"param": HOSTILE}), truth=None)
    result = changed(result, definition=model, covariance=None)
    made = posterior_from(result, gaussian(result, 500), flowing)
    made.to_netcdf(tmp_path / "p.nc")
    read = load_posterior(tmp_path / "p.nc")
    np.testing.assert_array_equal(read.theta, made.theta)
    assert "<script>" not in read._repr_html_()
    assert "\x1b" not in str(read) + read._repr_html_()
    texts_of(read.plot.corner())  # draws it


REFUSED = {
    "no file": (lambda *_: None, "p.nc cannot be read"),
    "no netCDF": (lambda _, path: path.write_bytes(b"no netCDF"), "p.nc"),
    "empty": (lambda _, path: path.write_bytes(b""), "p.nc"),
    "other netCDF": (
        lambda normal, path: normal.result.to_dataset().to_netcdf(path, engine="h5netcdf"),
        "is not a homodyne_dask posterior",
    ),
    "a group less": (
        lambda normal, path: write_netcdf(normal.tree.filter(lambda of: of.name != "prior"), path),
        "p.nc lacks values of a result",
    ),
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_no_posterior_is_refused_in_a_sentence(normal, tmp_path, word):
    make, says = REFUSED[word]
    make(normal, tmp_path / "p.nc")
    with pytest.raises(SourceError, match=says):
        load_posterior(tmp_path / "p.nc")


@pytest.mark.long
def test_a_flipped_bit_or_another_length_is_an_error_that_says_what_to_do(normal, tmp_path):
    path, rng = tmp_path / "p.nc", np.random.default_rng(3)
    normal.to_netcdf(path)
    content = path.read_bytes()
    damaged = [b"", content[: len(content) // 2], content[:-64], content[:-1], content + b"0"]
    for at in (0, 7, len(content) - 65, len(content) - 1, *rng.integers(len(content), size=60)):
        held = bytearray(content)
        held[at] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(held))
    for held in damaged:
        path.write_bytes(held)
        with pytest.raises(SourceError, match=r"checksum does not match.*recreate it") as raised:
            load_posterior(path)
        assert str(raised.value).startswith(f"{path} is not")
    path.write_bytes(content)
    same_draws(load_posterior(path), normal)


CIRCLES = {"a circle": h5py.SoftLink("/posterior"), "a group again": None}


@pytest.mark.long
@pytest.mark.parametrize("way", [*WAYS, "a group", *CIRCLES])
def test_a_posterior_that_names_other_files_or_leads_in_a_circle_is_refused(
    normal, tmp_path, monkeypatch, way
):
    monkeypatch.chdir(tmp_path)
    normal.to_netcdf("p.nc")
    says = r"of p\.nc is in another file"
    if way in WAYS:
        moved_elsewhere(Path("p.nc"), "posterior/D0", way)
    else:
        with h5py.File("p.nc", "r+") as file:
            if way in CIRCLES:
                says = r"/posterior/again of p\.nc leads to a group elsewhere"
                file["posterior/again"] = CIRCLES[way] or file["posterior"]
            else:
                del file["posterior"]
                file["posterior"] = h5py.ExternalLink("secret.hdf", "/")
    content = Path("p.nc").read_bytes()  # whoever writes a file can write its checksum
    Path("p.nc").write_bytes(content + sha256(content).hexdigest().encode())
    with pytest.raises(SourceError, match=says):
        load_posterior("p.nc")


LIMITS = [
    ("at the lower bound", np.abs, 0.0, 10.0, "upper", 1.96),
    ("at the upper bound", lambda z: -np.abs(z), -10.0, 0.0, "lower", -1.96),
    ("far from both", lambda z: z + 5, 0.0, 10.0, "", np.nan),
    ("near, the density there small", lambda z: np.abs(z + 2.7), 0.0, 10.0, "", np.nan),
    ("piled up where no bound is", np.abs, -np.inf, 10.0, "", np.nan),
    ("bounds unknown", np.abs, None, None, "", np.nan),
    ("constant", lambda z: 0 * z, 0.0, 10.0, "upper", 0.0),
    ("would exclude the fit", np.abs, 0.0, 10.0, "", np.nan),
]


@pytest.mark.parametrize(("word", "of", "low", "high", "side", "limit"), LIMITS)
def test_a_limit_is_given_where_the_largest_density_is_at_a_bound(word, of, low, high, side, limit):
    draws = of(np.random.default_rng(4).normal(size=4000))
    best = 3.0 if "the fit" in word else float(np.abs(draws).min() * np.sign(draws.mean()))
    found, value = one_sided(draws, low, high, best)
    assert found == side, word
    np.testing.assert_allclose(value, limit, atol=0.08)


def test_a_posterior_beside_a_bound_is_an_upper_limit_in_words(flowing, fitted):
    """Quantiles on both sides of a median never hold a truth at the bound."""
    theta = gaussian(fitted)
    at, low = 0, fitted.params["D0"].min
    theta[..., at] = low + np.abs(theta[..., at] - FLOW[at])
    table = fitted.parameters
    value = np.where(np.arange(len(FLOW)) == at, low, FLOW)
    fitted = changed(fitted, parameters=table.assign(optimum=("param", value)))
    posterior = posterior_from(fitted, theta, flowing)
    row = posterior.summary.sel(param="D0")
    assert row["limit"].item() == "upper"
    assert row["limit_value"].item() == pytest.approx(low + 1.96 * SD[at], rel=0.1)
    of_shapes = {"D0": "flat in the rate, 1 to 1e+12 Å²/s"}
    unlimited = posterior_from(fitted, theta, flowing, priors=of_shapes)
    assert unlimited.summary.sel(param="D0")["limit"].item() == ""
    assert row["quote"].item() == "limit"
    assert "< " in " ".join(str(posterior).split())
