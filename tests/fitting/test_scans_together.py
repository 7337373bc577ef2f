"""Global fits of repeats: parameters that differ by scan beside shared ones, against dense least squares."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.series.global_end import GlobalEnd
from homodyne_dask.fitting.series.global_request import GlobalParameters
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.models.transport import LAMINAR_FLOW
from homodyne_dask.solver.reduce import reduce
from tests.fitting.dense_power_laws import Pairs, decay, dense_fit
from tests.ingest_files import repeats
from tests.run_command import done, run
from tests.speckle_scans import Photons

Q, N, DT, SIGMA = 0.0054, 40, 0.1, 0.02
PHI = [-60.0, 0.0, 60.0]
RATES, ALPHA = (2e4, 5e4, 1e4), -0.4
TIME = DT * np.arange(N)
KNOWN = {"q": Q, "phi": PHI, "dt": DT, "sigma": SIGMA}


def measured(rate, seed):
    rng = np.random.default_rng(seed)
    f = decay(rate, ALPHA, Q, TIME)
    return np.stack([1 + 0.3 * f + rng.normal(0, SIGMA, (N, N)) for _ in PHI])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    scans = (measured(rate, k) for k, rate in enumerate(RATES))
    return repeats(tmp_path_factory.mktemp("together"), scans, **KNOWN)


@pytest.fixture(scope="module")
def series(store):
    return hd.fit_each(store, "power_law", over="scan", per_scan="D0")


def test_a_global_fit_is_that_of_dense_least_squares(series):
    at, c2 = np.triu_indices(N, 1), [measured(rate, k) for k, rate in enumerate(RATES)]
    bins = [Pairs(Q, TIME, k, at, one[at]) for k in range(3) for one in c2[k].astype(np.float32)]
    value, expected, chisqr = dense_fit(bins, RATES, ALPHA, SIGMA)
    found = series.global_fit
    assert found.outcome is hd.Outcome.CONVERGED
    names = [f"D0 of scan {n}" for n in (1, 2, 3)] + ["alpha"]
    at = found.parameters.sel(param=names)["value"].values
    naive = found.covariance_naive.sel(cov_i=names, cov_j=names).values
    error = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(at, value, atol=2e-3 * error.min(), rtol=2e-5)
    np.testing.assert_allclose(naive, expected, atol=1e-3 * np.outer(error, error).min(), rtol=2e-3)
    assert found.chisqr == pytest.approx(chisqr, rel=1e-5)
    assert found.ndata == 9 * N * (N - 1) // 2


def test_each_scan_has_a_result_at_the_global_fit_with_its_errors(series):
    found = series.global_fit
    for n, result in enumerate(series.results, 1):
        own = result.parameters.sel(param=["D0", "alpha"])
        of = found.parameters.sel(param=[f"D0 of scan {n}", "alpha"])
        for name in ("value", "stderr", "stderr_naive", "dof"):
            np.testing.assert_array_equal(own[name], of[name])
        assert abs(float(own["value"][0]) - RATES[n - 1]) < 4 * float(own["stderr"][0])
        assert result.scaling["scan"].values.tolist() == [n] * 3
        assert 0.9 < result.redchi < 1.1
        assert not result.misfit
    assert result.diagnosis.influence is None  # sums of one scan tell nothing of the others
    assert sum(one.chisqr for one in series.results) == pytest.approx(found.chisqr)
    assert found.correlation.sel(cov_i="alpha", cov_j="alpha") == pytest.approx(1)


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_errors_from_the_bins_of_all_scans_are_not_called_absent(tmp_path):
    made = counted(tmp_path, [(2e4, 1), (2e4, 2)], 6)
    for result in hd.fit_each(made, "power_law", over="scan", per_scan="D0").results:
        assert np.isfinite(result.parameters["stderr"].values[:2]).all()
        assert not result.findings.of("no-standard-error")


def counted(folder, scans, bins):
    """A store of counted photons: of a static sample for each (rate, seed)."""
    made, phi = [], tuple(np.linspace(-60, 60, bins))
    for rate, seed in scans:
        theta = np.array([rate, ALPHA, 0.0])
        scan = Photons(theta, frames=40, q=(Q,) * bins, phi=phi, pixels=200).scan(seed)
        made.append(np.nan_to_num(scan.c2))
    return repeats(folder, made, **KNOWN | {"phi": phi, "sigma": 0.06})


AS_ALONE = {
    "at a bound that its errors reach": ({"bounds": {"alpha": (-0.4, 2.0)}}, 1e-2),
    "at a bound that its errors do not reach": ({"bounds": {"alpha": (0.7, 2.0)}}, 1e-2),
    "with a prior": ({"prior": {"D_offset": (0, 300)}}, 0.1),
}
"""Options, and how far errors may differ: scans of contrasts near each other share the noise of one, and P
and μ of speckle are averaged without the prior."""


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("word", AS_ALONE)
def test_errors_of_parameters_that_all_differ_are_those_of_each_scan_by_itself(word, tmp_path):
    made = counted(tmp_path, [(2e4, 1), (2e4, 2)], 2)
    options, tolerance = AS_ALONE[word]
    options = {"over": "scan", **options}
    together = hd.fit_each(made, "static", per_scan=["D0", "alpha", "D_offset"], **options)
    alone = hd.fit_each(made, "static", **options)
    ended = [one.parameters["at_bound"].values.any() for one in alone.results]
    assert any(ended) == ("bounds" in options)
    assert any(one.covariance is not None for one in alone.results)
    for one, other in zip(together.results, alone.results, strict=True):
        for name in ("covariance", "covariance_naive"):
            of_both = [getattr(of.errors, name) for of in (one, other)]
            assert (of_both[0] is None) == (of_both[1] is None)
            variances = [np.diag(of) for of in of_both if of is not None]
            np.testing.assert_allclose(
                *(np.sqrt(variances) if variances else (0, 0)), rtol=tolerance
            )
        assert one.parameters["method"].equals(other.parameters["method"])


def test_a_scan_without_decay_beside_others_has_a_result(tmp_path):
    scans = (measured(rate, k) for k, rate in enumerate((2e4, 0.1, 5e4)))
    made = repeats(tmp_path, scans, **KNOWN)
    found = hd.fit_each(made, "static", over="scan", per_scan="D_offset", max_passes=30)
    assert len(found.results) == 3


def test_sums_that_are_not_finite_have_no_covariance_of_noise():
    """As of a global fit that ends with NONFINITE: its scans have no noise, and eigenvalues of NaN raise."""
    reduced = reduce(Gram(np.eye(7)[None], np.ones(1)), "individual")
    reduced = replace(reduced, hessian=np.full((4, 4), np.nan))
    four = search([hd.Parameter(name) for name in "abcd"])
    state = SimpleNamespace(reduced=reduced, theta=np.ones(4))
    request = SimpleNamespace(together=SimpleNamespace(search=four))
    end = GlobalEnd(request, state, [], lambda *_: pytest.fail("a pass is made"))
    assert end._errors_by_noise([None]) is None


def test_contrasts_may_be_shared_where_rates_differ(store, series):
    shared = hd.fit_each(store, "power_law", over="scan", per_scan="D0", scaling="scans")
    contrast = np.array([one.scaling["contrast"].values for one in shared.results])
    np.testing.assert_allclose(contrast, np.tile(contrast[0], (3, 1)), rtol=1e-12)
    assert len(np.unique(contrast.round(9))) == 3
    at = shared.global_fit.parameters["value"].values[:3]
    np.testing.assert_allclose(at, RATES, rtol=0.1)
    tables = [of.global_fit.parameters for of in (shared, series)]
    ratio = [table["stderr"] / table["stderr_naive"] for table in tables]
    np.testing.assert_allclose(*(of.values[:4] for of in ratio), rtol=0.25)
    stderr = np.array([result.scaling["contrast_stderr"].values for result in shared.results])
    assert (stderr < series.results[0].scaling["contrast_stderr"].values).all()


@pytest.mark.long
def test_the_command_writes_a_folder_for_each_scan_and_the_series(store, tmp_path):
    options = ["--model", "power_law", "--output", str(tmp_path / "out"), "--no-pictures"]
    text = done("fit", str(store), *options, "--per-scan", "D0")
    assert "one fit of all scans: D0 for each scan" in text
    read = hd.load_series(tmp_path / "out")
    assert read.global_fit.per_scan == ("D0",)
    summary = json.loads((tmp_path / "out" / "scan_002" / "summary.json").read_text())
    alpha = float(read.global_fit.parameters["value"].sel(param="alpha"))
    assert summary["parameters"]["alpha"]["value"] == alpha
    again = run("fit", str(store), *options, "--per-scan", "D0", "--resume")
    assert again.exit_code == 2
    assert "has no checkpoint" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_scan": "D1"}, "per: unknown parameter 'D1'; .*D0"),
        ({"per_scan": "D0", "over": "q"}, "per 'scan' needs over 'scan', but over is 'q'"),
        (
            {"per_scan": "D0", "weighting": "speckle"},
            "weighting speckle is not available with per, as weights",
        ),
        ({"per": {"rings": "D0"}}, "per: unknown group 'rings'; .*ring"),
        ({"per": {"ring": "D0", "scan": "alpha"}}, "a fit has one kind of group"),
        ({"per": {"window": "D0"}}, "with over 'age'"),
        ({"per": {"scan": "contrast"}}, "contrast and offset cannot differ by scan"),
        ({"per_scan": "D_offset"}, "D_offset is fixed and cannot differ between groups"),
    ],
)
def test_what_does_not_fit_is_refused(store, options, message):
    with pytest.raises(OptionError, match=message):
        hd.fit_each(store, "power_law", **{"over": "scan"} | options)


def test_columns_and_limits_of_global_parameters_are_those_of_the_model():
    made = GlobalParameters.of(["a", "b", "c"], ["a", "c"], ["scan 4", "scan 7"])
    assert made.names == ("a of scan 4", "a of scan 7", "b", "c of scan 4", "c of scan 7")
    assert made.place.tolist() == [[0, 2, 3], [1, 2, 4]]
    rng, scan = np.random.default_rng(0), np.array([0, 1, 1])
    X = rng.normal(size=(3, 20, 6))
    found = Gram(np.einsum("bni,bnj->bij", X, X), np.full(3, 20), place=made.place[scan]).wide
    for b in range(3):
        wide = np.zeros((20, 8))
        wide[:, [0, 1, 2, *(3 + made.place[scan[b]])]] = X[b]
        np.testing.assert_allclose(found.moments[b], wide.T @ wide)
    np.testing.assert_array_equal(made.start(np.array([[1, 2, 3], [4, 2, 6.0]])), [1, 4, 2, 3, 6])


def test_steps_are_curved_along_rates_of_one_scan_or_of_all():
    laws = (PowerLaw((0, 1, 2), 1.0, 2.0), PowerLaw((3, 4, 5), 1.0, 2.0))
    of = replace(search(LAMINAR_FLOW.parameters), laws=laws)
    scans = ["scan 1", "scan 2"]
    both = GlobalParameters.of(of.names, ["D0", "alpha", "D_offset"], scans).search(of)
    assert [law.places for law in both.laws] == [(0, 2, 4), (1, 3, 5), (6, 7, 8)]
    amplitude = GlobalParameters.of(of.names, ["D0"], scans).search(of)
    assert [law.places for law in amplitude.laws] == [
        (4, 5, 6)
    ]  # alpha would follow two rates at once
    assert amplitude.period[-1] == 180
    assert amplitude.lower[:2].tolist() == [of.lower[0]] * 2


def test_equal_rates_are_found_equal(tmp_path):
    one = repeats(tmp_path, (measured(2e4, 10 + k) for k in range(4)), **KNOWN)
    found = hd.fit_each(one, "power_law", over="scan", per_scan="D0")
    assert found.agreement["D0"].p > 0.01
