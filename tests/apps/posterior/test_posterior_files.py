"""A posterior in the folder of its fit: files, report, pictures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.apps.posterior.posterior import load_posterior
from homodyne_dask.apps.posterior.posterior_figures import levels_holding
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fit_view import FitView, fitted_scan
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.files.result_folder import write_pictures, write_result
from homodyne_dask.results.saved_results import load_result
from homodyne_dask.results.views import fit_figures as plots
from tests.apps.posterior.made_draws import NOTE, banana, gaussian, posterior_from
from tests.results.made_results import FLOW, changed, config_of, fit_of, scan_of
from tests.results.views.figures.texts import check_places, texts_of

FILES = {"posterior.nc", "posterior_corner.png", "posterior_rates.png"}


CASES = {
    "seven parameters": {},
    "two parameters": {"fixed": ("D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0")},
    "one parameter": {"fixed": (*["D0", "alpha", "D_offset", "gamma_dot_t0", "beta"], "phi0")},
}


@pytest.fixture(scope="module")
def saved(flowing, fitted, tmp_path_factory):
    """A folder with a fit and its posterior."""
    folder = tmp_path_factory.mktemp("saved") / "A0123_fit"
    folder.mkdir()
    write_result(fitted, flowing, folder, pictures="")
    posterior_from(fitted, banana(fitted), flowing).save(folder)
    return folder


@pytest.mark.long
def test_a_folder_gets_files_report_and_quantiles(saved, fitted):
    names = {path.name for path in saved.iterdir()}
    assert names >= FILES
    assert not [name for name in names if "partial" in name]
    held, read = json.loads((saved / "summary.json").read_text()), load_posterior(saved)
    quantiles = held["posterior"]["parameters"]["alpha"]["quantiles"]
    np.testing.assert_array_equal(
        [*quantiles.values()], read.summary["quantile"].sel(param="alpha")
    )
    result = load_result(saved)
    assert result.errors.posterior == held["posterior"]
    assert changed(result, posterior=None).to_dict() == fitted.to_dict()
    text = (saved / "report.txt").read_text()
    assert text == result.report(all=True) + "\n"
    assert NOTE in text.replace("\n", " ")
    assert max(map(len, text.splitlines())) <= 100
    page = (saved / "report.html").read_text()
    assert page.count("<figure>") == 2
    assert page.count('alt="Median: D0') == 2


@pytest.mark.long
def test_figures_that_are_drawn_later_leave_the_posterior_in_the_report(saved, monkeypatch):
    monkeypatch.setattr(plots, "PICTURES", {"cuts": plots.PICTURES["cuts"]})
    result = load_result(saved)
    written = write_pictures(FitView(result, fitted_scan(result)), saved)
    assert {path.name for path in written} == {"cuts.png", "report.html"}
    page = (saved / "report.html").read_text()
    assert page.count("<figure>") == 3


@pytest.mark.long
def test_another_posterior_takes_the_place_of_the_first(flowing, tmp_path):
    fitted = fit_of(flowing, **CASES["two parameters"])
    fitted.to_json(tmp_path / "summary.json")
    for draws in (250, 300):
        made = posterior_from(fitted, gaussian(fitted, draws), flowing)
        made.save(tmp_path)
        assert f"{draws} draws by Markov chains" in (tmp_path / "report.txt").read_text()
    assert {path.name for path in tmp_path.glob("posterior*")} == FILES
    earlier = {path for pattern in folders.FILES for path in tmp_path.glob(pattern)}
    assert {path.name for path in earlier} >= FILES  # a new fit removes them


def test_a_posterior_is_not_written_beside_another_fit(flowing, fitted, tmp_path):
    made = posterior_from(fitted, gaussian(fitted, 100), flowing)
    with pytest.raises(
        OptionError, match="contains no fit, but a posterior is written beside its fit"
    ):
        made.save(tmp_path)
    other = fit_of(flowing, fixed=("beta",))
    table = other.parameters.assign(optimum=other.parameters["optimum"] * 1.1)
    replace(other, parameters=table).to_json(tmp_path / "summary.json")
    with pytest.raises(OptionError, match="contains another fit"):
        made.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("name", "case"), [*(("corner", case) for case in CASES), ("rates", "seven parameters")]
)
def test_no_text_of_a_picture_is_cut_off_or_lies_on_another(name, case, flowing):
    result = fit_of(flowing, **CASES[case])
    long = (
        "only the size of the likelihood is adjusted, not its directions, with 5 independent bins"
    )
    made = posterior_from(result, gaussian(result, 400), flowing, adjust_note=f"{long}; {long}")
    picture = getattr(made.plot, name)()
    shown = [(text, box) for text, box in texts_of(picture) if text]
    check_places(shown, picture.bbox)
    assert len(shown) > 4
    assert (np.asarray(picture.canvas.buffer_rgba()).std(axis=(0, 1))[:3] > 12).all()


def test_contours_hold_their_share_of_the_draws():
    x = np.linspace(-5, 5, 400)
    density = np.exp(-0.5 * (x[:, None] ** 2 + x[None, :] ** 2))
    np.testing.assert_allclose(levels_holding(density, (0.95, 0.68)), (0.05, 0.32), rtol=0.01)


def test_the_rates_of_unknown_q_have_the_unit_they_have(tmp_path):
    scan = scan_of(tmp_path, FLOW[:3], q=np.nan)
    result = changed(fit_of(scan), covariance=None)
    table = result.parameters.isel(param=slice(3))
    result = changed(result, parameters=table, config=config_of("static"), truth=None)
    made = posterior_from(result, gaussian(result, 100), scan)
    assert made.tree["posterior"]["J"].attrs["units"] == "1/s"
    labels = {text for text, _ in texts_of(made.plot.rates())}
    assert "J [1/s]" in labels
    assert "gamma_dot" not in made.tree["posterior"]
