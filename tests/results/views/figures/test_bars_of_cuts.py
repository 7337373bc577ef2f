"""The bars of c2 against lag at several ages: the scatter of bins that differ by their noise alone."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.assessment.speckle_covariance import field_noise
from homodyne_dask.results.data.c2_means import ages, covariance_over_age, cut_at_age
from homodyne_dask.results.data.fit_view import FitView, view_of
from tests.speckle_scans import Photons, whole_record

BINS = 40
STILL = Photons(
    np.array([1e4, 0.0, 0.0]), 120, (0.01,) * BINS, tuple(range(BINS)), pixels=150, modes=3
)
SLOWING = replace(STILL, theta=np.array([2e4, -0.7, 0.0]))
FEW_COUNTS = replace(STILL, mean=0.1, pixels=600)


def fitted(folder, photons: Photons, model: str, *, counts_known: bool = True) -> FitView:
    known = {"counts": np.full((BINS, photons.frames), photons.mean), "pixels": np.full(BINS, 300)}
    c2 = np.nan_to_num(photons.scan(1).c2)
    bins = {"q": photons.q, "phi": photons.angles, "dt": photons.spacing}
    np.savez(folder / "A.npz", c2=c2, **bins, **(known if counts_known else {}))
    return view_of(hd.fit(ingest.ingest(folder / "A.npz").store, model=model))


@pytest.fixture(scope="module")
def still(tmp_path_factory) -> FitView:
    return fitted(tmp_path_factory.mktemp("still"), STILL, "brownian")


def ratios(view: FitView) -> list[np.ndarray]:
    """At each age the error of each lag over the standard deviation of the bins."""
    scan, read = view.scan, view.cuts
    cuts = [[view.cut(b, age) for b in range(BINS)] for age in ages(read, 0, scan)]
    return [
        np.median([cut.stderr for cut in of_age], 0) / np.std([cut.c2 for cut in of_age], 0, ddof=1)
        for of_age in cuts
    ]


def errors_are_the_scatter(view: FitView) -> None:
    for of_age in ratios(view):
        for part in np.array_split(of_age, 3):  # short, middle and long lags
            assert 0.8 < part.mean() < 1.25, of_age


def test_bars_are_the_scatter_of_bins(still):
    errors_are_the_scatter(still)


def test_bars_allow_for_slower_dynamics_at_later_ages(tmp_path):
    errors_are_the_scatter(fitted(tmp_path, SLOWING, "power_law"))


def test_bars_of_few_counts_that_the_file_lacks_need_not_pixels_and_counts_apart(tmp_path):
    view = fitted(tmp_path, FEW_COUNTS, "brownian", counts_known=False)
    assert np.isnan(view.result.errors.noise["pixels"].values).any()
    errors_are_the_scatter(view)


def test_bars_allow_for_a_beam_that_weakens_during_the_record(tmp_path):
    rng, frames, pixels, modes = np.random.default_rng(0), 120, 300, 2
    counts = np.geomspace(0.6, 0.06, frames)
    correlation = np.exp(-np.abs(np.subtract.outer(np.arange(frames), np.arange(frames))) / 20)
    root, c2 = np.linalg.cholesky(correlation), np.empty((BINS, frames, frames))
    for of_bin in c2:
        field = root @ rng.standard_normal((2, frames, pixels * modes))
        speckle = np.square(field).sum(0).reshape(frames, pixels, modes).mean(2) / 2
        photons = rng.poisson(counts[:, None] * speckle)
        mean = photons.mean(1)
        of_bin[:] = photons @ photons.T / pixels / np.outer(mean, mean)
    bins = {"q": np.full(BINS, 0.01), "phi": 9.0 * np.arange(BINS), "dt": 0.1}
    known = {"counts": np.tile(counts, (BINS, 1)), "pixels": np.full(BINS, pixels)}
    np.savez(tmp_path / "A.npz", c2=c2, **bins, **known)
    of_ages = ratios(view_of(hd.fit(ingest.ingest(tmp_path / "A.npz").store, model="brownian")))
    for of_age in (of_ages[0], of_ages[-1]):
        assert 0.75 < of_age.mean() < 1.2, of_age


def test_errors_as_if_pairs_were_independent_are_too_small(still):
    age = ages(still.cuts, 0, still.scan)[-1]
    independent = cut_at_age(still.scan, still.cuts, 0, age).stderr
    assert still.cut(0, age).stderr[0] > 2 * independent[0]


def test_a_result_that_was_kept_draws_the_same_bars(still, tmp_path):
    still.result.to_json(tmp_path / "summary.json")
    kept = hd.load_result(tmp_path / "summary.json")
    drawn, again = (result.plot.cuts().tables for result in (still.result, kept))
    assert all((table["stderr"].dropna() > 0).any() for table in drawn.values())
    assert all(table.equals(again[panel]) for panel, table in drawn.items())


@pytest.mark.parametrize("objection", ["deviating", None])
def test_there_are_no_bars_where_the_noise_is_not_known(still, objection):
    noise = still.result.errors.noise.assign(objection=objection) if objection else None
    errors = replace(still.result.errors, noise=noise)
    view = FitView(replace(still.result, errors=errors), still.scan)
    assert np.isnan(view.cut(0, ages(view.cuts, 0, view.scan)[0]).stderr).all()
    assert all("stderr" not in table for table in view.result.plot.cuts().tables.values())


@pytest.mark.parametrize(("lag", "lags"), [(1, 1), (3, 2), (9, 6), (12, 8)])
@pytest.mark.parametrize("mean_counts", [0.2, 5.0])
def test_the_variance_of_a_mean_over_ages_and_lags_is_that_of_its_sum(lag, lags, mean_counts):
    n, span, contrast = 30, 10, 0.4
    f = np.exp(-np.arange(n) / 4)
    g = np.sqrt(f[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))])
    cell = sum(np.diag(np.arange(n - k) < span, k) for k in range(lag, lag + lags)) / (span * lags)
    expected = field_noise(whole_record(g, contrast), cell[None]).at(mean_counts)[0, 0]
    middle = lag + (lags - 1) // 2
    d = np.arange(span)
    pairs = np.where(d == 0, span, 2 * (span - d))
    found = pairs @ covariance_over_age(f, contrast, mean_counts, middle, lags)[:span] / span**2
    assert found == pytest.approx(expected, rel=0.1 if lags > 1 else 1e-9)
