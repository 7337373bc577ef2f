"""A fit from a store: real data, small and odd data, bounds, and what is refused before it starts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.store.scan import open_dataset
from tests import reference
from tests.photons import photographed
from tests.speckle_scans import Photons
from tests.synthetic import CREEP, FLOW, GAP, angles, fit_here, measured, store

TRUTH = np.array([20000, -0.3, 1000, 2e-3, 0.2, 1e-4, 5])
CHX = Path(__file__).parents[3] / "shared" / "data" / "chx" / "test_g2.npy"


@pytest.mark.skipif(not CHX.exists(), reason=f"the measured matrix {CHX} is not here")
def test_the_measured_matrix_gives_the_published_values(tmp_path):
    chx = open_dataset(
        ingest.ingest(CHX, tmp_path / "chx.zarr", frame_time=1.0, q=np.nan, phi=0).store
    )
    result = hd.fit(chx, hd.STATIC, fixed={"D_offset": 0.0})
    assert result.outcome.name == "CONVERGED"
    assert float(result.scaling["contrast"][0]) == pytest.approx(0.0590, abs=5e-5)
    assert float(result.scaling["offset"][0]) == pytest.approx(1.0274, abs=5e-5)
    value = result.parameters["value"].sel(param="alpha")
    assert float(value) == pytest.approx(-0.487, abs=5e-4)
    sigma = np.median(chx.sigma_row[0]) ** 2
    rms = np.sqrt(result.chisqr / result.ndata) * sigma
    assert rms == pytest.approx(0.0718, abs=2e-4)
    assert result.redchi == pytest.approx(1, abs=0.1)


@pytest.mark.long
def test_a_fit_from_a_store_is_the_dense_optimum(tmp_path):
    scans = measured(TRUTH, 40, angles(4), sigma=0.003, contrast=0.3)
    first = dict(zip(hd.LAMINAR_FLOW.names, TRUTH * 1.1, strict=True))
    result = hd.fit(store(scans, tmp_path), hd.LAMINAR_FLOW, gap="200 um", initial=first)
    theta, contrast, offset, chisqr = reference.dense_fit(TRUTH, scans.dense())
    assert result.outcome.name == "CONVERGED"
    assert result.chisqr == pytest.approx(chisqr, rel=1e-9)
    error = result.parameters["stderr_naive"].values
    assert (np.abs(result.parameters["value"].values - theta) < 1e-3 * error).all()
    np.testing.assert_allclose(result.scaling["contrast"], contrast, rtol=1e-5)
    np.testing.assert_allclose(result.scaling["offset"], offset, rtol=1e-6)
    assert result.ndata == 4 * 40 * 39 // 2


SELECTIONS = [
    ("frames", {"frames": (10, 35)}, {}, lambda i, j: (i >= 10) & (j < 35)),
    ("min_lag", {}, {"min_lag": 4}, lambda i, j: j - i >= 4),
    ("both", {"frames": (3, 30)}, {"min_lag": 2}, lambda i, j: (i >= 3) & (j < 30) & (j - i >= 2)),
]


@pytest.mark.parametrize(
    ("word", "chosen", "options", "kept"), SELECTIONS, ids=[w for w, *_ in SELECTIONS]
)
def test_a_selection_fits_what_is_selected_and_nothing_else(tmp_path, word, chosen, options, kept):
    scans = measured(CREEP, 40, np.zeros(3), sigma=0.003, contrast=0.3)
    given = dict(zip(hd.STATIC.names, CREEP, strict=True))
    found = hd.fit(store(scans, tmp_path).select(**chosen), hd.STATIC, initial=given, **options)
    i, j = np.indices((40, 40))
    c2 = np.where(kept(i, j), scans.c2, np.nan)
    dense = [(c2[b].astype(float), *part[1:]) for b, part in enumerate(scans.dense())]
    theta, *_, chisqr = reference.dense_fit(CREEP, dense)
    assert found.ndata == np.isfinite(c2).sum()
    assert found.chisqr == pytest.approx(chisqr, rel=1e-9)
    error = found.parameters["stderr"].fillna(found.parameters["stderr_naive"]).values
    error = np.where(
        np.isfinite(error), error, 3000.0
    )  # [Å²/s] of D_offset, of which only limits are known
    assert (np.abs(found.parameters["optimum"].values - theta) < 1e-3 * error).all()


def test_the_same_file_ingested_again_with_another_sigma_or_time_is_fitted_anew(tmp_path):
    scans = measured(CREEP, 40, np.zeros(3), sigma=0.01)
    first = hd.fit(store(scans, tmp_path), hd.STATIC)
    other = hd.fit(store(scans, tmp_path, sigma=np.full(3, 0.02)), hd.STATIC)
    assert other.chisqr == pytest.approx(first.chisqr / 4, rel=1e-6)
    later = hd.fit(store(scans, tmp_path, time=2 * scans.time), hd.STATIC)
    slower = first.parameters["value"].values * [0.5 / 2**-0.4, 1, 0.5]
    assert later.chisqr == pytest.approx(first.chisqr, rel=1e-6)
    assert later.parameters["value"].values[0] == pytest.approx(slower[0], rel=0.2)


MANY = 40
"""More bins than one block holds."""


@pytest.mark.long
def test_many_bins_without_q_are_each_counted_once(tmp_path):
    scans = measured([5.0, -0.2, 0.0], 12, np.zeros(MANY), q=1.0, dt=0.1, sigma=0.01)
    scan = store(scans, tmp_path, q=np.full(MANY, np.nan))
    result = hd.fit(scan, hd.STATIC, fixed={"D_offset": 0.0})
    assert result.ndata == MANY * 66
    assert result.statistics.nbins == MANY
    assert result.parameters["value"].values[0] == pytest.approx(5, rel=0.1)


def test_parameters_that_compensate_for_each_other_are_not_said_to_have_large_errors(tmp_path):
    """With alpha = 0, only D0 + D_offset matters, and the report gives no error of either."""
    scans = measured([2000.0, 0.0, 500.0], 40, np.zeros(3), contrast=0.3)
    result = hd.fit(store(scans, tmp_path), hd.STATIC, fixed={"alpha": 0.0})
    assert result.errors.covariance_naive is None
    assert [one.about for one in result.findings.of("undetermined")] == [("D0", "D_offset")]
    assert not result.findings.of("larger-error")


@pytest.mark.long
def test_uneven_times_are_fitted_in_the_physical_convention_and_refused_in_the_other(tmp_path):
    time = np.cumsum(np.random.default_rng(3).uniform(0.05, 0.6, 50))
    time -= time[0]
    scans = measured(TRUTH, phi=angles(5), time=time, sigma=0.003, contrast=0.3)
    scan = store(scans, tmp_path)
    result = hd.fit(scan, hd.LAMINAR_FLOW, gap=GAP)
    *_, chisqr = reference.dense_fit(TRUTH, scans.dense())
    assert result.chisqr == pytest.approx(chisqr, rel=1e-8)
    with pytest.raises(OptionError, match="homodyne convention needs evenly spaced frames"):
        hd.fit(scan, hd.LAMINAR_FLOW, gap=GAP, convention="homodyne")


WINDOWS = [
    ("few frames of many", 300, {"frames": (150, 156)}, {}),
    ("the longest lags", 120, {}, {"min_lag": 100}),
]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("word", "n", "chosen", "options"), WINDOWS, ids=[w for w, *_ in WINDOWS])
def test_a_window_may_be_narrower_than_the_averages(tmp_path, word, n, chosen, options):
    scans = measured(CREEP, n, np.zeros(3), dt=0.05, sigma=0.003, contrast=0.3)
    result = hd.fit(store(scans, tmp_path).select(**chosen), hd.STATIC, **options)
    assert result.ndata > 0


def test_all_pairs_masked_is_said_so(tmp_path):
    scans = measured(CREEP, 20, np.zeros(2))
    scans.c2[:, 5:, 5:] = np.nan
    scan = store(scans, tmp_path)
    with pytest.raises(SelectionError, match="all pairs of the 2 selected bins are masked"):
        hd.fit(scan.select(frames=(5, 20)), hd.STATIC)


def test_a_series_over_phi_and_given_values_find_the_truth(tmp_path):
    phi = angles(9)
    contrast = 0.25 + 0.05 * np.cos(np.deg2rad(phi))
    scan = store(measured(CREEP, 60, phi, contrast=contrast, sigma=0.005), tmp_path)
    given = {"contrast": contrast.tolist(), "offset": 1.0}
    for mode, more in (("fourier1", {}), ("fixed", given)):
        result = fit_here(scan, hd.STATIC, scaling=mode, **more)
        assert result.converged
        away = result.parameters["value"].values - CREEP
        assert (np.abs(away) < 4 * result.parameters["stderr"].values).all()
        assert result.redchi == pytest.approx(1, abs=0.03)
        np.testing.assert_allclose(result.scaling["contrast"], contrast, rtol=0.01)
        assert result.config["scaling"] == mode
        errors = result.scaling["contrast_stderr"].values
        assert (np.isnan(errors) if mode == "fixed" else errors > 0).all()


@pytest.mark.long
def test_only_parameters_with_wide_errors_are_called_undetermined(tmp_path):
    """At late ages D0 t^alpha is far below D_offset; the shear rate is known to 1 %."""
    late = 350 + 0.4 * np.arange(60)
    creep = [68480, -1.327, 1708, 9e-4, -0.212, -2.7e-4, 2]
    scan = store(measured(creep, 60, angles(8), time=late, contrast=0.3, seed=1), tmp_path)
    known = {"D_offset": 1708.0, "gamma_dot_t_offset": -2.7e-4}
    result = hd.fit(scan, "laminar_flow", gap=2e6, fixed=known)
    assert result.error_used[3] < 0.01 * result.params["gamma_dot_t0"].value
    wide, known = result.findings.of("larger-error", "determined")
    assert wide.about == ("D0",)
    assert known.about == ("alpha", "gamma_dot_t0", "beta", "phi0")


def test_parameters_of_a_rate_whose_amplitude_is_not_known_have_no_value_but_the_rate_has(tmp_path):
    """Linear errors had the offset of the shear rate at -17.6 ± 5.5 e-4 1/s, and D0 below a third of it."""
    truth = [8000, -0.1, 1000, 1e-3, 0.1, 1e-4, -30]
    result = hd.fit(
        store(photographed(truth, 100, angles(8), 3), tmp_path), "laminar_flow", gap=2e6
    )
    laws = result.findings.of("inseparable")
    assert [law.about for law in laws] == [*RATES.values()]
    assert not result.findings.of("limits-only", "larger-error", "strongly-correlated")
    table = result.parameters.sel(param=[name for law in laws for name in law.about])
    for column in ("value", "stderr", "lower_limit", "upper_limit"):
        assert np.isnan(table[column].values).all(), column
    J = result.derived["J"]
    assert abs(J.value - (8000 * 4.95**-0.1 + 1000)) < 2 * J.stderr


@pytest.mark.long
def test_rates_that_are_constant_within_their_errors_are_one_finding(tmp_path):
    """Both of three parameters: the data tell none of these, and most ended at bounds."""
    found = []
    for alpha, seed in ((0.0, 3), (-0.5, 0)):
        flow = [30000, alpha, 0, 3e-4, 0, 0, 5]
        scan = store(photographed(flow, 100, angles(10), seed), tmp_path)
        found.append(hd.fit(scan, "laminar_flow", gap=2e6).findings)
    both, one = found
    assert both.codes == ("constant-rate",)
    assert both[0].advice.endswith(' --model couette --gap "200 um"')
    J, error, unit = both[0].numbers["rates"]["J"]
    assert unit == "Å²/s"
    assert abs(J - 30000) < 3 * error < 9000
    (rate,) = one.of("constant-rate")
    assert rate.about == ("gamma_dot_t0", "beta", "gamma_dot_t_offset")
    assert rate.advice.endswith(" --fixed beta=0 --fixed gamma_dot_t_offset=0")


Q: Any = np.array([0.002, 0.003, 0.004])


@pytest.mark.parametrize(
    "D0", [5.0, 5e8, 1e11], ids=["glass", "colloid of 100 nm", "small molecules"]
)
def test_the_search_covers_all_that_diffuses(tmp_path, D0):
    """Its bound was 1e6 Å²/s: a colloid of 100 nm in water has 5e8."""
    made = measured([D0, 0, 0], 150, np.zeros(3), q=Q, dt=1 / (Q[1] ** 2 * D0) / 20)
    result = hd.fit(store(made, tmp_path), "brownian")
    assert result.converged
    assert result.params["D0"].value == pytest.approx(D0, rel=0.02)


@pytest.mark.long
def test_errors_allow_for_a_bound_beside_the_optimum_and_hold_with_one_far_from_it(tmp_path):
    """Values that a bound keeps far from the optimum have no error that spans the two."""
    scan = store(measured([8000.0, 0.0, 0.0], 100, np.zeros(3), q=10 * Q / 2, dt=0.05), tmp_path)
    fixed = {"D_offset": 0.0}
    free = hd.fit(scan, "static", fixed=fixed).params["alpha"]
    assert free.stderr is not None
    naive = float(hd.fit(scan, "static", fixed=fixed).parameters["stderr_naive"].values[1])
    errors = []
    for beyond in (3 * naive, 30 * naive):
        bound = {"alpha": (free.value + beyond, 1.0)}
        bounded = hd.fit(scan, "static", fixed=fixed, bounds=bound)
        assert bounded.parameters["at_bound"].values[1]
        errors.append(bounded.covariance.values[1, 1])
    assert np.isfinite(errors).tolist() == [True, False]


def test_a_decay_far_longer_than_the_record_is_undetermined_and_no_bound_is_to_be_moved(tmp_path):
    """It converged with D0 at its lower bound, which it advised to lower.

    c2 bends down where a decay bends up, so that of all decays the slowest is the nearest.
    """
    made = measured([100.0, 0, 0], 60, np.zeros(3), q=(0.005, 0.008, 0.012), dt=0.1, sigma=1e-3)
    lag = made.time - made.time[:, None]
    made.c2[:] -= made.contrast[:, None, None] * (made.q[:, None, None] ** 2 * 100 * lag) ** 2
    result = hd.fit(store(made, tmp_path), "brownian")
    assert float(result.parameters["optimum"].values[0]) == 1
    assert np.isnan(result.parameters["value"].values[0])
    assert [one.about for one in result.findings.of("longer-than-record")] == [("D0",)]
    assert not result.findings.of("at-bound")


@pytest.mark.long
def test_a_misfit_in_the_convention_of_homodyne_suggests_the_physical_one(tmp_path):
    scans = measured([2e4, 0, 0, 2e-3, 0, 0, 5], 50, angles(6), dt=0.1, sigma=0.003, contrast=0.3)
    result = hd.fit(store(scans, tmp_path), "couette", gap=GAP, convention="homodyne")
    (other,) = result.findings.of("other-convention")
    assert other.advice.endswith(' --model couette --gap "200 um"')


@pytest.mark.parametrize(
    ("factor", "offset"), [(100, 1.0), (2, 0.99)], ids=["per cent", "c2 and its transpose"]
)
def test_c2_in_another_unit_is_asked_about(factor, offset, tmp_path):
    made = measured([3000.0, 0, 0], 60, np.zeros(3), q=Q, dt=1.0, offset=offset)
    made.c2[:] *= factor
    made.sigma_row[:] *= np.sqrt(factor)
    (high,) = hd.fit(store(made, tmp_path), "brownian").findings.of("offset-high")
    assert high.numbers == {"bins": 3, "total": 3, "limit": 1.5}


def fit_of_few_bins(folder):
    named = zip(hd.LAMINAR_FLOW.names, FLOW, strict=True)
    held = {name: value for name, value in named if name not in ("D0", "phi0")}
    scan = store(measured(FLOW, 60, angles(9)), folder)
    return hd.fit(scan, "laminar_flow", gap="200 um", fixed=held)


@pytest.mark.long
def test_a_parameter_that_one_or_two_bins_determine_has_the_error_of_speckle(tmp_path):
    result = fit_of_few_bins(tmp_path)
    assert not result.findings.of("undetermined", "larger-error")
    assert result.params["D0"].method == "speckle"
    assert result.params["D0"].dof > 10


@pytest.mark.long
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_an_error_that_neither_bins_nor_speckle_give_is_absent(tmp_path):
    result = fit_of_few_bins(tmp_path)
    assert result.params["D0"].stderr is None
    (absent,) = result.findings.of("no-standard-error")
    assert absent.about[0] == "D0"
    assert result.covariance is None
    assert result.rates.attrs["covariance"] == "naive"


STEADY = np.array([2e4, 0.0, 0.0, 5e-4, 0.0, 0.0, 0.0])
SCATTER = 550.0
"""Of J at the mean age, between 40 scans with all seven parameters free."""
OTHERS = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0, "alpha": 0.0, "beta": 0.0}


@pytest.mark.long
def test_the_error_of_J_is_that_of_speckle_however_many_parameters_are_free(tmp_path):
    """All eigenvalues but one are a million million times the smallest: rounding left no variance of J."""
    flow = Photons(STEADY, 299, (0.0054,) * 10, tuple(angles(10)), mean=1.0, pixels=1000, modes=3)
    counts, c2 = np.ones((10, 299)), flow.scan(4).c2
    held = {"phi": flow.angles, "time": flow.time, "q": flow.q, "pixels": np.full(10, 1000)}
    np.savez(tmp_path / "A.npz", c2=c2, counts=counts, **held)
    scan = hd.open_dataset(hd.ingest(tmp_path / "A.npz", tmp_path / "A.zarr").store)
    errors = []
    for fixed in (OTHERS, {}):
        result = hd.fit(scan, "laminar_flow", gap=2e6, fixed=fixed)
        age = float(scan.time.mean())
        found = fit_row("", None, result, at={"age": age}).quantities
        assert found["J"].method == "speckle"
        assert found["J"].dof > 20
        assert result.params["phi0"].dof > 20
        at = int(np.abs(result.rates["t"].values - age).argmin())
        assert result.rates["J_stderr"].values[at] == pytest.approx(found["J"].stderr, rel=0.05)
        errors.append(found["J"].stderr)
    assert [*result.findings.of("constant-rate")[0].numbers["rates"]] == ["J", "gamma_dot"]
    assert 0.7 * SCATTER < errors[1] < 1.4 * SCATTER
    assert 0.3 * SCATTER < errors[0] < 1.1 * errors[1]


def test_one_bin_is_enough_for_diffusion(tmp_path):
    scans = measured(CREEP, 60, [0.0], sigma=0.003, contrast=0.3)
    result = hd.fit(store(scans, tmp_path), hd.STATIC)
    theta, *_ = reference.dense_fit(CREEP, scans.dense())
    error = result.parameters["stderr_naive"].values
    assert (np.abs(result.parameters["value"].values - theta) < 1e-2 * error).all()
    assert result.parameters["method"].values.tolist() == ["speckle"] * 3
    stderr = np.sqrt(np.diag(result.covariance.values))
    np.testing.assert_array_equal(result.parameters["stderr"].values, stderr)
    assert (stderr > error).all()
    assert result.findings.at_least("warning") == ()
